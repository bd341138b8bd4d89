"""What an NPU computes, against float32: the first thing to run on one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kit.attention.ascend.fia import FORMS, FiaPaged, Form
from kit.attention.ascend.limits import check_heads
from kit.attention.ascend.operators import load_operators
from kit.attention.ascend.start import self_test
from kit.attention.rotary import rms_norm
from kit.errors import UnsupportedError
from kit.kv.store import KVShape
from kit.model.npu import load_model_operators
from kit.modelspec.config import ModelConfig

OPERATOR_LIMIT = 1e-2
"""Relative error of a norm or a gate in bfloat16; 0.003 is usual."""

PUBLISHED_HEADS = (32, 8, 128)
"""Query heads, kv heads and head size of the published model."""


@dataclass(frozen=True)
class NpuReport:
    """What was seen; a start runs on the first form without a problem."""

    version: str
    heads: tuple[int, int, int]
    forms: Mapping[Form, str | None]
    """Each form of the attention call, and what is wrong with it."""

    operators: dict[str, float]
    """Relative errors of the model's other operators."""

    @property
    def passed(self) -> bool:
        close = all(error <= OPERATOR_LIMIT for error in self.operators.values())
        return close and None in self.forms.values()


def examine_npu(model: ModelConfig, device: torch.device) -> NpuReport:
    """Run every operator that the kit calls at a model's heads, or the published model's.

    Raises UnsupportedError without torch-npu or an operator, RuntimeError as the device does.
    """
    heads = (model.num_attention_heads, model.num_key_value_heads, model.attention_head_dim)
    try:
        check_heads(*heads)
    except UnsupportedError:  # the report names the heads that ran
        heads = PUBLISHED_HEADS
    operators = load_operators()
    shape = KVShape(1, heads[1], heads[2], torch.bfloat16, device)
    forms = {
        form: self_test(FiaPaged(operators, heads[0], form), shape, heads[0]) for form in FORMS
    }
    return NpuReport(operators.version, heads, forms, operator_errors(device))


def operator_errors(device: torch.device) -> dict[str, float]:
    """Return how far each operator of the model is from float32."""
    operators = load_model_operators()
    generator = torch.Generator().manual_seed(0)

    def random(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator).bfloat16().to(device)

    x, weight = random(300, 1024), random(1024)
    first, second = x.float().chunk(2, dim=-1)
    return {
        "rms_norm": _relative(
            operators.rms_norm(x, weight, epsilon=1e-5)[0],
            rms_norm(x.float(), weight.float(), 1e-5),
        ),
        "swiglu": _relative(operators.swiglu(x), torch.nn.functional.silu(first) * second),
    }


def _relative(seen: Tensor, wanted: Tensor) -> float:
    return float((seen.float() - wanted).norm() / wanted.norm())
