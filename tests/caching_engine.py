"""Engines that share prefix pages, and pictures that they must give."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from kit.api import ImageEngine, load_config

PAGE = 16


def make_engine(folder: Path, **stage: object) -> ImageEngine:
    """Share at all levels, with pages of PAGE tokens, unless `stage` says otherwise."""
    stage = {
        "diffusion_kv_mode": "paged_scheduler",
        "diffusion_kv_max_rows_per_request": 2,
        "diffusion_kv_page_size": PAGE,
        "enable_prefix_caching": True,
        **stage,
    }
    return ImageEngine(folder, load_config(folder, stage_overrides={"0": stage}))


def whole(num_tokens: int) -> int:
    """Tokens of whole pages."""
    return num_tokens // PAGE * PAGE


def is_like(one: npt.NDArray[np.uint8], other: npt.NDArray[np.uint8]) -> bool:
    """Sums of another order end a level apart at most."""
    return int(np.abs(one.astype(int) - other.astype(int)).max()) <= 1
