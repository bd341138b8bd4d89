"""Graphs and offload: which device, dtype and backend they need."""

from __future__ import annotations

from kit.config.deploy import DeployConfig
from kit.errors import ConfigError


def check_placement(config: DeployConfig, platform: str, dtype: str) -> None:
    """Raise ConfigError for graphs or offload that a device does not run."""
    if platform == "npu":
        _check_on_npu(config)
    if platform == "cuda" and not config.stage.enforce_eager:
        _check_graphs(config, dtype)


def _check_on_npu(config: DeployConfig) -> None:
    for name, refused in (
        ("enforce_eager", False),
        ("enable_layerwise_offload", True),
        ("enable_cpu_offload", True),
    ):
        if getattr(config.stage, name) is refused:
            raise ConfigError(
                name,
                "graphs and offload run on NVIDIA cards only, and devices names an NPU",
                value=refused,
                source=config.provenance[f"stage.{name}"],
                remedy=f"set it to {str(not refused).lower()}",
            )


def _check_graphs(config: DeployConfig, dtype: str) -> None:
    backend, problem, other = config.stage.diffusion_attention_backend, "", ""
    if config.stage.enable_layerwise_offload:
        raise ConfigError(
            "enable_layerwise_offload",
            "graphs hold the addresses of weights, and streamed layers change places",
            value=True,
            source=config.provenance["stage.enable_layerwise_offload"],
            remedy="set enforce_eager to true, or this to false",
        )
    if dtype != "bfloat16":
        problem = f"graphs need dtype bfloat16: in {dtype} the expert layers wait for the host"
        other = "dtype to bfloat16"
    elif backend != "FLASH_ATTN":
        problem = f"graphs need FLASH_ATTN: {backend} has other masks for every prompt length"
        other = "diffusion_attention_backend to FLASH_ATTN"
    if problem:
        raise ConfigError(
            "enforce_eager",
            problem,
            value=False,
            source=config.provenance["stage.enforce_eager"],
            remedy=f"set it to true, or {other}",
        )
