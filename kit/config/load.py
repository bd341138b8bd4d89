"""All layers of a deployment, found, read and laid over one another."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kit.config.deploy import BASE_SOURCE, PIPELINE, DeployConfig
from kit.config.foreign import PLATFORM_NAMES
from kit.config.paths import packaged_file, packaged_names
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
from kit.config.yaml_file import read_yaml
from kit.errors import ConfigError

_OVERRIDES_SOURCE = "--stage-overrides"


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
        for document in _documents(deploy_config, model_overlay)
        for layer in read_file(document.content, document.source, platform)
    ]
    layers.append(_read_overrides(stage_overrides))
    layers.append(_read_flags(flags or {}))
    return resolve(merge(layers))


@dataclass(frozen=True)
class _Document:
    """One deploy file."""

    path: Path
    source: str
    content: Mapping[str, object]


def _documents(deploy_config: str | Path | None, model_overlay: str | None) -> list[_Document]:
    base_path = packaged_file("deploy", PIPELINE)
    assert base_path is not None, "the kit ships the base of its pipeline"
    documents = [_read_document(base_path, BASE_SOURCE)]
    if model_overlay is not None:
        path = packaged_file("model", model_overlay)
        if path is None:
            raise ConfigError(
                "model_overlay",
                "is no packaged model overlay",
                value=model_overlay,
                remedy=f"use one of {', '.join(packaged_names('model'))}",
            )
        documents.append(_read_document(path, f"model overlay {path.name}"))
    if deploy_config is not None:
        chain = _chain(*_find(str(deploy_config), Path(), "--deploy-config"))
        # The base lies at the bottom already; once more, it would hide the model overlay.
        documents += [document for document in chain if not document.path.samefile(base_path)]
    return documents


def _chain(path: Path, source: str) -> list[_Document]:
    """Read a file and the files of its base_config; the lowest comes first."""
    chain: list[_Document] = []
    while True:
        document = _read_document(path, source)
        name = document.content.get("base_config")
        if any(path.samefile(other.path) for other in chain):
            raise ConfigError(
                "base_config",
                "leads back to a file that stands on it",
                value=chain[0].content.get("base_config"),
                source=" -> ".join(other.source for other in [*chain[::-1], document]),
                remedy=f"end the chain, or name the packaged file as {PIPELINE}",
            )
        chain.insert(0, document)
        if name is None:
            return chain
        if not isinstance(name, str):
            raise ConfigError(
                "base_config",
                "must be the path or the bare name of one file",
                value=name,
                source=source,
                remedy=f"write a text such as {PIPELINE}",
            )
        path, source = _find(name, path.parent, source)


def _read_document(path: Path, source: str) -> _Document:
    content = read_yaml(path, source)
    pipeline = content.get("pipeline")
    # Before its other fields are looked at: a file of another pipeline is wrong in one way only.
    if pipeline not in (None, PIPELINE):
        raise ConfigError(
            "pipeline",
            "this kit runs one pipeline",
            value=pipeline,
            source=source,
            remedy=f"set pipeline: {PIPELINE}",
        )
    return _Document(path, source, content)


def _find(name: str, folder: Path, asked_by: str) -> tuple[Path, str]:
    """Find a deploy file by path or packaged name; returns it and how messages call it."""
    field = "deploy_config" if asked_by == "--deploy-config" else "base_config"
    path = folder / name
    if path.is_file():
        return path, str(path)
    packaged = packaged_file("deploy", name)
    if packaged is not None:
        is_base = packaged.stem == PIPELINE
        return packaged, BASE_SOURCE if is_base else f"packaged {packaged.name}"
    same_name = packaged_file("deploy", Path(name).name)
    if same_name is not None:
        remedy = f"a file of this name is packaged: write {same_name.stem}"
    else:
        names = ", ".join(packaged_names("deploy"))
        remedy = f"give the path of a deploy file, or a packaged name: {names}"
    raise ConfigError(field, "there is no such file", value=name, source=asked_by, remedy=remedy)


def _read_overrides(overrides: str | Mapping[str, object] | None) -> Settings:
    if overrides is None:
        return {}
    if isinstance(overrides, str):
        overrides = _parse_json(overrides)
    settings: Settings = {}
    stages = as_mapping(overrides, _OVERRIDES_SOURCE, _OVERRIDES_SOURCE)
    for key, stage in stages.items():
        check_stage_id(int(key) if key == "0" else key, "stage id", _OVERRIDES_SOURCE)
        content = as_mapping(stage, f"stages[{key}]", _OVERRIDES_SOURCE)
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
    except (json.JSONDecodeError, RecursionError) as error:
        raise ConfigError(
            _OVERRIDES_SOURCE,
            f"is no valid JSON: {error}",
            value=text,
            source=_OVERRIDES_SOURCE,
            remedy="""write it as '{"0": {"max_num_seqs": 1}}', in single quotes in a shell""",
        ) from error
    return as_mapping(content, _OVERRIDES_SOURCE, _OVERRIDES_SOURCE)


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
