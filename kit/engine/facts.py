"""What a started engine runs on, as its replay records state it."""

from __future__ import annotations

import platform

import torch

from kit.config.deploy import DeployConfig
from kit.config.digest import setting_values, settings_hash
from kit.engine.replay import EngineFacts
from kit.messages import WorkerInfo
from kit.modelspec.config import ModelConfig
from kit.modelspec.files import CheckpointFiles
from kit.modelspec.fingerprint import fingerprint_model
from kit.request import RecordedDeployment, RecordedModel, RecordedPlatform
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


def collect_facts(
    files: CheckpointFiles, model: ModelConfig, config: DeployConfig, info: WorkerInfo
) -> EngineFacts:
    """Read the fingerprint of the weights and look at what runs them; raises CheckpointError."""
    settings, device = setting_values(config), torch.device(info.device).type
    return EngineFacts(
        model=RecordedModel(model.model_version, fingerprint_model(files)),
        deployment=RecordedDeployment(
            kv_mode=config.stage.diffusion_kv_mode,
            backend=info.backend,
            kernel=info.kernel,
            kernel_version=info.kernel_version,
            page_size=info.page_size,
            dtype=info.dtype,
            settings=settings,
            config_hash=settings_hash(settings),
        ),
        platform=RecordedPlatform(
            device=device,
            device_name=_device_name(device),
            machine=platform.machine(),
            cpu_capability=torch.backends.cpu.get_cpu_capability(),
            num_threads=torch.get_num_threads(),
            versions=_versions(),
        ),
    )


def _device_name(device: str) -> str:
    if device == "cpu":
        return cpu_model()
    return str(torch.get_device_module(device).get_device_name())


def _versions() -> dict[str, str]:
    versions = package_versions(_COMPUTING) | cann_version()
    # The distribution's version leaves out which build of torch it is.
    return versions | {"torch": str(torch.__version__)}
