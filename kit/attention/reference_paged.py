"""The CPU reference kernel over pages: every key is found through the row's page table."""

from __future__ import annotations

import torch
from torch import Tensor

from kit.attention import reference
from kit.attention.kernel import PageTables
from kit.attention.plan import StepPlan
from kit.attention.reference import Tile, Workspace, attend, tile_plan
from kit.attention.rotary import QKNorm, Rotary, prepare_qkv
from kit.kv.store import PagedStore


class PagedReference:
    """A PagedKernel of plain torch operations; takes any page size."""

    name = reference.NAME
    version = reference.VERSION

    def __init__(self) -> None:
        self._workspace = Workspace()

    def step(self, store: PagedStore, tables: PageTables, plan: StepPlan) -> PagedReferenceStep:
        """Find the slots of all tokens once, for all layers."""
        return PagedReferenceStep(store, tables, plan, self._workspace)


class PagedReferenceStep:
    """A StepKV that writes by slot and gathers tiles by slot."""

    def __init__(
        self, store: PagedStore, tables: PageTables, plan: StepPlan, workspace: Workspace
    ) -> None:
        self._store, self._workspace = store, workspace
        self._tiled = tile_plan(plan)
        self._write_slots = tables.slots(plan.start, plan.end).flatten()
        slots = tables.slots(0, plan.end)
        self._read_ids = {
            (tile.start, tile.stop): _head_ids(
                slots[:, tile.start : tile.stop], store.shape.num_kv_heads
            )
            for entry in self._tiled
            for tile in entry.tiles
        }

    @property
    def address_key(self) -> object:
        """See StepKV.address_key."""
        return self

    def write(self, layer: int, qkv: Tensor, rotary: Rotary, norm: QKNorm) -> Tensor:
        """Rotate and normalise, write k and v into their slots, return q; see StepKV.write."""
        q, k, v = prepare_qkv(qkv, rotary, norm)
        # detach: the pages outlive any graph that a caller keeps.
        for pages, tokens in ((self._store.keys[layer], k), (self._store.values[layer], v)):
            pages.flatten(0, 1).index_copy_(0, self._write_slots, tokens.detach().flatten(0, 1))
        return q

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """Run the plan's segments; see StepKV.attend."""
        store = self._store

        def load(tile: Tile) -> tuple[Tensor, Tensor]:
            return (
                self._gather("keys", store.keys[layer], tile),
                self._gather("values", store.values[layer], tile),
            )

        return attend(q, self._tiled, load, store.shape.num_kv_heads, self._workspace)

    def _gather(self, name: str, pages: Tensor, tile: Tile) -> Tensor:
        """Gather a tile from [N, P, K, D] as float32 [B*K, n, D]."""
        ids, head_dim = self._read_ids[tile.start, tile.stop], pages.shape[-1]
        flat = pages.view(-1, head_dim)
        gathered = self._workspace.take(name, *ids.shape, head_dim)
        if flat.dtype == gathered.dtype:
            torch.index_select(flat, 0, ids.flatten(), out=gathered.view(-1, head_dim))
        else:
            gathered.view(-1, head_dim).copy_(flat.index_select(0, ids.flatten()))
        return gathered


def _head_ids(slots: Tensor, num_kv_heads: int) -> Tensor:
    """Turn slots [B, n] into indices [B*K, n] of a pool viewed as [N * P * K, D]."""
    heads = torch.arange(num_kv_heads, device=slots.device)
    return (slots[:, None] * num_kv_heads + heads[:, None]).flatten(0, 1)
