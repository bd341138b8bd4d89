"""`config.json` and `generation_config.json` of a checkpoint, read without torch."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from os.path import isdir
from pathlib import Path
from typing import Any

from kit.errors import CheckpointError, UnsupportedError
from kit.modelspec.vision import NoVision, VisionConfig, read_vision

PUBLISHED_CONFIG = Path(__file__).with_name("hunyuan_image3.json")
"""The `config.json` fields that give the published 80B checkpoint its shape."""

SUPPORTED_ARCHITECTURES = ("HunyuanImage3ForCausalMM",)

# Fields that select a variant the kit does not implement. Value = what it does implement;
# absent fields mean that value (the class default of the official configuration).
_FIXED_FIELDS: dict[str, object] = {
    "hidden_act": "silu",
    "norm_type": "rms",
    "attention_bias": False,
    "mlp_bias": False,
    "use_qk_norm": True,
    "use_rotary_pos_emb": True,
    "use_mixed_mlp_moe": True,
    "use_cla": False,
    "use_mla": False,
    "moe_layer_num_skipped": 0,
    "moe_drop_tokens": False,
    "norm_topk_prob": True,
    "tie_word_embeddings": False,
    "rope_type": "2d",
    "img_proj_type": "unet",
    "patch_size": 1,
    "vae_type": "hunyuan-image-vae-v1",
}


@dataclass(frozen=True)
class VAEConfig:
    """Shape of the convolutional autoencoder (the `vae` section)."""

    in_channels: int
    out_channels: int
    latent_channels: int
    block_out_channels: tuple[int, ...]
    layers_per_block: int
    ffactor_spatial: int
    ffactor_temporal: int
    scaling_factor: float
    shift_factor: float | None

    @property
    def num_spatial_steps(self) -> int:
        return int(math.log2(self.ffactor_spatial))

    @property
    def num_temporal_steps(self) -> int:
        return int(math.log2(self.ffactor_temporal))


@dataclass(frozen=True)
class ModelConfig:
    """Every dimension of the transformer, under the official field names."""

    architecture: str
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    attention_head_dim: int
    vocab_size: int
    num_experts: tuple[int, ...]
    """Per layer, as the next three."""

    moe_topk: tuple[int, ...]
    num_shared_expert: tuple[int, ...]
    moe_intermediate_size: tuple[int, ...]
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    patch_embed_hidden_dim: int
    image_base_size: int
    vae_downsample_factor: int
    cfg_distilled: bool
    use_meanflow: bool
    vae: VAEConfig
    vision: VisionConfig | NoVision
    """What reads reference images beside the autoencoder."""

    model_version: str | None

    @property
    def num_special(self) -> int:
        """Special tokens that open the target: <timestep>, <guidance>, <timestep_r>."""
        return 1 + int(self.cfg_distilled) + int(self.use_meanflow)

    def latent_grid(self, height: int, width: int) -> tuple[int, int]:
        """(h, w) of the latents of an image of so many pixels: a token each."""
        return height // self.vae_downsample_factor, width // self.vae_downsample_factor

    def num_target_tokens(self, height: int, width: int) -> int:
        """Tokens of a row that every step rewrites."""
        return self.num_special + math.prod(self.latent_grid(height, width))

    @property
    def kv_group(self) -> int:
        """Query heads per kv head."""
        return self.num_attention_heads // self.num_key_value_heads

    @property
    def qkv_dim(self) -> int:
        return (self.num_attention_heads + 2 * self.num_key_value_heads) * self.attention_head_dim


@dataclass(frozen=True)
class GenerationConfig:
    """Sampling defaults that the checkpoint carries."""

    num_inference_steps: int
    guidance_scale: float
    flow_shift: float
    sequence_template: str
    use_system_prompt: str
    drop_think: bool


def load_model_config(folder: Path) -> ModelConfig:
    """Read `folder/config.json`; raises CheckpointError (damaged) or UnsupportedError (variant)."""
    return load_config_file(folder / "config.json")


def load_config_file(path: Path) -> ModelConfig:
    """Read one config.json, wherever it lies; errors as in load_model_config."""
    return parse_model_config(_read_json(path))


def parse_model_config(raw: dict[str, Any]) -> ModelConfig:
    """Turn the content of a config.json into a ModelConfig; errors as in load_model_config."""
    architectures = raw.get("architectures") or ["(absent)"]
    if architectures[0] not in SUPPORTED_ARCHITECTURES:
        raise UnsupportedError(
            f"config.json architectures: got {architectures!r}, this kit runs "
            f"{list(SUPPORTED_ARCHITECTURES)!r}; use a HunyuanImage-3.0 checkpoint"
        )
    for name, wanted in _FIXED_FIELDS.items():
        got = raw.get(name, wanted)
        if got != wanted and not (wanted is False and not got):
            raise UnsupportedError(
                f"config.json {name}: got {got!r}, this kit implements {wanted!r} only"
            )
    vae = _vae_config(raw)
    layers = _integer(raw, "num_hidden_layers")
    heads = _integer(raw, "num_attention_heads")
    kv_heads = _integer(raw, "num_key_value_heads")
    if heads % kv_heads:
        raise CheckpointError(
            f"config.json num_attention_heads {heads} is no multiple of "
            f"num_key_value_heads {kv_heads}"
        )
    hidden = _integer(raw, "hidden_size")
    head_dim = raw.get("attention_head_dim") or hidden // heads
    factors = raw.get("vae_downsample_factor", [16, 16])
    if factors[0] != factors[1]:
        raise UnsupportedError(f"config.json vae_downsample_factor: {factors!r} is not square")
    config = ModelConfig(
        architecture=architectures[0],
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        attention_head_dim=int(head_dim),
        vocab_size=_integer(raw, "vocab_size"),
        num_experts=_per_layer(raw, "num_experts", layers),
        moe_topk=_per_layer(raw, "moe_topk", layers),
        num_shared_expert=_per_layer(raw, "num_shared_expert", layers),
        moe_intermediate_size=_per_layer(raw, "moe_intermediate_size", layers),
        rms_norm_eps=float(raw.get("rms_norm_eps", 1e-5)),
        rope_theta=float(raw.get("rope_theta", 10000.0)),
        max_position_embeddings=_integer(raw, "max_position_embeddings"),
        patch_embed_hidden_dim=int(raw.get("patch_embed_hidden_dim", 1024)),
        image_base_size=int(raw.get("image_base_size", 1024)),
        vae_downsample_factor=int(factors[0]),
        cfg_distilled=bool(raw.get("cfg_distilled", False)),
        use_meanflow=bool(raw.get("use_meanflow", False)),
        vae=vae,
        vision=read_vision(raw, hidden),
        model_version=None if (version := raw.get("model_version")) is None else str(version),
    )
    _check_shapes(config)
    return config


def load_generation_config(folder: Path) -> GenerationConfig:
    """Read `folder/generation_config.json`; raises CheckpointError naming what is missing."""
    raw = _read_json(folder / "generation_config.json")
    missing = {"diff_infer_steps", "diff_guidance_scale", "flow_shift"} - set(raw)
    if missing:
        raise CheckpointError(f"generation_config.json lacks {sorted(missing)}")
    return GenerationConfig(
        num_inference_steps=int(raw["diff_infer_steps"]),
        guidance_scale=float(raw["diff_guidance_scale"]),
        flow_shift=float(raw["flow_shift"]),
        sequence_template=str(raw.get("sequence_template", "pretrain")),
        use_system_prompt=str(raw.get("use_system_prompt") or "None"),
        drop_think=bool(raw.get("drop_think", False)),
    )


def _check_shapes(config: ModelConfig) -> None:
    """Raise CheckpointError for widths that the architecture's own operations cannot take."""
    widths = {
        "hidden_size": config.hidden_size,
        "patch_embed_hidden_dim": config.patch_embed_hidden_dim,
        **{f"vae.block_out_channels[{i}]": c for i, c in enumerate(config.vae.block_out_channels)},
    }
    problems = [
        f"{name}: got {width}, expected a multiple of 32, the groups of GroupNorm"
        for name, width in widths.items()
        if width < 1 or width % 32
    ]
    if config.attention_head_dim % 4:
        problems.append(
            f"attention_head_dim: got {config.attention_head_dim}, expected a multiple of 4, "
            f"for two axes of rotation"
        )
    if any(k > e for k, e in zip(config.moe_topk, config.num_experts, strict=True)):
        problems.append(f"moe_topk: {config.moe_topk} is above num_experts {config.num_experts}")
    if config.vae.block_out_channels[-1] % config.vae.latent_channels:
        problems.append(
            f"vae.latent_channels: {config.vae.latent_channels} does not divide the last width "
            f"{config.vae.block_out_channels[-1]}"
        )
    if problems:
        raise CheckpointError(f"config.json {'; '.join(problems)}")


def _vae_config(raw: dict[str, Any]) -> VAEConfig:
    section = raw.get("vae")
    if not isinstance(section, dict):
        raise CheckpointError("config.json lacks its `vae` section")
    for name in ("downsample_match_channel", "upsample_match_channel"):
        if not section.get(name, True):
            raise UnsupportedError(f"config.json vae.{name}: this kit implements true only")
    channels = section.get("block_out_channels")
    spatial, temporal = _integer(section, "ffactor_spatial"), _integer(section, "ffactor_temporal")
    if any(f < 1 or f & (f - 1) for f in (spatial, temporal)) or temporal > spatial:
        raise CheckpointError(
            f"config.json vae: ffactor_spatial {spatial} and ffactor_temporal {temporal} must be "
            f"powers of two, the temporal one not the larger"
        )
    if not isinstance(channels, list) or len(channels) <= spatial.bit_length() - 1:
        raise CheckpointError(
            f"config.json vae.block_out_channels: expected more than {spatial.bit_length() - 1} "
            f"widths for ffactor_spatial {spatial}, got {channels!r}"
        )
    shift = section.get("shift_factor")
    return VAEConfig(
        in_channels=_integer(section, "in_channels"),
        out_channels=_integer(section, "out_channels"),
        latent_channels=_integer(section, "latent_channels"),
        block_out_channels=tuple(int(c) for c in channels),
        layers_per_block=_integer(section, "layers_per_block"),
        ffactor_spatial=spatial,
        ffactor_temporal=temporal,
        scaling_factor=float(section["scaling_factor"]),
        shift_factor=None if shift is None else float(shift),
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        folder = path.parent
        wrong = f"holds no {path.name}" if isdir(folder) else "is no folder"
        raise CheckpointError(
            f"checkpoint folder {folder} {wrong}; give the folder that holds {path.name} and the "
            f"weights, or the hub id (owner/name) of a fetched checkpoint"
        ) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path} must hold a JSON object, got {type(raw).__name__}")
    return raw


def _integer(raw: dict[str, Any], name: str) -> int:
    value = raw.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise CheckpointError(f"config.json {name}: expected an integer, got {value!r}")
    return value


def _per_layer(raw: dict[str, Any], name: str, layers: int) -> tuple[int, ...]:
    """Official configs give an integer or a list with one entry per layer."""
    value = raw.get(name)
    if isinstance(value, list) and len(value) == layers:
        return tuple(int(v) for v in value)
    if isinstance(value, int) and not isinstance(value, bool):
        return (value,) * layers
    raise CheckpointError(
        f"config.json {name}: expected an integer or a list of {layers}, got {value!r}"
    )
