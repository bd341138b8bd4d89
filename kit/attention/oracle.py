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
    image, tokens of a reference's span that whole span; special tokens before them do not
    (HunyuanImage-3.0 reference, `_prepare_attention_mask_for_generation`).
    """
    visible = torch.ones(layout.kv_len, layout.kv_len, dtype=torch.bool).tril()
    image = layout.image_span
    spans = [(ref.start, ref.end) for ref in layout.references]
    for start, end in (*spans, (image.start, image.end)):
        visible[start:end, start:end] = True
    return visible


def attend(q: Tensor, k: Tensor, v: Tensor, mask_rows: Tensor) -> Tensor:
    """Return softmax(q k^T / sqrt(D)) v under a mask, float32 [B, T, H, D].

    q [B, T, H, D], k and v [B, S, K, D] of any float dtype; mask_rows bool [T, S], true = visible.
    Query head h reads kv head h // (H / K).
    """
    group = q.shape[2] // k.shape[2]
    out = torch.empty(q.shape, dtype=torch.float32, device=q.device)
    # A row and a head at a time: scores of all of them would not fit on a card at real sizes.
    for row in range(q.shape[0]):
        for head in range(q.shape[2]):
            keys, values = (x[row, :, head // group].float() for x in (k, v))
            scores = q[row, :, head].float() @ keys.T / math.sqrt(q.shape[-1])
            out[row, :, head] = scores.masked_fill_(~mask_rows, -math.inf).softmax(-1) @ values
    return out
