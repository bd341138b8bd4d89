"""The operators of torch-npu that attention runs on, found by name when a backend starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from kit.attention.rotary import QKNorm, Rotary, prepare_qkv
from kit.platforms.ascend import find_operators

_ATTEND = "npu_fused_infer_attention_score"
_WRITE = "npu_scatter_pa_kv_cache"

Prepare = Callable[[Tensor, Rotary, QKNorm], tuple[Tensor, Tensor, Tensor]]
"""As kit.attention.rotary.prepare_qkv."""


@dataclass(frozen=True)
class Operators:
    """What prepares, writes and reads keys and values; signatures as torch-npu documents them."""

    version: str
    attend: Callable[..., tuple[Tensor, Tensor]]
    write: Callable[..., None]
    prepare: Prepare = prepare_qkv
    """Plain torch until a start has tried torch-npu's rotation."""


def load_operators() -> Operators:
    """Import torch_npu; raises UnsupportedError if it cannot be, or lacks an operator."""
    version, (attend, write) = find_operators(_ATTEND, _WRITE)
    return Operators(version, attend, write)
