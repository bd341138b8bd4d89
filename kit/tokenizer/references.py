"""Whether a checkpoint takes reference images, and how many tokens one has."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kit.modelspec.config import GenerationConfig, ModelConfig
from kit.modelspec.files import CheckpointFiles
from kit.modelspec.tensors import missing_reference_parts
from kit.modelspec.vision import NoVision, VisionConfig
from kit.tokenizer.buckets import Bucket
from kit.tokenizer.special import SpecialTokens

MAX_REFERENCES = 3
"""Of one request; what the official checkpoints are shown with."""

NUM_FRAME_TOKENS = 6
"""<boi>, size, ratio, <timestep>, <joint_img_sep> and <eoi> of a reference."""

_PART_NAMES = {"vae_encoder": "vae.encoder.*", "vision": "vision_model.* and vision_aligner.*"}


def reference_refusal(
    files: CheckpointFiles,
    model: ModelConfig,
    generation: GenerationConfig,
    special: SpecialTokens,
) -> str | None:
    """Say why a checkpoint with checked `files` takes no reference images; None if it does."""
    if generation.sequence_template != "instruct":
        return (
            f"generation_config.json sequence_template is {generation.sequence_template!r}, and "
            f"reference images have a place in the instruct template only"
        )
    if isinstance(model.vision, NoVision):
        return model.vision.reason
    if special.joint_img_sep is None:
        return "tokenizer.json lacks <joint_img_sep>"
    if missing := missing_reference_parts(files, model):
        return f"its files hold no {', no '.join(_PART_NAMES[part] for part in missing)}"
    return None


def num_reference_tokens(model: ModelConfig, bucket: Bucket) -> int:
    """Return the tokens of a row that a reference image in a bucket takes."""
    assert isinstance(model.vision, VisionConfig), "the checkpoint takes references"
    num_latents = math.prod(model.latent_grid(bucket.height, bucket.width))
    return NUM_FRAME_TOKENS + num_latents + model.vision.max_num_patches


def max_references(model: ModelConfig, sizes: Sequence[Bucket]) -> int:
    """Return how many references of the smallest size fit into a row with such an image, at most 3.

    The model reads references.
    """
    smallest = min(sizes, key=lambda size: size.height * size.width)
    target = model.num_target_tokens(smallest.height, smallest.width)
    room = model.max_position_embeddings - target
    return min(MAX_REFERENCES, room // num_reference_tokens(model, smallest))
