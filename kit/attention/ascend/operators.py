"""The operators of torch-npu, found by name when a backend starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from kit.errors import UnsupportedError
from kit.platforms.ascend import import_torch_npu

_ATTEND = "npu_fused_infer_attention_score"
_WRITE = "npu_scatter_pa_kv_cache"


@dataclass(frozen=True)
class Operators:
    """What reads and writes pages; signatures as torch-npu documents them."""

    version: str
    attend: Callable[..., tuple[Tensor, Tensor]]
    write: Callable[..., None]


def load_operators() -> Operators:
    """Import torch_npu; raises UnsupportedError if it cannot be, or lacks an operator."""
    module = import_torch_npu()
    version = f"torch-npu {module.__version__}"
    missing = [name for name in (_ATTEND, _WRITE) if not hasattr(module, name)]
    if missing:
        raise UnsupportedError(
            f"{version} has no {' and no '.join(missing)}; install one from 2.10 on and the CANN "
            "that its table of versions names"
        )
    return Operators(version, getattr(module, _ATTEND), getattr(module, _WRITE))
