"""First steps with a reference image at the published width on a card: pages shared against not."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.cuda_model import NUM_ROWS, published_config
from bench.cuda_timing import matmul_flops, relative_error, the_card, warm_up
from bench.prefix_model import ALL_LEVELS, FirstStep, PrefixBench, Setting
from bench.records import EqualityCheck, Measurement, Record, pair_ratios
from bench.registry import Context

NUM_LAYERS = 24
NUM_IMAGES = 4
NUM_COMPARED_STEPS = 8
ERROR_LIMIT = 2e-2
"""Of keys and values, ||a - b|| / ||b|| over all layers, in bfloat16."""

COLUMNS = ("one_request_s", f"{NUM_IMAGES}_images_s", "repeated_reference_s")


Steps = tuple[list[FirstStep], list[FirstStep], list[FirstStep]]
"""Those that each column adds up."""


@dataclass(frozen=True)
class Seen:
    """What was measured on both sides."""

    error: float
    """Of keys and values of the tokens in common, largest over the layers."""

    psnr_db: float
    """Of the latents after some steps, see latents_psnr."""

    rows: dict[str, list[dict[str, float]]]
    tokens: dict[str, dict[str, float]]
    """Keys and values written in the first steps of each column, of each side."""

    pages: dict[str, float]
    """Held by the images of one request together."""


@torch.inference_mode()
def run(context: Context) -> Record:
    """Compare keys, values and latents, then time first steps in turn."""
    device = the_card()
    setting = Setting(
        config=published_config(NUM_LAYERS),
        device=device,
        grid=(64, 64),
        num_system=1400,
        latent_grid=(64, 64),
        patch_grid=(32, 32),
        num_prompt=80,
        page_size=176,
    )
    bench = PrefixBench(setting, num_requests=3)
    warm_up(matmul_flops(device))
    return record(context, setting, measure(bench, context.repeats))


def measure(bench: PrefixBench, repeats: int) -> Seen:
    """Run both sides in turn; each begins with an empty cache."""
    rows: dict[str, list[dict[str, float]]] = {"baseline": [], "candidate": []}
    tokens: dict[str, dict[str, float]] = {}
    error, psnr_db = _compare(bench)
    for _ in range(repeats):
        plain, written = _without_sharing(bench)
        rows["baseline"].append(plain)
        tokens["baseline"] = written
        shared, written = _with_sharing(bench)
        rows["candidate"].append(shared)
        tokens["candidate"] = written
    return Seen(error, psnr_db, rows, tokens, _count_pages(bench))


def _without_sharing(bench: PrefixBench) -> tuple[dict[str, float], dict[str, float]]:
    images = [bench.first_step(0) for _ in range(NUM_IMAGES)]
    other = bench.first_step(1)
    steps = ([images[0]], images, [other])
    return _sums(steps, _seconds), _sums(steps, _num_tokens)


def _with_sharing(bench: PrefixBench) -> tuple[dict[str, float], dict[str, float]]:
    alone = bench.first_step(0, ("rows",))
    bench.manager.forget_prefixes()
    images = [bench.first_step(0, ALL_LEVELS) for _ in range(NUM_IMAGES)]
    # Another prompt behind the same reference, which the images before it left.
    other = bench.first_step(1, ALL_LEVELS)
    bench.manager.forget_prefixes()
    steps = ([alone], images, [other])
    return _sums(steps, _seconds), _sums(steps, _num_tokens)


def _seconds(step: FirstStep) -> float:
    return step.seconds


def _num_tokens(step: FirstStep) -> float:
    return step.num_tokens


def _sums(columns: Steps, value: Callable[[FirstStep], float]) -> dict[str, float]:
    return {column: sum(map(value, steps)) for column, steps in zip(COLUMNS, columns, strict=True)}


def _compare(bench: PrefixBench) -> tuple[float, float]:
    """Run a request alone, and its like over pages that another one left; warms both up."""
    plain = bench.first_step(0, num_steps=NUM_COMPARED_STEPS)
    # The second row's own: where rows share, these are the first row's.
    wanted = bench.common_tokens(plain.allocation, 1)
    bench.first_step(0, ALL_LEVELS)
    again = bench.first_step(0, ALL_LEVELS, num_steps=NUM_COMPARED_STEPS)
    assert again.allocation.num_cached_tokens > 0, "it was found"
    seen = bench.common_tokens(again.allocation, 1)
    bench.manager.forget_prefixes()
    errors = [relative_error(a, b) for a, b in zip(seen, wanted, strict=True)]
    return max(errors), latents_psnr(again.latents, plain.latents)


def latents_psnr(seen: Tensor, wanted: Tensor) -> float:
    """Return dB against the range of those that are wanted."""
    a, b = seen.double(), wanted.double()
    mean_square = max(float((a - b).square().mean()), 1e-30)
    span = float(b.max() - b.min())
    return 10 * math.log10(span**2 / mean_square)


def _count_pages(bench: PrefixBench) -> dict[str, float]:
    """Book the images of one request at once, as if they ran together."""
    bench.first_step(0, ALL_LEVELS)
    held = [bench.reserve(0, ALL_LEVELS) for _ in range(NUM_IMAGES)]
    shared = len({page for one in held for table in one.page_tables for page in table})
    for allocation in held:
        bench.manager.release(allocation)
    bench.manager.forget_prefixes()
    return {"baseline": NUM_IMAGES * bench.pages_of_one, "candidate": shared}


def record(context: Context, setting: Setting, seen: Seen) -> Record:
    """Make the record of what was measured."""
    layout = setting.layout
    shares = {
        f"share_of_tokens_{name.removesuffix('_s')}": seen.tokens["candidate"][name]
        / seen.tokens["baseline"][name]
        for name in COLUMNS
    }
    return context.record(
        parameters={
            "num_layers": setting.config.num_hidden_layers,
            "num_rows": NUM_ROWS,
            "grid": list(setting.grid),
            "prefix_tokens": layout.prefix_len,
            "reference_tokens": layout.references[0].num_tokens,
            "prompt_tokens": setting.num_prompt,
            "target_tokens": layout.target_len,
            "page_size": setting.page_size,
            "dtype": str(setting.dtype).removeprefix("torch."),
            "weights": "random",
            "time": "the transformer's forward of first steps; nothing is encoded or decoded",
            "one_request": "baseline: rows share nothing; candidate: level rows alone",
            f"{NUM_IMAGES}_images": f"first steps of {NUM_IMAGES} images of one prompt and one "
            "reference, added up; candidate: all levels, from an empty cache",
            "repeated_reference": "candidate: all levels, another prompt of as many tokens behind "
            "a reference that is cached",
            "compared_steps": NUM_COMPARED_STEPS,
            "order": "baseline, candidate, alternating",
        },
        equality=EqualityCheck.of(
            compared="keys and values of the tokens in common, computed and found, largest "
            "relative error of a layer",
            limit=ERROR_LIMIT,
            seen=seen.error,
        ),
        baseline=Measurement("paged_scheduler, nothing shared", tuple(seen.rows["baseline"])),
        candidate=Measurement("paged_scheduler, shared pages", tuple(seen.rows["candidate"])),
        ratios=pair_ratios(COLUMNS),
        paired=True,
        findings={
            **shares,
            f"pages_of_{NUM_IMAGES}_requests": seen.pages["baseline"],
            f"pages_of_{NUM_IMAGES}_images": seen.pages["candidate"],
            "latents_psnr_db": seen.psnr_db,
        },
    )
