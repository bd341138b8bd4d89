"""Merged settings, checked and turned into a DeployConfig."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from kit.config.deploy import DEFAULT_SOURCE, DeployConfig, leaf_fields, shown
from kit.config.foreign import AR_KV_REASON, FOREIGN_FIELDS, foreign_backend_reason
from kit.config.rules import check_rules, find_warnings
from kit.config.section import Setting, Settings
from kit.errors import ConfigError

# pydantic's error type to what is expected and how to write it; {} takes the error's context.
_EXPECTATIONS = {
    "int_type": ("must be an integer", "write an integer as JSON does, such as 7, without quotes"),
    "float_type": ("must be a number", "write a number as JSON does, such as 0.9, without quotes"),
    "finite_number": ("must be a finite number", "write a finite number"),
    "bool_type": ("must be true or false", "write true or false, without quotes"),
    "string_type": ("must be a text", "write it in quotes"),
    "string_unicode": ("must be a text", "write it in quotes"),
    "literal_error": ("has a value that is not known", "use {expected}"),
    "greater_than": ("is too small", "use a value above {gt}"),
    "greater_than_equal": ("is too small", "use a value of at least {ge}"),
    "less_than_equal": ("is too large", "use a value of at most {le}"),
    "tuple_type": ("must be a list", "write a list such as [rows, images]"),
    "string_pattern_mismatch": (
        "is neither cpu nor a list of accelerator ids",
        'write "cpu" or ids such as "0,1"',
    ),
}


def merge(layers: Iterable[Settings]) -> Settings:
    """Lay settings over one another, field by field; later layers win."""
    merged: Settings = {}
    for layer in layers:
        merged.update(layer)
    return merged


def resolve(settings: Settings) -> DeployConfig:
    """Check merged settings, fill in defaults and name the source of every value.

    Raises ConfigError for the first setting that is refused.
    """
    names = [name for name, _ in leaf_fields()]
    notes = _judge_foreign_fields({k: v for k, v in settings.items() if k not in names})
    own = {name: settings[name] for name in names if name in settings}
    _refuse_foreign_values(own)
    _derive_ulysses_degree(own)
    sources = {name: own[name].source if name in own else DEFAULT_SOURCE for name in names}
    try:
        config = DeployConfig.model_validate({**_nested(own), "provenance": sources})
    except ValidationError as error:
        raise _config_error(error.errors()[0], own) from error
    check_rules(config)
    return config.model_copy(update={"warnings": (*notes, *find_warnings(config))})


def _judge_foreign_fields(settings: Mapping[str, Setting]) -> list[str]:
    notes = []
    for dotted, setting in settings.items():
        field = FOREIGN_FIELDS[dotted.rpartition(".")[2]]
        if field.is_neutral(setting.value):
            continue
        if not field.is_harmless:
            raise ConfigError(
                shown(dotted),
                field.reason,
                value=setting.value,
                source=setting.source,
                remedy=field.remedy,
            )
        notes.append(
            f"{shown(dotted)}: {field.reason} (got {setting.value!r}, set by {setting.source})"
        )
    return notes


def _refuse_foreign_values(settings: Settings) -> None:
    mode = settings.get("stage.diffusion_kv_mode")
    if mode is not None and mode.value == "ar_diffusion_kv":
        raise ConfigError(
            shown("stage.diffusion_kv_mode"),
            AR_KV_REASON,
            value=mode.value,
            source=mode.source,
            remedy="use paged_scheduler or dense_legacy",
        )
    backend = settings.get("stage.diffusion_attention_backend")
    reason = None if backend is None else foreign_backend_reason(backend.value)
    if backend is not None and reason is not None:
        raise ConfigError(
            shown("stage.diffusion_attention_backend"),
            reason,
            value=backend.value,
            source=backend.source,
            remedy="select FLASH_ATTN, or TORCH_SDPA with dense_legacy",
        )


def _derive_ulysses_degree(settings: Settings) -> None:
    """A sequence size alone means strict Ulysses of that size."""
    prefix = "stage.parallel_config."
    size = settings.get(f"{prefix}sequence_parallel_size")
    degrees = [f"{prefix}{kind}_degree" for kind in ("ulysses", "ring", "allgather")]
    if size is not None and not any(degree in settings for degree in degrees):
        settings[degrees[0]] = Setting(size.value, f"sequence_parallel_size, set by {size.source}")


def _nested(settings: Settings) -> dict[str, object]:
    tree: dict[str, object] = {}
    for dotted, setting in settings.items():
        *parents, leaf = dotted.split(".")
        node = tree
        for parent in parents:
            child = node.setdefault(parent, {})
            assert isinstance(child, dict), "a group of the schema is no leaf"
            node = child
        node[leaf] = setting.value
    return tree


def _config_error(details: ErrorDetails, settings: Settings) -> ConfigError:
    # An entry of a list is named by its number, behind the field.
    dotted = ".".join(part for part in details["loc"] if isinstance(part, str))
    setting = settings[dotted]
    # Anything else, such as an integer beyond 64 bits, has a message of pydantic's own.
    unexpected = (f"cannot be used: {details['msg']}", "correct the value")
    reason, remedy = _EXPECTATIONS.get(details["type"], unexpected)
    return ConfigError(
        shown(dotted),
        reason,
        value=setting.value,
        source=setting.source,
        remedy=remedy.format(**details.get("ctx", {})),
    )
