"""What training does differently on a GPU: bfloat16 arithmetic, compiled functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

F = TypeVar("F", bound=Callable[..., Any])


def autocast(device: torch.device) -> torch.autocast:
    """Return the context of a forward pass: bfloat16 on a GPU, float32 on the CPU."""
    # A cached cast of a weight would outlive the step that was recorded with it.
    return torch.autocast(
        device.type, dtype=torch.bfloat16, enabled=device.type == "cuda", cache_enabled=False
    )


def compiled(function: F, device: torch.device) -> F:
    """Return the function compiled for each shape that it meets on a GPU, itself on the CPU."""
    return cast(F, torch.compile(function, dynamic=False)) if device.type == "cuda" else function


def prepare(device: torch.device, *, few_shapes: bool) -> None:
    """Choose the kernels that training wants, for the whole process.

    With `few_shapes` the fastest convolution is looked for at every new shape, which takes long.
    """
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = few_shapes
        torch.set_float32_matmul_precision("high")
        # Under a tensor mask cuDNN's attention gives NaN gradients for queries that see no key,
        # which padding has (cuDNN of PyTorch 2.11 on an H200).
        torch.backends.cuda.enable_cudnn_sdp(False)
