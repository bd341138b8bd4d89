"""Engines over the golden checkpoints, one per deployment, shared by the tests of a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit.api import ImageEngine, load_config

EngineFactory = Callable[..., ImageEngine]


@pytest.fixture(scope="session")
def get_engine(checkpoint: Path, distil_checkpoint: Path) -> Iterator[EngineFactory]:
    """Return a started engine for (checkpoint name, KV mode, backend, page size, dtype)."""
    engines: dict[object, ImageEngine] = {}

    def get(
        name: str = "checkpoint",
        *,
        mode: str = "dense_legacy",
        backend: str = "FLASH_ATTN",
        page_size: int | None = None,
        dtype: str = "float32",
    ) -> ImageEngine:
        key = (name, mode, backend, page_size, dtype)
        if key not in engines:
            stage: dict[str, object] = {
                "diffusion_kv_mode": mode,
                "diffusion_attention_backend": backend,
            }
            if mode == "paged_scheduler":
                stage["diffusion_kv_max_rows_per_request"] = 2
                stage["diffusion_kv_page_size"] = page_size
            folder = distil_checkpoint if name == "checkpoint_distil" else checkpoint
            config = load_config(folder, stage_overrides={"0": stage}, flags={"dtype": dtype})
            engines[key] = ImageEngine(folder, config)
            engines[key].start()
        return engines[key]

    yield get
    for engine in engines.values():
        engine.close()
