"""The dense KV mode: contiguous keys and values that a request takes and drops."""

from __future__ import annotations

from kit.attention.base import BackendInfo, Pass, StepKV
from kit.attention.kernel import DenseKernel
from kit.attention.plan import StepPlan
from kit.errors import KVCacheError
from kit.kv.allocation import KVAllocation
from kit.kv.store import DenseStore, KeptRows, KVShape
from kit.tokenizer.layout import Layout


class DenseKV:
    """A KVBackend without a pool: each request gets tensors of its own, or `kept` ones."""

    pool_bytes = 0

    def __init__(
        self, name: str, shape: KVShape, kernel: DenseKernel, kept: KeptRows | None = None
    ) -> None:
        self._shape, self._kernel, self._kept = shape, kernel, kept
        self.info = BackendInfo(name, kernel.name, kernel.version, None)

    def open(self, layout: Layout, num_rows: int, allocation: KVAllocation | None) -> DenseRequest:
        """Take tensors for all rows; raises KVCacheError if there is an allocation."""
        if allocation is not None:
            raise KVCacheError(
                f"allocation of request {allocation.request_id}: this worker runs dense_legacy "
                f"and has no pages; only a paged_scheduler worker takes an allocation"
            )
        if self._kept is not None:
            return DenseRequest(self._kept.take(num_rows, layout.kv_len), self._kernel)
        store = DenseStore.take(self._shape, num_rows, layout.kv_len)
        return DenseRequest(store, self._kernel)


class DenseRequest:
    """A RequestKV that owns its tensors."""

    num_paged_calls = 0

    def __init__(self, store: DenseStore, kernel: DenseKernel) -> None:
        self.store, self._kernel = store, kernel

    @property
    def num_bytes(self) -> int:
        """Bytes of the request's tensors."""
        return self.store.num_bytes

    def step(self, plan: StepPlan) -> StepKV:
        """Prepare one forward pass over `plan`; the result may be used for many steps."""
        assert plan.end <= self.store.num_tokens, "the plan ends within the rows"
        return self._kernel.step(self.store, plan)

    def first_passes(self, plan: StepPlan) -> tuple[Pass, ...]:
        """Run all of it for all rows: contiguous rows hold nothing yet."""
        return (Pass(self.step(plan), plan, self.store.num_rows),)

    def scrub(self) -> None:
        """Zero all keys and values."""
        self.store.zero()
