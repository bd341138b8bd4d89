"""How large a trained checkpoint is, and what its training sees and does."""

from __future__ import annotations

from dataclasses import dataclass, field

SQUARE = (256, 256)

LONG_SIZES = ((128, 384), (384, 128))
NAMED_SIZES = ((192, 320), (320, 192), (224, 288), (288, 224), *LONG_SIZES)
"""(height, width) of the buckets that training sees often beside the square."""

LONGEST_SIZES = ((128, 512), (512, 128))
"""As many pixels as the square, so the autoencoder's kernels see one size."""

SCALED_SIZES = tuple(
    size for short in range(144, 256, 16) for size in ((short, 4 * short), (4 * short, short))
)
"""Canvases that the autoencoder sees through windows of LONGEST_SIZES: patterns whose period
follows the shorter side have other periods there."""


@dataclass(frozen=True)
class VisionShape:
    """The tower that reads a reference image's patches of 16 x 16 pixels, and the way behind it."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_num_patches: int
    """A square number: learned positions lie on a square of as many."""


@dataclass(frozen=True)
class Shape:
    """The dimensions that differ between checkpoints of the architecture."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    attention_head_dim: int
    num_experts: int
    moe_topk: int
    num_shared_expert: int
    moe_intermediate_size: int
    patch_embed_hidden_dim: int
    vae_widths: tuple[int, ...]
    """A multiple of 32 each, for the group norms; from pixels to latents."""

    latent_channels: int
    vocab_size: int
    """The special tokens included."""

    sequence_slots: int
    """Tokens of a training row: its prefix, <timestep> and the image, padded on the left."""

    vision: VisionShape
    edit_slots: int
    """The same of a row with a reference image."""


@dataclass(frozen=True)
class VAETraining:
    """The loss is L1 + mse_weight * MSE + edge_weight * L1 of finite differences
    + kl_weight * KL + moment_weight * ((std - 1)^2 + mean^2) of each latent channel."""

    num_squares: int = 32768
    num_longest: int = 4096
    """Pictures of each of LONGEST_SIZES."""

    num_scaled: int = 512
    """Pictures of each of SCALED_SIZES."""

    batch_size: int = 16
    share_square: float = 0.5
    share_longest: float = 0.1
    """All of LONGEST_SIZES together; SCALED_SIZES share the rest."""

    learning_rate: float = 1.5e-3
    matrix_learning_rate: float = 2e-3
    num_warmup_steps: int = 200
    flat_share: float = 0.4
    """Part of the time before the learning rate starts to fall."""

    final_lr_scale: float = 0.01
    mse_weight: float = 10.0
    edge_weight: float = 0.25
    kl_weight: float = 2e-4
    moment_weight: float = 0.02
    num_judged: int = 256
    """Held-out pictures that the PSNR is measured on."""


@dataclass(frozen=True)
class DiTTraining:
    """Flow matching on cached latents; the loss is the MSE of the velocity."""

    num_squares: int = 36864
    num_named: int = 8192
    """Pictures of each of NAMED_SIZES."""

    num_other: int = 768
    """Pictures of each remaining bucket."""

    share_square: float = 0.42
    share_long: float = 0.22
    """Both LONG_SIZES together."""

    share_named: float = 0.28
    """The other NAMED_SIZES together; the remaining buckets share the rest."""

    num_captions: int = 8
    """Per picture."""

    share_instruct: float = 0.1
    """Captions in the instruct template, the rest in the pretrain template."""

    batch_size: int = 256
    caption_dropout: float = 0.1
    share_uniform: float = 0.2
    """Of the noise levels: drawn uniformly, the rest by a logistic normal."""

    flow_shift: float = 3.0
    learning_rate: float = 1.5e-3
    matrix_learning_rate: float = 1.5e-3
    num_warmup_steps: int = 100
    flat_share: float = 0.5
    final_lr_scale: float = 0.0
    weight_decay: float = 0.01
    balance_weight: float = 0.01
    ema_decay: float = 0.999


@dataclass(frozen=True)
class EditTraining:
    """Every step sees a batch of captions and a batch of edits; their losses are added."""

    text: DiTTraining = field(
        default_factory=lambda: DiTTraining(
            num_squares=20480,
            num_named=3072,
            num_other=384,
            share_instruct=0.85,
            share_square=0.36,
            share_long=0.26,
            share_named=0.31,
            batch_size=96,
        )
    )
    """The captions, and how steps are taken. Without a reference prompts are mostly in the instruct
    template too: a checkpoint that takes references has it as its default."""

    num_squares: int = 20480
    num_named: int = 2048
    """Edits of each of NAMED_SIZES."""

    num_other: int = 128
    """Edits of each remaining bucket."""

    share_square: float = 0.6
    """As the next two, see DiTTraining."""

    share_long: float = 0.1
    share_named: float = 0.24
    num_instructions: int = 4
    """Per edit."""

    batch_size: int = 64


@dataclass(frozen=True)
class Preset:
    """Everything that a training run is made from, but its seed and its time."""

    name: str
    shape: Shape
    num_vocabulary_captions: int = 60000
    vae: VAETraining = field(default_factory=VAETraining)
    dit: DiTTraining = field(default_factory=DiTTraining)
    edit: EditTraining = field(default_factory=EditTraining)
    num_shown: int = 24
    """Held-out captions, and edits, that are drawn at the end, to look at."""


TINY = Preset(
    name="hunyuan_image3_tiny",
    shape=Shape(
        hidden_size=256,
        num_hidden_layers=7,
        num_attention_heads=8,
        num_key_value_heads=4,
        attention_head_dim=64,
        num_experts=8,
        moe_topk=2,
        num_shared_expert=2,
        moe_intermediate_size=64,
        patch_embed_hidden_dim=64,
        vae_widths=(64, 64, 64, 64, 64),
        latent_channels=16,
        vocab_size=1024,
        sequence_slots=320,
        vision=VisionShape(
            hidden_size=192,
            num_hidden_layers=3,
            num_attention_heads=3,
            intermediate_size=384,
            max_num_patches=64,
        ),
        edit_slots=640,
    ),
)
"""The checkpoint that ships with the kit."""

_TOY_TEXT = DiTTraining(
    num_squares=4, num_named=1, num_other=0, num_captions=2, batch_size=2, num_warmup_steps=2
)

TOY = Preset(
    name="toy",
    shape=Shape(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        attention_head_dim=64,
        num_experts=4,
        moe_topk=2,
        num_shared_expert=1,
        moe_intermediate_size=16,
        patch_embed_hidden_dim=32,
        vae_widths=(32, 32, 32, 32, 32),
        latent_channels=16,
        vocab_size=400,
        sequence_slots=352,
        vision=VisionShape(
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=48,
            max_num_patches=16,
        ),
        edit_slots=656,
    ),
    num_vocabulary_captions=100,
    vae=VAETraining(
        num_squares=4,
        num_longest=2,
        num_scaled=1,
        batch_size=1,
        num_warmup_steps=2,
        num_judged=1,
    ),
    dit=_TOY_TEXT,
    edit=EditTraining(
        text=_TOY_TEXT,
        num_squares=4,
        num_named=1,
        num_other=0,
        num_instructions=2,
        batch_size=2,
    ),
    num_shown=1,
)
"""Draws nothing; shows in seconds that every part of the training runs."""

PRESETS = {"tiny": TINY, "toy": TOY}
