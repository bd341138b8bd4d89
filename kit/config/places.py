"""Which names may stand where in a deploy file."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field

from kit.config.deploy import leaf_fields
from kit.config.foreign import FOREIGN_FIELDS, PLATFORM_NAMES, foreign_names
from kit.errors import ConfigError


@dataclass(frozen=True)
class Place:
    """A mapping of the deploy format: the names that may stand in it."""

    title: str
    """How messages call it; empty for the top level of a file."""

    own: Mapping[str, str]
    """Name to dotted field; empty for a name that sets nothing by itself."""

    foreign: frozenset[str] = frozenset()
    prefix: str = "stage."
    """What the dotted field of a foreign name begins with."""

    groups: Mapping[str, Place] = field(default_factory=dict)
    """Mappings, or lists of mappings, that stand in it."""

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.own) | self.foreign | frozenset(self.groups)

    def field(self, name: object) -> str:
        """Return a field's name as an operator finds it in a file."""
        text = str(name)
        shown = text if text and text.isprintable() else repr(text)
        return f"{self.title}.{shown}" if self.title else shown


def _children(prefix: str) -> dict[str, str]:
    dotted = (name for name, _ in leaf_fields() if name.startswith(prefix))
    return {
        name.removeprefix(prefix): name for name in dotted if "." not in name.removeprefix(prefix)
    }


_STAGE_FIELDS = _children("stage.")
_PARALLEL_FIELDS = _children("stage.parallel_config.")
# vLLM-Omni writes these for all stages at once; this pipeline has one.
_PIPELINE_WIDE = {
    "distributed_executor_backend": "stage.distributed_executor_backend",
    "enable_prefix_caching": "stage.enable_prefix_caching",
    "data_parallel_size": "stage.parallel_config.data_parallel_size",
    "pipeline_parallel_size": "stage.parallel_config.pipeline_parallel_size",
}

PARALLEL = Place(
    "stages[0].parallel_config",
    _PARALLEL_FIELDS,
    foreign_names("parallel"),
    "stage.parallel_config.",
)
SAMPLING = Place(
    "stages[0].default_sampling_params",
    _children("stage.default_sampling_params."),
    foreign_names("sampling"),
    "stage.default_sampling_params.",
)
ENGINE_EXTRAS = Place(
    "stages[0].engine_extras",
    {name: dotted for name, dotted in _STAGE_FIELDS.items() if name.startswith("diffusion_kv_")},
    foreign_names("stage"),
)
STAGE = Place(
    "stages[0]",
    # Parallel sizes may stand flat in the stage, as in vLLM-Omni.
    {**_STAGE_FIELDS, **_PARALLEL_FIELDS},
    foreign_names("stage"),
    groups={
        "parallel_config": PARALLEL,
        "default_sampling_params": SAMPLING,
        "engine_extras": ENGINE_EXTRAS,
    },
)
PLATFORM = Place(
    "",
    {"dtype": "dtype", **_PIPELINE_WIDE},
    foreign_names("top"),
    "",
    groups={"stages": STAGE},
)
TOP = Place(
    "",
    {**PLATFORM.own, "pipeline": "pipeline", "base_config": "", "platforms": ""},
    PLATFORM.foreign,
    "",
    groups=PLATFORM.groups,
)
PLATFORMS = Place("platforms", dict.fromkeys(PLATFORM_NAMES, ""))
FLAGS = Place("", {**STAGE.own, "dtype": "dtype"})


def check_names(content: Mapping[str, object], place: Place, source: str) -> None:
    """Raise ConfigError for a name, here or in a group, that is unknown or belongs elsewhere."""
    for name, value in content.items():
        if name not in place.names:
            raise _name_error(name, value, place, source)
        if name in place.groups:
            for entry in value if isinstance(value, list) else [value]:
                if isinstance(entry, Mapping):
                    check_names(entry, place.groups[name], source)


def _name_error(name: object, value: object, place: Place, source: str) -> ConfigError:
    homes = [home for home in (PARALLEL, SAMPLING, STAGE, TOP) if name in home.names]
    if homes and place is not FLAGS and name in homes[0].foreign:
        # Moved there, it would be refused anew: nothing in this kit acts upon it.
        foreign = FOREIGN_FIELDS[str(name)]
        reason, remedy = foreign.reason, foreign.remedy
    elif homes and place is not FLAGS:
        reason = "known field in the wrong place"
        remedy = f"write it as {homes[0].field(name)}" + (
            "" if homes[0].title else " at the top level of the file"
        )
    else:
        nearest = difflib.get_close_matches(str(name), sorted(place.names), n=1, cutoff=0.0)[0]
        reason = "unknown field"
        remedy = f"correct or remove it; the nearest known field is {nearest}"
    return ConfigError(place.field(name), reason, value=value, source=source, remedy=remedy)
