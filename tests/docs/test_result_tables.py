"""The tables of results in docs/ are those of the committed records."""

from __future__ import annotations

from pathlib import Path

from bench.__main__ import shipped_records
from bench.adherence import as_findings, as_table, shares
from bench.records import load
from bench.report import report
from bench.workloads import cold_start, page_start

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"


def test_adherence() -> None:
    record = load(RESULTS / "adherence.json")
    assert record.status == "ok"
    assert record.candidate is not None
    found = shares(record.candidate.rows)
    assert record.findings == as_findings(found)
    table = as_table(found)
    assert table in (ROOT / "docs" / "adherence.md").read_text(), f"put this there:\n{table}"


def test_the_judge_of_the_record_was_trustworthy() -> None:
    record = load(RESULTS / "adherence.json")
    assert record.findings["control: drawn by the renderer"] >= 0.98
    assert record.findings["control: held against another caption"] <= 0.02


def test_cold_start() -> None:
    record = load(RESULTS / "cold_start.json")
    assert record.summary["total_over_limit"].median <= 1
    table = cold_start.as_table(record)
    assert table in (ROOT / "docs" / "adherence.md").read_text(), f"put this there:\n{table}"


def test_the_harness_adds_less_than_one_percent() -> None:
    record = load(RESULTS / "harness_overhead.json")
    assert {ratio.median <= 1 for ratio in record.summary.values()} == {True}


def test_planted_slowdowns_were_found_and_none_made_up() -> None:
    record = load(RESULTS / "planted_slowdown.json")
    assert record.baseline is not None
    assert record.candidate is not None
    found = [row["verdict"] for row in record.candidate.rows]
    flagged = [row["verdict"] for row in record.baseline.rows]
    assert len(found) == len(flagged) == 20
    assert found.count("slower") >= 19
    assert flagged.count("slower") + flagged.count("faster") <= 1


def test_paged_is_dense_to_the_bit() -> None:
    record = load(RESULTS / "paged_vs_dense_cpu.json")
    assert record.equality is not None
    assert record.equality.compared.startswith("latents of every step")
    assert (record.equality.limit, record.equality.seen) == (0, 0)


def test_all_records() -> None:
    table = report({path.stem: load(path) for path in shipped_records()})
    page = (ROOT / "docs" / "benchmarking.md").read_text()
    assert table in page, "put there what `python -m bench report` prints"


def test_page_start() -> None:
    record = load(RESULTS / "page_start.json")
    assert record.summary["page_over_limit"].median <= 1
    assert record.summary["image_over_limit"].median <= 1
    table = page_start.as_table(record)
    assert table in (ROOT / "docs" / "demo.md").read_text(), f"put this there:\n{table}"
