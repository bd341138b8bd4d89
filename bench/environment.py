"""What a record says of where it was made: the machine, its software, the commit."""

from __future__ import annotations

from pathlib import Path

from pydantic.dataclasses import dataclass

from kit.telemetry.accelerators import command_output
from kit.telemetry.environment import SystemEnvironment, capture_environment
from kit.telemetry.strict import STRICT

# What decides results; reports and records written by a run do not make the code dirty.
_CODE_PATHS = ("kit", "bench", "configs", "pyproject.toml", ":(exclude)bench/results")
_TRACKED_FILE = "bench/__init__.py"


@dataclass(frozen=True, config=STRICT)
class GitState:
    """The commit that the code comes from."""

    commit: str
    dirty: bool
    """Whether code or shipped configuration differs from the commit."""


@dataclass(frozen=True, config=STRICT)
class Environment:
    """Everything that may explain a number, beside configuration and command."""

    system: SystemEnvironment
    git: GitState | None
    """None without git or outside a checkout, e.g. for an installed wheel."""


def capture() -> Environment:
    """Look around; nothing raises, what cannot be found out is None or absent."""
    root = Path(__file__).resolve().parent.parent
    return Environment(system=capture_environment(), git=git_state(root))


def git_state(root: Path) -> GitState | None:
    """Return the commit of the checkout at `root`, or None if it is none of this project."""
    # An installed copy may lie inside some other checkout: ours tracks this very file.
    if (
        command_output(["git", "-C", str(root), "ls-files", "--error-unmatch", _TRACKED_FILE])
        is None
    ):
        return None
    commit = command_output(["git", "-C", str(root), "rev-parse", "HEAD"])
    changes = command_output(["git", "-C", str(root), "status", "--porcelain", "--", *_CODE_PATHS])
    if commit is None or changes is None:
        return None
    return GitState(commit=commit.strip(), dirty=bool(changes.strip()))
