"""Whether torch-npu's operators compute a part of the model rightly, found out when a start runs.

What they do not compute, or compute wrongly, runs in plain torch; nothing else depends on them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from torch import Tensor

from kit.errors import UnsupportedError
from kit.platforms.ascend import find_operators
from kit.telemetry.log import get_logger

PART_LIMIT = 1e-2
"""Relative error of a part in bfloat16; 0.003 is usual, every fault that we planted is above."""

Part = TypeVar("Part")

logger = get_logger("ascend")


@dataclass(frozen=True)
class Trial(Generic[Part]):
    """What came out for one part of the model."""

    name: str
    part: Part | None
    """What runs on the operators; None: plain torch runs."""

    relative_error: float | None
    """From plain torch in float32; None if nothing came out."""

    problem: str | None
    """Why `part` is None."""


def try_part(
    name: str,
    operators: tuple[str, ...],
    build: Callable[..., Part],
    measure: Callable[[Part], float],
) -> Trial[Part]:
    """Build a part on torch-npu's operators of these names and measure its relative error."""
    try:
        _, found = find_operators(*operators)
        part = build(*found)
        error = measure(part)
    except UnsupportedError as missing:
        return Trial(name, None, None, str(missing))
    except (RuntimeError, TypeError) as refusal:  # the device's own, or another signature
        return Trial(name, None, None, f"refused ({refusal})")
    if not error <= PART_LIMIT:  # NaN as well
        problem = f"off by {error:.2g} of its norm, the limit is {PART_LIMIT:g}"
        return Trial(name, None, error, problem)
    return Trial(name, part, error, None)


def log_trial(trial: Trial[Any]) -> None:
    """Say what runs: operators or, as a warning, plain torch."""
    if trial.problem is None:
        logger.info("%s runs on torch-npu's operators", trial.name)
    else:
        logger.warning("%s runs in plain torch: %s", trial.name, trial.problem)


def relative_error(seen: Tensor, wanted: Tensor) -> float:
    """Return ||seen - wanted|| / ||wanted||."""
    return float((seen.float() - wanted.float()).norm() / wanted.float().norm())
