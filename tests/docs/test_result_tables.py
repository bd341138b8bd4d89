"""The tables of results in docs/ are those of the committed records."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

from bench.__main__ import shipped_records
from bench.adherence import as_findings, as_table, shares
from bench.published import (
    MAX_IMAGE_S,
    MAX_RATIO,
    MIN_REQUESTS,
    WORKLOAD,
    image_table,
    part_table,
)
from bench.records import load
from bench.report import report
from bench.workloads import cold_start, page_start
from kit.checkpoint.edits import EDIT_KINDS
from kit.checkpoint.shipped import DEFAULT_CHECKPOINT
from kit.modelspec.files import CheckpointFiles

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


def test_the_step_on_one_card() -> None:
    pairs = [ratio.paired for ratio in load(RESULTS / "cuda_step.json").summary.values()]
    told = [pair for pair in pairs if pair is not None and pair.high is not None]
    assert len(told) == len(pairs) > 0
    assert {pair.confidence for pair in told} == {0.99}
    low, high = (f"{pick(pair.value for pair in told):.4g}" for pick in (min, max))
    ends = f"99 % intervals up to {max(pair.high for pair in told if pair.high):.4g}"
    for page in ("README.md", "docs/cuda.md"):
        text = " ".join((ROOT / page).read_text().split())
        assert f"{low} to {high}" in text, page
        assert ends in text, page


def test_adherence_is_that_of_the_shipped_weights() -> None:
    shipped = CheckpointFiles.open(DEFAULT_CHECKPOINT).fingerprint(contents=True)
    assert load(RESULTS / "adherence.json").parameters["checkpoint_sha256"] == shipped


def test_training_of_the_shipped_checkpoint() -> None:
    record = json.loads((RESULTS / "hunyuan_image3_tiny_training.json").read_text())
    lines = [
        "| piece | seed | training, s | with set-up, s | on |",
        "| --- | --- | --- | --- | --- |",
    ]
    goes_on_from_s = 0.0
    for piece in record["pieces"]:
        before_s = goes_on_from_s if piece["of"] == "vae" else 0.0
        goes_on_from_s = piece["budget_s"]
        (card,) = piece["machine"]["accelerators"]
        assert piece["command"]
        assert piece["training"]
        assert piece["wall_s"] <= 600
        lines.append(
            f"| {piece['of']} | {piece['seed']} | {piece['budget_s'] - before_s:.0f} | "
            f"{piece['wall_s']:.0f} | {card['name']} |"
        )
    page = (ROOT / "docs" / "adherence.md").read_text()
    table = "\n".join(lines)
    assert f"\n{table}\n\n" in page, f"put this there:\n{table}"
    means = {k: v["mean"] for k, v in record["results"]["vae"].items() if k.startswith("psnr")}
    square = means.pop("psnr_256x256")
    assert square >= 36
    assert f"squares back at {square:.1f} dB" in page
    assert f"the lowest mean is {min(means.values()):.1f} dB" in page
    assert all(len(record["curves"][stage]["loss"]) > 100 for stage in ("vae", "dit"))


def test_how_the_shipped_checkpoint_learnt_editing() -> None:
    record = json.loads((RESULTS / "hunyuan_image3_tiny_edit_training.json").read_text())
    lines = [
        "| piece | seed | training, s | with set-up, s | on |",
        "| --- | --- | --- | --- | --- |",
    ]
    pieces = [entry for entry in record["pieces"] if entry["stage"] == "piece"]
    restored = [entry for entry in record["pieces"] if entry["stage"] == "restore"]
    assert len(restored) == len(pieces), "each began with the weights of the one before"
    for piece in pieces:
        (card,) = piece["machine"]["accelerators"]
        seconds = piece.get("kept_s", piece["budget_s"])
        lines.append(
            f"| edit | {piece['seed']} | {seconds:.0f} | {piece['wall_s']:.0f} | {card['name']} |"
        )
    page = (ROOT / "docs" / "adherence.md").read_text()
    table = "\n".join(lines)
    assert f"\n{table}\n\n" in page, f"put this there:\n{table}"
    last = pieces[-1]["training"]
    captions, edits = last["text"]["batch_size"], last["batch_size"]
    assert f"Each step sees {captions} captions and {edits} edits" in page
    kinds = last["kinds"]
    assert kinds == EDIT_KINDS
    shown = re.search(r"\| edits are \| share of the last piece \|\n.*?\n\n", page, re.DOTALL)
    assert shown
    shares = [int(found) for found in re.findall(r"\| (\d+) % \|", shown[0])]
    assert shares == sorted((round(100 * share) for share in kinds.values()), reverse=True)
    curve = record["curves"]["edit"]["edit_loss"]
    assert len(curve) > 100
    assert statistics.mean(curve[-10:]) < 0.5 * statistics.mean(curve[:10])


def test_the_shipped_checkpoint_is_small_and_the_one_of_its_record() -> None:
    sizes = [path.stat().st_size for path in DEFAULT_CHECKPOINT.iterdir()]
    assert max(sizes) <= 16 << 20
    assert sum(sizes) <= 28_000_000
    record = json.loads((RESULTS / "hunyuan_image3_tiny_edit_training.json").read_text())
    assert sum(sizes) == record["results"]["export"]["num_bytes"]


def test_the_judge_of_the_record_was_trustworthy() -> None:
    record = load(RESULTS / "adherence.json")
    assert record.findings["control: drawn by the renderer"] >= 0.98
    assert record.findings["control: held against another caption"] <= 0.02


def test_shared_prefixes_save_what_was_asked_for() -> None:
    record = load(RESULTS / "cuda_prefix_sharing.json")
    limits = {"one_request": 0.75, "4_images": 0.55, "repeated_reference": 0.5}
    seen = {name: record.summary[name].paired for name in limits}
    page = (ROOT / "docs" / "paged_kv_cache.md").read_text()
    for name, limit in limits.items():
        ratio = seen[name]
        assert ratio is not None
        assert ratio.value <= limit
        assert f"| {ratio.value:.2f} |" in page
    pages = [record.findings[f"pages_of_4_{what}"] for what in ("images", "requests")]
    assert f"| {pages[0]:.0f} instead of {pages[1]:.0f} |" in page
    assert record.equality is not None
    assert f"by {100 * record.equality.seen:.2f} % (bfloat16" in page
    pictures = load(RESULTS / "cuda_prefix_pictures.json")
    assert pictures.findings["largest_pixel_difference"] == 0
    assert f"{pictures.parameters['num_edits']} edits by the shipped checkpoint" in page


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


def test_published_topologies() -> None:
    paths = sorted(RESULTS.glob(f"{WORKLOAD}_*.json"))
    records = {path.stem: load(path) for path in paths}
    assert all(record.name == name for name, record in records.items())
    page = (ROOT / "docs" / "benchmarking.md").read_text()
    for table in (image_table(records), part_table(records)):
        assert f"\n\n{table}\n" in page, f"put this there:\n{table}"
    limits = f"at most {MAX_IMAGE_S:.2f} s", f"at most {MAX_RATIO}", f"{MIN_REQUESTS} requests"
    assert all(limit in page for limit in limits)
    told = "Four and eight cards have not been run" in (ROOT / "docs/parallelism.md").read_text()
    assert told == (not records.keys() - {f"{WORKLOAD}_{name}" for name in ("tp2", "sp2", "cfg2")})


def test_page_start() -> None:
    record = load(RESULTS / "page_start.json")
    assert record.summary["page_over_limit"].median <= 1
    assert record.summary["image_over_limit"].median <= 1
    table = page_start.as_table(record)
    assert table in (ROOT / "docs" / "demo.md").read_text(), f"put this there:\n{table}"
