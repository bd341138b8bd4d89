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
        from kit.model.npu import load_model_operators, use_npu_operators

        use_npu_operators(model, load_model_operators())
        return
    for part in model.modules():
        if isinstance(part, RMSNorm | GroupNorm):
            part.fused = device.type == "cuda"
        elif isinstance(part, MoE):
            part.fused = expert_layer(device, dtype) == "grouped"


def expert_layer(device: torch.device, dtype: torch.dtype) -> ExpertLayer:
    """Return how expert layers run: as grouped products that never wait for the host, or in a loop.

    Grouped products take bfloat16 on CUDA.
    """
    return "grouped" if device.type == "cuda" and dtype == torch.bfloat16 else "loop"
