"""Which legal settings this build cannot run."""

from __future__ import annotations

from typing import NoReturn

from kit.config.deploy import DeployConfig, shown, value_of
from kit.config.rules import OFFLOAD_FIELDS
from kit.errors import UnsupportedError

# Field, value that cannot run, reason, what to set.
_NOT_IMPLEMENTED: tuple[tuple[str, object, str, str], ...] = (
    (
        "enable_distributed_layerwise_offload",
        True,
        "layers wait in the host memory of one rank only",
        "set enable_layerwise_offload in its place",
    ),
)


def check_runnable(config: DeployConfig) -> None:
    """Raise UnsupportedError for the first legal setting that this build does not implement."""
    parallel = config.stage.parallel_config
    if parallel.group_size > 1 and config.stage.enable_layerwise_offload:
        reason = "layers stream through the card of one rank only"
        _refuse(config, "enable_layerwise_offload", reason, "set it to false")
    if config.stage.devices == "cpu":
        for name in OFFLOAD_FIELDS:
            if getattr(config.stage, name):
                reason = "the weights of a CPU are in host memory anyway"
                _refuse(config, name, reason, "set it to false")
    for name, value, reason, remedy in _NOT_IMPLEMENTED:
        if getattr(config.stage, name) == value:
            _refuse(config, name, f"not implemented yet: {reason}", remedy)


def _refuse(config: DeployConfig, name: str, reason: str, remedy: str) -> NoReturn:
    dotted = f"stage.{name}"
    raise UnsupportedError(
        f"{shown(dotted)}: {reason} (got {value_of(config, dotted)!r}, set by "
        f"{config.provenance[dotted]}); {remedy}"
    )
