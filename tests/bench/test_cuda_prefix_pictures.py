"""The workload of edits over shared pages, on the CPU."""

from __future__ import annotations

import pytest
from record_samples import ENVIRONMENT

from bench.adherence import edit_tasks
from bench.registry import Context
from bench.workloads import adherence
from bench.workloads.cuda_prefix_pictures import PSNR_LIMIT_DB, WIDE_PAGED, measure

CONTEXT = Context("cuda_prefix_pictures", ("python",), ENVIRONMENT, 1)
ON_CPU = {**WIDE_PAGED, "devices": "cpu", "enforce_eager": True}


def test_edits_over_found_pages_are_the_same_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adherence, "NUM_STEPS", 2)
    edits = edit_tasks(1, 1)[:2]
    record = measure(CONTEXT, edits, ON_CPU)
    assert record.equality is not None
    assert record.candidate is not None
    assert record.equality.equal
    assert record.findings["largest_pixel_difference"] <= 1
    assert record.findings["lowest_psnr_db"] > PSNR_LIMIT_DB
    assert len(record.candidate.rows) == 2


def test_a_prefix_that_is_not_found_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adherence, "NUM_STEPS", 1)
    # No page of so many tokens lies in the prefix.
    record = measure(CONTEXT, edit_tasks(1, 1)[:1], {**ON_CPU, "diffusion_kv_page_size": 512})
    assert record.equality is not None
    assert not record.equality.equal
