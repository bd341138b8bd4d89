"""Triton: the expert layer without waiting for the host.

(token, choice) pairs are sorted by expert. One kernel gathers the tokens of a tile of pairs, runs
both halves of the first matrix and gates them; one runs the second matrix; then each token sums its
weighted results. Sizes on the host depend on shapes only, so a graph can hold it all.
Axis letters: N tokens, k experts per token, E experts, H hidden size, I expert width.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from kit.kernels.routing import place

_TILE_PAIRS = 128
_TILE_COLUMNS = 256
"""Columns of a tile of sums; a gated tile takes half from each half of the first matrix."""

_TILE_DEPTH = 64
_MOST_STAGES = 4


@triton.jit
def _find_tile(
    ends,
    num_column_tiles,
    E: tl.constexpr,
    E_PADDED: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Return this program's (expert or E, first row, the expert's last row + 1, column tile).

    Programs go through the experts in order; row tiles are fastest, so that neighbours share the
    matrix, which is larger than the rows.
    """
    program = tl.program_id(0)
    lane = tl.arange(0, E_PADDED)
    end = tl.load(ends + lane, mask=lane < E, other=0)
    start = tl.load(ends + lane - 1, mask=(lane > 0) & (lane < E), other=0)
    row_tiles = tl.where(lane < E, tl.cdiv(end - start, ROWS), 0)
    tiles_until = tl.cumsum(row_tiles, 0) * num_column_tiles
    expert = tl.sum(((tiles_until <= program) & (lane < E)).to(tl.int32), 0)
    here = lane == expert
    num_row_tiles = tl.sum(tl.where(here, row_tiles, 0), 0)
    tile = program - tl.sum(tl.where(here, tiles_until, 0), 0) + num_row_tiles * num_column_tiles
    row_tile = tile % tl.maximum(num_row_tiles, 1)
    row = tl.sum(tl.where(here, start, 0), 0) + row_tile * ROWS
    return expert, row, tl.sum(tl.where(here, end, 0), 0), tile // tl.maximum(num_row_tiles, 1)


@triton.jit
def _up_kernel(
    tokens,
    matrices,
    sources,
    ends,
    out,
    num_column_tiles,
    H: tl.constexpr,
    I: tl.constexpr,  # noqa: E741
    E: tl.constexpr,
    E_PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    expert, row, end, column_tile = _find_tile(ends, num_column_tiles, E, E_PADDED, ROWS)
    if expert < E:
        rows = row + tl.arange(0, ROWS)
        there = rows < end
        source = tl.load(sources + rows, mask=there, other=0).to(tl.int64)
        lane = tl.arange(0, DEPTH)
        token_rows = tokens + source[:, None] * H + lane[None, :]
        first_at = expert * (2 * I) + column_tile * COLUMNS
        first = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
        second = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
        for k in range(0, H, DEPTH):
            if H % DEPTH == 0:
                x = tl.load(token_rows + k)
            else:
                x = tl.load(token_rows + k, mask=(k + lane < H)[None, :], other=0.0)
            first = tl.dot(x, matrices.load([first_at, k]).T, first)
            second = tl.dot(x, matrices.load([first_at + I, k]).T, second)
        gated = first * second * tl.sigmoid(second)
        column = column_tile * COLUMNS + tl.arange(0, COLUMNS)
        tl.store(
            out + rows.to(tl.int64)[:, None] * I + column[None, :],
            gated.to(out.dtype.element_ty),
            mask=there[:, None] & (column < I)[None, :],
        )


def up(tokens: Tensor, sources: Tensor, ends: Tensor, gate_and_up: Tensor) -> Tensor:
    """Return first * silu(second) of every pair's product with its expert, bfloat16 [M, I].

    tokens bfloat16 [N, H], gate_and_up [E, 2I, H]; sources int32 [M] and ends int32 [E] of `place`.
    Summed and gated in float32.
    """
    (num_experts, double, hidden), num_rows = gate_and_up.shape, len(sources)
    width, columns = double // 2, _TILE_COLUMNS // 2
    out = tokens.new_empty(num_rows, width)
    matrices = TensorDescriptor.from_tensor(gate_and_up.view(-1, hidden), [columns, _TILE_DEPTH])
    num_column_tiles = triton.cdiv(width, columns)
    _up_kernel[(_most_row_tiles(num_rows, num_experts) * num_column_tiles,)](
        tokens,
        matrices,
        sources,
        ends,
        out,
        num_column_tiles,
        COLUMNS=columns,
        **_constants(num_experts, hidden, width, tokens.device),
    )
    return out


@triton.jit
def _down_kernel(
    values,
    matrices,
    ends,
    out,
    num_column_tiles,
    H: tl.constexpr,
    I: tl.constexpr,  # noqa: E741
    E: tl.constexpr,
    E_PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    expert, row, end, column_tile = _find_tile(ends, num_column_tiles, E, E_PADDED, ROWS)
    if expert < E:
        total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
        for k in range(0, I, DEPTH):
            x = values.load([row, k])  # rows of the next expert as well: they are not stored
            total = tl.dot(x, matrices.load([expert * H + column_tile * COLUMNS, k]).T, total)
        rows = row + tl.arange(0, ROWS)
        column = column_tile * COLUMNS + tl.arange(0, COLUMNS)
        tl.store(
            out + rows.to(tl.int64)[:, None] * H + column[None, :],
            total.to(out.dtype.element_ty),
            mask=(rows < end)[:, None] & (column < H)[None, :],
        )


def down(values: Tensor, ends: Tensor, matrices: Tensor) -> Tensor:
    """Return every row's product with its expert, bfloat16 [M, H].

    values bfloat16 [M, I] sorted by expert, matrices [E, H, I]; ends int32 [E] of `place`.
    """
    num_experts, hidden, width = matrices.shape
    out = values.new_empty(len(values), hidden)
    num_column_tiles = triton.cdiv(hidden, _TILE_COLUMNS)
    _down_kernel[(_most_row_tiles(len(values), num_experts) * num_column_tiles,)](
        TensorDescriptor.from_tensor(values, [_TILE_PAIRS, _TILE_DEPTH]),
        TensorDescriptor.from_tensor(matrices.view(-1, width), [_TILE_COLUMNS, _TILE_DEPTH]),
        ends,
        out,
        num_column_tiles,
        COLUMNS=_TILE_COLUMNS,
        **_constants(num_experts, hidden, width, values.device),
    )
    return out


@triton.jit
def _gate_kernel(x, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = lane < WIDTH
    first = tl.load(x + row * (2 * WIDTH) + lane, mask=there).to(tl.float32)
    second = tl.load(x + row * (2 * WIDTH) + WIDTH + lane, mask=there).to(tl.float32)
    gated = first * second * tl.sigmoid(second)
    tl.store(out + row * WIDTH + lane, gated.to(out.dtype.element_ty), mask=there)


def gate(x: Tensor) -> Tensor:
    """Return first * silu(second) of the halves of [M, 2I], as [M, I]; float32 inside."""
    rows, width = x.shape[0], x.shape[1] // 2
    out, block = x.new_empty(rows, width), min(1024, triton.next_power_of_2(width))
    _gate_kernel[(rows, triton.cdiv(width, block))](x, out, WIDTH=width, BLOCK=block, num_warps=4)
    return out


@triton.jit
def _combine_kernel(
    rows,
    places,
    weights,
    shared,
    out,
    H: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    there = lane < H
    total = tl.load(shared + token.to(tl.int64) * H + lane, mask=there).to(tl.float32)
    for nth in tl.static_range(TOP_K):
        row = tl.load(places + token * TOP_K + nth).to(tl.int64)
        weight = tl.load(weights + token * TOP_K + nth)
        values = tl.load(rows + row * H + lane, mask=there & (row >= 0), other=0.0)
        total += weight * values.to(tl.float32)
    place = token.to(tl.int64) * H + lane
    tl.store(out + place, total.to(out.dtype.element_ty), mask=there)


def combine(rows: Tensor, places: Tensor, weights: Tensor, shared: Tensor) -> Tensor:
    """Return shared + sum_k weights * rows of [N, H] tokens, summed in float32, in shared's dtype.

    rows [N*k, H]; places int32 and weights float32 [N, k], a place below 0 has no row. A token's
    terms are added in the order of its choices, so the sum does not depend on other tokens.
    """
    (num_tokens, hidden), top_k = shared.shape, places.shape[1]
    out = torch.empty_like(shared)
    _combine_kernel[(num_tokens,)](
        rows,
        places,
        weights,
        shared,
        out,
        H=hidden,
        TOP_K=top_k,
        BLOCK=triton.next_power_of_2(hidden),
        num_warps=8,
    )
    return out


def experts(
    tokens: Tensor,
    weights: Tensor,
    indices: Tensor,
    gate_and_up: Tensor,
    matrices_down: Tensor,
    shared: Tensor,
    first: int = 0,
) -> Tensor:
    """Return shared + sum_k weights * expert(token) of bfloat16 [N, H] tokens.

    weights float32, indices int32 [N, k]; gate_and_up [E, 2I, H] and matrices_down [E, H, I]
    bfloat16, of the E experts from `first` on: others add nothing; shared [N, H], the shared
    expert's output.
    """
    places, sources, ends = place(indices, len(matrices_down), first)
    rows = down(up(tokens, sources, ends, gate_and_up), ends, matrices_down)
    return combine(rows, places, weights, shared)


def _constants(num_experts: int, hidden: int, width: int, device: torch.device) -> dict[str, int]:
    """Return what both products are compiled with, beside the columns of a tile."""
    return {
        "H": hidden,
        "I": width,
        "E": num_experts,
        "E_PADDED": triton.next_power_of_2(num_experts),
        "ROWS": _TILE_PAIRS,
        "DEPTH": _TILE_DEPTH,
        "num_warps": 8,
        "num_stages": _num_stages(device),
    }


def _most_row_tiles(num_rows: int, num_experts: int) -> int:
    """Count row tiles for the worst spread: every expert may end within one."""
    return -(-num_rows // _TILE_PAIRS) + min(num_experts, num_rows)


@cache
def _num_stages(device: torch.device) -> int:
    """Return how many tiles of operands a multiprocessor of this card holds beside each other."""
    tile_bytes = (_TILE_PAIRS + _TILE_COLUMNS) * _TILE_DEPTH * 2
    properties = torch.cuda.get_device_properties(device)
    there: int = properties.shared_memory_per_block_optin  # type: ignore[attr-defined]
    return max(1, min(_MOST_STAGES, there // tile_bytes))
