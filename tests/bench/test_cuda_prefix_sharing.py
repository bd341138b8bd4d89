"""The workload of shared prefixes, small and on the CPU's kernels."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from golden_cases import PACKAGE
from record_samples import ENVIRONMENT

from bench.cuda_timing import relative_error
from bench.prefix_model import ALL_LEVELS, PrefixBench, Setting
from bench.registry import Context
from bench.workloads.cuda_prefix_sharing import ERROR_LIMIT, Seen, latents_psnr, measure, record
from kit.modelspec.config import load_model_config

REPEATS = 8
CONTEXT = Context("cuda_prefix_sharing", ("python",), ENVIRONMENT, REPEATS)
SETTING = Setting(
    config=replace(load_model_config(PACKAGE / "checkpoint" / "golden"), num_hidden_layers=2),
    device=torch.device("cpu"),
    grid=(8, 8),
    num_system=21,
    latent_grid=(8, 8),
    patch_grid=(4, 4),
    num_prompt=10,
    page_size=16,
    # In bfloat16 a token near the border of two experts takes the other on some processors.
    dtype=torch.float32,
)
PREFIX, TARGET, COMMON = 21 + 4 + 64 + 1 + 16 + 1 + 10, 1 + 64, 21 + 4 + 64 + 1 + 16 + 1
WHOLE, COMMON_PAGES = PREFIX // 16 * 16, COMMON // 16 * 16


@pytest.fixture(scope="module")
def bench() -> PrefixBench:
    return PrefixBench(SETTING, num_requests=3)


@pytest.fixture(scope="module")
def seen(bench: PrefixBench) -> Seen:
    with torch.inference_mode():
        return measure(bench, REPEATS)


def test_first_steps_are_shortened_by_what_is_shared(seen: Seen) -> None:
    layout = SETTING.layout
    assert (layout.prefix_len, layout.target_len) == (PREFIX, TARGET)
    whole = 2 * (PREFIX + TARGET)
    assert seen.tokens["baseline"] == {
        "one_request_s": whole,
        "4_images_s": 4 * whole,
        "repeated_reference_s": whole,
    }
    once = whole - COMMON
    assert seen.tokens["candidate"] == {
        "one_request_s": once,
        "4_images_s": once + 3 * (whole - 2 * WHOLE),
        "repeated_reference_s": whole - 2 * COMMON_PAGES,
    }


def test_a_record_holds_both_sides(seen: Seen) -> None:
    made = record(CONTEXT, SETTING, seen)
    assert made.status == "ok"
    assert set(made.summary) == {"one_request", "4_images", "repeated_reference"}
    pages = -(-(PREFIX + TARGET) // 16)
    assert made.findings["pages_of_4_requests"] == 4 * 2 * pages
    own = 2 * (pages - WHOLE // 16)
    assert (
        made.findings["pages_of_4_images"]
        == COMMON // 16 + 2 * ((WHOLE - COMMON_PAGES) // 16) + 4 * own
    )
    assert made.findings["latents_psnr_db"] > 45


def test_latents_of_another_prompt_are_told_apart(bench: PrefixBench) -> None:
    with torch.inference_mode():
        one, other = (bench.first_step(prompt, num_steps=2).latents for prompt in (0, 1))
    assert latents_psnr(other, one) < 45 < latents_psnr(one, one)


def test_other_keys_and_values_are_not_compared(seen: Seen) -> None:
    made = record(CONTEXT, SETTING, replace(seen, error=2 * ERROR_LIMIT))
    assert made.status == "failed"


def test_shared_pages_with_other_content_are_seen(bench: PrefixBench) -> None:
    """Planted: what an earlier request left is overwritten."""
    with torch.inference_mode():
        plain = bench.first_step(0)
        wanted = bench.common_tokens(plain.allocation, 1)
        left = bench.first_step(0, ALL_LEVELS)
        bench.backend.store.keys[0][left.allocation.page_tables[0][0]] += 1
        again = bench.first_step(0, ALL_LEVELS)
        bench.manager.forget_prefixes()
    seen = bench.common_tokens(again.allocation, 1)
    assert relative_error(seen[0], wanted[0]) > ERROR_LIMIT
