"""The arithmetic of the CPU reference kernel: flash attention over tiles of keys, in float32.

Online softmax (Milakov & Gimelshein 2018; FlashAttention, Dao et al. 2022). The tile size is a
constant of this module and no page size enters, so a loader that gathers tiles from pages and
one that copies them from contiguous rows get the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kit.attention.plan import Segment, StepPlan

NAME = "cpu_reference"
VERSION = "1"

K_TILE = 128
"""Keys per tile; a row's tiles start at its multiples."""


@dataclass(frozen=True)
class Tile:
    """One tile of keys [start, stop) as one segment reads it."""

    start: int
    stop: int
    first_query: int
    """Queries of the segment before this one see no key of the tile."""

    hidden: Tensor | None
    """bool [M, stop - start], true = hidden, for the M queries from `first_query`; the rest of
    the segment sees the whole tile. None: no query misses a key."""


@dataclass(frozen=True)
class TiledSegment:
    """A segment of a plan with the tiles that it reads, in the order of their keys."""

    segment: Segment
    tiles: tuple[Tile, ...]


class Workspace:
    """Scratch memory of one kernel, kept from call to call; one thread only.

    A fresh block of a megabyte costs more in page faults than most operations on it.
    """

    def __init__(self) -> None:
        self._blocks: dict[str, Tensor] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        """Return uninitialised contiguous float32 [*shape], valid until `name` is taken again."""
        size = math.prod(shape)
        block = self._blocks.get(name)
        if block is None or len(block) < size:
            # Made under inference mode, it could not be written outside of it later.
            with torch.inference_mode(False):
                block = self._blocks[name] = torch.empty(size)
        return block[:size].view(shape)


TileLoader = Callable[[Tile], tuple[Tensor, Tensor]]
"""Returns a tile's keys and values: float32 [B*K, stop - start, D], contiguous, from a Workspace.

Always copies: matrix products may round by the address alignment of what they read."""


def tile_plan(plan: StepPlan) -> tuple[TiledSegment, ...]:
    """Cut the keys of every segment into tiles."""
    return tuple(
        TiledSegment(
            segment,
            tuple(_plan_tile(segment, start) for start in range(0, segment.kv_len, K_TILE)),
        )
        for segment in plan.segments
    )


@torch.no_grad()
def attend(
    q: Tensor,
    tiled: Sequence[TiledSegment],
    load: TileLoader,
    num_kv_heads: int,
    workspace: Workspace,
) -> Tensor:
    """Run the segments of a plan; q and the result are [B, T, H, D] of one dtype.

    Query head h reads kv head h // (H / K).
    """
    out = q.new_empty(q.shape)
    lengths = [entry.segment.end - entry.segment.start for entry in tiled]
    pieces = zip(
        tiled, torch.split(q, lengths, dim=1), torch.split(out, lengths, dim=1), strict=True
    )
    for entry, q_piece, out_piece in pieces:
        result = _attend_segment(q_piece, entry.tiles, load, num_kv_heads, workspace)
        result = result.transpose(1, 2)  # [B, T, K, G, D]
        out_piece.view(result.shape).copy_(result)
    return out


def _attend_segment(
    q: Tensor, tiles: Sequence[Tile], load: TileLoader, num_kv_heads: int, workspace: Workspace
) -> Tensor:
    """Return softmax(q k^T / sqrt(D)) v of q [B, T, H, D] as float32 [B, K, T, G, D].

    The G query heads of a kv head are G queries of one matrix product, so keys are never
    expanded. Rows of the running state are ordered (token, head of the group).
    """
    B, T, H, D = q.shape
    K, G = num_kv_heads, H // num_kv_heads
    # The softmax is taken in base 2, which saves time: exp(x) = exp2(x * log2 e).
    scale = math.log2(math.e) / math.sqrt(D)
    queries = workspace.take("queries", B, K, T, G, D)
    queries.copy_(q.reshape(B, T, K, G, D).transpose(1, 2)).mul_(scale)
    queries = queries.view(B * K, T * G, D)
    result = workspace.take("result", *queries.shape).zero_()
    total = queries.new_zeros(B * K, T * G, 1)
    largest = torch.full_like(total, -math.inf)
    for tile in tiles:
        keys, values = load(tile)
        rows = slice(tile.first_query * G, None)
        seeing = queries[:, rows]
        scores = workspace.take("scores", *seeing.shape[:2], tile.stop - tile.start)
        torch.bmm(seeing, keys.transpose(1, 2), out=scores)
        if tile.hidden is not None:
            masked = scores.view(B * K, -1, G, scores.shape[-1])[:, : len(tile.hidden)]
            masked.masked_fill_(tile.hidden[:, None], -math.inf)
        before = largest[:, rows]
        after = torch.maximum(before, scores.amax(-1, keepdim=True))
        weights = scores.sub_(after).exp2_()
        # Every query sees a key of the first tile, so `after` is finite and this is 0 there.
        decay = (before - after).exp2_()
        total[:, rows].mul_(decay).add_(weights.sum(-1, keepdim=True))
        result[:, rows].mul_(decay).baddbmm_(weights, values)
        largest[:, rows] = after
    return result.div_(total).view(B, K, T, G, D)


def _plan_tile(segment: Segment, start: int) -> Tile:
    stop = min(start + K_TILE, segment.kv_len)
    if not segment.causal:
        return Tile(start, stop, 0, None)
    first = max(segment.start, start)
    hidden = None
    if first < stop - 1:
        hidden = torch.arange(start, stop) > torch.arange(first, stop - 1)[:, None]
    return Tile(start, stop, first - segment.start, hidden)
