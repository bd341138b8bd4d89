"""Tier A: which form of the Ascend kernel a start chooses, and what it finds out by itself."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import fia_emulation
import pytest
import torch
from fia_emulation import CALLS
from torch import Tensor

from kit.attention.ascend.fia import FiaPaged
from kit.attention.ascend.limits import check_call, check_heads, check_pool
from kit.attention.ascend.operators import Operators, load_operators
from kit.attention.ascend.start import RELATIVE_LIMIT, open_fia, self_test
from kit.errors import ConfigError, KitError, KVCacheError, UnsupportedError, WorkerError
from kit.kv.geometry import KVGeometry
from kit.kv.manager import KVCacheManager
from kit.kv.store import KVShape

SHAPE = KVShape(2, 2, 64, torch.bfloat16, torch.device("cpu"))
NUM_HEADS = 4

Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def operators(monkeypatch: pytest.MonkeyPatch) -> Operators:
    fia_emulation.install(monkeypatch.setitem)
    return load_operators()


def changed(operators: Operators, change: Change) -> Operators:
    def attend(q: Tensor, k: Tensor, v: Tensor, **given: Any) -> tuple[Tensor, Tensor]:
        change(given)
        return operators.attend(q, k, v, **given)

    return replace(operators, attend=attend)


def test_several_rows_in_a_call_are_chosen_where_they_work(
    operators: Operators, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "kit"):
        kernel = open_fia(operators, SHAPE, NUM_HEADS, 40)
    assert kernel.version == "torch-npu 0+emulated TND"
    assert [record.levelname for record in caplog.records] == ["INFO"]
    layouts = {given["input_layout"] for name, given in CALLS if name == "attend"}
    assert layouts == {"TND"}
    # Both kinds of segment, past 512 keys.
    assert {given.get("sparse_mode", 0) for name, given in CALLS if name == "attend"} == {0, 3}
    assert max(max(g["actual_seq_lengths_kv"]) for name, g in CALLS if name == "attend") > 512


def refuse_rows(given: dict[str, Any]) -> None:
    if given["input_layout"] == "TND":
        raise RuntimeError("aclnnFusedInferAttentionScoreV3 failed, error code is 561002")


def wrong_rows(given: dict[str, Any]) -> None:
    if given["input_layout"] == "TND":
        given["scale"] = 1.0


@pytest.mark.parametrize(
    ("fault", "said"), [(refuse_rows, "error code is 561002"), (wrong_rows, "segments are wrong")]
)
def test_a_stack_that_cannot_take_several_rows_gets_one_row_a_call(
    operators: Operators, fault: Change, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "kit"):
        kernel = open_fia(changed(operators, fault), SHAPE, NUM_HEADS, 40)
    assert kernel.version.endswith("BSH")
    (warning,) = caplog.messages
    assert said in warning
    assert "once for each row (BSH)" in warning


def causal_as_full(given: dict[str, Any]) -> None:
    given["sparse_mode"] = 0
    given.pop("atten_mask", None)


def full_as_causal(given: dict[str, Any]) -> None:
    given["sparse_mode"] = 3
    given["atten_mask"] = torch.ones(2048, 2048, dtype=torch.int8).triu(1)


def cumulative(given: dict[str, Any]) -> None:
    lengths = given["actual_seq_lengths_kv"]
    given["actual_seq_lengths_kv"] = [sum(lengths[: i + 1]) for i in range(len(lengths))]


def stops_at_512(given: dict[str, Any]) -> None:
    if not given["sparse_mode"]:
        given["actual_seq_lengths_kv"] = [min(n, 512) for n in given["actual_seq_lengths_kv"]]


def reads_a_page_too_many(given: dict[str, Any]) -> None:
    """The next page is one of NaN, so a device that reads on gives NaN."""
    table = given["block_table"]
    nan = torch.full_like(table[:, :1], 1000)
    given["block_table"] = torch.cat((table, nan), dim=1)
    given["actual_seq_lengths_kv"] = [n + 128 for n in given["actual_seq_lengths_kv"]]


FAULTS: dict[str, Change] = {
    "scale left out": lambda given: given.update(scale=1.0),
    "causal as full": causal_as_full,
    "full as causal": full_as_causal,
    "cumulative key lengths": cumulative,
    "keys past 512 are lost": stops_at_512,
    "page tables swapped": lambda given: given.update(
        block_table=given["block_table"].flip(0).contiguous()
    ),
    "pages in the order of their ids": lambda given: given.update(
        block_table=given["block_table"].sort(dim=1).values
    ),
    "a page too many": reads_a_page_too_many,
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_the_self_test_finds(operators: Operators, fault: Change) -> None:
    kernel = FiaPaged(changed(operators, fault), NUM_HEADS)
    assert self_test(kernel, SHAPE, NUM_HEADS) is not None
    assert self_test(FiaPaged(operators, NUM_HEADS), SHAPE, NUM_HEADS) is None


def test_a_write_that_loses_the_last_token_is_found(operators: Operators) -> None:
    def write(k: Tensor, v: Tensor, *pages: Tensor, **given: Any) -> None:
        keys, values, slots = pages
        operators.write(k[:-1], v[:-1], keys, values, slots[:-1], **given)

    kernel = FiaPaged(replace(operators, write=write), NUM_HEADS)
    assert "nan" in str(self_test(kernel, SHAPE, NUM_HEADS))


def test_a_start_without_any_good_form_names_both(operators: Operators) -> None:
    broken = changed(operators, lambda given: given.update(scale=1.0))
    with pytest.raises(UnsupportedError, match=r"TND: .*BSH: .*TORCH_SDPA") as caught:
        open_fia(broken, SHAPE, NUM_HEADS, 40)
    assert f"{RELATIVE_LIMIT:g}" in str(caught.value)


def test_without_torch_npu_or_an_operator_the_reason_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = fia_emulation.stub_torch_npu()
    del module.npu_scatter_pa_kv_cache
    monkeypatch.setitem(sys.modules, "torch_npu", module)
    with pytest.raises(UnsupportedError, match=r"0\+emulated has no npu_scatter_pa_kv_cache"):
        load_operators()
    monkeypatch.setitem(sys.modules, "torch_npu", None)
    with pytest.raises(UnsupportedError, match="torch-npu is not installed"):
        load_operators()


@pytest.mark.parametrize(
    ("heads", "said"),
    [
        ((32, 8, 96), "head size 96, it takes 64 and 128"),
        ((512, 8, 64), "512 query heads"),
        ((130, 2, 64), "130 query heads over 2 kv heads"),
        ((33, 8, 64), "33 query heads over 8"),
    ],
)
def test_heads_that_it_does_not_take(heads: tuple[int, int, int], said: str) -> None:
    check_heads(32, 8, 128)
    with pytest.raises(UnsupportedError, match=said):
        check_heads(*heads)


def test_the_largest_pool_of_the_published_model() -> None:
    check_pool(16_383, 8, 128)
    with pytest.raises(ConfigError, match=r"at most 16383 pages of 8 kv heads.*got '16384 pages'"):
        check_pool(16_384, 8, 128)


@pytest.mark.parametrize(
    ("query_lens", "kv_lens", "width", "pool", "error", "said"),
    [
        ([40_000, 40_000], [40_000, 40_000], 400, 900, WorkerError, "together 80000"),
        ([1] * 4097, [1] * 4097, 1, 9000, WorkerError, "4097 rows"),
        ([9, 9], [9, 8], 1, 9, KVCacheError, "row 1: 9 query tokens over 8 keys"),
        ([9, 9], [129, 9], 1, 9, KVCacheError, "row 0: 129 keys need 2 pages, got 1"),
    ],
)
def test_a_call_past_a_limit_is_refused_on_the_host(
    query_lens: list[int],
    kv_lens: list[int],
    width: int,
    pool: int,
    error: type[KitError],
    said: str,
) -> None:
    check_call([9, 9], [9, 129], 2, 3)
    with pytest.raises(error, match=said):
        check_call(query_lens, kv_lens, width, pool)


def test_a_shared_page_counts_once_for_each_row() -> None:
    """Two rows of three pages that share two: four pages hold them, the operator wants six.

    Admission counts in the same way, so what it reserves is always a legal call.
    """
    with pytest.raises(KVCacheError, match="counts 6 pages"):
        check_call([9, 9], [300, 300], 3, 4)
    check_call([9, 9], [300, 300], 3, 6)
    geometry = KVGeometry(num_layers=2, num_kv_heads=2, head_dim=64, dtype_bytes=2, page_size=128)
    with pytest.raises(KitError, match="needs 6 KV pages"):
        KVCacheManager(geometry, 5, 2).reserve("r", 2, 300)
    assert KVCacheManager(geometry, 6, 2).reserve("r", 2, 300) is not None
