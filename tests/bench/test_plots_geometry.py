"""Tiles, waste and capacity that notebooks draw, against counts made here one by one."""

from __future__ import annotations

import math

import pytest

from bench.plots import capacity, geometry
from bench.plots.geometry import Kernel
from kit.attention.cuda.build import FLASH_3_TILES

HOPPER = Kernel("fa3", "cuda", 128, (9, 0))
AMPERE = Kernel("fa2", "cuda", 128, (8, 0))


@pytest.mark.parametrize("page_size", [1, 16, 128, 176, 256, 352])
def test_a_tile_is_whole_where_its_tokens_share_a_page(page_size: int) -> None:
    tile, tokens = 176, 1281
    wanted = [
        len({token // page_size for token in range(start, min(start + tile, tokens))}) == 1
        for start in range(0, tokens, tile)
    ]
    assert geometry.tiles_in_one_page(page_size, tile, tokens) == wanted
    assert all(wanted) == (page_size % tile == 0)
    drawing = geometry.draw_tiles("t", [page_size], tile, tokens)
    assert list(drawing.numbers.values()) == [sum(wanted) / len(wanted)]


@pytest.mark.parametrize(("tokens", "page_size", "share"), [(176, 176, 0), (177, 176, 175 / 352)])
def test_waste_is_the_share_of_empty_slots(tokens: int, page_size: int, share: float) -> None:
    assert geometry.waste(tokens, page_size) == pytest.approx(share)


def test_the_chart_of_waste_is_the_mean_over_prefixes() -> None:
    drawing = geometry.draw_waste("t", [16, 64], {"small": 10}, [1, 6, 22], marked=16)
    mean = sum(100 * (1 - (p + 10) / (16 * math.ceil((p + 10) / 16))) for p in (1, 6, 22)) / 3
    assert drawing.numbers["small, pages of 16, mean %"] == pytest.approx(mean)


def test_page_sizes_are_asked_of_the_kit() -> None:
    answers = geometry.readable(HOPPER, [128, 176, 352])
    assert answers[176] == answers[352] == "yes"
    assert "positive multiples of 176 (got 128)" in answers[128]
    assert geometry.readable(AMPERE, [176, 256])[256] == "yes"
    assert "multiples of 256" in geometry.readable(AMPERE, [176])[176]
    defaults = [geometry.default_page_size(Kernel("k", "cuda", d, (9, 0))) for d in FLASH_3_TILES]
    assert defaults == list(FLASH_3_TILES.values())


def test_capacity_is_pages_of_the_pool_over_pages_of_a_request() -> None:
    drawing = capacity.draw_capacity("t", "hunyuan_image3_tp4", "H200", "1024x1024", [1, 2], [1000])
    plan = capacity.plan_or_refusal("n", "hunyuan_image3_tp4", "H200", "1024x1024", 1000).plan
    assert plan is not None
    assert plan.page_bytes is not None
    for gib in (1, 2):
        pages = gib * 2**30 // plan.page_bytes
        per_request = 2 * math.ceil((1000 + 4097) / 176)
        found = drawing.numbers[f"prompt of 1000 tokens, pool of {gib} GiB"]
        assert found == pages // per_request > 0


def test_a_rank_is_the_sum_of_its_parts() -> None:
    answer = capacity.plan_or_refusal("n", "hunyuan_image3_tp4", "H200", "1024x1024", 1000)
    assert answer.plan is not None
    plan, size = answer.plan, answer.plan.sizes[0]
    parts = capacity.rank_parts(plan, size)
    assert sum(parts.values()) == pytest.approx(size.peak_bytes / 2**30)
    drawing = capacity.draw_ranks("t", [answer])
    assert drawing.numbers["n, experts"] == plan.weights["experts"] / 2**30
    assert drawing.numbers["n, may be taken"] == plan.allowed_bytes / 2**30


def test_what_cannot_hold_the_model_is_an_answer_and_no_bar() -> None:
    refused = capacity.plan_or_refusal(
        "one", "hunyuan_image3_single_gpu", "H200", "1024x1024", 1000
    )
    assert refused.plan is None
    assert "raise it to 2" in refused.refusal
    held = capacity.plan_or_refusal("four", "hunyuan_image3_tp4", "H200", "1024x1024", 1000)
    drawn = {name.split(",")[0] for name in capacity.draw_ranks("t", [refused, held]).numbers}
    assert drawn == {"four"}


def test_rows_that_graphs_keep_do_not_shrink_with_the_prompt() -> None:
    graphs = {"enforce_eager": False, "diffusion_attention_backend": "FLASH_ATTN"}
    drawing = capacity.draw_kv_bytes(
        "t",
        {
            "pages": ("hunyuan_image3_tp4", {}),
            "eager": ("hunyuan_image3_dit", {}),
            "kept": ("hunyuan_image3_dit", graphs),
        },
        "H200",
        "1024x1024",
        [100, 1000],
    )
    found = {name: one.value for name, one in drawing.numbers.items()}  # type: ignore[union-attr]
    assert found["kept, 100"] == found["kept, 1000"] > found["pages, 1000"] > found["pages, 100"]
    assert found["eager, 100"] <= found["pages, 100"]
