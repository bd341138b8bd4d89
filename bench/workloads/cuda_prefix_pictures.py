"""Edits by the shipped checkpoint on a card, with pages shared against not, picture by picture."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pydantic import JsonValue

from bench.adherence import EditTask, edit_tasks
from bench.cuda_timing import the_card
from bench.pixels import largest_difference, psnr
from bench.records import EqualityCheck, Measurement, Record, pair_ratios
from bench.registry import Context
from bench.workloads.adherence import GUIDANCE, NUM_STEPS, SEED, edit_picture
from bench.workloads.cuda_pictures import PAGED
from kit.api import GenerationResult, ImageEngine, load_config
from kit.checkpoint.shipped import DEFAULT_CHECKPOINT

PSNR_LIMIT_DB = 45.0
WIDE_PAGED: dict[str, JsonValue] = {**PAGED, "diffusion_kv_page_size": 192}
"""The smallest page that FA3 reads fast at this head size: a reference fills one and a half."""

Results = Sequence[GenerationResult]


def run(context: Context) -> Record:
    """Make `context.repeats` rounds of 8 held-out edits."""
    the_card()
    return measure(context, edit_tasks(context.repeats, SEED), WIDE_PAGED)


def measure(context: Context, edits: Sequence[EditTask], stage: Mapping[str, JsonValue]) -> Record:
    """Make every edit without sharing, with shared rows, and once more over the pages it left."""
    (plain,) = _draw(edits, stage, num_times=1)
    fresh, found = _draw(edits, {**stage, "enable_prefix_caching": True}, num_times=2)
    rows = [
        {
            "psnr_of_shared_rows_db": psnr(b.image, a.image),
            "psnr_of_found_pages_db": psnr(c.image, a.image),
            **_row(c),
        }
        for a, b, c in zip(plain, fresh, found, strict=True)
    ]
    values = [value for row in rows for name, value in row.items() if name.startswith("psnr")]
    lowest, median = min(values), statistics.median(values)
    num_found = sum(one.metrics.cached_tokens > 0 for one in found)
    return context.record(
        parameters={
            "checkpoint": DEFAULT_CHECKPOINT.name,
            "num_edits": len(edits),
            "num_inference_steps": NUM_STEPS,
            "guidance_scale": GUIDANCE,
            "first_seed": edits[0].seed,
            "page_size": stage["diffusion_kv_page_size"],
            "psnr_limit_db": PSNR_LIMIT_DB,
        },
        equality=EqualityCheck.of(
            compared="dB by which the median PSNR of the pictures misses its limit, or edits "
            "whose prefix was not found",
            limit=0,
            seen=max(0.0, PSNR_LIMIT_DB - median, len(edits) - num_found),
        ),
        baseline=Measurement("paged_scheduler, nothing shared", tuple(map(_row, plain))),
        candidate=Measurement("paged_scheduler, pages found", tuple(rows)),
        ratios=pair_ratios(("total_s", "first_step_s")),
        paired=True,
        findings={
            "median_psnr_db": median,
            "lowest_psnr_db": lowest,
            "largest_pixel_difference": max(
                largest_difference(other.image, a.image)
                for a, *others in zip(plain, fresh, found, strict=True)
                for other in others
            ),
        },
    )


def _draw(
    edits: Sequence[EditTask], stage: Mapping[str, JsonValue], *, num_times: int
) -> tuple[Results, ...]:
    """Make every edit `num_times` in a row; returns the first pictures of all, then the next."""
    config = load_config(DEFAULT_CHECKPOINT, stage_overrides={"0": dict(stage)})
    with ImageEngine(DEFAULT_CHECKPOINT, config) as engine:
        for edit in {_size(edit): edit for edit in edits}.values():
            # Compiles and captures for its shape; its seed gives the reference other pages.
            edit_picture(engine, replace(edit, seed=SEED - 1))
        drawn = [tuple(edit_picture(engine, edit) for _ in range(num_times)) for edit in edits]
    return tuple(zip(*drawn, strict=True))


def _size(task: EditTask) -> tuple[int, int]:
    return task.edit.edit.source.height, task.edit.edit.source.width


def _row(result: GenerationResult) -> dict[str, float]:
    metrics = result.metrics
    return {"first_step_s": metrics.first_step_time_s, "total_s": metrics.total_time_s}
