"""The one place that decides whether a model runs the kit's Triton kernels, or an NPU's operators.

They have no derivatives, and Triton comes with CUDA builds of torch only: so they are chosen when a
model is loaded to run on a device, and imported where they run.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from kit.model.group_norm import GroupNorm
from kit.model.moe import MoE
from kit.model.norm import RMSNorm

ExpertLayer = Literal["grouped", "loop"]


def use_fused_kernels(model: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    """Have norms and expert layers of a model on a device run in kernels; on the CPU do nothing."""
    if device.type == "npu":
        from kit.model.npu import use_npu_operators

        use_npu_operators(model, device, dtype)
        return
    for part in model.modules():
        if isinstance(part, RMSNorm | GroupNorm):
            part.fused = device.type == "cuda"
        elif isinstance(part, MoE):
            # Grouped products take bfloat16 on CUDA.
            part.fused = device.type == "cuda" and dtype == torch.bfloat16


def expert_layer(model: nn.Module) -> ExpertLayer:
    """Return whether expert layers run as grouped products or in a loop; see WorkerInfo."""
    layers = [part for part in model.modules() if isinstance(part, MoE)]
    return "grouped" if all(part.fused or part.grouped for part in layers) else "loop"
