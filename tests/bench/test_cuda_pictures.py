"""The workload of the shipped checkpoint's pictures on a card, on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from pydantic import JsonValue
from record_samples import ENVIRONMENT

from bench.registry import Context
from bench.workloads import cuda_pictures
from bench.workloads.cuda_pictures import PAGED, PSNR_LIMIT_DB, measure
from kit.api import GenerationRequest, GenerationResult

CONTEXT = Context("cuda_pictures", ("python",), ENVIRONMENT, 2)
TEXTS = ("A red ceramic vase on a wooden table", "Three boats")
ON_CPU = {**PAGED, "devices": "cpu", "enforce_eager": True}


def test_every_round_draws_every_caption(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_pictures, "NUM_STEPS", 2)
    record = measure(CONTEXT, TEXTS, ON_CPU)
    assert record.status == "ok"
    assert record.candidate is not None
    assert len(record.candidate.rows) == CONTEXT.repeats * len(TEXTS)
    assert record.findings["lowest_psnr_db"] > PSNR_LIMIT_DB


def test_other_pictures_are_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the second engine draws with other seeds."""
    monkeypatch.setattr(cuda_pictures, "NUM_STEPS", 1)
    draw = cuda_pictures._draw
    seeds = iter((1, 100))

    def planted(
        requests: Sequence[GenerationRequest], stage: Mapping[str, JsonValue]
    ) -> list[GenerationResult]:
        first = next(seeds)
        others = [replace(r.sampling, seed=first + at) for at, r in enumerate(requests)]
        return draw([replace(r, sampling=s) for r, s in zip(requests, others, strict=True)], stage)

    monkeypatch.setattr(cuda_pictures, "_draw", planted)
    assert measure(CONTEXT, TEXTS, ON_CPU).status == "failed"
