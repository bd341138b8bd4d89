"""The one seam between the model and its keys and values.

A KV mode is a backend chosen at start: a store (pages or contiguous tensors) together with a
kernel that reads it. The model sees `StepKV` only and never asks for the mode.

Axis letters: B rows, T query tokens, S key tokens, N pages, P tokens per page, H query heads,
K kv heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from kit.attention.plan import StepPlan
from kit.attention.rotary import QKNorm, Rotary
from kit.kv.allocation import KVAllocation
from kit.tokenizer.layout import Layout


@dataclass(frozen=True)
class BackendInfo:
    """What really runs, for logs, records and health."""

    name: str
    """The logical backend of the deploy file, e.g. FLASH_ATTN."""

    kernel: str
    """The kernel that runs, e.g. cpu_reference."""

    version: str
    page_size: int | None
    """Token slots per page; None for contiguous stores."""


class StepKV(Protocol):
    """Keys and values during one forward pass."""

    @property
    def address_key(self) -> object:
        """Equal for two passes exactly if they read and write through the same tensors."""
        ...

    def write(self, layer: int, qkv: Tensor, rotary: Rotary, norm: QKNorm) -> Tensor:
        """Rotate and normalise q and k, write k and v once, return q.

        qkv: [B, T, K, G+2, D], G = H/K query heads, then the key, then the value of each kv head.
        Writes the T tokens of every row at the plan's positions. Returns q [B, T, H, D].
        """
        ...

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """Return attention of q [B, T, H, D] over the written keys, [B, T, H, D].

        Runs the plan's segments in order; every key they read was written before.
        """
        ...


@dataclass(frozen=True)
class Pass:
    """One forward pass of the first step."""

    kv: StepKV
    plan: StepPlan
    num_rows: int
    """Of this rank's rows, how many run: all, or the first for all of them."""


class RequestKV(Protocol):
    """Keys and values of one running request."""

    @property
    def num_bytes(self) -> int:
        """Bytes reserved for this request, all layers, keys and values."""
        ...

    @property
    def num_paged_calls(self) -> int:
        """Attention calls that really read through page tables; counted at the kernel call."""
        ...

    def step(self, plan: StepPlan) -> StepKV:
        """Return the view that one forward pass over `plan` writes to and reads from."""
        ...

    def first_passes(self, plan: StepPlan) -> tuple[Pass, ...]:
        """Return what the first step must run of `plan`, the plan of whole sequences, in order.

        The last pass is of all rows, up to the end of the plan.
        """
        ...

    def scrub(self) -> None:
        """Overwrite with zeros all keys and values that the request wrote, and no others."""
        ...


class KVBackend(Protocol):
    """A store and the kernel that reads it: what a KV mode is."""

    @property
    def info(self) -> BackendInfo: ...

    @property
    def pool_bytes(self) -> int:
        """Bytes that the page pool takes; 0 for contiguous stores, which live per request."""
        ...

    def open(self, layout: Layout, num_rows: int, allocation: KVAllocation | None) -> RequestKV:
        """Make a request's keys and values ready to be written.

        Paged: checks the allocation against the store and zeroes the unused tail of every last
        page; raises KVCacheError without a matching allocation. Contiguous: takes zeroed tensors
        and wants `allocation` to be None.
        """
        ...
