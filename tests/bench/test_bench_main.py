"""`python -m bench`: a workload is one file, and every run leaves a record, failures too."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.harness.load import load_names
from bench.records import load, recompute
from bench.registry import Registry

ROOT = Path(__file__).parents[2]

GOOD = '''"""Doubling against itself."""

from __future__ import annotations

from bench.records import EqualityCheck, Measurement, Record
from bench.registry import Context


def run(context: Context) -> Record:
    """Pretend to double."""
    seen = {seen}
    rows = tuple({{"double_s": 2.0 + at}} for at in range(context.repeats))
    return context.record(
        parameters={{"warm_up": 0}},
        equality=EqualityCheck("doubles", limit=0, seen=seen, equal=seen == 0),
        baseline=Measurement("added", rows),
        candidate=Measurement("shifted", rows),
        ratios={{"double": ("candidate.double_s", "baseline.double_s")}},
    )
'''
BROKEN = '''"""Breaks."""

def run(context):
    return inner()

def inner():
    raise ZeroDivisionError("nothing to divide by")
'''
REFUSED = '''"""Needs what is not there."""

from kit.errors import UnsupportedError

def run(context):
    raise UnsupportedError("devices: this machine has no accelerator")
'''
PARTED = (
    GOOD.format(seen=0).replace("def run", "def double")
    + """

from bench import runner

PARTS = ("TP2", "TP2+SP2")

def run(context):
    for part in context.only or PARTS:
        yield runner.run(context.of(part), inner if part == "TP2" else double)

def inner(context):
    raise ZeroDivisionError("nothing to divide by")
"""
)
UNIMPORTABLE = '"""Imports what is not there."""\n\nimport no_such_module\n'

_packages = count()


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """A registry of workloads that behave as their names say."""
    # Imported modules stay: every test has a package of its own.
    package = f"some_workloads_{next(_packages)}"
    folder = tmp_path / "path" / package
    folder.mkdir(parents=True)
    for name, source in {
        "__init__": "",
        "good": GOOD.format(seen=0),
        "unequal": GOOD.format(seen=3),
        "broken": BROKEN,
        "parted": PARTED,
        "refused": REFUSED,
        "unimportable": UNIMPORTABLE,
    }.items():
        (folder / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(folder.parent)
    yield Registry(package)
    for name in [name for name in sys.modules if name.startswith(package)]:
        del sys.modules[name]


def test_list_names_every_workload_and_imports_none(
    registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list"], registry) == 0
    lines = capsys.readouterr().out.splitlines()
    names = ["broken", "good", "parted", "refused", "unequal", "unimportable"]
    assert [line.split()[0] for line in lines] == [*names, *load_names()]
    assert lines[5].endswith("Imports what is not there.")


def test_good_run(registry: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "records" / "good.json"
    arguments = ["run", "good", "--out", str(path), "--repeats", "5"]
    assert main(arguments, registry) == 0
    record = load(path)
    assert (record.name, record.status) == ("good", "ok")
    # Without the folder of this machine.
    assert record.command == (
        *("python", "-m", "bench", "run", "good"),
        *("--out", "good.json", "--repeats", "5"),
    )
    assert record.baseline is not None
    assert len(record.baseline.rows) == 5
    assert record.summary == recompute(record)
    assert record.summary["double"].best == 1.0
    out = capsys.readouterr().out
    assert f"good: ok, record in {path}" in out
    assert "double: 1.0000 by medians (4 / 4 s), 1.0000 by lowest" in out


def test_record_goes_under_out_by_default(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", "good"], registry) == 0
    (path,) = (tmp_path / "out" / "bench").iterdir()
    assert path.name.startswith("good-20")
    record = load(path)
    assert record.candidate is not None
    assert len(record.candidate.rows) == 3


def test_broken_run_is_a_record_too(
    registry: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broken.json"
    assert main(["run", "broken", "--out", str(path)], registry) == 1
    record = load(path)
    assert record.status == "failed"
    assert record.error is not None
    assert record.error.kind == "ZeroDivisionError"
    assert record.error.message == "nothing to divide by"
    assert record.error.frames[-1] == f"{registry.package}.broken:7 in inner"
    assert str(tmp_path) not in str(record.error.frames)
    assert "error: ZeroDivisionError: nothing to divide by" in capsys.readouterr().err


def test_unequal_sides_make_a_failed_record_without_summary(
    registry: Registry, tmp_path: Path
) -> None:
    path = tmp_path / "unequal.json"
    assert main(["run", "unequal", "--out", str(path)], registry) == 1
    record = load(path)
    assert record.status == "failed"
    assert record.summary == {}
    assert record.error is not None
    assert record.error.message == "doubles: 3.0, limit 0.0"


def test_refused_run(registry: Registry, tmp_path: Path) -> None:
    path = tmp_path / "refused.json"
    assert main(["run", "refused", "--out", str(path)], registry) == 2
    record = load(path)
    assert record.status == "refused"
    assert record.error is not None
    assert record.error.kind == "UnsupportedError"


def test_parts_leave_a_record_each_whatever_one_does(
    registry: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "some.json"
    assert main(["run", "parted", "--out", str(path)], registry) == 1
    broken, good = (load(tmp_path / f"some_{name}.json") for name in ("tp2", "tp2_sp2"))
    assert not path.exists()
    assert (broken.name, broken.status) == ("parted_tp2", "failed")
    assert (good.name, good.status) == ("parted_tp2_sp2", "ok")
    run = ("python", "-m", "bench", "run", "parted", "--out", "some.json")
    assert good.command == (*run, "--only", "TP2+SP2")
    out = capsys.readouterr().out
    assert f"parted_tp2_sp2: ok, record in {tmp_path / 'some_tp2_sp2.json'}" in out


def test_one_part_runs_alone_and_is_verified_alone(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["run", "parted", "--only", "TP2", "--only", "TP2+SP2", "--out", "a.json"]
    assert main(arguments, registry) == 1
    arguments = ["verify", "a_tp2_sp2.json", "--out", "again.json"]
    assert main(arguments, registry) == 0
    assert {path.name for path in tmp_path.glob("*.json")} == {
        "a_tp2.json",
        "a_tp2_sp2.json",
        "again_tp2_sp2.json",
    }
    again = load(Path("again_tp2_sp2.json"))
    assert again.command == load(Path("a_tp2_sp2.json")).command


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "parted",
            "parted has no such part (got 'TP3', set by the command line); known are TP2, TP2+SP2",
        ),
        ("good", "it has none: leave it out"),
        ("vase", "--only: is for a workload; a load says it itself"),
    ],
)
def test_parts_that_are_not_there(
    registry: Registry,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    expected: str,
) -> None:
    assert main(["run", name, "--only", "TP3", "--out", str(tmp_path / "a.json")], registry) == 2
    assert expected in capsys.readouterr().err
    assert list(tmp_path.glob("*.json")) == []


def test_workload_that_cannot_be_imported(registry: Registry, tmp_path: Path) -> None:
    path = tmp_path / "unimportable.json"
    assert main(["run", "unimportable", "--out", str(path)], registry) == 1
    record = load(path)
    assert record.error is not None
    assert "no_such_module" in record.error.message


@pytest.mark.parametrize(
    ("name", "expected"),
    [("goood", "did you mean good?"), ("../x", "known are broken, good"), ("", "known are broken")],
)
def test_unknown_workload(
    registry: Registry,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    expected: str,
) -> None:
    path = tmp_path / "record.json"
    assert main(["run", name, "--out", str(path)], registry) == 2
    assert expected in capsys.readouterr().err
    assert not path.exists()


def test_place_for_the_record_is_checked_before_the_run(
    registry: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "broken", "--out", str(tmp_path)], registry) == 2
    assert "cannot be written there" in capsys.readouterr().err


@pytest.mark.parametrize("repeats", ["0", "-1", "1.5", "x", "", "1_0", "٧"])
def test_repeats_is_a_positive_integer(
    registry: Registry, capsys: pytest.CaptureFixture[str], repeats: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["run", "good", f"--repeats={repeats}"], registry)
    assert caught.value.code == 2
    assert f"must be an integer of at least 1, got {repeats!r}" in capsys.readouterr().err


def test_shipped_workloads_are_found() -> None:
    registry = Registry()
    assert "page_work" in registry.names()
    for name in registry.names():
        assert registry.describe(name).endswith(".")


def test_page_work_by_the_command(tmp_path: Path) -> None:
    path = tmp_path / "page_work.json"
    command = [sys.executable, "-m", "bench", "run", "page_work", "--repeats", "1"]
    done = subprocess.run(
        [*command, "--out", str(path)], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    record = load(path)
    assert record.status == "ok"
    assert record.equality is not None
    assert record.equality.equal
    assert "pages of 2000 requests" in record.equality.compared
    assert json.loads(path.read_text())["environment"]["system"]["torch"] is not None
    assert {"fresh_1000", "fresh_100000", "refusal_waits"} <= set(record.summary)
