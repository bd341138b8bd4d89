"""The deploy files that a deployment stands on, found and read."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from os.path import isfile
from pathlib import Path

from kit.config.deploy import BASE_SOURCE, PIPELINE
from kit.config.paths import packaged_file, packaged_names
from kit.config.yaml_file import read_yaml
from kit.errors import ConfigError


@dataclass(frozen=True)
class Document:
    """One deploy file."""

    path: Path
    source: str
    content: Mapping[str, object]


def read_documents(deploy_config: str | Path | None, model_overlay: str | None) -> list[Document]:
    """Read every file that a deployment stands on; the lowest comes first.

    Raises ConfigError: a file that is absent, damaged, part of a cycle or of another pipeline.
    """
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
        chain = _chain(*_find(str(deploy_config), Path(), "deploy_config", "--deploy-config"))
        # The base lies at the bottom already; once more, it would hide the model overlay.
        documents += [document for document in chain if not document.path.samefile(base_path)]
    return documents


def _chain(path: Path, source: str) -> list[Document]:
    """Read a file and the files of its base_config; the lowest comes first."""
    chain: list[Document] = []
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
        path, source = _find(name, path.parent, "base_config", source)


def _read_document(path: Path, source: str) -> Document:
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
    return Document(path, source, content)


def _find(name: str, folder: Path, field: str, asked_by: str) -> tuple[Path, str]:
    """Find a deploy file by path or packaged name; returns it and how messages call it."""
    path = folder / name
    if isfile(path):  # Path.is_file() raises for a name that no file can have
        return path, str(path)
    packaged = packaged_file("deploy", name)
    if packaged is not None:
        is_base = packaged.stem == PIPELINE
        return packaged, BASE_SOURCE if is_base else f"packaged {packaged.name}"
    same_name = packaged_file("deploy", Path(name).name)
    if same_name is not None:
        remedy = f"a file of this name is packaged: write {same_name.stem}"
    else:
        names = packaged_names("deploy")
        remedy = f"give the path of a deploy file, or a packaged name: {', '.join(names)}"
        near = difflib.get_close_matches(Path(name).name.removesuffix(".yaml"), names, n=1)
        if near:
            remedy = f"did you mean {near[0]}? {remedy}"
    raise ConfigError(field, "there is no such file", value=name, source=asked_by, remedy=remedy)
