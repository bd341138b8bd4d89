"""Charts of records show the rows of the records: other rows, another chart."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from pydantic import JsonValue

from bench.environment import capture
from bench.plots import cards, samples
from bench.plots.charts import draw_bars, draw_parts, draw_ratios
from bench.plots.drawing import Drawing
from bench.records import EqualityCheck, Failure, Measurement, Record, RecordError, save
from bench.registry import Context
from bench.statistics import Estimate

Columns = Mapping[str, float]
NUM_ROWS = 8


def make_record(
    name: str,
    baseline: Columns,
    candidate: Columns,
    ratios: Mapping[str, tuple[str, str]],
    parameters: Mapping[str, JsonValue],
) -> Record:
    """A record whose rows scatter by 1 % a row around the columns that are named."""

    def rows(columns: Columns) -> tuple[dict[str, float], ...]:
        return tuple(
            {key: value * (1 + at / 100) for key, value in columns.items()}
            for at in range(NUM_ROWS)
        )

    return Context(name, ("python",), capture(), NUM_ROWS).record(
        parameters=parameters,
        equality=EqualityCheck("bits", 0, 0, True),
        baseline=Measurement("dense_legacy, FLASH_ATTN", rows(baseline)),
        candidate=Measurement("paged_scheduler, FLASH_ATTN", rows(candidate)),
        ratios=ratios,
        paired=True,
    )


def step_record(paged_s: float) -> Record:
    return make_record(
        "cuda_step",
        {"step_100_s": 0.1, "step_1000_s": 0.2},
        {"step_100_s": paged_s, "step_1000_s": 0.2},
        {
            "step_1000": ("candidate.step_1000_s", "baseline.step_1000_s"),
            "step_100": ("candidate.step_100_s", "baseline.step_100_s"),
        },
        {"num_layers": 8, "prefix_lengths": [100, 1000]},
    )


def attention_record() -> Record:
    return make_record(
        "cuda_attention",
        {"read_100_4096_s": 0.1},
        {"read_100_4096_s": 0.11},
        {"read_100_4096": ("candidate.read_100_4096_s", "baseline.read_100_4096_s")},
        {},
    )


def value(drawing: Drawing, name: str) -> float:
    number = drawing.numbers[name]
    return number.value if isinstance(number, Estimate) else number


def bar_heights(drawing: Drawing) -> list[float]:
    (ax,) = drawing.figure.axes
    return [patch.get_height() for bars in ax.containers for patch in getattr(bars, "patches", [])]


def test_a_slower_step_is_a_higher_bar() -> None:
    drawings = [cards.draw_step_by_prefix(step_record(seconds)) for seconds in (0.1, 0.15)]
    found = [value(drawing, "paged_scheduler, 100") for drawing in drawings]
    assert found == pytest.approx([103, 154.5])
    for drawing, height in zip(drawings, found, strict=True):
        assert pytest.approx(height) in bar_heights(drawing)
        assert value(drawing, "dense_legacy, 1000") == pytest.approx(206)
    assert drawings[0]._repr_mimebundle_() != drawings[1]._repr_mimebundle_()


def test_ratios_stand_in_the_order_of_their_numbers_with_their_intervals() -> None:
    drawing = cards.draw_equal_cost(step_record(0.15), attention_record())
    assert list(drawing.numbers) == [
        "step, prefix 100",
        "step, prefix 1000",
        "attention, prefix 100, image 4096",
    ]
    ratio = drawing.numbers["step, prefix 100"]
    assert isinstance(ratio, Estimate)
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((1.5, 1.5, 1.5))
    (ax,) = drawing.figure.axes
    assert [label.get_text() for label in ax.get_yticklabels()] == list(drawing.numbers)


def test_every_form_of_the_step_comes_from_its_own_column() -> None:
    times = {form: at / 10 for at, form in enumerate(cards.FORMS, start=1)}
    columns = {f"{form}_s": t for form, t in times.items()}
    columns |= {f"{form}_of_32_layers_s": 4 * t for form, t in times.items()}
    kit = {name: columns.pop(name) for name in ("kit_s", "kit_of_32_layers_s")}
    ratios = {"dense_over_kit": ("baseline.dense_s", "candidate.kit_s")}
    record = make_record("cuda_step_peers", columns, kit, ratios, {"num_layers": 8})
    numbers = cards.draw_forms(record).numbers
    assert all("\n" not in name for name in numbers), "a line of the plain text is a number"
    found = [one.value for one in numbers.values() if isinstance(one, Estimate)]
    wanted = [1030 * t for t in times.values()]
    assert found == pytest.approx([*wanted, *(4 * t for t in wanted)])


def test_peaks_are_those_of_their_image() -> None:
    sides = [
        Measurement(
            side,
            tuple(
                {"image_tokens": tokens, "peak_bytes": tokens * 2.0**20 * factor}
                for tokens in (1024, 4096, 4096) * 6
            ),
        )
        for side, factor in (("planned", 1.0), ("measured", 1.05))
    ]
    record = Context("cuda_memory", ("python",), capture(), 12).record(
        parameters={"num_layers": 4},
        equality=EqualityCheck("bytes", 0.1, 0.05, True),
        baseline=sides[0],
        candidate=sides[1],
        ratios={"peak": ("candidate.peak_bytes", "baseline.peak_bytes")},
    )
    numbers = cards.draw_peaks(record).numbers
    assert {name: round(one.value, 4) for name, one in numbers.items()} == {  # type: ignore[union-attr]
        "planned, 1024": 1.0,
        "planned, 4096": 4.0,
        "measured, 1024": 1.05,
        "measured, 4096": 4.2,
    }
    ratios = cards.peak_ratios(record)
    assert [one.value for one in ratios.values()] == pytest.approx([1.05, 1.05])


def test_a_record_that_is_missing_or_failed_is_no_chart(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot be read"):
        samples.read_record(tmp_path, "cuda_step")
    failed = Context("cuda_step", ("python",), capture(), 1).without_result(
        Failure("WorkerError", "no memory"), refused=False
    )
    save(failed, tmp_path / "cuda_step.json")
    with pytest.raises(RecordError, match=r"status is failed.*bench run cuda_step"):
        samples.read_record(tmp_path, "cuda_step")


def test_a_record_is_told_with_its_equality_and_machine() -> None:
    told = samples.about(step_record(0.1))
    assert "paged_scheduler, FLASH_ATTN, against dense_legacy, FLASH_ATTN; 8 rows" in told
    assert "bits: **0** (limit 0)" in told


def test_few_rows_carry_no_interval_and_no_whisker() -> None:
    few = samples.median([1.0, 2.0, 3.0])
    assert (few.value, few.low, few.high) == (2.0, None, None)
    many = samples.median([float(at) for at in range(20)])
    assert many.low is not None
    assert many.low < many.value
    with pytest.raises(RecordError, match="column step_9_s: no row"):
        samples.column(Measurement("paged", ({"step_1_s": 1.0},)), "step_9_s")


def test_noise_is_drawn_below_its_own_ratio() -> None:
    ratio, noise = Estimate(1.2, 1.1, 1.3, 9), Estimate(1.0, 0.9, 1.1, 9)
    drawing = draw_ratios("t", {"latency": ratio}, label="x", noise={"latency": noise}, same=0.05)
    assert drawing.numbers == {"latency": ratio, "latency, noise": noise}
    (ax,) = drawing.figure.axes
    points = dict(
        np.asarray(line.get_xydata())[0] for line in ax.lines if str(line.get_marker()) in "oD"
    )
    assert points[1.2] < points[1.0]


def test_parts_stand_one_after_the_other() -> None:
    drawing = draw_parts(
        "t",
        {"a": {"x": 1, "y": 2, "z": 3}, "b": {"y": 5}},
        unit="GiB",
        limits={"a": 9},
        notes={"a": "n"},
    )
    assert drawing.numbers == {
        "a, x": 1,
        "a, y": 2,
        "b, y": 5,
        "a, z": 3,
        "a, may be taken": 9,
    }
    (ax,) = drawing.figure.axes
    spans = {(patch.get_x(), patch.get_width()) for patch in ax.patches}  # type: ignore[attr-defined]
    assert spans == {(0, 1), (1, 2), (3, 3), (0, 5)}


def test_a_drawing_is_a_picture_a_text_and_a_file_for_print(tmp_path: Path) -> None:
    drawing = draw_bars("Title", {"a": {"g": Estimate(1.5, 1.0, 2.0, 9)}}, unit="ms")
    data, metadata = drawing._repr_mimebundle_()
    assert isinstance(data["image/png"], bytes)
    assert data["image/png"].startswith(b"\x89PNG")
    assert data["text/plain"] == "Title\n  a, g: 1.5 [1, 2]"
    assert metadata["image/png"]["alt"] == "Title"
    drawing.save("", "nothing")
    drawing.save(tmp_path / "new", "chart")
    assert [path.name for path in tmp_path.rglob("*.*")] == ["chart.pdf"]
