"""Ascend's fused attention: one write of a layer's keys and values, then one call per segment.

Over pages or over contiguous rows, with the same arguments but for the page table. Written from the
operators' documents and run through an emulation of them only, never on an NPU: docs/ascend.md
says what that proves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from kit.attention.ascend.limits import FIA, PAGE_SIZE, check_call
from kit.attention.ascend.operators import Operators
from kit.attention.kernel import PageTables
from kit.attention.plan import Segment, StepPlan
from kit.attention.rotary import QKNorm, Rotary
from kit.kv.store import DenseStore, KVShape, PagedStore

Form = Literal["TND", "BSH"]
"""How queries are handed over: of all rows behind one another; with an axis of rows."""

PAGED_FORMS: tuple[Form, ...] = ("TND", "BSH")
"""The better one first. Over pages BSH takes a call for each row."""

_FULL, _CAUSAL = 0, 3
"""sparse_mode: every key; keys up to the query's own, both counted from the last one."""

_MASK_SIDE = 2048
"""Whatever the lengths: the operator shifts this one mask over them."""

Write = Callable[[int, Tensor, Tensor], None]
"""Of a layer, its keys and its values [B, T, K, D]."""


@dataclass(frozen=True)
class Call:
    """One call: the rows whose queries it takes, and all its arguments by name."""

    rows: slice
    arguments: dict[str, Any]


class FiaStep:
    """A StepKV whose arguments are the same for every layer."""

    def __init__(
        self,
        operators: Operators,
        store: PagedStore | DenseStore,
        plan: StepPlan,
        write: Write,
        calls: list[list[Call]],
    ) -> None:
        """`calls` are those of each segment."""
        self._operators, self._store, self._plan = operators, store, plan
        self._write, self._calls = write, calls

    @property
    def address_key(self) -> object:
        """See StepKV.address_key."""
        return self

    def write(self, layer: int, qkv: Tensor, rotary: Rotary, norm: QKNorm) -> Tensor:
        """Rotate and normalise, write k and v, return q; see StepKV.write."""
        q, k, v = self._operators.prepare(qkv, rotary, norm)
        self._write(layer, k, v)
        return q

    @torch.no_grad()
    def attend(self, layer: int, q: Tensor) -> Tensor:
        """Run the plan's segments; see StepKV.attend."""
        # Pages [N, P, K*D]: with four axes the operator would take them for [N, K, P, D]. Rows
        # [B, S, K*D].
        keys, values = (x[layer].flatten(2) for x in (self._store.keys, self._store.values))
        lengths = [segment.end - segment.start for segment in self._plan.segments]
        out = torch.empty_like(q)
        pieces = zip(
            torch.split(q, lengths, dim=1),
            torch.split(out, lengths, dim=1),
            self._calls,
            strict=True,
        )
        for q_piece, out_piece, calls in pieces:
            for call in calls:
                rows = q_piece[call.rows].contiguous()  # [B, T, H, D]
                is_flat = call.arguments["input_layout"] == "TND"
                queries = rows.flatten(0, 1) if is_flat else rows.flatten(2)
                seen, _ = self._operators.attend(queries, keys, values, **call.arguments)
                out_piece[call.rows] = seen.view(rows.shape)
        return out


class FiaPaged:
    """A PagedKernel."""

    name = FIA

    def __init__(self, operators: Operators, num_heads: int, form: Form = "TND") -> None:
        self._operators, self._form = operators, form
        self._shared = _Shared(num_heads, form)
        self.version = f"{operators.version} {form}"

    def step(self, store: PagedStore, tables: PageTables, plan: StepPlan) -> FiaStep:
        """Check and build the arguments of all calls once, for all layers.

        Raises as check_call does.
        """
        build = _paged_call_of_all_rows if self._form == "TND" else _paged_calls_of_each_row
        calls = [
            build(
                segment,
                tables,
                store.num_pages,
                self._shared.arguments(store.shape, segment) | {"block_size": PAGE_SIZE},
            )
            for segment in plan.segments
        ]
        slots = tables.slots(plan.start, plan.end).flatten()

        def write(layer: int, k: Tensor, v: Tensor) -> None:
            self._operators.write(
                k.flatten(0, 1).contiguous(),
                v.flatten(0, 1).contiguous(),
                store.keys[layer],
                store.values[layer],
                slots,
                # The default means pages in the device's own fractal layout.
                cache_mode="Norm",
            )

        return FiaStep(self._operators, store, plan, write, calls)


class FiaDense:
    """A DenseKernel: a call takes all rows, whole, with the lengths that it may read."""

    name = FIA

    def __init__(self, operators: Operators, num_heads: int) -> None:
        self._operators = operators
        self._shared = _Shared(num_heads, "BSH")
        self.version = f"{operators.version} BSH"

    def step(self, store: DenseStore, plan: StepPlan) -> FiaStep:
        """Build the arguments of all calls once, for all layers."""
        calls = []
        for segment in plan.segments:
            lengths = {
                "actual_seq_lengths": [segment.end - segment.start] * store.num_rows,
                "actual_seq_lengths_kv": [segment.kv_len] * store.num_rows,
            }
            arguments = self._shared.arguments(store.shape, segment) | lengths
            calls.append([Call(slice(None), arguments)])
        span = slice(plan.start, plan.end)

        def write(layer: int, k: Tensor, v: Tensor) -> None:
            store.keys[layer][:, span] = k
            store.values[layer][:, span] = v

        return FiaStep(self._operators, store, plan, write, calls)


class _Shared:
    """The arguments that do not depend on where keys and values lie."""

    def __init__(self, num_heads: int, form: Form) -> None:
        self._num_heads, self._form = num_heads, form
        self._mask: Tensor | None = None

    def arguments(self, shape: KVShape, segment: Segment) -> dict[str, Any]:
        """Return those of one segment."""
        arguments: dict[str, Any] = {
            "num_heads": self._num_heads,
            "num_key_value_heads": shape.num_kv_heads,
            # The operator's own default is 1.
            "scale": 1 / math.sqrt(shape.head_dim),
            "input_layout": self._form,
            "sparse_mode": _FULL,
        }
        # A lone last query sees every key either way, and where all rows have one query the
        # operator turns to its decoding branch, for which the documents know no such mask.
        if segment.causal and segment.end - segment.start > 1:
            if self._mask is None:
                ones = torch.ones(_MASK_SIDE, _MASK_SIDE, dtype=torch.int8)
                self._mask = ones.triu(1).to(shape.device)
            arguments |= {"sparse_mode": _CAUSAL, "atten_mask": self._mask}
        return arguments


def _paged_call_of_all_rows(
    segment: Segment, tables: PageTables, pool: int, shared: dict[str, Any]
) -> list[Call]:
    num_rows, width = tables.pages.shape
    num_queries, kv_lens = segment.end - segment.start, [segment.kv_len] * num_rows
    check_call([num_queries] * num_rows, kv_lens, width, pool)
    arguments = {
        "block_table": tables.pages,
        # Ends, not lengths; those of the keys are lengths because there are pages.
        "actual_seq_lengths": [num_queries * (row + 1) for row in range(num_rows)],
        "actual_seq_lengths_kv": kv_lens,
    }
    return [Call(slice(None), shared | arguments)]


def _paged_calls_of_each_row(
    segment: Segment, tables: PageTables, pool: int, shared: dict[str, Any]
) -> list[Call]:
    num_rows, width = tables.pages.shape
    num_queries = segment.end - segment.start
    check_call([num_queries], [segment.kv_len], width, pool)
    lengths = {
        "actual_seq_lengths": [num_queries],
        "actual_seq_lengths_kv": [segment.kv_len],
    }
    return [
        Call(rows, shared | lengths | {"block_table": tables.pages[rows].contiguous()})
        for rows in (slice(row, row + 1) for row in range(num_rows))
    ]
