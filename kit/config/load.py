"""All layers of a deployment, read and laid over one another."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from kit.config.deploy import DeployConfig
from kit.config.documents import read_documents
from kit.config.foreign import PLATFORM_NAMES
from kit.config.places import FLAGS, STAGE, check_names
from kit.config.resolve import merge, resolve
from kit.config.section import (
    Setting,
    Settings,
    as_mapping,
    check_stage_id,
    read_file,
    read_mapping,
)
from kit.errors import ConfigError

_OVERRIDES_SOURCE = "--stage-overrides"
_OVERRIDES_FORM = """write it as '{"0": {"max_num_seqs": 1}}', in single quotes in a shell"""


def load_config(
    deploy_config: str | Path | None = None,
    *,
    stage_overrides: str | Mapping[str, object] | None = None,
    flags: Mapping[str, object] | None = None,
    model_overlay: str | None = None,
    platform: str = "cpu",
) -> DeployConfig:
    """Resolve a deployment and remember who set each value.

    From weak to strong: the packaged base of the pipeline, the packaged model overlay, the deploy
    file over the files of its `base_config`, `stage_overrides`, `flags`. In each file the section
    of `platform` lies over the rest. A null sets nothing.

    deploy_config: path of a file, or the bare name of a packaged one.
    stage_overrides: JSON text or a mapping, stage id to settings.
    flags: field name to value; None is not set.
    model_overlay: bare name of a packaged file of `configs/model`.
    platform: which `platforms` section applies.

    Raises ConfigError for the first thing that is refused.
    """
    if platform not in PLATFORM_NAMES:
        raise ConfigError(
            "platform",
            "has no section in the deploy format",
            value=platform,
            remedy=f"use one of {', '.join(PLATFORM_NAMES)}",
        )
    layers = [
        layer
        for document in read_documents(deploy_config, model_overlay)
        for layer in read_file(document.content, document.source, platform)
    ]
    layers.append(_read_overrides(stage_overrides))
    layers.append(_read_flags(flags or {}))
    return resolve(merge(layers))


def _read_overrides(overrides: str | Mapping[str, object] | None) -> Settings:
    if overrides is None:
        return {}
    if isinstance(overrides, str):
        overrides = _parse_json(overrides)
    settings: Settings = {}
    stages = as_mapping(overrides, _OVERRIDES_SOURCE, _OVERRIDES_SOURCE)
    for key, stage in stages.items():
        if str(key).isdecimal():
            check_stage_id(int(key) if key == "0" else key, "stage id", _OVERRIDES_SOURCE)
        else:  # a setting, most likely
            remedy = f"settings stand below the stage's id: {_OVERRIDES_FORM}"
            check_stage_id(key, "stage id", _OVERRIDES_SOURCE, remedy)
        content = as_mapping(stage, f"stages[{key}]", _OVERRIDES_SOURCE, _OVERRIDES_FORM)
        settings |= read_mapping(content, STAGE, _OVERRIDES_SOURCE)
    return settings


def _read_flags(flags: Mapping[str, object]) -> Settings:
    check_names(flags, FLAGS, "flags")
    return {
        FLAGS.own[name]: Setting(value, f"--{name.replace('_', '-')}")
        for name, value in flags.items()
        if value is not None
    }


def _parse_json(text: str) -> Mapping[str, object]:
    try:
        content = json.loads(text, object_pairs_hook=_unique_keys)
    # ValueError: no JSON, or an integer of more digits than Python reads.
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            _OVERRIDES_SOURCE,
            f"is no valid JSON: {error}",
            value=text,
            source=_OVERRIDES_SOURCE,
            remedy=_OVERRIDES_FORM,
        ) from error
    return as_mapping(content, _OVERRIDES_SOURCE, _OVERRIDES_SOURCE, _OVERRIDES_FORM)


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        names = [name for name, _ in pairs]
        name = next(name for name in names if names.count(name) > 1)
        raise ConfigError(
            name,
            "stands twice in one JSON object",
            value=[value for key, value in pairs if key == name],
            source=_OVERRIDES_SOURCE,
            remedy="keep one of them",
        )
    return unique
