"""What a workload is, and how one is found by its name.

A workload is a module in `bench/workloads/`: the file's name is the workload's, the first line of
its docstring says what it shows, and its `run(context)` returns a record. A workload of several
`PARTS`, a tuple of names, yields a record for each of those in `context.only`, or for all that go.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec

from pydantic import JsonValue

from bench.environment import Environment
from bench.records import (
    SCHEMA_VERSION,
    ConfigValue,
    EqualityCheck,
    Failure,
    Measurement,
    Record,
    summarise,
)
from kit.errors import ConfigError, flag_error

WORKLOADS = "bench.workloads"


@dataclass(frozen=True)
class Context:
    """What a workload is told about its run; it makes the record from its findings."""

    name: str
    command: tuple[str, ...]
    environment: Environment
    repeats: int
    """Rows to measure on each side."""

    only: tuple[str, ...] = ()
    """Parts of the workload to run; empty: all that this machine can."""

    def of(self, part: str) -> Context:
        """Return the context of one part: its record has a name and a command of its own."""
        command = self.command
        if self.only != (part,):
            command = (*_without_parts(command), "--only", part)
        return replace(self, name=f"{self.name}_{part_name(part)}", command=command, only=(part,))

    def record(
        self,
        *,
        parameters: Mapping[str, JsonValue],
        equality: EqualityCheck,
        baseline: Measurement,
        candidate: Measurement,
        ratios: Mapping[str, tuple[str, str]],
        paired: bool = False,
        noise: Measurement | None = None,
        config: Mapping[str, ConfigValue] | None = None,
        findings: Mapping[str, float] | None = None,
    ) -> Record:
        """Make a record: ok when both sides were equal, else failed and without a summary.

        `ratios` names the summary's (numerator, denominator) columns, see `bench.records.Ratio`;
        `paired` and `noise` are as in `bench.records.summarise`.
        """
        error = None
        if not equality.equal:
            error = Failure(
                "NotEqual", f"{equality.compared}: {equality.seen}, limit {equality.limit}"
            )
        return Record(
            schema_version=SCHEMA_VERSION,
            name=self.name,
            status="failed" if error else "ok",
            environment=self.environment,
            command=self.command,
            config=config or {},
            parameters=parameters,
            baseline=baseline,
            candidate=candidate,
            equality=equality,
            noise=noise,
            summary={}
            if error
            else summarise(baseline, candidate, ratios, paired=paired, noise=noise),
            findings=findings or {},
            error=error,
        )

    def without_result(self, error: Failure, *, refused: bool) -> Record:
        """Make the record of a run that broke, or that this deployment refuses."""
        return Record(
            schema_version=SCHEMA_VERSION,
            name=self.name,
            status="refused" if refused else "failed",
            environment=self.environment,
            command=self.command,
            config={},
            parameters={"repeats": self.repeats},
            error=error,
        )


Workload = Callable[[Context], Record | Iterator[Record]]


@dataclass(frozen=True)
class Registry:
    """The workloads of one package of modules."""

    package: str = WORKLOADS

    def names(self) -> tuple[str, ...]:
        """Return the names in order; imports no workload."""
        path = importlib.import_module(self.package).__path__
        return tuple(sorted(module.name for module in pkgutil.iter_modules(path)))

    def describe(self, name: str) -> str:
        """Return the first line of a workload's docstring without importing what it needs."""
        spec = find_spec(f"{self.package}.{name}")
        assert spec is not None, "described names come from names()"
        assert spec.origin is not None, "a workload is a file"
        with open(spec.origin, encoding="utf-8") as file:
            docstring = ast.get_docstring(ast.parse(file.read()))
        return docstring.splitlines()[0] if docstring else ""

    def check_name(self, name: str, loads: Sequence[str]) -> None:
        """Raise ConfigError for a name that is neither a workload's nor one of `loads`."""
        names = (*self.names(), *loads)
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            remedy = f"did you mean {near[0]}?" if near else f"known are {', '.join(names)}"
            raise ConfigError("name", "there is none of this name", value=name, remedy=remedy)

    def check_parts(self, name: str, asked: Sequence[str]) -> None:
        """Raise ConfigError for a part that a workload of a known name does not have."""
        parts = getattr(importlib.import_module(f"{self.package}.{name}"), "PARTS", ())
        for part in asked:
            if part not in parts:
                remedy = f"known are {', '.join(parts)}" if parts else "it has none: leave it out"
                raise flag_error("--only", f"{name} has no such part", part, remedy)

    def load(self, name: str) -> Workload:
        """Import a workload of a known name."""
        workload: Workload = importlib.import_module(f"{self.package}.{name}").run
        return workload


def part_name(part: str) -> str:
    """Return a part as it stands in names: of TP2+SP2, tp2_sp2."""
    return re.sub(r"\W+", "_", part).lower()


def _without_parts(command: Sequence[str]) -> list[str]:
    """Return a command line without `--only PART`."""
    kept: list[str] = []
    words = iter(command)
    for word in words:
        if word == "--only":
            next(words)
        else:
            kept.append(word)
    return kept
