"""Reference images to the token vectors that stand for them in the prefix."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kit.messages import RunRequest
from kit.model.reference_encoder import ReferenceEncoder
from kit.model.timestep import sinusoid
from kit.model.transformer import HunyuanImage3
from kit.modelspec.config import VAEConfig
from kit.pipeline.noise import draw_posterior, seed_generator
from kit.pipeline.trace import Trace


@dataclass(frozen=True)
class TokenBlock:
    """Vectors that take the place of the token table's, in every row."""

    start: int
    """Index of the first token."""

    vectors: Tensor
    """[n, hidden]."""

    def write(self, embeds: Tensor, start: int = 0) -> None:
        """Overwrite in place what [B, t, hidden] has of the block; its first token is `start`."""
        first = max(self.start, start)
        end = min(self.start + len(self.vectors), start + embeds.shape[1])
        if first < end:
            vectors = self.vectors[first - self.start : end - self.start]
            embeds[:, first - start : end - start] = vectors


def encode_references(
    model: HunyuanImage3, encoder: ReferenceEncoder, run: RunRequest, trace: Trace | None
) -> tuple[TokenBlock, ...]:
    """Encode the references of a request, in order, but for those whose keys and values are there.

    Their noise is drawn all the same: that of the next one follows it.
    """
    layout, device, seed = run.rows.layout, model.device, run.sampling.reference_seed
    assert seed is not None, "a request with references has a seed for them"
    generator = seed_generator(seed)
    assert len(run.references) == len(layout.references), "one picture for each span"
    # No noise is left in a reference, so its timestep is 0.
    wave = sinusoid(torch.zeros(1)).to(device)
    cached = 0 if run.allocation is None else run.allocation.num_cached_tokens
    blocks: list[TokenBlock] = []
    for index, (reference, span) in enumerate(zip(run.references, layout.references, strict=True)):
        if span.end <= cached:
            draw_posterior(generator, model.config.vae.latent_channels, span.latent_grid)
            continue
        moments = encoder.moments(torch.tensor(reference.latent_pixels, device=device))
        latents = sample_posterior(moments, model.config.vae, generator)
        patches = encoder.patch_tokens(torch.tensor(reference.patch_pixels, device=device))
        blocks += [
            TokenBlock(span.timestep, model.timestep_emb(wave)),
            TokenBlock(span.start, model.patch_embed(latents, model.time_embed(wave))[0]),
            TokenBlock(span.patches.start, patches),
        ]
        if trace is not None:
            trace.add(f"ref{index}.vae_moments", moments[:, :, None])
            trace.add(f"ref{index}.cond_latents", latents[0])
            trace.add(f"ref{index}.vit_aligned_embeds", patches)
    return tuple(blocks)


def sample_posterior(moments: Tensor, vae: VAEConfig, generator: torch.Generator) -> Tensor:
    """Draw scaled latents float32 [1, C, h, w] from the moments float32 [1, 2C, h, w].

    The noise is drawn on the CPU whatever the device, as that of the picture
    (HunyuanImage-3.0 reference, `vae_encode`).
    """
    mean, log_variance = moments.chunk(2, dim=1)
    _, channels, height, width = mean.shape
    noise = draw_posterior(generator, channels, (height, width)).to(mean.device)
    sample = mean + (log_variance.clamp(-30.0, 20.0) / 2).exp() * noise
    return (sample - (vae.shift_factor or 0.0)) * vae.scaling_factor
