"""A replay record that no run made, for tests of what carries and reads records."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from kit.config.digest import setting_values, settings_hash
from kit.config.load import load_config
from kit.engine.references import pixel_hash
from kit.request import (
    RecordedDeployment,
    RecordedImage,
    RecordedModel,
    RecordedPlatform,
    RecordedRequest,
    ReplayRecord,
    ResolvedSampling,
)


def noise(height: int = 48, width: int = 80, seed: int = 0) -> npt.NDArray[np.uint8]:
    """uint8 [height, width, 3]"""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def sample_record(
    image: npt.NDArray[np.uint8], prompt: str = "a red vase", **stage: object
) -> ReplayRecord:
    """The record of a picture; `stage` holds settings of its deployment."""
    settings = setting_values(load_config(stage_overrides={"0": stage}))
    height, width, _ = image.shape
    return ReplayRecord(
        request=RecordedRequest(
            prompt, None, "<think>a vase</think>", "instruct",
            ResolvedSampling(height, width, 20, 5.0, 3.0, 2**63 - 1),
        ),
        model=RecordedModel("HunyuanImage-3.0", "f" * 64),
        deployment=RecordedDeployment(
            "dense_legacy", "TORCH_SDPA", "torch_sdpa", "2.13", None, "float32",
            settings, settings_hash(settings),
        ),
        platform=RecordedPlatform("cpu", "A CPU", "x86_64", "AVX2", 2, {"torch": "2.13"}),
        image=RecordedImage(height, width, pixel_hash(image)),
    )  # fmt: skip


def with_prompt(record: ReplayRecord, prompt: str) -> ReplayRecord:
    """The same record of another prompt."""
    return replace(record, request=replace(record.request, prompt=prompt))
