"""The checkpoint and the deployment that a command line asks for."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kit.checkpoint.shipped import DEFAULT_CHECKPOINT
from kit.config.deploy import DeployConfig
from kit.config.runnable import check_runnable
from kit.config.show import describe
from kit.engine.preprocess import Preprocessor
from kit.engine.startup import plan_worker
from kit.errors import KitError
from kit.hub.copies import find_model
from kit.modelspec.deployment import load_config

FLAGS = ("dtype", "gpu_memory_utilization", "kv_cache_memory_bytes", "max_num_seqs")


def model_folder(name: str | None, field: str = "--model") -> Path:
    """Return the folder of a named checkpoint (a path or a hub id), or the shipped one."""
    return DEFAULT_CHECKPOINT if name is None else find_model(name, field)


def resolve(
    args: argparse.Namespace,
    model: Path,
    *,
    stage: Mapping[str, Any] | None = None,
    dtype: str | None = None,
) -> DeployConfig:
    """Resolve a deployment; refuses what cannot run, but for a command that only shows it.

    stage, dtype: take the place of --stage-overrides and --dtype where these are not given.
    """
    flags = {name: getattr(args, name) for name in FLAGS}
    flags["dtype"] = args.dtype or dtype
    overrides = args.stage_overrides
    if overrides is None and stage is not None:
        overrides = {"0": stage}
    config = load_config(model, args.deploy_config, stage_overrides=overrides, flags=flags)
    if not getattr(args, "dry_run", True):
        check_runnable(config)
    return config


def show(model: Path, config: DeployConfig) -> str:
    """Return the deployment with its sources, and as comments what a start here makes of it."""
    return describe(config) + "".join(f"# {line}\n" for line in _start_lines(model, config))


def _start_lines(model: Path, config: DeployConfig) -> list[str]:
    try:
        check_runnable(config)
        preprocessor = Preprocessor(model, config)
        plan = plan_worker(preprocessor, config)
    except KitError as error:
        return [f"a start is refused here: {error}"]
    worker, generation = plan.worker, preprocessor.generation
    lines = [f"start: device {worker.device}, dtype {worker.dtype}, kv mode {worker.kv_mode}"]
    if plan.kv is not None:
        lines.append(
            f"start: {worker.num_pages} pages of {worker.page_size} tokens, "
            f"{plan.kv.pool_bytes} bytes"
        )
    lines.append(
        f"checkpoint: {generation.num_inference_steps} steps, guidance "
        f"{generation.guidance_scale:g}, flow shift {generation.flow_shift:g}, template "
        f"{generation.sequence_template}, where nothing above sets them"
    )
    return lines
