"""FlashAttention over pages and over contiguous rows: one write, then one call per segment.

Both modes run the same calls over the same tensors but for the page table, so that they agree bit
for bit where the page size is a multiple of the kernel's tile of keys. What differs between
requests of one shape (slots, lengths, page tables) is kept in tensors that the next request
overwrites in place: a captured graph goes on reading them.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import torch
from torch import Tensor

from kit.attention.cuda.build import FlashBuild
from kit.attention.cuda.write import write_fused
from kit.attention.kernel import PageTables
from kit.attention.plan import StepPlan
from kit.attention.rotary import QKNorm, Rotary
from kit.kernels.qkv_write import row_slots
from kit.kv.store import DenseStore, PagedStore
from kit.modelspec.footprint import num_pages

FlashCall = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor | None, bool], Tensor]
"""(q [B, T, H, D], keys, values, lengths int32 [B], page table int32 [B, n] or None, causal) ->
[B, T, H, D]; causal is aligned to the last query and the last key."""


def load_flash_call(build: FlashBuild) -> FlashCall:
    """Import the package of a build that was found before."""
    module, table_name = {
        "flash_attn_3": ("flash_attn_interface", "page_table"),
        "flash_attn_2": ("flash_attn", "block_table"),
    }[build.kernel]
    attend = import_module(module).flash_attn_with_kvcache

    def call(
        q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, table: Tensor | None, causal: bool
    ) -> Tensor:
        # num_splits 1: with others a row's bits depend on the rows beside it.
        out: Tensor = attend(
            q, k, v, cache_seqlens=lengths, causal=causal, num_splits=1, **{table_name: table}
        )
        return out

    return call


class FlashStep:
    """A StepKV; the same object serves every later pass of its shape."""

    def __init__(
        self,
        call: FlashCall,
        keys: tuple[Tensor, ...],
        values: tuple[Tensor, ...],
        plan: StepPlan,
        slots: Tensor,
        page_table: Tensor | None,
        num_rows: int,
    ) -> None:
        self._call, self._keys, self._values = call, keys, values
        self._plan, self._slots, self._page_table = plan, slots, page_table
        self._lengths = [
            torch.full((num_rows,), segment.kv_len, dtype=torch.int32, device=slots.device)
            for segment in plan.segments
        ]

    @property
    def address_key(self) -> object:
        """See StepKV.address_key."""
        return self

    def bind(self, plan: StepPlan, slots: Tensor, page_table: Tensor | None) -> None:
        """Turn to another request whose plan has segments of the same lengths."""
        self._slots.copy_(slots)
        for lengths, segment in zip(self._lengths, plan.segments, strict=True):
            lengths.fill_(segment.kv_len)
        if self._page_table is not None:
            assert page_table is not None, "a paged pass stays one"
            self._page_table.copy_(page_table)

    def write(self, layer: int, qkv: Tensor, rotary: Rotary, norm: QKNorm) -> Tensor:
        """Rotate and normalise, write k and v to their slots, return q; see StepKV.write."""
        return write_fused(qkv, rotary, norm, self._slots, self._keys[layer], self._values[layer])

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """Run the plan's segments; see StepKV.attend."""
        pieces = torch.split(q, _lengths(self._plan), dim=1)
        outputs = []
        for segment, lengths, piece in zip(self._plan.segments, self._lengths, pieces, strict=True):
            num_queries = piece.shape[1]
            if segment.causal and num_queries == 1:
                # A lone query makes FA3 take another tile without pages than with them. The row in
                # front stands for the token before; what comes out for it is dropped.
                piece = torch.cat((piece, piece), dim=1)
            out = self._call(
                piece,
                self._keys[layer],
                self._values[layer],
                lengths,
                self._page_table,
                segment.causal,
            )
            outputs.append(out[:, -num_queries:])
        return torch.cat(outputs, dim=1)


class FlashPaged:
    """A PagedKernel."""

    def __init__(self, build: FlashBuild, longest_row: int) -> None:
        """Page tables are as wide as rows of `longest_row` tokens want them."""
        self.name, self.version = build.kernel, build.version
        self._call, self._longest_row = load_flash_call(build), longest_row
        self._later: dict[object, FlashStep] = {}

    def step(self, store: PagedStore, tables: PageTables, plan: StepPlan) -> FlashStep:
        """Prepare one forward pass; passes of one later shape share an object."""
        num_rows, pages = tables.pages.shape
        slots = tables.slots(plan.start, plan.end).flatten()
        # As wide for every request: a graph holds the width. Entries past a row are never read.
        width = num_pages(self._longest_row, store.page_size)
        table = torch.zeros(num_rows, max(width, pages), dtype=torch.int32, device=slots.device)
        table[:, :pages] = tables.pages

        def make() -> FlashStep:
            return FlashStep(self._call, store.keys, store.values, plan, slots, table, num_rows)

        key = (id(store), num_rows, table.shape, *_lengths(plan))
        return _shared(self._later, key, plan, slots, table, make)


class FlashDense:
    """A DenseKernel."""

    def __init__(self, build: FlashBuild) -> None:
        self.name, self.version = build.kernel, build.version
        self._call = load_flash_call(build)
        self._later: dict[object, FlashStep] = {}

    def step(self, store: DenseStore, plan: StepPlan) -> FlashStep:
        """Prepare one forward pass; passes of one later shape over one store share an object."""
        device = store.keys[0].device
        slots = row_slots(store.num_rows, store.num_tokens, plan.start, plan.end, device)

        def make() -> FlashStep:
            return FlashStep(
                self._call, store.keys, store.values, plan, slots, None, store.num_rows
            )

        if not store.is_kept:
            return make()
        key = (store.keys[0].data_ptr(), store.keys[0].shape, *_lengths(plan))
        return _shared(self._later, key, plan, slots, None, make)


def _shared(
    later: dict[object, FlashStep],
    key: object,
    plan: StepPlan,
    slots: Tensor,
    table: Tensor | None,
    make: Callable[[], FlashStep],
) -> FlashStep:
    """Return the pass of a shape, bound to this request; first steps differ from one another."""
    if not plan.is_repeated:
        return make()
    if (step := later.get(key)) is None:
        step = later[key] = make()
    else:
        step.bind(plan, slots, table)
    return step


def _lengths(plan: StepPlan) -> list[int]:
    return [segment.end - segment.start for segment in plan.segments]
