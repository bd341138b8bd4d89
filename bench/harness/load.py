"""A load: which pictures are asked for, and when. One YAML file, read strictly."""

from __future__ import annotations

import difflib
import hashlib
import json
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass

from kit.config.yaml_file import read_yaml
from kit.errors import ConfigError
from kit.telemetry.strict import STRICT

LOADS = Path(__file__).parents[1] / "loads"
"""The loads that ship."""

_TITLE = "load file"
_UNKNOWN = "unexpected_keyword_argument"

Size = Annotated[str, Field(pattern=r"^[1-9]\d{0,4}x[1-9]\d{0,4}$")]
Positive = Annotated[float, Field(gt=0)]
Concurrency = Annotated[int, Field(ge=1, le=1024)]


@dataclass(frozen=True, config=STRICT)
class Closed:
    """So many clients, each of which asks again as soon as it has its answer."""

    kind: Literal["closed"]
    concurrency: Concurrency


@dataclass(frozen=True, config=STRICT)
class Poisson:
    """Requests come at random, whether earlier ones are answered or not."""

    kind: Literal["poisson"]
    rate_per_s: Positive
    seed: Annotated[int, Field(ge=0, lt=2**32)]
    concurrency: Concurrency = 256
    """Most requests on their way at once; one that must wait for that is late by its own clock."""


@dataclass(frozen=True, config=STRICT)
class Trace:
    """Requests come at given moments."""

    kind: Literal["trace"]
    offsets_s: Annotated[tuple[Annotated[float, Field(ge=0)], ...], Field(min_length=1)]
    """Seconds from the start, in order."""

    concurrency: Concurrency = 256
    """As of Poisson."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if list(self.offsets_s) != sorted(self.offsets_s):
            raise ValueError("offsets_s: must not decrease")
        return self


@dataclass(frozen=True, config=STRICT)
class Load:
    """Request i asks for prompt, size, steps and guidance in turn and has the seed first_seed + i;
    all sizes, steps and guidances come before the next prompt.
    """

    about: Annotated[str, Field(min_length=1, max_length=120)]
    """One line that says what it is for."""

    prompts: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)]
    """In the file: a list of texts, or the name of a text file next to it, one prompt a line."""

    sizes: Annotated[tuple[Size, ...], Field(min_length=1)]
    """WIDTHxHEIGHT in pixels."""

    steps: Annotated[tuple[Annotated[int, Field(ge=1, le=1000)], ...], Field(min_length=1)]
    guidance: Annotated[tuple[Annotated[float, Field(ge=0, le=100)], ...], Field(min_length=1)]
    arrivals: Annotated[Closed | Poisson | Trace, Field(discriminator="kind")]
    first_seed: Annotated[int, Field(ge=0, lt=2**53)] = 0
    n: Annotated[int, Field(ge=1, le=10)] = 1
    """Pictures of one request."""

    warmup: Annotated[int, Field(ge=0)] = 1
    """Requests of each size, steps and guidance before the clock starts."""

    requests: Annotated[int, Field(ge=1)] | None = None
    """How many; None where `duration_s` or a trace decides."""

    duration_s: Positive | None = None
    """No request starts later than this."""

    timeout_s: Positive = 600.0
    """After this long without an answer a request has failed."""

    slo_latency_s: Positive | None = None
    """A request that took longer, counted from its schedule, is no good one; None sets no limit."""

    @model_validator(mode="after")
    def _ends(self) -> Self:
        given = [name for name in ("requests", "duration_s") if getattr(self, name) is not None]
        if isinstance(self.arrivals, Trace):
            if given:
                raise ValueError(f"{given[0]}: a trace ends with its last offset; leave this out")
        elif len(given) != 1:
            raise ValueError("requests: give either requests or duration_s, and not both")
        return self

    @property
    def prompts_sha256(self) -> str:
        """Of the prompts, one a line."""
        return hashlib.sha256("\n".join(self.prompts).encode()).hexdigest()

    def as_json(self) -> dict[str, Any]:
        """Return the load as `load_from_json` reads it."""
        content: dict[str, Any] = _ADAPTER.dump_python(self, mode="json")
        return content


def find_load(name: str) -> Path | None:
    """Return the file of a load: a path to a YAML file, or the bare name of one of the bench's."""
    if name.endswith((".yaml", ".yml")):
        return Path(name)
    return LOADS / f"{name}.yaml" if name in load_names() else None


def load_names() -> tuple[str, ...]:
    """Return the bare names of the bench's loads, in order."""
    return tuple(sorted(path.stem for path in LOADS.glob("*.yaml")))


def read_load(path: Path) -> Load:
    """Read a load; raises ConfigError that names the field, what was got and what to change."""
    content = read_yaml(path, path.name, _TITLE)
    if isinstance(content.get("prompts"), str):
        content["prompts"] = _prompts_of(path.parent / str(content["prompts"]), path.name)
    return load_from_json(content, path.name)


def load_from_json(content: object, source: str) -> Load:
    """Check a load's fields; `source` is how errors name where they stand."""
    try:
        # As JSON: there a list is a tuple, and nothing else is converted.
        return _ADAPTER.validate_json(json.dumps(content))
    except (TypeError, ValueError) as error:
        if not isinstance(error, ValidationError):  # a date, for example
            raise ConfigError(_TITLE, f"holds a value of no use: {error}", source=source) from error
        # A misspelt field is missing as well: what is unknown says more than what is not there.
        first = min(
            error.errors(),
            key=lambda problem: problem["type"] != _UNKNOWN or len(problem["loc"]) > 1,
        )
        names = [str(part) for part in first["loc"] if part not in ("closed", "poisson", "trace")]
        field, reason = ".".join(names), first["msg"].removeprefix("Value error, ")
        if first["type"] == "value_error":
            name, _, reason = reason.partition(": ")
            field = ".".join((*names, name))
        value = first["input"] if first["type"] != "missing" else None
        raise ConfigError(
            field or _TITLE,
            reason,
            value=value if not isinstance(value, dict) else None,
            source=source,
            remedy=_remedy(first["type"], field),
        ) from error


def _remedy(kind: str, field: str) -> str:
    if kind == _UNKNOWN:
        names = [field.name for field in fields(Load)]
        near = difflib.get_close_matches(field, names, n=1)
        guess = f"did you mean {near[0]}? " if near else ""
        return f"{guess}fields of a load are {', '.join(names)}"
    if kind == "string_pattern_mismatch":
        return "write WIDTHxHEIGHT, for example 256x256"
    if kind in ("missing", "missing_argument", "missing_keyword_only_argument"):
        return "add it"
    return "see docs/benchmarking.md for the fields of a load"


def _prompts_of(path: Path, source: str) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "prompts",
            "no such text file next to the load file",
            value=path.name,
            source=source,
            remedy="name a UTF-8 file with one prompt a line, or write a list of texts",
        ) from error
    return [line.strip() for line in lines if line.strip()]


_ADAPTER = TypeAdapter(Load)
