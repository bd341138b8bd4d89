"""The CPU reference kernel over contiguous rows: tiles are slices, no page table exists."""

from __future__ import annotations

from torch import Tensor

from kit.attention import reference
from kit.attention.contiguous import RowWriter
from kit.attention.plan import StepPlan
from kit.attention.reference import Tile, Workspace, attend, tile_plan
from kit.attention.rotary import QKNorm, Rotary
from kit.kv.store import DenseStore


class DenseReference:
    """A DenseKernel with the arithmetic of the paged reference kernel."""

    name = reference.NAME
    version = reference.VERSION

    def __init__(self) -> None:
        self._workspace = Workspace()

    def step(self, store: DenseStore, plan: StepPlan) -> DenseReferenceStep:
        """Cut the plan's segments into tiles once, for all layers."""
        return DenseReferenceStep(store, plan, self._workspace)


class DenseReferenceStep:
    """A StepKV that slices rows."""

    def __init__(self, store: DenseStore, plan: StepPlan, workspace: Workspace) -> None:
        self._store, self._workspace = store, workspace
        self._writer = RowWriter(store, plan)
        self._tiled = tile_plan(plan)

    @property
    def address_key(self) -> object:
        """See StepKV.address_key."""
        return self

    def write(self, layer: int, qkv: Tensor, rotary: Rotary, norm: QKNorm) -> Tensor:
        """Rotate and normalise, write k and v into their rows, return q; see StepKV.write."""
        return self._writer.write(layer, qkv, rotary, norm)

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """Run the plan's segments; see StepKV.attend."""
        store = self._store

        def load(tile: Tile) -> tuple[Tensor, Tensor]:
            return (
                self._copy("keys", store.keys[layer], tile),
                self._copy("values", store.values[layer], tile),
            )

        return attend(q, self._tiled, load, store.shape.num_kv_heads, self._workspace)

    def _copy(self, name: str, rows: Tensor, tile: Tile) -> Tensor:
        """Copy a tile from [B, S, K, D] as float32 [B*K, n, D]."""
        tokens = rows[:, tile.start : tile.stop].transpose(1, 2)  # [B, K, n, D]
        return self._workspace.take(name, *tokens.shape).copy_(tokens).flatten(0, 1)
