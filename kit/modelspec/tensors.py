"""The table of every tensor that a checkpoint of a given shape holds.

Names are the official ones. Linear weights are [out, in], convolutions [out, in, *kernel].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from kit.modelspec.config import ModelConfig, VAEConfig
from kit.modelspec.files import CheckpointFiles, checkpoint_error
from kit.modelspec.vision import VisionConfig

Part = Literal[
    "embedding",
    "attention",
    "router",
    "experts",
    "shared_expert",
    "norms",
    "patch_embed",
    "final_layer",
    "timestep_embedders",
    "vae_decoder",
    "vae_encoder",
    "vision",
    "text_head",
]
Shape = tuple[int, ...]

# Width of the sinusoid that every timestep embedder starts from.
TIMESTEP_FREQUENCIES = 256

LAYER_PARTS: tuple[Part, ...] = ("attention", "router", "experts", "shared_expert", "norms")

REFERENCE_PARTS: tuple[Part, ...] = ("vae_encoder", "vision")
"""What reads reference images."""

_UNUSED_PARTS: frozenset[Part] = frozenset({*REFERENCE_PARTS, "text_head"})
_VISION = ("vision_model.", "vision_aligner.")
# Pools the tower's output; the model never reads it.
_VISION_HEAD = ("vision_model.head.",)
_LOADABLE_DTYPES = ("F32", "BF16", "F16")


@dataclass(frozen=True)
class TensorSpec:
    """What a checkpoint must hold under one name."""

    shape: Shape
    part: Part
    needed_for_t2i: bool
    """False for tensors that text-to-image never reads: they may be absent."""


def expected_tensors(model: ModelConfig) -> Mapping[str, TensorSpec]:
    """Return name -> spec of every tensor of `model`; of a vision tower only if it can run."""
    specs: dict[str, TensorSpec] = {}

    def add(part: Part, tensors: Iterator[tuple[str, Shape]]) -> None:
        for name, shape in tensors:
            specs[name] = TensorSpec(shape, part, part not in _UNUSED_PARTS)

    H, vocab = model.hidden_size, model.vocab_size
    add("embedding", iter([("model.wte.weight", (vocab, H))]))
    add("text_head", iter([("model.ln_f.weight", (H,)), ("lm_head.weight", (vocab, H))]))
    for layer in range(model.num_hidden_layers):
        add("norms", _layer_norms(model, layer))
        add("attention", _attention(model, layer))
        add("router", _router(model, layer))
        add("experts", _experts(model, layer))
        add("shared_expert", _shared_expert(model, layer))
    for name in timestep_embedder_names(model):
        add("timestep_embedders", _timestep_embedder(name, H))
    add("patch_embed", _patch_embed(model))
    add("final_layer", _final_layer(model))
    add("vae_decoder", _vae_decoder(model.vae))
    add("vae_encoder", _vae_encoder(model.vae))
    if isinstance(model.vision, VisionConfig):
        add("vision", _vision(model.vision, H))
    return specs


def timestep_embedder_names(model: ModelConfig) -> tuple[str, ...]:
    """Return the module names of the timestep embedders that this variant has."""
    names = ["timestep_emb", "time_embed", "time_embed_2"]
    if model.cfg_distilled:
        names.append("guidance_emb")
    if model.use_meanflow:
        names.append("timestep_r_emb")
    return tuple(names)


def check_tensors(files: CheckpointFiles, model: ModelConfig) -> None:
    """Compare names, shapes and dtypes of `files` with the table of `model`.

    Raises CheckpointError that lists tensors that are missing, tensors of another shape or of a
    dtype that is not a plain float, and unexpected ones. What only references need may be absent,
    but not in part.
    """
    expected = expected_tensors(model)
    present = {spec.part for name, spec in expected.items() if name in files.tensors}
    needed = present.intersection(REFERENCE_PARTS)
    problems = [
        f"{name} is missing, {list(spec.shape)} wanted"
        for name, spec in expected.items()
        if (spec.needed_for_t2i or spec.part in needed) and name not in files.tensors
    ]
    unchecked = _VISION_HEAD if isinstance(model.vision, VisionConfig) else _VISION
    for name, entry in sorted(files.tensors.items()):
        if name.startswith(unchecked):
            continue
        where = f"{name} in {entry.path.name}"
        if name not in expected:
            problems.append(f"{where} {list(entry.shape)} is unexpected for this config.json")
        elif entry.shape != expected[name].shape:
            wanted = list(expected[name].shape)
            problems.append(f"{where} has shape {list(entry.shape)}, config.json wants {wanted}")
        elif entry.dtype not in _LOADABLE_DTYPES:
            problems.append(
                f"{where} is stored as {entry.dtype}, one of {', '.join(_LOADABLE_DTYPES)} wanted"
            )
    if problems:
        raise checkpoint_error(files.folder, problems)


def missing_reference_parts(files: CheckpointFiles, model: ModelConfig) -> list[Part]:
    """Return the parts that read reference images and that checked files lack."""
    present = {spec.part for name, spec in expected_tensors(model).items() if name in files.tensors}
    return [part for part in REFERENCE_PARTS if part not in present]


def _layer_norms(model: ModelConfig, layer: int) -> Iterator[tuple[str, Shape]]:
    prefix = f"model.layers.{layer}"
    for norm in ("input_layernorm", "post_attention_layernorm"):
        yield f"{prefix}.{norm}.weight", (model.hidden_size,)
    for norm in ("query_layernorm", "key_layernorm"):
        yield f"{prefix}.self_attn.{norm}.weight", (model.attention_head_dim,)


def _attention(model: ModelConfig, layer: int) -> Iterator[tuple[str, Shape]]:
    prefix = f"model.layers.{layer}.self_attn"
    H, q_dim = model.hidden_size, model.num_attention_heads * model.attention_head_dim
    yield f"{prefix}.qkv_proj.weight", (model.qkv_dim, H)
    yield f"{prefix}.o_proj.weight", (H, q_dim)


def _router(model: ModelConfig, layer: int) -> Iterator[tuple[str, Shape]]:
    shape = (model.num_experts[layer], model.hidden_size)
    yield f"model.layers.{layer}.mlp.gate.wg.weight", shape


def _experts(model: ModelConfig, layer: int) -> Iterator[tuple[str, Shape]]:
    width = model.moe_intermediate_size[layer]
    for expert in range(model.num_experts[layer]):
        yield from _mlp(f"model.layers.{layer}.mlp.experts.{expert}", model.hidden_size, width)


def _shared_expert(model: ModelConfig, layer: int) -> Iterator[tuple[str, Shape]]:
    width = model.moe_intermediate_size[layer] * model.num_shared_expert[layer]
    yield from _mlp(f"model.layers.{layer}.mlp.shared_mlp", model.hidden_size, width)


def _mlp(prefix: str, hidden: int, width: int) -> Iterator[tuple[str, Shape]]:
    yield f"{prefix}.gate_and_up_proj.weight", (2 * width, hidden)
    yield f"{prefix}.down_proj.weight", (hidden, width)


def _timestep_embedder(name: str, hidden: int) -> Iterator[tuple[str, Shape]]:
    yield from _with_bias(f"{name}.mlp.0", (hidden, TIMESTEP_FREQUENCIES))
    yield from _with_bias(f"{name}.mlp.2", (hidden, hidden))


def _patch_embed(model: ModelConfig) -> Iterator[tuple[str, Shape]]:
    F, C = model.patch_embed_hidden_dim, model.vae.latent_channels
    yield from _with_bias("patch_embed.model.0", (F, C, 3, 3))
    yield from _modulated_block("patch_embed.model.1", F, model.hidden_size, model.hidden_size)


def _final_layer(model: ModelConfig) -> Iterator[tuple[str, Shape]]:
    F, C = model.patch_embed_hidden_dim, model.vae.latent_channels
    yield from _modulated_block("final_layer.model.0", model.hidden_size, F, model.hidden_size)
    yield from _norm("final_layer.model.1.0", F)
    yield from _with_bias("final_layer.model.1.2", (C, F, 3, 3))


def _modulated_block(
    prefix: str, width_in: int, width_out: int, hidden: int
) -> Iterator[tuple[str, Shape]]:
    """Yield a 2-D residual block whose second norm is scaled and shifted by an embedding."""
    yield from _norm(f"{prefix}.in_layers.0", width_in)
    yield from _with_bias(f"{prefix}.in_layers.2", (width_out, width_in, 3, 3))
    yield from _with_bias(f"{prefix}.emb_layers.1", (2 * width_out, hidden))
    yield from _norm(f"{prefix}.out_layers.0", width_out)
    yield from _with_bias(f"{prefix}.out_layers.3", (width_out, width_out, 3, 3))
    if width_in != width_out:
        yield from _with_bias(f"{prefix}.skip_connection", (width_out, width_in, 1, 1))


def _vae_decoder(vae: VAEConfig) -> Iterator[tuple[str, Shape]]:
    channels = tuple(reversed(vae.block_out_channels))
    width = channels[0]
    yield from _with_bias("vae.decoder.conv_in", _conv3d(width, vae.latent_channels))
    yield from _vae_mid("vae.decoder.mid", width)
    for level, level_width in enumerate(channels):
        prefix = f"vae.decoder.up.{level}"
        for block in range(vae.layers_per_block + 1):
            yield from _vae_block(f"{prefix}.block.{block}", width, level_width)
            width = level_width
        if level < vae.num_spatial_steps:
            factor = 8 if level < vae.num_temporal_steps else 4
            next_width = channels[level + 1]
            yield from _with_bias(f"{prefix}.upsample.conv", _conv3d(next_width * factor, width))
            width = next_width
    yield from _norm("vae.decoder.norm_out", width)
    yield from _with_bias("vae.decoder.conv_out", _conv3d(vae.out_channels, width))


def _vae_encoder(vae: VAEConfig) -> Iterator[tuple[str, Shape]]:
    channels = vae.block_out_channels
    width = channels[0]
    yield from _with_bias("vae.encoder.conv_in", _conv3d(width, vae.in_channels))
    for level, level_width in enumerate(channels):
        prefix = f"vae.encoder.down.{level}"
        for block in range(vae.layers_per_block):
            yield from _vae_block(f"{prefix}.block.{block}", width, level_width)
            width = level_width
        if level < vae.num_spatial_steps:
            # Time shrinks in the last spatial steps only.
            factor = 8 if level >= vae.num_spatial_steps - vae.num_temporal_steps else 4
            next_width = channels[level + 1]
            yield from _with_bias(f"{prefix}.downsample.conv", _conv3d(next_width // factor, width))
            width = next_width
    yield from _vae_mid("vae.encoder.mid", width)
    yield from _norm("vae.encoder.norm_out", width)
    # Mean and log-variance side by side.
    yield from _with_bias("vae.encoder.conv_out", _conv3d(2 * vae.latent_channels, width))


def _vision(vision: VisionConfig, hidden: int) -> Iterator[tuple[str, Shape]]:
    """Yield the tower without its pooling head, and the aligner behind it."""
    width = vision.hidden_size
    embeddings = "vision_model.embeddings"
    yield from _with_bias(f"{embeddings}.patch_embedding", (width, vision.patch_dim))
    yield f"{embeddings}.position_embedding.weight", (vision.position_side**2, width)
    for layer in range(vision.num_hidden_layers):
        prefix = f"vision_model.encoder.layers.{layer}"
        for norm in ("layer_norm1", "layer_norm2"):
            yield from _norm(f"{prefix}.{norm}", width)
        for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
            yield from _with_bias(f"{prefix}.self_attn.{projection}", (width, width))
        yield from _with_bias(f"{prefix}.mlp.fc1", (vision.intermediate_size, width))
        yield from _with_bias(f"{prefix}.mlp.fc2", (width, vision.intermediate_size))
    yield from _norm("vision_model.post_layernorm", width)
    yield from _with_bias("vision_aligner.layers.0", (hidden, width))
    yield from _with_bias("vision_aligner.layers.2", (hidden, hidden))


def _vae_mid(prefix: str, width: int) -> Iterator[tuple[str, Shape]]:
    yield from _vae_block(f"{prefix}.block_1", width, width)
    yield from _norm(f"{prefix}.attn_1.norm", width)
    for projection in ("q", "k", "v", "proj_out"):
        yield from _with_bias(f"{prefix}.attn_1.{projection}", _conv3d(width, width, kernel=1))
    yield from _vae_block(f"{prefix}.block_2", width, width)


def _vae_block(prefix: str, width_in: int, width_out: int) -> Iterator[tuple[str, Shape]]:
    yield from _norm(f"{prefix}.norm1", width_in)
    yield from _with_bias(f"{prefix}.conv1", _conv3d(width_out, width_in))
    yield from _norm(f"{prefix}.norm2", width_out)
    yield from _with_bias(f"{prefix}.conv2", _conv3d(width_out, width_out))
    if width_in != width_out:
        yield from _with_bias(f"{prefix}.nin_shortcut", _conv3d(width_out, width_in, kernel=1))


def _conv3d(width_out: int, width_in: int, *, kernel: int = 3) -> Shape:
    return (width_out, width_in, kernel, kernel, kernel)


def _norm(name: str, width: int) -> Iterator[tuple[str, Shape]]:
    yield from _with_bias(name, (width,))


def _with_bias(name: str, weight: Shape) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.weight", weight
    yield f"{name}.bias", (weight[0],)
