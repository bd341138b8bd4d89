"""The one write of a kernel over contiguous rows."""

from __future__ import annotations

from torch import Tensor

from kit.attention.plan import StepPlan
from kit.attention.rotary import QKNorm, Rotary, prepare_qkv
from kit.kv.store import DenseStore


def write_rows(
    store: DenseStore, plan: StepPlan, layer: int, qkv: Tensor, rotary: Rotary, norm: QKNorm
) -> Tensor:
    """Rotate and normalise, write k and v at the plan's positions, return q; see StepKV.write."""
    q, k, v = prepare_qkv(qkv, rotary, norm)
    # detach: the store outlives any graph that a caller keeps.
    store.keys[layer][:, plan.start : plan.end] = k.detach()
    store.values[layer][:, plan.start : plan.end] = v.detach()
    return q
