"""The public Python API: what __all__ names; load_config and plan_deployment need no engine.

config = load_config(DEFAULT_CHECKPOINT, "hunyuan_image3_paged.yaml")
with ImageEngine(DEFAULT_CHECKPOINT, config) as engine:
    result = engine.generate(GenerationRequest("a red vase"), on_step=print)
    with open("vase.png", "rb") as file:
        image = engine.preprocessor.read_image(file, "vase.png")
    edited = engine.generate(GenerationRequest("make the vase blue", images=(image,)))
"""

from __future__ import annotations

from kit.checkpoint.shipped import DEFAULT_CHECKPOINT
from kit.engine.engine import ImageEngine
from kit.engine.pending import RequestHandle
from kit.modelspec.deployment import load_config
from kit.plan.plan import Plan, plan_deployment
from kit.plan.size import SizePlan
from kit.request import GenerationRequest, GenerationResult, SamplingParams, StepEvent

__all__ = [
    "DEFAULT_CHECKPOINT",
    "GenerationRequest",
    "GenerationResult",
    "ImageEngine",
    "Plan",
    "RequestHandle",
    "SamplingParams",
    "SizePlan",
    "StepEvent",
    "load_config",
    "plan_deployment",
]
