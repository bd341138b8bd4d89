"""Tier A: whole pictures through the Ascend kernel and an emulation of its operators.

The worker, the loop and the kernel are those that run on an NPU; the operators compute on the CPU.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any, Literal

import npu_emulation
import numpy as np
import numpy.typing as npt
import pytest
import torch
from fia_emulation import CALLS
from host_waits import Waits
from torch import Tensor

from kit.attention import oracle
from kit.attention.ascend.fia import FiaPaged
from kit.attention.ascend.operators import load_operators
from kit.attention.ascend.start import open_paged
from kit.attention.base import KVBackend, Pass, RequestKV
from kit.attention.oracle import layout_mask
from kit.attention.paged import PagedKV
from kit.attention.plan import StepPlan
from kit.attention.rotary import QKNorm, Rotary, prepare_qkv
from kit.checkpoint.shipped import DEFAULT_CHECKPOINT
from kit.config.deploy import DeployConfig
from kit.engine.preprocess import Preprocessor
from kit.kv.allocation import KVAllocation
from kit.kv.store import PagedStore
from kit.messages import RunRequest, WorkerConfig
from kit.model.npu import use_npu_operators
from kit.pipeline.denoise import DenoiseLoop
from kit.request import GenerationRequest, SamplingParams
from kit.tokenizer.layout import Layout, Rows
from kit.worker.runner import ModelRunner, prepare_device

Drawn = Callable[[int | None, float, int], npt.NDArray[np.uint8]]

PAGE_SIZE = 128
NUM_PAGES = 12
PSNR_LIMIT_DB = 40.0

SEEDS = range(5)

CALL_LIMIT = 2e-2
"""Relative error of an attention call: bfloat16 is at 0.003."""

STEP_LIMIT = 0.1
"""Relative error of a prediction from the reference's own latents, with guidance 5."""

PICTURES_TIMEOUT_S = 1800
"""Of ten to fifteen pictures of 20 steps: a minute or two where nothing else runs."""

CASES = [
    pytest.param(None, 5.0, 2, id="a page ends inside the target"),
    pytest.param(None, 1.0, 1, id="one row"),
    pytest.param(127, 5.0, 2, id="a page ends exactly between"),
    pytest.param(150, 5.0, 2, id="a page ends inside the prefix"),
]


def make_runner(*, is_paged: bool, dtype: Literal["bfloat16"] | None = None) -> ModelRunner:
    return ModelRunner(
        WorkerConfig(
            model_path=str(DEFAULT_CHECKPOINT),
            device="cpu",
            dtype=dtype or ("bfloat16" if is_paged else "float32"),
            vae_dtype="float32",
            kv_mode="paged_scheduler" if is_paged else "dense_legacy",
            attention_backend="FLASH_ATTN",
            page_size=PAGE_SIZE if is_paged else None,
            num_pages=NUM_PAGES if is_paged else 0,
        )
    )


def make_run(prefix_len: int | None, guidance: float, steps: int, seed: int = 3) -> RunRequest:
    """A request whose prefix is lengthened to so many tokens by repeating one of the prompt's."""
    sampling = SamplingParams(
        height=256, width=256, num_inference_steps=steps, seed=seed, guidance_scale=guidance
    )
    prepared = Preprocessor(DEFAULT_CHECKPOINT, DeployConfig()).prepare(
        GenerationRequest("A red ceramic vase on a wooden table", sampling)
    )
    rows = prepared.rows
    if prefix_len is not None:
        more = prefix_len - rows.layout.prefix_len
        ids = tuple((*row[:5], *row[4:5] * more, *row[5:]) for row in rows.token_ids)
        rows = Rows(replace(rows.layout, prefix_len=prefix_len), ids)
    return RunRequest("r", rows, prepared.sampling, None, None)


def paged_run(run: RunRequest) -> RunRequest:
    """Pages in falling order, so that reading them in order is no way out."""
    layout, rows = run.rows.layout, run.rows.num_rows
    per_row = -(-layout.kv_len // PAGE_SIZE)
    pages = list(range(NUM_PAGES))[::-1]
    tables = tuple(tuple(pages[row * per_row : (row + 1) * per_row]) for row in range(rows))
    allocation = KVAllocation("r", 1, tables, layout.kv_len, PAGE_SIZE)
    return RunRequest("r", run.rows, run.sampling, allocation, None)


def psnr_db(seen: npt.NDArray[np.uint8], wanted: npt.NDArray[np.uint8]) -> float:
    error = float(np.mean((seen.astype(np.float64) - wanted) ** 2))
    return 10 * math.log10(255**2 / error) if error else math.inf


@pytest.fixture(scope="module")
def dense() -> ModelRunner:
    return make_runner(is_paged=False)


@pytest.fixture
def ascend(monkeypatch: pytest.MonkeyPatch) -> ModelRunner:
    npu_emulation.install(monkeypatch.setitem)
    runner = make_runner(is_paged=True)
    assert isinstance(runner.backend, PagedKV)
    shape, heads = runner.backend.store.shape, runner._model.config.num_attention_heads
    kernel = open_paged(load_operators(), shape, heads, NUM_PAGES)
    runner.backend = PagedKV("FLASH_ATTN", PagedStore(shape, NUM_PAGES, PAGE_SIZE), kernel)
    use_npu_operators(runner._model, torch.device("cpu"), torch.bfloat16)
    CALLS.clear()
    return runner


class CheckedRequest:
    """A RequestKV that compares every attention call with the mask oracle, apart from any page."""

    def __init__(self, inner: RequestKV, layout: Layout, errors: list[float]) -> None:
        self._inner, self._mask, self._errors = inner, layout_mask(layout), errors
        self._written: dict[int, tuple[Tensor, Tensor]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def step(self, plan: StepPlan) -> Any:
        inner, span = self._inner.step(plan), slice(plan.start, plan.end)
        queries: dict[int, Tensor] = {}

        def write(layer: int, qkv: Tensor, rotary: Rotary, norm: QKNorm) -> Tensor:
            q, k, v = prepare_qkv(qkv.float(), rotary, norm)
            if plan.start == 0:
                self._written[layer] = (k.clone(), v.clone())
            for kept, new in zip(self._written[layer], (k, v), strict=True):
                kept[:, span] = new
            queries[layer] = q
            return inner.write(layer, qkv, rotary, norm)

        def attend(layer: int, q: Tensor) -> Tensor:
            seen = inner.attend(layer, q)
            wanted = oracle.attend(queries[layer], *self._written[layer], self._mask[span])
            self._errors.append(float((seen.float() - wanted).norm() / wanted.norm()))
            return seen

        return SimpleNamespace(write=write, attend=attend, address_key=None)

    def first_passes(self, plan: StepPlan) -> tuple[Pass, ...]:
        (only,) = self._inner.first_passes(plan)
        return (replace(only, kv=self.step(plan)),)


class CheckedBackend:
    """A KVBackend of checked requests."""

    def __init__(self, inner: KVBackend) -> None:
        self._inner, self.errors = inner, list[float]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def open(self, layout: Layout, num_rows: int, allocation: KVAllocation | None) -> Any:
        return CheckedRequest(self._inner.open(layout, num_rows, allocation), layout, self.errors)


def picture(runner: ModelRunner, run: RunRequest) -> npt.NDArray[np.uint8]:
    return runner.run(run, lambda _: None, lambda: False).image


@pytest.mark.parametrize("steps", [2, pytest.param(20, marks=pytest.mark.long)])
@pytest.mark.parametrize(("prefix_len", "guidance", "num_rows"), CASES)
def test_every_attention_call_of_a_picture_is_that_of_the_oracle(
    ascend: ModelRunner, prefix_len: int | None, guidance: float, num_rows: int, steps: int
) -> None:
    run = make_run(prefix_len, guidance, steps)
    assert run.rows.num_rows == num_rows
    checked = CheckedBackend(ascend.backend)
    ascend.backend = checked
    picture(ascend, paged_run(run))
    layers = ascend._model.config.num_hidden_layers
    assert len(checked.errors) == steps * layers
    assert max(checked.errors) <= CALL_LIMIT
    names = [name for name, _ in CALLS]
    assert names.count("write") == steps * layers
    assert names.count("attend") == 2 * steps * layers
    assert names.count("rotary") == 2 * steps * layers
    assert names.count("rms_norm") == 4 * steps * layers
    assert names.count("unpermute") == steps * layers
    assert names.count("grouped_matmul") == names.count("swiglu") == 2 * steps * layers


def test_a_call_that_is_wrong_shows_in_the_check(ascend: ModelRunner) -> None:
    operators = replace(load_operators(), write=lambda *_, **__: None)
    assert isinstance(ascend.backend, PagedKV)
    kernel = FiaPaged(operators, ascend._model.config.num_attention_heads)
    ascend.backend = PagedKV("FLASH_ATTN", ascend.backend.store, kernel)
    checked = CheckedBackend(ascend.backend)
    ascend.backend = checked
    picture(ascend, paged_run(make_run(None, 5.0, 1)))
    assert min(checked.errors) > 10 * CALL_LIMIT


@pytest.mark.parametrize("seed", [pytest.param(s, marks=pytest.mark.long) for s in SEEDS[1:]] + [0])
def test_every_step_points_where_the_reference_does(
    ascend: ModelRunner, dense: ModelRunner, seed: int
) -> None:
    """Each from the reference's own latents, so that no step inherits another one's rounding."""
    steps = 4
    run = make_run(None, 5.0, steps, seed)
    loops = [
        DenoiseLoop(
            runner._model,
            runner.backend.open(given.rows.layout, given.rows.num_rows, given.allocation),
            given,
            None,
            None,
        )
        for runner, given in ((ascend, paged_run(run)), (dense, run))
    ]
    seen, wanted = loops
    with torch.inference_mode():
        for _ in range(steps):
            seen.latents = wanted.latents.clone()
            for loop in loops:
                loop.step()
            error = (seen._velocity - wanted._velocity).norm() / wanted._velocity.norm()
            assert float(error) <= STEP_LIMIT


def test_float32_means_float32_on_an_npu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names as torch-npu has them; its default lets convolutions round to 10 bits."""
    chosen: list[Any] = []
    conv, matmul = SimpleNamespace(allow_hf32=True), SimpleNamespace(allow_hf32=True)
    npu = SimpleNamespace(set_device=chosen.append, conv=conv, matmul=matmul)
    monkeypatch.setattr(torch, "get_device_module", lambda _: npu)
    device: Any = SimpleNamespace(type="npu", index=1)
    prepare_device(device)
    assert chosen == [device]
    assert not conv.allow_hf32
    assert not matmul.allow_hf32


def test_no_step_waits_for_the_host(ascend: ModelRunner, dense: ModelRunner) -> None:
    run = make_run(None, 5.0, 3)
    given = paged_run(run)
    kv = ascend.backend.open(given.rows.layout, given.rows.num_rows, given.allocation)
    loop = DenoiseLoop(ascend._model, kv, given, None, None)
    with torch.no_grad(), Waits() as waits:
        while not loop.finished:
            loop.step()
    assert waits.seen == []
    kv = dense.backend.open(run.rows.layout, run.rows.num_rows, None)
    loop = DenoiseLoop(dense._model, kv, run, None, None)
    with torch.no_grad(), Waits() as waits:
        loop.step()
    assert waits.seen == ["aten::bincount"] * ascend._model.config.num_hidden_layers


@pytest.fixture(scope="module")
def wanted(dense: ModelRunner) -> Drawn:
    """The CPU reference's 20-step picture by prefix length, guidance and seed; each drawn once."""
    return cache(lambda *given: picture(dense, picture_run(*given)))


def picture_run(prefix_len: int | None, guidance: float, seed: int) -> RunRequest:
    return make_run(prefix_len, guidance, 20, seed)


def psnrs_db(
    seen: ModelRunner, wanted: Drawn, prefix_len: int | None, guidance: float
) -> list[float]:
    """Compare pictures with the CPU reference's at every seed."""
    values = []
    for seed in SEEDS:
        run = picture_run(prefix_len, guidance, seed)
        given = paged_run(run) if isinstance(seen.backend, PagedKV) else run
        values.append(psnr_db(picture(seen, given), wanted(prefix_len, guidance, seed)))
    return values


@pytest.mark.long
@pytest.mark.timeout(PICTURES_TIMEOUT_S)
@pytest.mark.parametrize("prefix_len", [None, 127, 150])
def test_pictures_of_one_row_are_those_of_the_cpu_reference(
    ascend: ModelRunner, wanted: Drawn, prefix_len: int | None
) -> None:
    assert min(psnrs_db(ascend, wanted, prefix_len, 1.0)) >= PSNR_LIMIT_DB


@pytest.mark.long
@pytest.mark.timeout(PICTURES_TIMEOUT_S)
def test_pictures_are_those_of_the_cpu_reference(ascend: ModelRunner, wanted: Drawn) -> None:
    """The median: guidance multiplies rounding, and at some seeds that decides a detail."""
    assert statistics.median(psnrs_db(ascend, wanted, None, 5.0)) >= PSNR_LIMIT_DB


@pytest.mark.long
@pytest.mark.timeout(PICTURES_TIMEOUT_S)
@pytest.mark.parametrize("prefix_len", [127, 150])
def test_pictures_of_long_prefixes_are_as_near_as_the_cpus_own_bfloat16(
    ascend: ModelRunner, wanted: Drawn, prefix_len: int
) -> None:
    """Longer than the checkpoint was trained for: there any rounding moves its pictures."""
    rounded = make_runner(is_paged=False, dtype="bfloat16")
    seen = statistics.median(psnrs_db(ascend, wanted, prefix_len, 5.0))
    assert seen >= statistics.median(psnrs_db(rounded, wanted, prefix_len, 5.0)) - 5


@pytest.mark.long
@pytest.mark.timeout(PICTURES_TIMEOUT_S)
def test_the_comparison_of_pictures_sees_full_segments_run_as_causal(
    ascend: ModelRunner, wanted: Drawn
) -> None:
    operators = load_operators()
    mask = torch.ones(2048, 2048, dtype=torch.int8).triu(1)

    def attend(*tensors: Tensor, **given: Any) -> tuple[Tensor, Tensor]:
        return operators.attend(*tensors, **given | {"sparse_mode": 3, "atten_mask": mask})

    assert isinstance(ascend.backend, PagedKV)
    heads = ascend._model.config.num_attention_heads
    kernel = FiaPaged(replace(operators, attend=attend), heads)
    ascend.backend = PagedKV("FLASH_ATTN", ascend.backend.store, kernel)
    assert statistics.median(psnrs_db(ascend, wanted, None, 5.0)) < PSNR_LIMIT_DB - 10
