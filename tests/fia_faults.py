"""Wrong calls of Ascend's operators, planted between the kernel and the emulation.

ILLEGAL ones breach a rule of the operators' documents. SILENT ones are legal and mean something
else. Both are planted one by one in the kernel (tests/attention/test_fia.py) and in the self-test
of a start (tests/attention/test_fia_self_test.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from kit.attention.ascend.operators import Operators

Plant = Callable[[Operators], Operators]
MASK = torch.ones(2048, 2048, dtype=torch.int8).triu(1)


def arguments(change: Callable[[dict[str, Any]], object]) -> Plant:
    """Change the arguments of every read."""

    def plant(operators: Operators) -> Operators:
        def attend(q: Tensor, k: Tensor, v: Tensor, **given: Any) -> tuple[Tensor, Tensor]:
            change(given)
            return operators.attend(q, k, v, **given)

        return replace(operators, attend=attend)

    return plant


def tensors(change: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]) -> Plant:
    """Change queries, keys and values of every read."""

    def plant(operators: Operators) -> Operators:
        def attend(q: Tensor, k: Tensor, v: Tensor, **given: Any) -> tuple[Tensor, Tensor]:
            return operators.attend(*change(q, k, v), **given)

        return replace(operators, attend=attend)

    return plant


def writes(change: Callable[[list[Any]], object]) -> Plant:
    """Change keys, values, pages of both, slots and the other arguments of every write."""

    def plant(operators: Operators) -> Operators:
        def write(*given: Tensor, **others: Any) -> None:
            changed: list[Any] = [*given, others]
            change(changed)
            operators.write(*changed[:5], **changed[5])

        return replace(operators, write=write)

    return plant


def prepared(change: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]) -> Plant:
    """Change rotated queries and keys, and values."""

    def plant(operators: Operators) -> Operators:
        return replace(operators, prepare=lambda *given: change(*operators.prepare(*given)))

    return plant


def masked(mask: Tensor | None) -> Plant:
    return arguments(lambda given: given["sparse_mode"] and given.update(atten_mask=mask))


def to_full(given: dict[str, Any]) -> None:
    given["sparse_mode"] = 0
    given.pop("atten_mask", None)


def to_causal(given: dict[str, Any]) -> None:
    """A lone query sees the same either way."""
    if given["actual_seq_lengths"][0] > 1:
        given.update(sparse_mode=3, atten_mask=MASK)


def added_up(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda given: given.update({name: list(accumulate(given[name]))})


def fewer_keys_than_queries(given: dict[str, Any]) -> None:
    if given["sparse_mode"]:
        given["actual_seq_lengths_kv"] = [n - 1 for n in given["actual_seq_lengths_kv"]]


def keys(change: Callable[[int], int]) -> Plant:
    """Change the key lengths of full segments."""

    def changed(given: dict[str, Any]) -> None:
        if not given["sparse_mode"]:
            given["actual_seq_lengths_kv"] = [change(n) for n in given["actual_seq_lengths_kv"]]

    return arguments(changed)


def four_axes(pages: Tensor, q: Tensor) -> Tensor:
    return pages.view(*pages.shape[:-1], -1, q.shape[-1])


def spread(x: Tensor) -> Tensor:
    """Return equal numbers that do not lie behind one another, as in a slice of a projection."""
    return torch.stack((x, x), dim=-2)[..., 0, :]


ILLEGAL: dict[str, tuple[Plant, str]] = {
    "cumulative key lengths": (arguments(added_up("actual_seq_lengths_kv")), "block_table"),
    "query lengths per row": (
        arguments(
            lambda g: g.update(actual_seq_lengths=[g["actual_seq_lengths"][0]] * 2),
        ),
        "last query",
    ),
    "falling query lengths": (
        arguments(lambda g: g["actual_seq_lengths"].sort(reverse=True)),
        "cumulative",
    ),
    "no query lengths": (arguments(lambda g: g.pop("actual_seq_lengths")), "both length lists"),
    "no key lengths": (arguments(lambda g: g.pop("actual_seq_lengths_kv")), "both length lists"),
    "a key length for all rows": (
        arguments(lambda g: g.update(actual_seq_lengths_kv=g["actual_seq_lengths_kv"][:1])),
        "both lists alike",
    ),
    "more queries than keys": (arguments(fewer_keys_than_queries), "queries over"),
    "no mask for a causal segment": (masked(None), "needs the mask"),
    "a mask of the lengths": (masked(torch.ones(151, 151).triu(1).to(torch.int8)), "mask of"),
    "an inverted mask": (masked(1 - MASK), "above the diagonal"),
    "a mask that hides the query itself": (
        masked(torch.ones(2048, 2048).triu(0).to(torch.int8)),
        "above the diagonal",
    ),
    "a mask of floats": (masked(MASK.float()), "mask of torch.float32"),
    "a mask for a full segment": (
        arguments(lambda g: g.update(atten_mask=MASK, sparse_mode=0)),
        "takes no mask",
    ),
    "mode 1": (arguments(lambda g: g.update(sparse_mode=1)), "sparse_mode 1"),
    "mode 2": (arguments(lambda g: g.update(sparse_mode=2)), "sparse_mode 2"),
    "pages of 16": (arguments(lambda g: g.update(block_size=16)), "block_size 16"),
    "block_size left out": (arguments(lambda g: g.pop("block_size")), "block_size 0"),
    "int64 page table": (
        arguments(lambda g: g.update(block_table=g["block_table"].long())),
        "int32",
    ),
    "no page table": (arguments(lambda g: g.pop("block_table")), "need block_table"),
    "page ids past the pool": (
        arguments(lambda g: g.update(block_table=g["block_table"] + 11)),
        "page id",
    ),
    "heads left out": (arguments(lambda g: g.pop("num_heads")), "num_heads"),
    "kv heads left out": (arguments(lambda g: g.pop("num_key_value_heads")), "3-D pages"),
    "layout left out": (arguments(lambda g: g.pop("input_layout")), "BSH"),
    "an argument of other forms": (
        arguments(lambda g: g.update(softmax_lse_flag=True)),
        "nothing uses",
    ),
    "pages as they are written": (
        tensors(lambda q, k, v: (q, four_axes(k, q), four_axes(v, q))),
        "4-D pages",
    ),
    "rows of padding": (tensors(lambda q, k, v: (torch.cat((q, q[:1])), k, v)), "last query"),
    "float32 queries": (tensors(lambda q, k, v: (q.float(), k, v)), "bfloat16"),
    "queries that are not contiguous": (tensors(lambda q, k, v: (spread(q), k, v)), "contiguous"),
    "a pool that counts shared pages once": (
        tensors(lambda q, k, v: (q, k[:3], v[:3])),
        "shared or not",
    ),
    "cache_mode left out": (writes(lambda given: given[5].clear()), "ND pages are Norm"),
    "two tokens for one slot": (writes(lambda given: given[4].fill_(7)), "two tokens"),
    "a slot past the pool": (writes(lambda given: given[4].add_(100 * 128)), "out of range"),
    "a slot before the pool": (writes(lambda given: given[4].sub_(100 * 128)), "out of range"),
    "a slice of the projection": (
        writes(lambda given: given.__setitem__(1, spread(given[1]))),
        "contiguous",
    ),
    "rows and tokens apart": (
        writes(lambda given: given.__setitem__(0, given[0].unflatten(0, (2, -1)))),
        r"\[T, K, D\]",
    ),
}
"""How a fault is planted over pages, and what the emulation says."""

ILLEGAL_OVER_ROWS: dict[str, tuple[Plant, str]] = {
    "ends instead of query lengths": (
        arguments(added_up("actual_seq_lengths")),
        "not ends; the rows have 151",
    ),
    "ends instead of key lengths": (
        arguments(added_up("actual_seq_lengths_kv")),
        "not ends; the rows have 196",
    ),
    "no key lengths": (arguments(lambda g: g.pop("actual_seq_lengths_kv")), "both length lists"),
    "a length for all rows": (
        arguments(lambda g: g.update(actual_seq_lengths=[151])),
        "of each row",
    ),
    "the size of pages": (arguments(lambda g: g.update(block_size=128)), "goes with pages"),
    "queries behind one another": (arguments(lambda g: g.update(input_layout="TND")), "num_heads"),
    "no mask for a causal segment": (masked(None), "needs the mask"),
    "kv heads left out": (arguments(lambda g: g.pop("num_key_value_heads")), "elements"),
}
"""As ILLEGAL, over contiguous rows."""

SILENT: dict[str, Plant] = {
    "scale left out": arguments(lambda given: given.pop("scale")),
    "scale of another head size": arguments(lambda given: given.update(scale=128**-0.5)),
    "causal run as full": arguments(to_full),
    "full run as causal": arguments(to_causal),
    "a quarter of the keys of a full segment left out": keys(lambda n: n - n // 4),
    "values of another layer's scale": tensors(lambda q, k, v: (q, k, v * 1.1)),
    "queries in another order": prepared(lambda q, k, v: (q.flip(1), k, v)),
}
"""Over pages and over contiguous rows."""

SILENT_OVER_PAGES: dict[str, Plant] = {
    "rows read one another's pages": arguments(
        lambda given: given.update(block_table=given["block_table"].flip(0).contiguous())
    ),
    "pages in another order": arguments(
        lambda given: given.update(block_table=given["block_table"].flip(1).contiguous())
    ),
    "the last token is not written": writes(
        lambda given: given.__setitem__(
            slice(0, 5), [given[0][:-1], given[1][:-1], *given[2:4], given[4][:-1]]
        )
    ),
}
