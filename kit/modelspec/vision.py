"""What config.json says about reading reference images: the vision tower and its aligner."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Fields that select a variant of reading references; value = what the kit implements.
_NAMED_FIELDS: dict[str, object] = {
    "cond_image_type": "vae_vit",
    "cond_token_attn_type": "joint_full",
    "vit_type": "siglip2-so400m-patch16-naflex",
    "vit_aligner.projector_type": "mlp_gelu",
    "vit_aligner.depth": 2,
}
# The same, where an absent field means that value (the defaults of SigLIP2's own classes).
_DEFAULT_FIELDS: dict[str, object] = {
    "vit.hidden_act": "gelu_pytorch_tanh",
    "vit.num_channels": 3,
    "vit_processor.image_mean": [0.5, 0.5, 0.5],
    "vit_processor.image_std": [0.5, 0.5, 0.5],
    "vit_processor.resample": 2,
}
_SIZES = (
    "vit.hidden_size",
    "vit.num_hidden_layers",
    "vit.num_attention_heads",
    "vit.intermediate_size",
    "vit.num_patches",
    "vit.patch_size",
    "vit_processor.max_num_patches",
)


@dataclass(frozen=True)
class VisionConfig:
    """Shape of the vision tower (the `vit` section) and of its input (`vit_processor`)."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    patch_size: int
    """Pixels of a patch's side."""

    position_side: int
    """Side of the square grid of learned positions."""

    max_num_patches: int
    """Patches that an image is padded to, and tokens that it takes."""

    layer_norm_eps: float

    @property
    def patch_dim(self) -> int:
        return 3 * self.patch_size**2


@dataclass(frozen=True)
class NoVision:
    """There is none that the kit can run, and why."""

    reason: str


def read_vision(raw: Mapping[str, Any], hidden_size: int) -> VisionConfig | NoVision:
    """Read the sections of a config.json; `hidden_size` is the transformer's.

    Raises nothing: text-to-image does without.
    """
    if not isinstance(raw.get("vit"), dict):
        return NoVision("config.json has no `vit` section")
    for name, wanted in (_NAMED_FIELDS | _DEFAULT_FIELDS).items():
        got = _find(raw, name)
        if got != wanted and not (got is None and name in _DEFAULT_FIELDS):
            return NoVision(f"config.json {name}: got {got!r:.60}, this kit implements {wanted!r}")
    sizes = {name: _find(raw, name) for name in _SIZES}
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            return NoVision(f"config.json {name}: expected a positive integer, got {size!r:.60}")
    width, heads = sizes["vit.hidden_size"], sizes["vit.num_attention_heads"]
    side, side_of_patch = math.isqrt(sizes["vit.num_patches"]), sizes["vit.patch_size"]
    for name, got, expected in (
        ("vit.num_patches", sizes["vit.num_patches"], side**2),
        ("vit.hidden_size", width, width // heads * heads),
        ("vit_aligner.input_dim", _find(raw, "vit_aligner.input_dim"), width),
        ("vit_aligner.n_embed", _find(raw, "vit_aligner.n_embed"), hidden_size),
        ("vit_processor.patch_size", _find(raw, "vit_processor.patch_size") or 16, side_of_patch),
    ):
        if got != expected:
            return NoVision(f"config.json {name}: got {got!r:.60}, expected {expected}")
    return VisionConfig(
        hidden_size=width,
        num_hidden_layers=sizes["vit.num_hidden_layers"],
        num_attention_heads=heads,
        intermediate_size=sizes["vit.intermediate_size"],
        patch_size=side_of_patch,
        position_side=side,
        max_num_patches=sizes["vit_processor.max_num_patches"],
        layer_norm_eps=float(_find(raw, "vit.layer_norm_eps") or 1e-6),
    )


def _find(raw: Mapping[str, Any], dotted: str) -> Any:
    section, _, name = dotted.rpartition(".")
    holder = raw.get(section) if section else raw
    return holder.get(name) if isinstance(holder, Mapping) else None
