"""A record loads only when it is complete, and its summary follows from its rows."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from record_samples import BASELINE, CANDIDATE, EQUAL, RATIOS, SIDES, record

from bench.records import (
    EqualityCheck,
    Failure,
    Measurement,
    RecordError,
    Row,
    load,
    make_room,
    recompute,
    save,
    summarise,
)


def stored(tmp_path: Path, edit: Callable[[dict[str, Any]], object]) -> Path:
    """Write a good record, then change its JSON."""
    path = tmp_path / "record.json"
    save(record(), path)
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))
    return path


def refusal(path: Path) -> str:
    with pytest.raises(RecordError) as caught:
        load(path)
    return str(caught.value)


def test_round_trip_with_sorted_keys(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    save(record(), path)
    assert load(path) == record()
    content = json.loads(path.read_text())
    assert list(content) == sorted(content)
    assert [p.name for p in tmp_path.iterdir()] == ["record.json"]


def test_summary_by_hand() -> None:
    ratio = summarise(BASELINE, CANDIDATE, RATIOS)["step"]
    assert ratio.best == 1.0 / 2.0
    assert ratio.median == 6.0 / 3.0


costs = st.floats(1e-9, 1e9)


@settings(deadline=None)
@given(st.lists(costs, min_size=1, max_size=9), st.lists(costs, min_size=1, max_size=9))
def test_summary_is_recomputable_from_the_stored_rows(
    tmp_path_factory: pytest.TempPathFactory, below: list[float], above: list[float]
) -> None:
    def rows(values: list[float]) -> tuple[Row, ...]:
        return tuple({"step_s": value} for value in values)

    baseline, candidate = Measurement("b", rows(below)), Measurement("c", rows(above))
    path = tmp_path_factory.mktemp("record") / "record.json"
    made = record(
        baseline=baseline, candidate=candidate, summary=summarise(baseline, candidate, RATIOS)
    )
    save(made, path)
    loaded = load(path)
    assert recompute(loaded) == loaded.summary
    content = json.loads(path.read_text())
    raw = {side: [row["step_s"] for row in content[side]["rows"]] for side in SIDES}
    step = content["summary"]["step"]
    assert step["best"] == min(raw["candidate"]) / min(raw["baseline"])
    assert step["median"] == statistics.median(raw["candidate"]) / statistics.median(
        raw["baseline"]
    )


@pytest.mark.parametrize("name", ["baseline", "candidate", "equality"])
@pytest.mark.parametrize("drop", [True, False])
def test_successful_record_needs_both_sides_and_its_check(
    tmp_path: Path, name: str, drop: bool
) -> None:
    def edit(content: dict[str, Any]) -> None:
        content[name] = None
        if drop:
            del content[name]

    assert f"{name}: a record with status ok must have one" in refusal(stored(tmp_path, edit))


def test_successful_record_has_rows(tmp_path: Path) -> None:
    path = stored(tmp_path, lambda content: content["baseline"].update(rows=[]))
    assert "baseline.rows: a record with status ok has at least one" in refusal(path)


def test_successful_record_has_a_summary(tmp_path: Path) -> None:
    path = stored(tmp_path, lambda content: content.update(summary={}))
    assert "summary: a record with status ok has at least one ratio" in refusal(path)


def test_unequal_sides_are_no_success(tmp_path: Path) -> None:
    path = stored(tmp_path, lambda content: content["equality"].update(seen=1.0, equal=False))
    assert "equality.equal: a record with status ok has equal sides" in refusal(path)


def test_equality_must_follow_from_its_own_numbers(tmp_path: Path) -> None:
    path = stored(tmp_path, lambda content: content["equality"].update(seen=1.0))
    assert "equality: equal is True, but seen 1.0, limit 0.0" in refusal(path)


def test_a_check_is_equal_up_to_its_limit_and_no_difference_is_below_zero() -> None:
    assert [EqualityCheck.of("x", limit=1, seen=seen).equal for seen in (0, 1, 1.5)] == [
        True,
        True,
        False,
    ]
    with pytest.raises(ValidationError, match="no difference is below 0"):
        EqualityCheck.of("x", limit=0, seen=-15)


def test_success_has_no_error(tmp_path: Path) -> None:
    path = stored(tmp_path, lambda c: c.update(error={"kind": "E", "message": "m", "frames": []}))
    assert "error: a record with status ok has none" in refusal(path)


@pytest.mark.parametrize("status", ["failed", "refused"])
def test_other_records_say_why(tmp_path: Path, status: str) -> None:
    path = stored(tmp_path, lambda content: content.update(status=status))
    assert f"error: a record with status {status} must say why" in refusal(path)


def test_failed_record_needs_no_measurement(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    failed = record(
        status="failed",
        baseline=None,
        candidate=None,
        equality=None,
        summary={},
        error=Failure("ValueError", "broken", ("bench.x:1 in run",)),
    )
    save(failed, path)
    assert load(path) == failed


@pytest.mark.parametrize(
    ("where", "field"),
    [
        ((), "colour"),
        (("environment",), "host"),
        (("environment", "git"), "branch"),
        (("environment", "system"), "host"),
        (("environment", "system", "torch"), "colour"),
        (("environment", "system", "accelerators", 0), "colour"),
        (("equality",), "colour"),
        (("baseline",), "colour"),
        (("config", "max_num_seqs"), "colour"),
        (("summary", "step"), "colour"),
    ],
)
def test_unknown_fields_are_refused(
    tmp_path: Path, where: tuple[str | int, ...], field: str
) -> None:
    def edit(content: Any) -> None:
        for key in where:
            content = content[key]
        content[field] = 1

    named = ".".join(map(str, (*where, field)))
    assert f"{named}: Unexpected keyword argument" in refusal(stored(tmp_path, edit))


@pytest.mark.parametrize(
    "field", ["schema_version", "name", "status", "environment", "command", "config", "parameters"]
)
def test_fields_that_every_record_has(tmp_path: Path, field: str) -> None:
    path = stored(tmp_path, lambda content: content.pop(field))
    assert f"{field}: Field required" in refusal(path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("schema_version", 2),
        ("status", "fine"),
        ("name", 7),
        ("command", "python -m bench"),
        ("parameters", []),
    ],
)
def test_wrong_values_are_refused_by_name(tmp_path: Path, field: str, value: object) -> None:
    message = refusal(stored(tmp_path, lambda content: content.update({field: value})))
    assert f"  {field}: " in message


def test_summary_that_does_not_follow_from_the_rows(tmp_path: Path) -> None:
    path = stored(tmp_path, lambda content: content["summary"]["step"].update(best=0.4))
    assert "summary: does not follow from the raw rows" in refusal(path)


def test_rows_changed_after_the_fact(tmp_path: Path) -> None:
    path = stored(tmp_path, lambda content: content["candidate"]["rows"][0].update(step_s=0.5))
    assert "summary: does not follow from the raw rows" in refusal(path)


@pytest.mark.parametrize(
    ("above", "below", "expected"),
    [
        ("candidate.other_s", "baseline.step_s", "candidate.rows.0.other_s must be a number"),
        ("candidate.note", "baseline.step_s", "candidate.rows.0.note must be a number, got 'a'"),
        ("dense.step_s", "baseline.step_s", "dense.step_s: no rows"),
        ("step_s", "baseline.step_s", "step_s: no rows"),
        ("candidate.step_s", "baseline.zero_s", "baseline.zero_s must be above zero"),
    ],
)
def test_columns_that_make_no_ratio(above: str, below: str, expected: str) -> None:
    baseline = replace(BASELINE, rows=({"step_s": 1.0, "zero_s": 0.0},))
    with pytest.raises(ValueError, match=expected):
        summarise(baseline, CANDIDATE, {"ratio": (above, below)})


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"status": "ok"}'])
def test_what_is_no_record(tmp_path: Path, content: str) -> None:
    path = tmp_path / "record.json"
    path.write_text(content)
    assert "record.json is refused" in refusal(path)


def test_record_that_is_not_there(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in refusal(tmp_path / "record.json")


def test_record_cannot_be_made_incomplete() -> None:
    with pytest.raises(ValidationError, match="baseline: a record with status ok must have one"):
        record(baseline=None)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_json_has_not(value: float) -> None:
    for change in (
        lambda: replace(EQUAL, seen=value),
        lambda: Measurement("m", ({"step_s": value},)),
        lambda: record(parameters={"sizes": [value]}),
    ):
        with pytest.raises(ValidationError, match="finite number"):
            change()


def test_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "record.json").mkdir()
    with pytest.raises(RecordError, match="cannot be written: Is a directory"):
        save(record(), tmp_path / "record.json")
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]


def test_save_into_nowhere(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot be written: No such file"):
        save(record(), tmp_path / "nowhere" / "record.json")


def test_room_is_made_before_a_run(tmp_path: Path) -> None:
    make_room(tmp_path / "a" / "b" / "record.json")
    assert (tmp_path / "a" / "b").is_dir()
    with pytest.raises(RecordError, match="cannot be written there"):
        make_room(tmp_path / "a")
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="no folder for it"):
        make_room(tmp_path / "file" / "record.json")
