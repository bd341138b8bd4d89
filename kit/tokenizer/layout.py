"""The shape of a row: [prefix | target | tail] and its attention spans, without any text.

A row of one request, half-open intervals on the token axis:

    [0, P)                prefix   prompt and reference images; computed once
    [P, P+s)              target   <timestep>, distilled also <guidance>, <timestep_r>; causal
    [P+s, P+s+N)          target   image tokens; attend to everything in [0, P+s+N)
    [P+s+N, length)       tail     <eoi> and what follows; no query reads it, never computed

A reference image within the prefix, V and W image tokens:

    [t, t+1)              <timestep>, behind <boi>, size and ratio; causal
    [t+1, t+1+V)          latents of the autoencoder
    [t+1+V, t+2+V)        <joint_img_sep>
    [t+2+V, t+2+V+W)      patches of the vision tower
    [t+2+V+W, ...)        <eoi>; causal

The three in the middle are one span: each of its tokens attends to everything in [0, t+2+V+W).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

NUM_BEFORE_TIMESTEP = 3
"""<boi>, size and ratio, which open every image."""


@dataclass(frozen=True)
class ImageSpan:
    """A block of h*w image tokens that gets 2-D positions."""

    start: int
    grid: tuple[int, int]
    """(h, w) in tokens, row-major."""

    @property
    def end(self) -> int:
        return self.start + self.grid[0] * self.grid[1]


@dataclass(frozen=True)
class ReferenceSpan:
    """A reference image within the prefix."""

    timestep: int
    """Index of its <timestep>."""

    latent_grid: tuple[int, int]
    """(h, w) of its latents."""

    patch_grid: tuple[int, int]
    """(rows, columns) of its patches."""

    num_patch_tokens: int
    """Tokens of its patches, padding included, which is seen like the rest."""

    @property
    def latents(self) -> ImageSpan:
        return ImageSpan(self.timestep + 1, self.latent_grid)

    @property
    def patches(self) -> ImageSpan:
        return ImageSpan(self.latents.end + 1, self.patch_grid)

    @property
    def start(self) -> int:
        """First token of the span whose tokens all see one another."""
        return self.latents.start

    @property
    def end(self) -> int:
        return self.patches.start + self.num_patch_tokens

    @property
    def num_tokens(self) -> int:
        """Tokens from <boi> to <eoi>."""
        return self.end + 1 - (self.timestep - NUM_BEFORE_TIMESTEP)


@dataclass(frozen=True)
class Layout:
    """The common shape of all rows of a request."""

    prefix_len: int
    num_special: int
    """Special tokens at the head of the target: 1, or 3 for a distilled model."""

    grid: tuple[int, int]
    """(h, w) of the generated image in tokens."""

    tail_len: int
    references: tuple[ReferenceSpan, ...] = ()
    """Reference images, in the order of their tokens."""

    @property
    def num_image(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def target_len(self) -> int:
        return self.num_special + self.num_image

    @property
    def kv_len(self) -> int:
        """Tokens whose keys and values are kept: prefix and target, no tail."""
        return self.prefix_len + self.target_len

    @property
    def seq_len(self) -> int:
        return self.kv_len + self.tail_len

    @property
    def image_span(self) -> ImageSpan:
        return ImageSpan(self.prefix_len + self.num_special, self.grid)


@dataclass(frozen=True)
class Rows:
    """The token sequences of one request: one row per CFG branch, conditional first."""

    layout: Layout
    token_ids: tuple[tuple[int, ...], ...]
    """One sequence of `layout.seq_len` ids per row."""

    @property
    def num_rows(self) -> int:
        return len(self.token_ids)


def positions_yx(layout: Layout) -> npt.NDArray[np.int32]:
    """Return the (y, x) position of every token, int32 [seq_len, 2].

    Outside images y = x = index. Row i, column j of an h*w block starting at L:
    y = floor(L + (h*w - h)/2 + i), x = floor(L + (h*w - w)/2 + j)
    (HunyuanImage-3.0 reference, `build_batch_2d_rope`).
    """
    positions = np.repeat(np.arange(layout.seq_len, dtype=np.int32)[:, None], 2, axis=1)
    spans = [span for ref in layout.references for span in (ref.latents, ref.patches)]
    for span in (*spans, layout.image_span):
        h, w = span.grid
        # The half is truncated once, after the sum, so it is the same for every i and j.
        y = span.start + (h * w - h) // 2 + np.arange(h, dtype=np.int32)
        x = span.start + (h * w - w) // 2 + np.arange(w, dtype=np.int32)
        positions[span.start : span.end, 0] = np.repeat(y, w)
        positions[span.start : span.end, 1] = np.tile(x, h)
    return positions
