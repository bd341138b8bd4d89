"""Attention by definition: an explicit softmax under a boolean mask, in float32.

Slow and plain on purpose. It takes the model's rule from the Layout and never looks at a
StepPlan, so a plan that is wrong disagrees with it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kit.tokenizer.layout import Layout


def layout_mask(layout: Layout) -> Tensor:
    """Return which keys each query sees: bool [kv_len, kv_len], rows are queries, true = visible.

    Every token sees itself and those before it. Tokens of the generated image also see the whole
    image; special tokens before it do not (HunyuanImage-3.0 reference,
    `_prepare_attention_mask_for_generation`).
    """
    visible = torch.ones(layout.kv_len, layout.kv_len, dtype=torch.bool).tril()
    image = slice(layout.image_span.start, layout.image_span.end)
    visible[image, image] = True
    return visible


def attend(q: Tensor, k: Tensor, v: Tensor, mask_rows: Tensor) -> Tensor:
    """Return softmax(q k^T / sqrt(D)) v under a mask, float32 [B, T, H, D].

    q [B, T, H, D], k and v [B, S, K, D] of any float dtype; mask_rows bool [T, S], true = visible.
    Query head h reads kv head h // (H / K).
    """
    group = q.shape[2] // k.shape[2]
    keys = k.float().repeat_interleave(group, dim=2)
    values = v.float().repeat_interleave(group, dim=2)
    scores = torch.einsum("bthd,bshd->bhts", q.float(), keys) / math.sqrt(q.shape[-1])
    weights = scores.masked_fill(~mask_rows, -math.inf).softmax(-1)
    return torch.einsum("bhts,bshd->bthd", weights, values)
