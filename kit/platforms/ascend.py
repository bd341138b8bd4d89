"""One Ascend NPU as torch-npu describes it, and the operators that torch-npu has.

Written from documents and never run on an NPU; see docs/ascend.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from importlib import import_module
from typing import Any

from kit.errors import UnsupportedError
from kit.platforms.memory import CardMemory
from kit.telemetry.environment import package_versions


class AscendPlatform:
    """A Platform: one NPU."""

    name = "npu"
    compute_capability = None
    # Always named to torch: left alone, it takes gloo for a device that it does not know.
    collective_backend = "hccl"

    def __init__(self, ordinal: int) -> None:
        """`ordinal` counts the NPUs that this process may see.

        Raises UnsupportedError when there is none of this number, or torch-npu does not load.
        """
        self.ordinal = ordinal
        count = int(self._npu.device_count())
        if ordinal >= count:
            raise UnsupportedError(
                f"stages[0].devices: there is no accelerator {ordinal}; this process sees {count} "
                "NPUs (ASCEND_RT_VISIBLE_DEVICES hides others). Name another, or set devices: cpu"
            )

    def memory(self) -> CardMemory:
        """As the driver says now."""
        free, total = self._npu.mem_get_info(self.ordinal)
        return CardMemory(int(total), int(free))

    def peak_memory_bytes(self) -> int:
        """Most bytes that tensors of this process took together."""
        return int(self._npu.max_memory_allocated(self.ordinal))

    def synchronize(self) -> None:
        """Wait for the NPU."""
        self._npu.synchronize(self.ordinal)

    @cached_property
    def _npu(self) -> Any:
        return import_torch_npu().npu


def find_operators(*names: str) -> tuple[str, tuple[Any, ...]]:
    """Return torch-npu's version and its operators of these names.

    Raises UnsupportedError if it cannot be imported, or lacks one.
    """
    module = import_torch_npu()
    version = f"torch-npu {module.__version__}"
    missing = [name for name in names if not hasattr(module, name)]
    if missing:
        raise UnsupportedError(
            f"{version} has no {' and no '.join(missing)}; install one from 2.10 on and the CANN "
            "that its table of versions names"
        )
    return version, tuple(getattr(module, name) for name in names)


def version_problem(versions: Mapping[str, str]) -> str | None:
    """Say which half does not fit, of the installed versions of torch and torch-npu; None: both do.

    Loaded together they would end in an undefined symbol, or in worse.
    """
    if "torch-npu" not in versions:  # import says so
        return None
    torch, torch_npu = (versions[name].split(".")[:2] for name in ("torch", "torch-npu"))
    if torch == torch_npu:
        return None
    return (
        f"torch-npu {versions['torch-npu']} is for torch {'.'.join(torch_npu)}, installed is torch "
        f"{versions['torch']}; install torch-npu {'.'.join(torch)}, or torch {'.'.join(torch_npu)}"
    )


def import_torch_npu() -> Any:
    """Return the module torch_npu, which also gives torch its devices called npu.

    By name and late: nothing else of the kit needs it. Raises UnsupportedError with the reason.
    """
    if (problem := version_problem(package_versions(("torch", "torch-npu")))) is not None:
        raise UnsupportedError(problem)
    try:
        return import_module("torch_npu")
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            f"torch-npu is not installed ({error}); install the version for this torch and CANN"
        ) from error
    except (ImportError, OSError, RuntimeError) as error:
        # It loads CANN's libraries: an older CANN, or none, ends here.
        raise UnsupportedError(
            f"torch-npu is installed and does not load ({error}); install the CANN that its table "
            "of versions names, and source its set_env.sh"
        ) from error
