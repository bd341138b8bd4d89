"""Every notebook runs, and shows what lies under it: other records, other figures."""

from __future__ import annotations

import base64
import json
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.plots.samples import read_record
from bench.records import Measurement, Record, save, summarise

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "bench" / "results"
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

Figures = dict[str, tuple[dict[str, float], bytes]]
"""The numbers and the picture of each figure, by its title."""

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbmake", path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert "1 passed" in done.stdout


def test_other_peaks_are_other_figures(tmp_path: Path) -> None:
    changed = change(tmp_path, "cuda_memory", "peak_bytes", 0.95)
    old = run_notebook("05_capacity_planning", tmp_path / "old.ipynb")
    new = run_notebook("05_capacity_planning", tmp_path / "new.ipynb", records=changed)
    assert old.keys() == new.keys()
    for title, name in (
        ("Measured over planned peak", "4096 image tokens"),
        ("Most memory of a request, 4 layers", "measured, 16384"),
    ):
        assert new[title][0][name] == pytest.approx(0.95 * old[title][0][name], rel=1e-3)
        assert new[title][1] != old[title][1]
    (same,) = (title for title in old if title.startswith("One rank"))
    assert new[same] == old[same]


def test_other_steps_are_other_figures(tmp_path: Path) -> None:
    changed = change(tmp_path, "cuda_step", "step_6000_s", 1.3)
    settings = {"records": changed, "pairs": 1, "figures": tmp_path / "figures"}
    figures = run_notebook("03_paged_vs_dense", tmp_path / "new.ipynb", **settings)
    record = read_record(changed, "cuda_step")
    assert record.candidate is not None
    median_s = statistics.median_low(float(str(r["step_6000_s"])) for r in record.candidate.rows)
    bars, _ = figures["One later step, 8 layers of the published width"]
    assert bars["paged_scheduler, 6000"] == pytest.approx(1e3 * median_s, rel=1e-3)
    ratio = record.summary["step_6000"].paired
    assert ratio is not None
    ratios, _ = figures["Paged over contiguous, measured in pairs"]
    assert ratios["step, prefix 6000"] == pytest.approx(ratio.value, rel=1e-3)
    assert ratio.value > 1.2
    assert len(list((tmp_path / "figures").glob("*.pdf"))) == len(figures)


def change(tmp_path: Path, name: str, column: str, factor: float) -> Path:
    """Copy the records of the card; in one of them a column of the candidate is scaled."""
    folder = tmp_path / "records"
    folder.mkdir()
    for path in RECORDS.glob("cuda_*.json"):
        (folder / path.name).write_bytes(path.read_bytes())
    save(scaled(read_record(RECORDS, name), column, factor), folder / f"{name}.json")
    return folder


def scaled(record: Record, column: str, factor: float) -> Record:
    """Return the record with that column scaled, and its summary computed anew."""
    assert record.baseline is not None
    assert record.candidate is not None
    rows = tuple(
        {key: float(str(v)) * factor if key == column else v for key, v in row.items()}
        for row in record.candidate.rows
    )
    candidate = Measurement(record.candidate.name, rows)
    summary = {
        name: summarise(
            record.baseline,
            candidate,
            {name: (ratio.numerator, ratio.denominator)},
            paired=ratio.paired is not None,
        )[name]
        for name, ratio in record.summary.items()
    }
    return replace(record, candidate=candidate, summary=summary)


def run_notebook(name: str, out: Path, **parameters: object) -> Figures:
    """Run a notebook and return what its figures show."""
    command = [sys.executable, "-m", "papermill", "--no-progress-bar", "--log-level", "ERROR"]
    for key, value in parameters.items():
        command += ["-p", key, str(value)]
    folder = ROOT / "notebooks"
    command += ["--cwd", str(folder), str(folder / f"{name}.ipynb"), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    content: dict[str, Any] = json.loads(out.read_text())
    found: Figures = {}
    for cell in content["cells"]:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                title, *lines = "".join(data["text/plain"]).split("\n")
                pairs = (line.rsplit(": ", 1) for line in lines)
                numbers = {key.strip(): float(value.split()[0]) for key, value in pairs}
                found[title] = numbers, base64.b64decode(data["image/png"])
    return found
