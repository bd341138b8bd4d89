"""Pictures of many captions or edits at once, to look at what a training run has learnt.

The arithmetic is the training's; serving a checkpoint is the engine's job.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from kit.checkpoint.devices import autocast
from kit.checkpoint.dit_forward import ReferenceBatch, TrainingForward
from kit.checkpoint.edit_rows import edit_prefix, read_reference
from kit.checkpoint.flat_vae import FlatVAE
from kit.checkpoint.official_config import VISION_PATCH
from kit.checkpoint.train_vae import to_unit
from kit.checkpoint.training_rows import padded_prefix, prefix_rows
from kit.model.vision import cut_patches
from kit.pipeline.postprocess import to_pixels
from kit.pipeline.schedule import euler_step, flow_sigmas
from kit.request import Template
from kit.tokenizer.tokenizer import Tokenizer

_BATCH = 128

T = TypeVar("T")


@dataclass(frozen=True)
class Sampler:
    """A denoiser and an autoencoder with the settings they are sampled with."""

    forward: TrainingForward
    flat: FlatVAE
    tokenizer: Tokenizer
    num_steps: int = 20
    guidance_scale: float = 3.0
    flow_shift: float = 3.0
    template: Template = "pretrain"

    def draw(
        self, prompts: Sequence[str], size: tuple[int, int], seed: int
    ) -> Iterator[NDArray[np.uint8]]:
        """Yield a picture [height, width, 3] of each prompt, `size` is (height, width)."""
        config, device = self.forward.model.config, self.forward.model.device
        generator = torch.Generator(device=device).manual_seed(seed)
        for some in _batches(prompts):
            pairs = [prefix_rows(self.tokenizer, config, p, size, self.template) for p in some]
            with torch.inference_mode(), autocast(device):
                decoded = self._draw_batch(pairs, size, generator, None)
            for one in decoded:
                yield to_pixels(one[None])

    def edit(
        self,
        prompts: Sequence[str],
        sources: Sequence[NDArray[np.uint8]],
        seed: int,
    ) -> Iterator[NDArray[np.uint8]]:
        """Yield a picture for each prompt beside its source, uint8 [height, width, 3].

        The sources have one size, one that the checkpoint draws; so have the pictures.
        """
        config, device = self.forward.model.config, self.forward.model.device
        generator = torch.Generator(device=device).manual_seed(seed)
        size = (sources[0].shape[0], sources[0].shape[1])
        for some, pictures in zip(_batches(prompts), _batches(sources), strict=True):
            read = [read_reference(pixels, self.tokenizer, config) for pixels in pictures]
            shape = read[0][1]
            made = [edit_prefix(self.tokenizer, config, p, size, shape) for p in some]
            with torch.inference_mode(), autocast(device):
                patches = np.stack([image.patch_pixels for image, _ in read])
                reference = ReferenceBatch(
                    self._encode(np.stack(pictures), generator),
                    cut_patches(torch.from_numpy(patches).to(device), VISION_PATCH)[0],
                    torch.tensor(made[0].head, device=device),
                    made[0].span,
                )
                pairs = [prefix.texts for prefix in made]
                decoded = self._draw_batch(pairs, size, generator, reference)
            for one in decoded:
                yield to_pixels(one[None])

    def _encode(self, pixels: NDArray[np.uint8], generator: torch.Generator) -> Tensor:
        """Draw scaled latents [B, C, h, w] of uint8 [B, height, width, 3]."""
        device = self.forward.model.device
        mean, logvar = self.flat.encode(to_unit(torch.from_numpy(pixels).to(device)))
        noise = torch.randn(mean.shape, device=device, generator=generator)
        return (mean + (logvar / 2).exp() * noise) * self.forward.model.config.vae.scaling_factor

    def _draw_batch(
        self,
        pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
        size: tuple[int, int],
        generator: torch.Generator,
        reference: ReferenceBatch | None,
    ) -> Tensor:
        config, device = self.forward.model.config, self.forward.model.device
        guided = self.guidance_scale > 1
        # All conditional rows, then all unconditional ones.
        rows = [pair[row] for row in range(1 + guided) for pair in pairs]
        longest = max(len(ids) for ids in rows)
        pad = self.tokenizer.special.eoi
        texts = torch.tensor([padded_prefix(ids, longest, pad) for ids in rows], device=device)
        lengths = torch.tensor([len(ids) for ids in rows], device=device)
        if reference is not None:
            reference = replace(
                reference,
                latents=reference.latents.repeat(1 + guided, 1, 1, 1),
                patches=reference.patches.repeat(1 + guided, 1, 1),
            )
        shape = (len(pairs), config.vae.latent_channels, *config.latent_grid(*size))
        noise = torch.randn(shape, device=device, generator=generator)
        latents = noise.bfloat16().float()
        sigmas = flow_sigmas(self.num_steps, self.flow_shift).to(device)
        for sigma, following in pairwise(sigmas):
            both = latents.repeat(1 + guided, 1, 1, 1)
            velocity, _ = self.forward(both, sigma.expand(len(rows)), texts, lengths, reference)
            if guided:
                conditional, unconditional = velocity.chunk(2)
                velocity = unconditional + self.guidance_scale * (conditional - unconditional)
            latents = euler_step(latents, velocity, sigma, following)
        return self.flat.decode(latents / config.vae.scaling_factor)


def _batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for at in range(0, len(items), _BATCH):
        yield items[at : at + _BATCH]


def save_sheet(pictures: Sequence[NDArray[np.uint8]], path: Path, num_columns: int) -> None:
    """Write pictures of one size side by side, row by row."""
    height, width = pictures[0].shape[:2]
    num_rows = -(-len(pictures) // num_columns)
    sheet = Image.new("RGB", (num_columns * width, num_rows * height), "white")
    for at, picture in enumerate(pictures):
        sheet.paste(
            Image.fromarray(picture), (at % num_columns * width, at // num_columns * height)
        )
    sheet.save(path)
