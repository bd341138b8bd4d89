"""Wrong operators of an NPU beside attention, planted in the emulation one by one.

Both a start (tests/model/test_npu_operators.py) and `kit doctor` must find each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import npu_emulation
import pytest
import torch
from torch import Tensor

Fault = Callable[..., Any]
"""Of the right operator and its arguments."""


def plant(monkeypatch: pytest.MonkeyPatch, name: str, fault: Fault | None) -> None:
    """Put a fault in the place of an operator; None: there is no such operator."""
    module = npu_emulation.installed()
    if fault is None:
        monkeypatch.delattr(module, name)
    else:
        monkeypatch.setattr(module, name, partial(fault, getattr(module, name)))


def refused(*_: Any, **__: Any) -> Any:
    raise RuntimeError("error code is 561002")


def lost(right: Any, *given: Any, **named: Any) -> Any:
    out = right(*given, **named)
    return out * torch.nan if isinstance(out, Tensor) else (out[0] * torch.nan, *out[1:])


def gate_second(right: Callable[..., Tensor], x: Tensor) -> Tensor:
    return right(x.roll(x.shape[-1] // 2, dims=-1))


def larger(right: Any, x: Tensor, gamma: Tensor, epsilon: float) -> Any:
    return right(x, gamma * 1.02, epsilon)


def own_epsilon(right: Any, x: Tensor, gamma: Tensor, epsilon: float) -> Any:
    del epsilon
    return right(x, gamma)


def without_gamma(right: Any, x: Tensor, gamma: Tensor, epsilon: float) -> Any:
    return right(x, torch.ones_like(gamma), epsilon)


def not_softmax(right: Any, x: Tensor, k: int) -> Any:
    """The weights of a sigmoid."""
    _, indices, rows = right(x, k=k)
    return x.sigmoid().gather(-1, indices.long()), indices, rows


def smallest(right: Any, x: Tensor, k: int) -> Any:
    return right(-x, k=k)


def first_experts(right: Any, x: Tensor, indices: Tensor, **named: Any) -> Any:
    """As if every token had chosen the same ones."""
    return right(x, indices[:1].expand_as(indices).contiguous(), **named)


def places_from_rows(right: Any, *given: Any, **named: Any) -> Any:
    return right(*given, **named | {"row_idx_type": 1})


def counts_turned(right: Any, *given: Any, **named: Any) -> Any:
    rows, places, counts, scale = right(*given, **named)
    return rows, places, counts.flip(0), scale


def ends_for_counts(right: Any, *given: Any, **named: Any) -> Any:
    rows, places, counts, scale = right(*given, **named)
    return rows, places, counts.cumsum(0), scale


def not_transposed(right: Any, x: list[Tensor], matrices: list[Tensor], **named: Any) -> Any:
    return right(x, [matrices[0].transpose(1, 2)], **named)


def first_matrix(right: Any, x: list[Tensor], matrices: list[Tensor], **named: Any) -> Any:
    stack = matrices[0]
    return right(x, [stack[:1].expand_as(stack).contiguous()], **named)


def lengths_as_ends(right: Any, *given: Any, **named: Any) -> Any:
    return right(*given, **named | {"group_list_type": 0})


def no_weights(right: Any, rows: Tensor, places: Tensor, probs: Tensor) -> Any:
    return right(rows, places, probs=torch.full_like(probs, 1 / probs.shape[1]))


def in_expert_order(right: Any, rows: Tensor, places: Tensor, probs: Tensor) -> Any:
    return right(rows, torch.arange(len(places), dtype=torch.int32), probs=probs)


FAULTS: Mapping[str, Mapping[str, tuple[Fault | None, ...]]] = {
    "norm": {"npu_rms_norm": (larger, own_epsilon, without_gamma, lost, refused, None)},
    "gate": {"npu_swiglu": (gate_second, lost, refused, None)},
    "expert layer": {
        "npu_moe_gating_top_k_softmax": (not_softmax, smallest, lost, refused, None),
        "npu_moe_init_routing_v2": (
            first_experts,
            places_from_rows,
            counts_turned,
            ends_for_counts,
            None,
        ),
        "npu_grouped_matmul": (not_transposed, first_matrix, lengths_as_ends, refused, None),
        "npu_moe_token_unpermute": (no_weights, in_expert_order, lost, None),
    },
}
"""Part of the model: operator: what may be wrong with it."""

CASES = tuple(
    pytest.param(part, name, fault, id=f"{name}-{fault.__name__ if fault else 'missing'}")
    for part, operators in FAULTS.items()
    for name, faults in operators.items()
    for fault in faults
)
