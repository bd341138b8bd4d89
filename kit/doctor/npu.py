"""What an NPU computes, against float32: the first thing to run on one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from kit.attention.ascend.fia import PAGED_FORMS, FiaDense, FiaPaged
from kit.attention.ascend.limits import check_heads
from kit.attention.ascend.operators import load_operators
from kit.attention.ascend.rotation import try_rotation
from kit.attention.ascend.start import self_test
from kit.attention.ascend.trial import Trial
from kit.errors import UnsupportedError
from kit.kv.store import KVShape
from kit.model.npu import try_all
from kit.modelspec.config import ModelConfig
from kit.telemetry.accelerators import cann_version
from kit.worker.runner import prepare_device

PUBLISHED_HEADS = (32, 8, 128)
"""Query heads, kv heads and head size of the published model."""

BENCHMARK = "python -m bench run npu_step"


@dataclass(frozen=True)
class PartReport:
    """A part of the model on torch-npu's operators."""

    relative_error: float | None
    """From plain torch in float32; None if nothing came out."""

    problem: str | None
    """Why plain torch runs in its place."""


@dataclass(frozen=True)
class NpuReport:
    """What was seen; a start runs on the first form of a mode without a problem."""

    version: str
    cann: str | None
    """None if CANN's set_env.sh was not sourced, or does not tell."""

    heads: tuple[int, int, int]
    paged: Mapping[str, str | None]
    """Each form of the attention call over pages, and what is wrong with it."""

    dense: str | None
    """What is wrong with the call over contiguous rows."""

    parts: Mapping[str, PartReport]

    @property
    def passed(self) -> bool:
        """A part that fails makes the NPU slower than it could be: that is worth a look."""
        parts = all(part.problem is None for part in self.parts.values())
        return parts and self.dense is None and None in self.paged.values()

    def as_text(self) -> str:
        forms = {f"pages {form}": problem for form, problem in self.paged.items()}
        forms["contiguous rows"] = self.dense
        attention = ", ".join(f"{form} {problem or 'passed'}" for form, problem in forms.items())
        parts = ", ".join(
            f"{name} {part.problem or f'off by {part.relative_error:.1e}'}"
            for name, part in self.parts.items()
        )
        cann = f"CANN {self.cann or 'of unknown version'}"
        return f"{self.version}, {cann}; attention at heads {self.heads}: {attention}; {parts}"


def examine_npu(model: ModelConfig, device: torch.device) -> NpuReport:
    """Run every operator that the kit calls at a model's heads, or the published model's.

    Raises UnsupportedError without torch-npu or its attention, RuntimeError as the device does.
    """
    # Else float32, which everything is compared with, would mean 10 bits in products.
    prepare_device(device)
    heads = (model.num_attention_heads, model.num_key_value_heads, model.attention_head_dim)
    try:
        check_heads(*heads)
    except UnsupportedError:  # the report names the heads that ran
        heads = PUBLISHED_HEADS
    operators, dtype = load_operators(), torch.bfloat16
    shape = KVShape(1, heads[1], heads[2], dtype, device)
    trials: tuple[Trial[Any], ...] = (try_rotation(device, heads[2]), *try_all(device, dtype))
    return NpuReport(
        operators.version,
        cann_version().get("cann"),
        heads,
        {
            form: self_test(FiaPaged(operators, heads[0], form), shape, heads[0])
            for form in PAGED_FORMS
        },
        self_test(FiaDense(operators, heads[0]), shape, heads[0]),
        {trial.name: PartReport(trial.relative_error, trial.problem) for trial in trials},
    )
