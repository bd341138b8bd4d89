"""What a rank computes on, as replay records state it."""

from __future__ import annotations

import platform

import torch

from kit.request import RecordedPlatform
from kit.telemetry.accelerators import cann_version
from kit.telemetry.environment import cpu_model, package_versions

# Those whose code computes tokens, latents or pixels; the kit's own version stands beside them.
_COMPUTING = (
    "hunyuan-paged-kit",
    "torch",
    "numpy",
    "tokenizers",
    "triton",
    "flash-attn",
    "flash-attn-3",
    "torch-npu",
)


def describe_platform(device: torch.device) -> RecordedPlatform:
    """Look at the device, the machine and the packages of this process."""
    return RecordedPlatform(
        device=device.type,
        device_name=_device_name(device.type),
        machine=platform.machine(),
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        num_threads=torch.get_num_threads(),
        versions=_versions(),
    )


def _device_name(device: str) -> str:
    if device == "cpu":
        return cpu_model()
    return str(torch.get_device_module(device).get_device_name())


def _versions() -> dict[str, str]:
    versions = package_versions(_COMPUTING) | cann_version()
    # The distribution's version leaves out which build of torch it is.
    return versions | {"torch": str(torch.__version__)}
