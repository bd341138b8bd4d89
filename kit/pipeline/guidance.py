"""Classifier-free guidance over the rows of one request."""

from __future__ import annotations

import torch
from torch import Tensor


def guide(prediction: Tensor, guidance_scale: Tensor) -> Tensor:
    """Combine float32 [B, C, h, w] into [1, C, h, w]; guidance_scale is float32 [].

    Two rows (conditional, unconditional): v = v_u + g * (v_c - v_u). One row: unchanged.
    """
    if prediction.shape[0] == 1:
        return prediction
    conditional, unconditional = prediction.chunk(2)
    return unconditional + guidance_scale * (conditional - unconditional)


def guidance_token_value(guidance_scale: float) -> float:
    """What the <guidance> token of a distilled model embeds: 1000 * g, rounded to bfloat16."""
    return float(torch.tensor(1000.0 * guidance_scale, dtype=torch.bfloat16))
