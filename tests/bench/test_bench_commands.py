"""`python -m bench run | compare | report | verify` on loads, records and a foreign server."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from images_stub import images_server, paint
from record_samples import record

from bench.__main__ import main, shipped_records
from bench.records import Measurement, Record, load, save, summarise
from bench.registry import Registry
from bench.verify import recorded_command

Run = Callable[..., tuple[int, str, str]]

LOAD: dict[str, Any] = {
    "about": "For tests.",
    "prompts": ["a red vase"],
    "sizes": ["16x16"],
    "steps": [2],
    "guidance": [5.0],
    "arrivals": {"kind": "closed", "concurrency": 1},
    "requests": 8,
    "slo_latency_s": 60.0,
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command line in a folder that holds mine.yaml; returns exit code and output."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(LOAD))

    def call(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments, Registry())
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return call


def other_pictures(body: dict[str, Any]) -> tuple[int, bytes]:
    return paint({**body, "seed": body["seed"] + 1})


def test_run_on_a_server(run: Run) -> None:
    with images_server() as url:
        code, out, _ = run("run", "mine.yaml", "--target", url, "--out", "one.json")
    assert code == 0
    assert "mine: ok, record in one.json" in out
    assert "success_share: 1 [" in out
    assert "latency_s p99: not from so few requests, it needs 368" in out
    found = load(Path("one.json"))
    assert (found.kind, found.parameters["target"]) == ("load", url)
    assert found.parameters["model"] == "painter"


def test_failures_are_counted_aloud(run: Run) -> None:
    def sometimes(body: dict[str, Any]) -> tuple[int, bytes]:
        return paint(body) if body["seed"] % 2 else (503, b"{}")

    with images_server(sometimes) as url:
        code, out, _ = run("run", "mine.yaml", "--target", url)
        assert code == 0
        assert "4 of 8 requests: overloaded" in out
        assert "success_share: 0.5 [" in out
    with images_server(lambda _: (200, b"a text")) as url:
        code, out, err = run("run", "mine.yaml", "--target", url, "--out", "bad.json")
    assert code == 1
    assert "8 of 8 requests: no_picture" in out
    assert "NoPicture: no request got its pictures" in err
    assert load(Path("bad.json")).status == "failed"


def test_compare_two_servers_and_verify(run: Run) -> None:
    with images_server() as one, images_server() as other:
        code, out, _ = run(
            *("compare", "mine.yaml", "--pairs", "7", "--target", one, "--target", other),
            *("--out", "pair.json"),
        )
        assert code == 0
        assert "equality: pixels: numbers that differ in any bit: 0 (limit 0)" in out
        assert "in pairs" in out
        assert "the baseline over itself" in out
        found = load(Path("pair.json"))
        assert found.baseline is not None
        assert len(found.baseline.rows) == 7
        Path("mine.yaml").unlink()  # the record holds the load itself
        code, out, _ = run("verify", "pair.json", "--out", "again.json")
    assert "agrees: pixels: numbers that differ in any bit: 0 and 0" in out
    assert "agrees: candidate: pictures with equal pixels: 7 and 7" in out
    assert "ratio latency: " in out
    assert code == (1 if "DIFFERS" in out else 0)
    assert load(Path("again.json")).parameters["load"] == found.parameters["load"]


def test_compare_servers_that_differ(run: Run) -> None:
    with images_server() as one, images_server(other_pictures) as other:
        code, out, err = run(
            *("compare", "mine.yaml", "--target", one, "--target", other, "--out", "pair.json")
        )
    assert code == 1
    assert "mine: failed" in out
    assert "NotEqual" in err
    assert "in pairs" not in out


def test_verify_sees_other_pictures(run: Run) -> None:
    with images_server() as url:
        run("run", "mine.yaml", "--target", url, "--out", "one.json")
        code, out, _ = run("verify", "one.json")
        assert "agrees: candidate: pictures with equal pixels: 8 and 8" in out
        assert "latency_s p50: " in out
    content = json.loads(Path("one.json").read_text())
    content["candidate"]["rows"][3]["sha256"] = "0" * 64
    Path("one.json").write_text(json.dumps(content))
    with images_server() as url:
        content["command"][content["command"].index("--target") + 1] = url
        Path("one.json").write_text(json.dumps(content))
        code, out, _ = run("verify", "one.json")
    assert code == 1
    assert "DIFFERS: candidate: pictures with equal pixels: 8 and 7" in out


def test_compare_two_records(run: Run) -> None:
    with images_server() as url:
        for name in ("one.json", "other.json"):
            run("run", "mine.yaml", "--target", url, "--out", name)
        code, out, _ = run("compare", "one.json", "other.json")
        assert code == 0
        assert "agrees: candidate: pictures with equal pixels: 8 and 8" in out
        assert "taken at different times" in out
        Path("mine.yaml").write_text(yaml.safe_dump({**LOAD, "steps": [3]}))
        run("run", "mine.yaml", "--target", url, "--out", "third.json")
    code, _, err = run("compare", "one.json", "third.json")
    assert code == 2
    assert "did not ask for the same: they differ in load.steps" in err


def test_times_of_another_machine_are_not_held_against_these(run: Run) -> None:
    with images_server() as url:
        run("run", "mine.yaml", "--target", url, "--out", "one.json")
    content = json.loads(Path("one.json").read_text())
    content["environment"]["system"]["cpu"] = "another"
    Path("other.json").write_text(json.dumps(content))
    _, out, _ = run("compare", "one.json", "other.json")
    assert re.search(r"cannot be told: latency_s p50: .* \(other machine\)", out)
    assert "other machine: " in out
    assert "agrees: candidate: pictures with equal pixels: 8 and 8" in out


@pytest.mark.parametrize(
    ("part", "fact", "name"),
    [
        ("system", "cpu", "machine"),
        ("torch", "cpu_capability", "vector instructions"),
        ("torch", "num_threads", "threads"),
        ("torch", "version", "package torch"),
    ],
)
def test_other_pictures_where_sums_round_otherwise_tell_nothing(
    run: Run, part: str, fact: str, name: str
) -> None:
    with images_server() as url:
        run("run", "mine.yaml", "--target", url, "--out", "one.json")
    content = json.loads(Path("one.json").read_text())
    content["candidate"]["rows"][3]["sha256"] = "0" * 64
    Path("other.json").write_text(json.dumps(content))
    _, out, _ = run("compare", "one.json", "other.json")
    assert "DIFFERS: candidate: pictures with equal pixels: 8 and 7" in out
    system = content["environment"]["system"]
    changed = system if part == "system" else system[part]
    changed[fact] = 7 if fact == "num_threads" else "another"
    Path("other.json").write_text(json.dumps(content))
    _, out, _ = run("compare", "one.json", "other.json")
    assert f"cannot be told: candidate: pictures with equal pixels: 8 and 7 (other {name})" in out
    assert f"other {name}: " in out


def test_the_engine_of_this_process(run: Run) -> None:
    small = {**LOAD, "sizes": ["384x128"], "steps": [1], "guidance": [1.0], "warmup": 0}
    Path("mine.yaml").write_text(yaml.safe_dump({**small, "requests": 1}))
    deploy = "hunyuan_image3_paged.yaml"
    code, out, _ = run("run", "mine.yaml", "--deploy-config", deploy, "--out", "one.json")
    assert code == 0
    assert "pool_pages: " in out
    found = load(Path("one.json"))
    assert found.config["stage.diffusion_kv_mode"].value == "paged_scheduler"
    assert found.parameters["target"] == "engine"
    code, out, _ = run("compare", "mine.yaml", "--deploy-config", deploy, "--deploy-config", deploy)
    assert "equality: latents of every step and pixels: numbers that differ in any bit: 0" in out
    assert "cannot tell" in out  # one pair has no interval


def test_records_of_different_things(run: Run) -> None:
    save(record(), Path("a.json"))
    save(record(name="other"), Path("b.json"))
    code, _, err = run("compare", "a.json", "b.json")
    assert code == 2
    assert "are of different things" in err


def changed_step(value: float) -> Record:
    rows = tuple({"step_s": step} for step in (1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 1.0, 1.0))
    baseline = Measurement("dense", rows)
    candidate = Measurement(
        "paged", tuple({"step_s": value * float(row["step_s"])} for row in rows)
    )
    ratios = {"step": ("candidate.step_s", "baseline.step_s")}
    summary = summarise(baseline, candidate, ratios, paired=True)
    return record(baseline=baseline, candidate=candidate, summary=summary)


@pytest.mark.parametrize(("value", "word"), [(1.0, "agrees"), (1.5, "DIFFERS")])
def test_ratios_agree_when_their_intervals_overlap(run: Run, value: float, word: str) -> None:
    save(changed_step(1.0), Path("a.json"))
    save(changed_step(value), Path("b.json"))
    _, out, _ = run("compare", "a.json", "b.json")
    assert f"  {word}: ratio step: 1 [1, 1] and {value:g} [{value:g}, {value:g}]" in out


def test_ratios_of_few_rows_cannot_be_told(run: Run) -> None:
    save(record(), Path("a.json"))
    _, out, _ = run("compare", "a.json", "a.json")
    assert "cannot be told: ratio step: 2 and 2 (too few rows for an interval)" in out


def test_verify_runs_a_workload_again(run: Run) -> None:
    assert run("run", "page_work", "--repeats", "1", "--out", "a.json")[0] == 0
    code, out, _ = run("verify", "a.json")
    assert "agrees: pages of 2000 requests" in out
    assert "page_work: ok" in out
    assert code == 0


@pytest.mark.parametrize(
    "command",
    [("python", "train.py"), ("python", "-m", "bench", "list"), ("python", "-m", "bench")],
)
def test_commands_that_cannot_be_run_again(run: Run, command: tuple[str, ...]) -> None:
    save(record(command=command), Path("a.json"))
    code, _, err = run("verify", "a.json")
    assert code == 2
    assert "is none that can be run again" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("run vaze", "did you mean vase?"),
        ("compare page_work", "that is a workload"),
        ("run mine.yaml --repeats 3", "--repeats: is for a workload"),
        ("run page_work --target engine", "--target: is for a load"),
        ("run page_work --deploy-config x.yaml", "--deploy-config: is for a load"),
        ("run mine.yaml --target http://localhost:9 --model x", "--model: is for the engine"),
        ("run mine.yaml --target a --target b", "must name one side (got '2 targets, 0"),
        ("compare mine.yaml", "must name two sides (got '0 targets, 0 deployments'"),
        ("compare mine.yaml --deploy-config a", "must name two sides"),
        ("compare a.json b.json --pairs 3", "--pairs: is for a load; two records are only read"),
        ("compare a.json b.json", "cannot be read: No such file"),
        ("run none.yaml", "load file: cannot be read"),
        ("report none.json", "cannot be read: No such file"),
        ("verify none.json", "cannot be read: No such file"),
    ],
)
def test_wrong_command_lines(run: Run, arguments: str, message: str) -> None:
    code, _, err = run(*arguments.split())
    assert message in err
    assert code in (1, 2)


def test_a_server_that_is_not_there_is_a_failed_record(run: Run) -> None:
    with images_server() as url:
        pass
    code, _, err = run("run", "mine.yaml", "--target", url, "--out", "one.json")
    assert code == 1
    assert "does not answer" in err
    assert load(Path("one.json")).status == "failed"


def test_report_of_what_ships(run: Run) -> None:
    code, out, _ = run("report")
    assert code == 0
    for path in shipped_records():
        assert f"| {path.stem} | ok |" in out


def test_report_of_loads(run: Run) -> None:
    with images_server() as url:
        run("run", "mine.yaml", "--target", url, "--out", "one.json")
    _, out, _ = run("report", "one.json")
    assert "| one | ok |  | " in out
    assert "| one | success_share | 1 [0.6756, 1] | 8 |" in out
    assert "candidate / baseline" not in out


@pytest.mark.parametrize(
    ("argument", "kept"),
    [
        ("/some/where/a.json", "a.json"),
        ("--out=/some/where/a.json", "--out=a.json"),
        ("bench/results/a.json", "bench/results/a.json"),
        ("http://localhost:8091", "http://localhost:8091"),
        ("--repeats=3", "--repeats=3"),
    ],
)
def test_a_record_names_no_folder_of_this_machine(argument: str, kept: str) -> None:
    assert recorded_command(["run", argument])[-1] == kept
