"""Ranks decode an image together: real processes, joined by gloo, against one rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from allocations import peak_bytes
from ranks import run_ranks
from torch import Tensor, nn

from kit.checkpoint.shipped import DEFAULT_CHECKPOINT, GOLDEN_CHECKPOINT
from kit.model.group_norm import GroupNorm
from kit.model.vae import VAEDecoder
from kit.modelspec.config import VAEConfig, load_model_config
from kit.modelspec.footprint import Split, activation_bytes
from kit.parallel.group import ALONE, Mesh, RankGroup
from kit.parallel.strips import ALL_ROWS, divide_rows
from kit.parallel.topology import Topology

CLIP = VAEConfig(
    in_channels=3,
    out_channels=3,
    latent_channels=4,
    block_out_channels=(32, 32, 64, 64),
    layers_per_block=1,
    ffactor_spatial=8,
    ffactor_temporal=4,
    scaling_factor=0.5,
    shift_factor=None,
)
FRAME = replace(CLIP, ffactor_temporal=1, layers_per_block=0)
SHIPPED = (GOLDEN_CHECKPOINT, DEFAULT_CHECKPOINT)
# Latent rows and columns: even and uneven strips, wide and tall, fewer rows than ranks.
SIZES = ((8, 3), (7, 2), (3, 9), (5, 5), (2, 2))


def make_decoder(config: VAEConfig, seed: int = 5) -> VAEDecoder:
    decoder = VAEDecoder(config).requires_grad_(False)
    draw = torch.Generator().manual_seed(seed)
    for part in decoder.modules():
        for parameter in part.parameters(recurse=False):
            noise = torch.randn(parameter.shape, generator=draw)
            weight = part.weight
            assert isinstance(weight, Tensor)
            scale = weight[0].numel() ** -0.5 if parameter.dim() > 1 else 0.1
            is_norm_weight = isinstance(part, GroupNorm) and parameter is weight
            parameter.copy_(noise * scale + float(is_norm_weight))
    return decoder


def make_latents(config: VAEConfig, height: int, width: int) -> Tensor:
    draw = torch.Generator().manual_seed(height * 100 + width)
    # Unequal from row to row: a rank's own mean and spread are not the image's.
    slope = torch.linspace(-2, 2, height)[:, None]
    return torch.randn(1, config.latent_channels, height, width, generator=draw) + slope


def largest_error(seen: Tensor, wanted: Tensor) -> float:
    return float((seen - wanted).abs().max() / wanted.abs().max())


@dataclass(frozen=True)
class Seen:
    """What one of four ranks found."""

    images: dict[int, list[tuple[float, float]]]
    """By the number of ranks that decode: error against the image of one rank, sum of pixels."""

    faults: dict[str, float]
    """Error of an image of two ranks."""

    norm: tuple[float, float] | None

    memory: dict[str, float]
    """Bytes of a decoding by two ranks, over the estimate, by shipped checkpoint."""


@torch.inference_mode()
def _on_rank(mesh: Mesh) -> Seen:
    """Everything at once: what takes long is to start processes."""
    images, faults, norm, memory = {}, {}, None, {}
    for count in (4, 2):
        ranks = mesh.first(count)
        images[count] = [] if ranks is None else list(_decode(ranks))
        if count == 2 and ranks is not None:
            faults, norm = _decode_with_faults(ranks), _norm_far_from_zero(ranks)
            memory = {str(folder.name): _memory(ranks, folder) for folder in SHIPPED}
    return Seen(images, faults, norm, memory)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[Seen]:
    folder = tmp_path_factory.mktemp("ranks")
    return run_ranks(Topology(tensor=2, ulysses=2), folder, _on_rank)


def _decode(ranks: RankGroup) -> Iterator[tuple[float, float]]:
    for config in (CLIP, FRAME):
        decoder = make_decoder(config)
        for size in SIZES:
            latents = make_latents(config, *size)
            image = decoder(latents, ranks)
            yield largest_error(image, decoder(latents)), float(image.sum())


@pytest.mark.parametrize("count", [2, 4])
def test_ranks_together_decode_what_one_decodes(seen: list[Seen], count: int) -> None:
    images = [rank.images[count] for rank in seen]
    assert [len(found) for found in images] == [2 * len(SIZES)] * count + [0] * (4 - count)
    assert max(error for found in images for error, _ in found) < 1e-5
    sums = [[total for _, total in found] for found in images[:count]]
    assert all(one == other for one, other in pairwise(sums)), "every rank has the same image"


class Faulty(RankGroup):
    """A group with one exchange that goes wrong."""

    def __init__(self, ranks: RankGroup, fault: str) -> None:
        super().__init__(ranks.rank, ranks.size, ranks._group)
        self._fault = fault

    def neighbours(self, edges: Tensor) -> Tensor:
        found = super().neighbours(edges)
        if self._fault == "halo dropped":
            return torch.zeros_like(found)
        return found.flip(0) if self._fault == "halo from the other side" else found

    def gather(self, tensor: Tensor, dim: int) -> Tensor:
        if self._fault == "norms of own rows" and dim == 0:
            return torch.cat([tensor] * self.size)
        return super().gather(tensor, dim)

    def gather_uneven(self, tensor: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
        if self._fault == "attention over own rows" and tensor.dim() == 5:
            return tensor
        found = super().gather_uneven(tensor, dim, sizes)
        return found.roll(sizes[0], dim) if self._fault == "strips exchanged" else found


FAULTS = (
    "halo dropped",
    "halo from the other side",
    "norms of own rows",
    "attention over own rows",
    "strips exchanged",
)


def _decode_with_faults(ranks: RankGroup) -> dict[str, float]:
    decoder, latents = make_decoder(CLIP), make_latents(CLIP, 8, 3)
    wanted = decoder(latents)
    return {
        fault: largest_error(decoder(latents, Faulty(ranks, fault)), wanted)
        for fault in ("none", *FAULTS)
    }


def test_every_exchange_matters(seen: list[Seen]) -> None:
    for rank in seen[:2]:
        errors = dict(rank.faults)
        assert errors.pop("none") < 1e-5
        assert set(errors) == set(FAULTS)
        assert min(errors.values()) > 1e-3


def _norm_far_from_zero(ranks: RankGroup) -> tuple[float, float]:
    """Errors of a norm over float16 values of mean 200 and spread 1, against float64."""
    draw = torch.Generator().manual_seed(3)
    x = (200 + torch.randn(1, 64, 2, 6, 5, generator=draw)).half()
    norm = GroupNorm(64, 1e-6).requires_grad_(False).half()
    strips = divide_rows(ranks, 6)
    wanted = nn.functional.group_norm(x.double(), 32, eps=1e-6)
    own = norm(strips.own(x), strips)
    return (
        float((own - strips.own(wanted)).abs().max()),
        float((norm.silu(strips.own(x), strips) - nn.functional.silu(own)).abs().max()),
    )


def test_norms_lose_nothing_to_a_mean_far_from_zero(seen: list[Seen]) -> None:
    """Sums of squares about zero would leave three digits of the spread."""
    for rank in seen[:2]:
        assert rank.norm is not None
        error, with_silu = rank.norm
        assert error < 2e-3  # float16 rounds values up to 4 by as much
        assert with_silu == 0


def _memory(ranks: RankGroup, folder: Path) -> float:
    model = load_model_config(folder)
    decoder = make_decoder(model.vae)
    estimate = activation_bytes(
        model,
        height=256,
        width=192,
        prefix_len=0,
        num_rows=1,
        dtype_bytes=4,
        split=Split(decode=ranks.size),
    )
    latents = make_latents(model.vae, 16, 12)
    return peak_bytes(lambda: decoder(latents, ranks)) / estimate.decode


def test_a_strip_takes_the_memory_that_is_planned(seen: list[Seen]) -> None:
    for rank in seen[:2]:
        assert set(rank.memory) == {"golden", "hunyuan_image3_tiny"}
        for share in rank.memory.values():
            assert 0.95 <= share <= 1.05


@pytest.mark.parametrize(
    ("size", "height", "heights"),
    [(1, 5, (5,)), (2, 5, (3, 2)), (4, 6, (2, 2, 1, 1)), (4, 3, (3,))],
)
def test_rows_are_divided_evenly_or_not_at_all(
    size: int, height: int, heights: tuple[int, ...]
) -> None:
    ranks = ALONE if size == 1 else RankGroup(0, size, object())  # type: ignore[arg-type]
    strips = divide_rows(ranks, height)
    assert strips.heights == heights
    assert strips.is_whole == (len(heights) == 1)


def test_a_rank_that_is_alone_copies_nothing() -> None:
    strips, x = divide_rows(ALONE, 4), torch.arange(24.0).view(1, 1, 4, 6)
    assert strips.with_neighbours(x, 1) is x
    assert strips.gather_rows(x) is x
    assert strips.own(x).data_ptr() == x.data_ptr()
    assert strips.padding(1) == ALL_ROWS.padding(1) == 1
