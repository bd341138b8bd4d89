"""Pictures of many captions at once, to look at what a training run has learnt.

The arithmetic is the training's; serving a checkpoint is the engine's job.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from kit.checkpoint.devices import autocast
from kit.checkpoint.dit_forward import TrainingForward
from kit.checkpoint.flat_vae import FlatVAE
from kit.checkpoint.training_rows import padded_prefix, prefix_rows
from kit.pipeline.postprocess import to_pixels
from kit.pipeline.schedule import euler_step, flow_sigmas
from kit.request import Template
from kit.tokenizer.tokenizer import Tokenizer

_BATCH = 128


@dataclass(frozen=True)
class Sampler:
    """A denoiser and an autoencoder with the settings they are sampled with."""

    forward: TrainingForward
    flat: FlatVAE
    tokenizer: Tokenizer
    num_slots: int
    """Of padded prefixes."""

    num_steps: int = 20
    guidance_scale: float = 3.0
    flow_shift: float = 3.0
    template: Template = "pretrain"

    def draw(
        self, prompts: Sequence[str], size: tuple[int, int], seed: int
    ) -> Iterator[NDArray[np.uint8]]:
        """Yield a picture [height, width, 3] of each prompt, `size` is (height, width)."""
        device = self.forward.model.device
        generator = torch.Generator(device=device).manual_seed(seed)
        for at in range(0, len(prompts), _BATCH):
            with torch.inference_mode(), autocast(device):
                decoded = self._draw_batch(prompts[at : at + _BATCH], size, generator)
            for one in decoded:
                yield to_pixels(one[None])

    def _draw_batch(
        self, prompts: Sequence[str], size: tuple[int, int], generator: torch.Generator
    ) -> Tensor:
        config, device = self.forward.model.config, self.forward.model.device
        guided = self.guidance_scale > 1
        pairs = [prefix_rows(self.tokenizer, config, p, size, self.template) for p in prompts]
        # All conditional rows, then all unconditional ones.
        rows = [pair[row] for row in range(1 + guided) for pair in pairs]
        pad = self.tokenizer.special.eoi
        prefixes = torch.tensor(
            [padded_prefix(ids, self.num_slots, pad) for ids in rows], device=device
        )
        lengths = torch.tensor([len(ids) for ids in rows], device=device)
        factor = config.vae_downsample_factor
        shape = (len(prompts), config.vae.latent_channels, size[0] // factor, size[1] // factor)
        noise = torch.randn(shape, device=device, generator=generator)
        latents = noise.bfloat16().float()
        sigmas = flow_sigmas(self.num_steps, self.flow_shift).to(device)
        for sigma, following in pairwise(sigmas):
            both = latents.repeat(1 + guided, 1, 1, 1)
            velocity, _ = self.forward(both, sigma.expand(len(rows)), prefixes, lengths)
            if guided:
                conditional, unconditional = velocity.chunk(2)
                velocity = unconditional + self.guidance_scale * (conditional - unconditional)
            latents = euler_step(latents, velocity, sigma, following)
        return self.flat.decode(latents / config.vae.scaling_factor)


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
