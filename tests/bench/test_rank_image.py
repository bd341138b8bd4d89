"""A request on the ranks of a measurement: what counts as a picture, and what a rank needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rank_settings import tiny_setting

from bench.rank_image import draw, same_decoder
from bench.rank_memory import check_fits, predicted_bytes
from bench.rank_model import PUBLISHED, Requests, Setting, random_shard
from bench.records import load
from kit.errors import UnsupportedError, WorkerError
from kit.model.vae import VAEDecoder
from kit.parallel.group import ALONE, Mesh, RankGroup, single_mesh
from kit.parallel.topology import ONE_RANK, Topology

CPU = torch.device("cpu")
RECORD = Path(__file__).parents[2] / "bench" / "results" / "cuda_parallel.json"


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return tiny_setting(tmp_path)


@pytest.fixture
def requests(setting: Setting) -> Requests:
    return Requests(setting, random_shard(setting.config(2), CPU, setting.dtype))


@pytest.fixture
def decoder(setting: Setting) -> VAEDecoder:
    return same_decoder(setting.config(2).vae, CPU, setting)


def is_picture(requests: Requests, decoder: VAEDecoder) -> bool:
    return draw(single_mesh(), CPU, requests, "paged_scheduler", decoder).is_picture


def test_what_random_weights_draw_is_a_picture(requests: Requests, decoder: VAEDecoder) -> None:
    assert is_picture(requests, decoder)


def test_one_colour_is_no_picture(requests: Requests, decoder: VAEDecoder) -> None:
    decoder.conv_out.weight.zero_()
    assert not is_picture(requests, decoder)


def test_a_pixel_that_is_not_finite_is_no_picture(requests: Requests, decoder: VAEDecoder) -> None:
    decoder.conv_out.bias[0] = torch.nan
    assert not is_picture(requests, decoder)


def test_another_size_is_no_picture(requests: Requests, decoder: VAEDecoder) -> None:
    decoder.config = replace(decoder.config, ffactor_spatial=32)
    assert not is_picture(requests, decoder)


def test_all_ranks_decode_together(setting: Setting, requests: Requests) -> None:
    decoded_by = []

    class Decoder(VAEDecoder):
        def forward(self, latents: torch.Tensor, ranks: RankGroup = ALONE) -> torch.Tensor:
            decoded_by.append(ranks)
            return super().forward(latents, ranks)

    everyone = RankGroup(0, 1, None)
    mesh = Mesh(ONE_RANK, 0, {"tensor": ALONE, "ulysses": ALONE, "cfg": ALONE}, everyone, None)
    draw(mesh, CPU, requests, "dense_legacy", Decoder(setting.config(2).vae))
    assert decoded_by == [everyone]


def test_latents_that_are_not_finite_end_the_request(
    requests: Requests, decoder: VAEDecoder
) -> None:
    next(requests.model.model.layers[1].get_submodule("mlp").parameters()).fill_(torch.nan)
    with pytest.raises(WorkerError, match="paged_scheduler: latents are not finite after 2 steps"):
        is_picture(requests, decoder)


def test_predicted_bytes_are_those_of_the_record_of_two_cards() -> None:
    record = load(RECORD)
    parts = predicted_bytes(PUBLISHED, Topology(tensor=2))
    # Graphs keep working memory that torch does not count as allocated.
    predicted = sum(parts.values()) - parts["graphs"]
    measured = record.parameters["peak_bytes_of_a_rank"]
    assert isinstance(measured, list)
    assert measured == pytest.approx([predicted] * 2, rel=0.01)


def test_a_rank_without_room_is_refused_with_the_numbers(setting: Setting) -> None:
    check_fits(setting, Topology(tensor=2))
    large = replace(setting, grid=(16384, 16384))
    with pytest.raises(UnsupportedError, match=r"TP2: a rank with 2 layers needs [\d.]+ GiB") as e:
        check_fits(large, Topology(tensor=2))
    assert all(f"{name} " in str(e.value) for name in predicted_bytes(large, Topology(tensor=2)))
