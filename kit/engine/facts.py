"""What a started engine runs on, as its replay records state it."""

from __future__ import annotations

from kit.config.deploy import DeployConfig
from kit.config.digest import setting_values, settings_hash
from kit.engine.replay import EngineFacts
from kit.messages import WorkerInfo
from kit.modelspec.config import ModelConfig
from kit.modelspec.files import CheckpointFiles
from kit.modelspec.fingerprint import fingerprint_model
from kit.request import RecordedDeployment, RecordedModel


def collect_facts(
    files: CheckpointFiles, model: ModelConfig, config: DeployConfig, info: WorkerInfo
) -> EngineFacts:
    """Read the fingerprint of the weights; the worker told the rest. Raises CheckpointError."""
    settings = setting_values(config)
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
        platform=info.platform,
    )
