"""Ascend's fused attention over pages: one write, then one call per segment.

Written from the operators' documents and run through an emulation of them only, never on an NPU:
docs/ascend.md says what that proves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from kit.attention.ascend.limits import FIA, PAGE_SIZE, check_call
from kit.attention.ascend.operators import Operators
from kit.attention.kernel import PageTables
from kit.attention.plan import Segment, StepPlan
from kit.attention.rotary import QKNorm, Rotary, prepare_qkv
from kit.kv.store import PagedStore

Form = Literal["TND", "BSH"]
"""How queries are handed over: those of all rows in a call, or a call for each row."""

FORMS: tuple[Form, ...] = ("TND", "BSH")
"""The better one first."""

_FULL, _CAUSAL = 0, 3
"""sparse_mode: every key; keys up to the query's own, both counted from the last one."""

_MASK_SIDE = 2048
"""Whatever the lengths: the operator shifts this one mask over them."""


class FiaPaged:
    """A PagedKernel."""

    name = FIA

    def __init__(self, operators: Operators, num_heads: int, form: Form = "TND") -> None:
        self._operators, self._num_heads, self._form = operators, num_heads, form
        self.version = f"{operators.version} {form}"
        self._mask: Tensor | None = None

    def step(self, store: PagedStore, tables: PageTables, plan: StepPlan) -> FiaStep:
        """Check and build the arguments of all calls once, for all layers.

        Raises as check_call does.
        """
        if self._mask is None:
            ones = torch.ones(_MASK_SIDE, _MASK_SIDE, dtype=torch.int8)
            self._mask = ones.triu(1).to(store.shape.device)
        shared: dict[str, Any] = {
            "num_heads": self._num_heads,
            "num_key_value_heads": store.shape.num_kv_heads,
            # The operator's own default is 1.
            "scale": 1 / math.sqrt(store.shape.head_dim),
            "block_size": PAGE_SIZE,
            "input_layout": self._form,
        }
        build = _calls_of_all_rows if self._form == "TND" else _calls_of_each_row
        calls = []
        for segment in plan.segments:
            mode: dict[str, Any] = {"sparse_mode": _FULL}
            if segment.causal:
                mode = {"sparse_mode": _CAUSAL, "atten_mask": self._mask}
            calls.append(build(segment, tables, store.num_pages, shared | mode))
        return FiaStep(self._operators, store, tables.slots(plan.start, plan.end), plan, calls)


@dataclass(frozen=True)
class _Call:
    """One call: the rows whose queries it takes, and all its arguments by name."""

    rows: slice
    arguments: dict[str, Any]


def _calls_of_all_rows(
    segment: Segment, tables: PageTables, pool: int, shared: dict[str, Any]
) -> list[_Call]:
    num_rows, width = tables.pages.shape
    num_queries, kv_lens = segment.end - segment.start, [segment.kv_len] * num_rows
    check_call([num_queries] * num_rows, kv_lens, width, pool)
    arguments = {
        "block_table": tables.pages,
        # Ends, not lengths; those of the keys are lengths because there are pages.
        "actual_seq_lengths": [num_queries * (row + 1) for row in range(num_rows)],
        "actual_seq_lengths_kv": kv_lens,
    }
    return [_Call(slice(None), shared | arguments)]


def _calls_of_each_row(
    segment: Segment, tables: PageTables, pool: int, shared: dict[str, Any]
) -> list[_Call]:
    num_rows, width = tables.pages.shape
    num_queries = segment.end - segment.start
    check_call([num_queries], [segment.kv_len], width, pool)
    lengths = {
        "actual_seq_lengths": [num_queries],
        "actual_seq_lengths_kv": [segment.kv_len],
    }
    return [
        _Call(rows, shared | lengths | {"block_table": tables.pages[rows].contiguous()})
        for rows in (slice(row, row + 1) for row in range(num_rows))
    ]


class FiaStep:
    """A StepKV whose arguments are the same for every layer."""

    def __init__(
        self,
        operators: Operators,
        store: PagedStore,
        slots: Tensor,
        plan: StepPlan,
        calls: list[list[_Call]],
    ) -> None:
        self._operators, self._store = operators, store
        self._slots, self._plan, self._calls = slots.flatten(), plan, calls

    @property
    def address_key(self) -> object:
        """See StepKV.address_key."""
        return self

    def write(self, layer: int, qkv: Tensor, rotary: Rotary, norm: QKNorm) -> Tensor:
        """Rotate and normalise, write k and v to their slots, return q; see StepKV.write."""
        q, k, v = prepare_qkv(qkv, rotary, norm)
        self._operators.write(
            k.flatten(0, 1).contiguous(),
            v.flatten(0, 1).contiguous(),
            self._store.keys[layer],
            self._store.values[layer],
            self._slots,
            # The default means pages in the device's own fractal layout.
            cache_mode="Norm",
        )
        return q

    @torch.no_grad()
    def attend(self, layer: int, q: Tensor) -> Tensor:
        """Run the plan's segments; see StepKV.attend."""
        # [N, P, K*D]: with four axes the operator would take them for [N, K, P, D].
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
