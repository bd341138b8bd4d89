"""One section of a deploy file, turned into settings with one name per field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kit.config.places import PLATFORM, PLATFORMS, TOP, Place, check_names
from kit.errors import ConfigError


@dataclass(frozen=True)
class Setting:
    """One value and the one who set it."""

    value: object
    source: str


Settings = dict[str, Setting]
"""Dotted field to its setting. Known foreign fields stand among them, under the same scheme."""


def read_file(content: Mapping[str, object], source: str, platform: str) -> list[Settings]:
    """Return what a file sets, then what its section for `platform` sets over that.

    Sections for other platforms are read for their names only. Raises ConfigError as read_mapping.
    """
    layers = [read_mapping(content, TOP, source)]
    if content.get("platforms") is None:
        return layers
    platforms = as_mapping(content["platforms"], "platforms", source)
    check_names(platforms, PLATFORMS, source)
    for name, section in platforms.items():
        label = f"{source} (platforms.{name})"
        mapping = {} if section is None else as_mapping(section, f"platforms.{name}", source)
        if name == platform:
            layers.append(read_mapping(mapping, PLATFORM, label))
        else:
            check_names(mapping, PLATFORM, label)
    return layers


def read_mapping(content: Mapping[str, object], place: Place, source: str) -> Settings:
    """Return what one mapping sets; null sets nothing.

    Raises ConfigError: a name that is unknown or belongs elsewhere, a group of the wrong type, a
    stage that this pipeline does not have, a field set in two spellings with different values.
    """
    # Stages first: the names of a stage that this pipeline lacks are none of ours.
    if "stages" in place.groups and content.get("stages") is not None:
        _check_stages(content["stages"], source)
    check_names(content, place, source)
    reader = _Reader(source)
    reader.read(content, place)
    return reader.settings


def check_stage_id(
    value: object,
    title: str,
    source: str,
    remedy: str = "set the stage id to 0; other stages are not implemented",
) -> None:
    """Raise ConfigError unless the value is the stage id 0."""
    # False == 0 in Python.
    if type(value) is not int or value != 0:
        raise ConfigError(
            title,
            "this pipeline has one stage, with id 0",
            value=value,
            source=source,
            remedy=remedy,
        )


def as_mapping(
    value: object,
    title: str,
    source: str,
    remedy: str = "write one `name: value` per line below it",
) -> Mapping[str, object]:
    """Return the value if it is a mapping; raises ConfigError otherwise."""
    if not isinstance(value, Mapping):
        raise ConfigError(
            title,
            "must be a mapping of names to values",
            value=value,
            source=source,
            remedy=remedy,
        )
    return value


class _Reader:
    """The settings of one section while it is read."""

    def __init__(self, source: str) -> None:
        self.settings: Settings = {}
        self._source = source
        self._spellings: dict[str, str] = {}

    def read(self, content: Mapping[str, object], place: Place) -> None:
        for name, value in content.items():
            if value is None:
                continue
            if name in place.groups:
                group = place.groups[name]
                entries = value if name == "stages" and isinstance(value, list) else [value]
                for entry in entries:
                    self.read(as_mapping(entry, group.title, self._source), group)
            else:
                if name == "stage_id":
                    check_stage_id(value, place.field(name), self._source)
                dotted = place.own.get(name, f"{place.prefix}{name}")
                if dotted:
                    self._put(dotted, value, place.field(name))

    def _put(self, dotted: str, value: object, spelling: str) -> None:
        known = self.settings.get(dotted)
        if known is not None and (type(known.value), known.value) != (type(value), value):
            raise ConfigError(
                spelling,
                f"contradicts {self._spellings[dotted]}, which is {known.value!r}",
                value=value,
                source=self._source,
                remedy="both spellings mean the same field; keep one of them",
            )
        self.settings[dotted] = Setting(value, self._source)
        self._spellings[dotted] = spelling


def _check_stages(stages: object, source: str) -> None:
    if not isinstance(stages, list):
        raise ConfigError(
            "stages",
            "must be a list of stages",
            value=stages,
            source=source,
            remedy="write `stages:` with `- stage_id: 0` below it",
        )
    for index, stage in enumerate(stages):
        mapping = as_mapping(stage, f"stages[{index}]", source)
        title = f"stages[{index}].stage_id"
        check_stage_id(mapping.get("stage_id"), title, source)
        if index:
            raise ConfigError(
                title,
                "stage 0 stands twice in one list",
                value=mapping["stage_id"],
                source=source,
                remedy="write all settings of stage 0 in one entry",
            )
