"""What a start on an NPU decides before it loads anything; the NPU is a stand-in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import npu_machine
import pytest

from kit.checkpoint.shipped import DEFAULT_CHECKPOINT, GOLDEN_CHECKPOINT
from kit.engine.preprocess import Preprocessor
from kit.engine.startup import StartPlan, plan_worker
from kit.errors import ConfigError, UnsupportedError
from kit.modelspec.deployment import load_config

PAGED: dict[str, Any] = {
    "diffusion_kv_mode": "paged_scheduler",
    "diffusion_kv_max_rows_per_request": 2,
}
DENSE: dict[str, Any] = {"diffusion_kv_mode": "dense_legacy"}


@pytest.fixture(autouse=True)
def _machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npu_machine.install(tmp_path, monkeypatch)


def start(checkpoint: Path = DEFAULT_CHECKPOINT, **stage: Any) -> StartPlan:
    config = load_config(checkpoint, stage_overrides={"0": {"devices": "1"} | stage})
    preprocessor = Preprocessor(checkpoint, config)
    return plan_worker(preprocessor, config)


def test_a_paged_start() -> None:
    plan = start(**PAGED, diffusion_attention_backend="FLASH_ATTN")
    worker = plan.worker
    assert (worker.device, worker.dtype, worker.page_size) == ("npu:1", "bfloat16", 128)
    assert not worker.use_graphs
    assert plan.kv is not None
    assert plan.kv.pool.num_pages == worker.num_pages > 0


@pytest.mark.parametrize("backend", ["FLASH_ATTN", "TORCH_SDPA"])
def test_a_dense_start(backend: str) -> None:
    worker = start(**DENSE, diffusion_attention_backend=backend).worker
    assert (worker.device, worker.page_size, worker.num_pages) == ("npu:1", None, 0)
    assert worker.attention_backend == backend


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"enforce_eager": False}, "enforce_eager: .*set it to true"),
        ({"enable_cpu_offload": True}, "enable_cpu_offload: .*set it to false"),
        ({"enable_layerwise_offload": True}, "enable_layerwise_offload: .*set it to false"),
    ],
)
def test_graphs_and_offload_are_refused(setting: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        start(**DENSE, diffusion_attention_backend="TORCH_SDPA", **setting)


def test_pages_of_another_size_and_heads_of_another_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"multiples of 128 up to 128 \(got 256"):
        start(**PAGED, diffusion_kv_page_size=256)
    with pytest.raises(UnsupportedError, match="built are 64, 128"):
        start(GOLDEN_CHECKPOINT, **PAGED)
