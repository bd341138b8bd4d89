"""The one write of kernels over contiguous rows."""

from __future__ import annotations

from torch import Tensor

from kit.attention.plan import StepPlan
from kit.attention.rotary import QKNorm, Rotary, prepare_qkv
from kit.kv.store import DenseStore


class RowWriter:
    """Writes the keys and values of one pass into the rows of a request."""

    def __init__(self, store: DenseStore, plan: StepPlan) -> None:
        self._store, self._plan = store, plan
        self._slots: Tensor | None = None
        if store.shape.device.type == "cuda":
            from kit.kernels.qkv_write import row_slots

            self._slots = row_slots(
                store.num_rows, store.num_tokens, plan.start, plan.end, store.shape.device
            )

    def write(self, layer: int, qkv: Tensor, rotary: Rotary, norm: QKNorm) -> Tensor:
        """Rotate and normalise, write k and v at the plan's positions, return q.

        See StepKV.write. One fused kernel on CUDA.
        """
        keys, values = self._store.keys[layer], self._store.values[layer]
        if self._slots is not None:
            from kit.attention.cuda.write import write_fused

            return write_fused(qkv, rotary, norm, self._slots, keys, values)
        q, k, v = prepare_qkv(qkv, rotary, norm)
        # detach: the store outlives any graph that a caller keeps.
        keys[:, self._plan.start : self._plan.end] = k.detach()
        values[:, self._plan.start : self._plan.end] = v.detach()
        return q
