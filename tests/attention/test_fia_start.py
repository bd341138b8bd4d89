"""Tier A: which form of the Ascend kernel a start chooses, and what it finds out by itself."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import npu_emulation
import pytest
import torch
from fia_emulation import CALLS
from fia_faults import arguments
from torch import Tensor

from kit.attention.ascend.limits import FIA, check_call, check_heads, check_pool
from kit.attention.ascend.operators import Operators, load_operators
from kit.attention.ascend.start import RELATIVE_LIMIT, open_dense, open_paged, self_test
from kit.attention.registry import _dense_kernel, _paged_kernel
from kit.checkpoint.shipped import DEFAULT_CHECKPOINT
from kit.errors import ConfigError, KitError, KVCacheError, UnsupportedError, WorkerError
from kit.kv.geometry import KVGeometry
from kit.kv.manager import KVCacheManager
from kit.kv.store import KVShape
from kit.modelspec.config import load_model_config

SHAPE = KVShape(2, 2, 64, torch.bfloat16, torch.device("cpu"))
NUM_HEADS = 4


@pytest.fixture
def operators(monkeypatch: pytest.MonkeyPatch) -> Operators:
    npu_emulation.install(monkeypatch.setitem)
    return load_operators()


def test_several_rows_in_a_call_are_chosen_where_they_work(
    operators: Operators, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "kit"):
        kernel = open_paged(operators, SHAPE, NUM_HEADS, 40)
    assert kernel.version == f"{operators.version} TND"
    assert [record.levelname for record in caplog.records] == ["INFO", "INFO"]
    assert "rotation runs on torch-npu's operators" in caplog.text
    layouts = {given["input_layout"] for name, given in CALLS if name == "attend"}
    assert layouts == {"TND"}
    # Both kinds of segment, past 512 keys.
    assert {given.get("sparse_mode", 0) for name, given in CALLS if name == "attend"} == {0, 3}
    assert max(max(g["actual_seq_lengths_kv"]) for name, g in CALLS if name == "attend") > 512


def refuse_rows(given: dict[str, Any]) -> None:
    if given["input_layout"] == "TND":
        raise RuntimeError("aclnnFusedInferAttentionScoreV3 failed, error code is 561002")


def another_signature(given: dict[str, Any]) -> None:
    if given["input_layout"] == "TND":
        raise TypeError("unexpected keyword argument 'actual_seq_lengths'")


def wrong_rows(given: dict[str, Any]) -> None:
    if given["input_layout"] == "TND":
        given["scale"] = 1.0


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (refuse_rows, "error code is 561002"),
        (another_signature, "unexpected keyword"),
        (wrong_rows, "segments are wrong"),
    ],
)
def test_a_stack_that_cannot_take_several_rows_gets_one_row_a_call(
    operators: Operators,
    fault: Callable[[dict[str, Any]], None],
    said: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "kit"):
        kernel = open_paged(arguments(fault)(operators), SHAPE, NUM_HEADS, 40)
    assert kernel.version.endswith("BSH")
    (warning,) = caplog.messages
    assert said in warning
    assert "once for each row (BSH)" in warning


def test_a_start_without_any_good_form_names_both(operators: Operators) -> None:
    broken = arguments(lambda given: given.update(scale=1.0))(operators)
    with pytest.raises(UnsupportedError, match=r"TND: .*BSH: .*TORCH_SDPA") as caught:
        open_paged(broken, SHAPE, NUM_HEADS, 40)
    assert f"{RELATIVE_LIMIT:g}" in str(caught.value)
    with pytest.raises(UnsupportedError, match=r"BSH: 14 of 14 segments are wrong.*TORCH_SDPA"):
        open_dense(broken, SHAPE, NUM_HEADS)


def test_contiguous_rows_are_read_without_a_page_table(
    operators: Operators, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "kit"):
        kernel = open_dense(operators, SHAPE, NUM_HEADS)
    assert kernel.version == f"{operators.version} BSH"
    assert "over contiguous rows passed" in caplog.text
    reads = [given for name, given in CALLS if name == "attend"]
    assert {given.get("sparse_mode", 0) for given in reads} == {0, 3}
    assert not any("block_table" in given for given in reads)


def turned_back(
    right: Callable[..., Tensor], x: Tensor, cos: Tensor, sin: Tensor, **given: Any
) -> Tensor:
    return right(x, cos, -sin, **given)


def in_neighbours(
    right: Callable[..., Tensor], x: Tensor, cos: Tensor, sin: Tensor, **given: Any
) -> Tensor:
    return right(x, cos, sin, **given | {"rotary_mode": "interleave"})


def lost(right: Callable[..., Tensor], *tensors: Tensor, **given: Any) -> Tensor:
    return right(*tensors, **given) * torch.nan


def refused(*_: Any, **__: Any) -> Tensor:
    raise RuntimeError("error code is 161002")


def of_another_release(right: Callable[..., Tensor], x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return right(x, cos, sin)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (turned_back, "off by"),
        (in_neighbours, "off by"),
        (lost, "off by nan"),
        (refused, r"refused \(error code is 161002"),
        (of_another_release, "rotary_mode"),
        (None, "has no npu_rotary_mul"),
    ],
)
def test_a_rotation_that_does_not_pass_runs_in_plain_torch(
    operators: Operators,
    fault: Any,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    module = npu_emulation.installed()
    if fault is None:
        monkeypatch.delattr(module, "npu_rotary_mul")
    else:
        monkeypatch.setattr(module, "npu_rotary_mul", partial(fault, module.npu_rotary_mul))
    with caplog.at_level(logging.WARNING, "kit"):
        kernel = open_paged(operators, SHAPE, NUM_HEADS, 40)
    (warning,) = caplog.messages
    assert re.search(f"rotation runs in plain torch: .*{said}", warning)
    # Nothing else depends on it.
    assert kernel.version.endswith("TND")
    assert self_test(kernel, SHAPE, NUM_HEADS) is None


def test_without_torch_npu_or_an_operator_the_reason_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    npu_emulation.install(monkeypatch.setitem)
    monkeypatch.delattr(npu_emulation.installed(), "npu_scatter_pa_kv_cache")
    with pytest.raises(UnsupportedError, match=r"torch-npu \S+ has no npu_scatter_pa_kv_cache"):
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


def test_a_worker_opens_the_kernel_of_its_mode(operators: Operators) -> None:
    """What the registry builds where the device is an NPU and FLASH_ATTN runs ascend_fia."""
    model = load_model_config(DEFAULT_CHECKPOINT)
    shape = KVShape(1, 4, 64, torch.bfloat16, torch.device("cpu"))
    paged = _paged_kernel(FIA, None, model, model.num_attention_heads, shape, 40)
    dense = _dense_kernel(FIA, None, model.num_attention_heads, shape)
    assert (paged.version, dense.version) == (
        f"{operators.version} TND",
        f"{operators.version} BSH",
    )
