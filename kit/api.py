"""The public Python API: what __all__ names; load_config and plan_deployment need no engine.

config = load_config("path/to/checkpoint", "hunyuan_image3_paged.yaml")
with ImageEngine(Path("path/to/checkpoint"), config) as engine:
    result = engine.generate(GenerationRequest("a red vase"), on_step=print)
"""

from __future__ import annotations

from kit.engine.engine import ImageEngine
from kit.engine.pending import RequestHandle
from kit.modelspec.deployment import load_config
from kit.plan.plan import Plan, plan_deployment
from kit.plan.size import SizePlan
from kit.request import GenerationRequest, GenerationResult, SamplingParams, StepEvent

__all__ = [
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
