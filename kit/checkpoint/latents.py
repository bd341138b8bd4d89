"""The encoded training pictures with the prefixes of their captions, on the device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from kit.checkpoint.devices import autocast
from kit.checkpoint.flat_vae import FlatVAE
from kit.checkpoint.train_vae import to_unit
from kit.checkpoint.training_rows import Chunk, Size


class LatentBatch(NamedTuple):
    """B samples of one grid."""

    latents: Tensor
    """float32 [B, C, h, w], scaled, with fresh posterior noise."""

    prefixes: Tensor
    """int64 [B, P]."""

    lengths: Tensor
    """int64 [B]."""


@dataclass(frozen=True)
class LatentPool:
    """N pictures of one size."""

    mean: Tensor
    """bfloat16 [N, C, h, w], not scaled; as std, the posterior's."""

    std: Tensor
    prefixes: Tensor
    """int16 [N, captions, 2, P]."""

    lengths: Tensor
    """int16 [N, captions]."""

    def draw(
        self, num: int, scaling_factor: float, dropout: float, generator: torch.Generator
    ) -> LatentBatch:
        """Draw pictures, a caption of each, and for a share `dropout` no caption."""
        device = self.mean.device

        def integers(limit: int) -> Tensor:
            return torch.randint(limit, (num,), device=device, generator=generator)

        at, caption = integers(len(self.mean)), integers(self.lengths.shape[1])
        row = (torch.rand(num, device=device, generator=generator) < dropout).long()
        mean = self.mean[at].float()
        noise = torch.randn(mean.shape, device=device, generator=generator)
        return LatentBatch(
            (mean + self.std[at] * noise) * scaling_factor,
            self.prefixes[at, caption, row].long(),
            self.lengths[at, caption].long(),
        )


@torch.no_grad()
def encode_chunks(
    flat: FlatVAE, chunks: Iterable[Chunk], device: torch.device
) -> dict[Size, LatentPool]:
    """Encode pictures as they arrive; returns a pool per size."""
    parts: dict[Size, list[tuple[Tensor, ...]]] = defaultdict(list)
    for chunk in chunks:
        with autocast(device):
            mean, logvar = flat.encode(to_unit(torch.from_numpy(chunk.pixels).to(device)))
        parts[chunk.size].append(
            (
                mean.bfloat16(),
                torch.exp(0.5 * logvar).bfloat16(),
                torch.from_numpy(chunk.prefixes).to(device),
                torch.from_numpy(chunk.lengths).to(device),
            )
        )
    return {size: LatentPool(*_columns(rows)) for size, rows in parts.items()}


def _columns(rows: list[tuple[Tensor, ...]]) -> Iterator[Tensor]:
    for column in zip(*rows, strict=True):
        yield torch.cat(column)
