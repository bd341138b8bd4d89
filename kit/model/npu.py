"""The model's parts that torch-npu has operators for; all others run as torch runs them.

Run through an emulation only, never on an NPU: docs/ascend.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kit.model.moe import Experts, GatedMLP
from kit.model.norm import RMSNorm
from kit.platforms.ascend import find_operators

_RMS_NORM, _SWIGLU = "npu_rms_norm", "npu_swiglu"


@dataclass(frozen=True)
class ModelOperators:
    """Signatures as torch-npu documents them."""

    rms_norm: Callable[..., tuple[Tensor, Tensor]]
    """The norm and what it divided by."""

    swiglu: Callable[[Tensor], Tensor]
    """silu(first half) * second half."""


def load_model_operators() -> ModelOperators:
    """Import torch_npu; raises UnsupportedError if it cannot be, or lacks an operator."""
    _, (rms_norm, swiglu) = find_operators(_RMS_NORM, _SWIGLU)
    return ModelOperators(rms_norm, swiglu)


@torch.no_grad()
def use_npu_operators(model: nn.Module, operators: ModelOperators) -> None:
    """Have norms and gates of a loaded model run in them; call it once.

    Exchanges the halves of every gate_and_up weight in place: the checkpoint has the gate second.
    """

    def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        # Contiguous: rows of one request share their first embeddings by stride 0.
        return operators.rms_norm(x.contiguous(), weight, epsilon=eps)[0]

    for part in model.modules():
        if isinstance(part, RMSNorm):
            part.compute = norm
        elif isinstance(part, GatedMLP):
            _gate_first(part.gate_and_up_proj.weight)
            part.gate = operators.swiglu
        elif isinstance(part, Experts):
            for weight in part.gate_and_up_proj:  # one by one: a copy of all would be gigabytes
                _gate_first(weight)
            part.gate = operators.swiglu


def _gate_first(weight: Tensor) -> None:
    weight.copy_(torch.cat(weight.chunk(2)[::-1]))
