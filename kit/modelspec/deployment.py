"""The deployment of a checkpoint: the deploy format resolved with what the model itself says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kit.config.deploy import DeployConfig
from kit.config.load import load_config as load_deploy
from kit.modelspec.config import ModelConfig, load_model_config
from kit.modelspec.footprint import weight_bytes
from kit.platforms.detect import platform_name

# Below this a checkpoint is one that a laptop runs: the `tiny` overlay puts it on one CPU rank.
_TINY_WEIGHT_BYTES = 1 << 30


def load_config(
    model: str | Path,
    deploy_config: str | Path | None = None,
    *,
    stage_overrides: str | Mapping[str, Any] | None = None,
    flags: Mapping[str, object] | None = None,
) -> DeployConfig:
    """Resolve the deployment of a checkpoint folder.

    The packaged base of the pipeline, the overlay of a small model, the deploy file, overrides,
    flags: later beats earlier. Raises CheckpointError (no such checkpoint), UnsupportedError
    (another architecture) or ConfigError.
    """
    return resolve_deployment(
        load_model_config(Path(model)),
        deploy_config,
        stage_overrides=stage_overrides,
        flags=flags,
        platform=platform_name(),
    )


def resolve_deployment(
    spec: ModelConfig,
    deploy_config: str | Path | None,
    *,
    stage_overrides: str | Mapping[str, Any] | None,
    flags: Mapping[str, object] | None,
    platform: str,
) -> DeployConfig:
    """Resolve the deployment of a model of some shape on some platform; errors as load_config."""
    tiny = weight_bytes(spec, dtype_bytes=2) < _TINY_WEIGHT_BYTES
    return load_deploy(
        deploy_config,
        stage_overrides=stage_overrides,
        flags=flags,
        model_overlay="tiny" if tiny else None,
        platform=platform,
    )
