"""Seeds of references: what n pictures of one request share, and what is each one's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from golden_cases import case_images, load_case
from safetensors.torch import load_file
from torch import Tensor

from kit.api import GenerationRequest, SamplingParams
from kit.server.normalise import Defaults, public_request, with_images
from kit.server.protocol import ImageEditForm

Trace = dict[str, Tensor]


@pytest.fixture(scope="module")
def traces(get_engine: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trace]:
    """What five requests computed, from reference to pixels; "8/7": seed 8, reference seed 7."""
    images = case_images(load_case("ti2i_ref1_landscape").inputs)
    form = ImageEditForm(prompt="a cat", num_inference_steps=1, guidance_scale=1.0, seed=7, n=2)
    public = public_request(form, prompt="a cat", defaults=Defaults(None, None))
    first, second = with_images(public, images).children

    def alone(seed: int, reference_seed: int | None) -> GenerationRequest:
        sampling = SamplingParams(num_inference_steps=1, guidance_scale=1.0, seed=seed)
        return GenerationRequest("a cat", sampling, images=images, reference_seed=reference_seed)

    requests = {
        "first": first,
        "second": second,
        "8/7": alone(8, 7),
        "7/8": alone(7, 8),
        "8": alone(8, None),
    }
    engine, path = get_engine(mode="paged_scheduler", page_size=16), tmp_path_factory.mktemp("t")
    found: dict[str, Trace] = {}
    for name, request in requests.items():
        file = path / f"{len(found)}.safetensors"
        engine.generate(replace(request, trace_path=str(file)))
        found[name] = load_file(file)
    return found


def is_same(traces: dict[str, Trace], one: str, other: str, tensor: str) -> bool:
    assert traces[one][tensor].shape == traces[other][tensor].shape
    return traces[one][tensor].equal(traces[other][tensor])


def test_pictures_of_one_request_share_their_references(traces: dict[str, Trace]) -> None:
    assert is_same(traces, "first", "second", "ref0.cond_latents")
    assert not is_same(traces, "first", "second", "noise_bf16")


def test_each_is_made_again_alone_by_its_two_seeds(traces: dict[str, Trace]) -> None:
    assert traces["second"].keys() == traces["8/7"].keys()
    for name in traces["second"]:
        assert is_same(traces, "second", "8/7", name), name


def test_a_seed_of_their_own_changes_references_but_not_the_noise(traces: dict[str, Trace]) -> None:
    assert not is_same(traces, "first", "7/8", "ref0.cond_latents")
    assert is_same(traces, "first", "7/8", "noise_bf16")
    assert is_same(traces, "8/7", "8", "noise_bf16")


def test_a_seed_means_the_same_latents_whoever_names_it(traces: dict[str, Trace]) -> None:
    assert is_same(traces, "7/8", "8", "ref0.cond_latents")
    assert not is_same(traces, "7/8", "8", "noise_bf16")
