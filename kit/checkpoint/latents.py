"""The encoded training pictures with the texts of their rows, on the device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kit.checkpoint.chunks import Size
from kit.checkpoint.devices import autocast
from kit.checkpoint.dit_forward import ReferenceBatch
from kit.checkpoint.edit_rows import EditChunk
from kit.checkpoint.flat_vae import FlatVAE
from kit.checkpoint.train_vae import to_unit
from kit.checkpoint.training_rows import Chunk
from kit.model.vision import cut_patches
from kit.tokenizer.layout import ReferenceSpan


class LatentBatch(NamedTuple):
    """B samples of one grid."""

    latents: Tensor
    """float32 [B, C, h, w], scaled, with fresh posterior noise."""

    texts: Tensor
    """int64 [B, T]."""

    lengths: Tensor
    """int64 [B]."""

    reference: ReferenceBatch | None = None


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
        at, caption, row = _choose(self.lengths, num, dropout, generator)
        return LatentBatch(
            _sample(self.mean[at], self.std[at], generator) * scaling_factor,
            self.prefixes[at, caption, row].long(),
            self.lengths[at, caption].long(),
        )


@dataclass(frozen=True)
class EditPool:
    """N edits of one size; what is 2 stands for source and target."""

    mean: Tensor
    """bfloat16 [N, 2, C, h, w], not scaled; as std, the posterior's."""

    std: Tensor
    patches: Tensor
    """uint8 [N, rows * p, columns * p, 3] of the sources."""

    texts: Tensor
    """int16 [N, instructions, 2, T]."""

    lengths: Tensor
    """int16 [N, instructions]."""

    head: Tensor
    """int64 [F]."""

    span: ReferenceSpan
    patch_size: int

    def draw(
        self, num: int, scaling_factor: float, dropout: float, generator: torch.Generator
    ) -> LatentBatch:
        """Draw edits, an instruction of each, and for a share `dropout` none.

        Every row sees its source, whose latents are drawn anew, too.
        """
        at, instruction, row = _choose(self.lengths, num, dropout, generator)
        latents = _sample(self.mean[at], self.std[at], generator) * scaling_factor
        source, target = latents.unbind(1)
        patches, _ = cut_patches(self.patches[at], self.patch_size)
        return LatentBatch(
            target.contiguous(),
            self.texts[at, instruction, row].long(),
            self.lengths[at, instruction].long(),
            ReferenceBatch(source.contiguous(), patches, self.head, self.span),
        )


def encode_chunks(
    flat: FlatVAE, chunks: Iterable[Chunk], device: torch.device
) -> dict[Size, LatentPool]:
    """Encode pictures as they arrive; returns a pool per size."""
    parts: dict[Size, list[tuple[Tensor, ...]]] = defaultdict(list)
    for chunk in chunks:
        texts = (torch.from_numpy(part).to(device) for part in (chunk.prefixes, chunk.lengths))
        parts[chunk.size].append((*_encode(flat, chunk.pixels, device), *texts))
    return {size: LatentPool(*_columns(rows)) for size, rows in parts.items()}


def encode_edits(
    flat: FlatVAE, chunks: Iterable[EditChunk], device: torch.device, patch_size: int
) -> dict[Size, EditPool]:
    """Encode edits as they arrive; returns a pool per size."""
    parts: dict[Size, list[tuple[Tensor, ...]]] = defaultdict(list)
    heads: dict[Size, tuple[Tensor, ReferenceSpan]] = {}
    for chunk in chunks:
        moments = _encode(flat, chunk.pixels.reshape(-1, *chunk.pixels.shape[2:]), device)
        mean, std = (torch.unflatten(part, 0, (-1, 2)) for part in moments)
        others = (chunk.patches, chunk.prefixes, chunk.lengths)
        parts[chunk.size].append(
            (mean, std, *(torch.from_numpy(part).to(device) for part in others))
        )
        heads[chunk.size] = torch.from_numpy(chunk.head).to(device).long(), chunk.span
    pools = {}
    for size, rows in parts.items():
        mean, std, patches, texts, lengths = _columns(rows)
        head, span = heads[size]
        pools[size] = EditPool(mean, std, patches, texts, lengths, head, span, patch_size)
    return pools


@torch.no_grad()
def _encode(
    flat: FlatVAE, pixels: NDArray[np.uint8], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation, bfloat16 [N, C, h, w], of uint8 [N, height, width, 3]."""
    with autocast(device):
        mean, logvar = flat.encode(to_unit(torch.from_numpy(pixels).to(device)))
    return mean.bfloat16(), torch.exp(0.5 * logvar).bfloat16()


def _choose(
    lengths: Tensor, num: int, dropout: float, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw pictures, a text of each of int16 `lengths` [N, texts], and the row: 1 for no text."""
    device = lengths.device

    def integers(limit: int) -> Tensor:
        return torch.randint(limit, (num,), device=device, generator=generator)

    at, text = integers(lengths.shape[0]), integers(lengths.shape[1])
    row = (torch.rand(num, device=device, generator=generator) < dropout).long()
    return at, text, row


def _sample(mean: Tensor, std: Tensor, generator: torch.Generator) -> Tensor:
    """Draw from a posterior; float32 of the same shape."""
    noise = torch.randn(mean.shape, device=mean.device, generator=generator)
    return mean.float() + std * noise


def _columns(rows: list[tuple[Tensor, ...]]) -> Iterator[Tensor]:
    for column in zip(*rows, strict=True):
        yield torch.cat(column)
