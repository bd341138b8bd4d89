"""The workloads of several cards, small and on two processes of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from rank_settings import tiny_setting

from bench.environment import capture
from bench.rank_model import Setting
from bench.registry import Context
from bench.workloads import cuda_parallel, cuda_parallel_whole, cuda_vae_parallel
from kit.modelspec.config import VAEConfig


@pytest.fixture
def tiny(tmp_path: Path) -> Setting:
    return tiny_setting(tmp_path)


def context(name: str) -> Context:
    return Context(name, ("python",), capture(), 2)


def test_tensor_parallel_on_two_processes(tiny: Setting) -> None:
    record = cuda_parallel.measure_setting(context("cuda_parallel"), tiny, 2)
    assert record.status == "ok", record.error
    assert record.equality is not None
    assert record.equality.seen == 0
    assert record.findings["error_against_one_rank"] < 1e-4
    assert record.candidate is not None
    for row in record.candidate.rows:
        names = ("prepare_s", "first_step_s", "later_steps_s", "decode_s")
        parts = [row[name] for name in names]
        assert sum(parts) == pytest.approx(row["image_s"])  # type: ignore[arg-type]


@pytest.mark.long
def test_shared_tokens_and_rows_on_two_processes(tiny: Setting) -> None:
    record = cuda_parallel_whole.measure_setting(context("cuda_parallel_whole"), tiny, 2)
    assert record.status == "ok", record.error
    assert record.equality is not None
    assert record.equality.seen < 1e-4
    assert set(record.summary) == {"ulysses_over_alone", "cfg_over_alone"}


def test_strips_on_two_processes() -> None:
    config = VAEConfig(3, 3, 4, (32, 32, 64), 1, 4, 2, 0.5, None)
    setting = cuda_vae_parallel.Setting("cpu", config, size=36)  # 9 latent rows: 5 and 4
    record = cuda_vae_parallel.measure_setting(context("cuda_vae_parallel"), setting)
    assert record.status == "ok", record.error
    assert record.equality is not None
    assert 0 < float(record.equality.seen) < 1e-5
    assert record.candidate is not None
    assert [set(row) for row in record.candidate.rows] == [{"decode_s"}] * 2
