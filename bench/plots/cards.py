"""Charts of what was recorded on a card: steps, attention, memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bench.plots.charts import draw_bars, draw_ratios
from bench.plots.drawing import Drawing
from bench.plots.samples import column, ratios
from bench.records import Measurement, Record
from bench.statistics import CONFIDENCE, SAME, Estimate

FORMS: Final[Mapping[str, str]] = {
    "kit": "paged,\nFlashAttention",
    "dense": "contiguous,\nFlashAttention",
    "sdpa": "contiguous,\ntorch's attention",
    "loop": "paged, experts\nin a loop",
    "official": "official form:\nmask, loop",
}
"""Columns of cuda_step_peers; what each is exactly stands in the record's parameters."""

_MS = 1e3
_TIME = f"time / ms, median and {100 * CONFIDENCE:g} % interval"
_GIB = 2**30


def draw_step_by_prefix(record: Record) -> Drawing:
    """Draw the time of a later step by the length of the prefix, both modes (cuda_step)."""
    return draw_bars(
        f"One later step, {record.parameters['num_layers']} layers of the published width",
        {
            name: {
                str(prefix): column(side, f"step_{prefix}_s", _MS)
                for prefix in _list(record, "prefix_lengths")
            }
            for name, side in _sides(record).items()
        },
        unit=_TIME,
        groups="tokens of the prefix",
    )


def draw_equal_cost(step: Record, attention: Record) -> Drawing:
    """Draw paged over contiguous: a whole step, and reading in attention alone."""
    found: dict[str, Estimate] = {}
    for name, ratio in ratios(step, r"step_\d+").items():
        found[f"step, prefix {name.removeprefix('step_')}"] = ratio
    for name, ratio in reading_ratios(attention).items():
        found[f"attention, {name}"] = ratio
    return draw_ratios(
        "Paged over contiguous, measured in pairs",
        found,
        label="time of paged / time of contiguous, median of pairs and its interval",
        same=SAME,
    )


def reading_ratios(record: Record) -> dict[str, Estimate]:
    """Return paged over contiguous by prefix and image tokens, attention alone (cuda_attention)."""
    found = ratios(record, r"read_\d+_\d+")
    return {"prefix {1}, image {2}".format(*name.split("_")): one for name, one in found.items()}


def draw_forms(record: Record) -> Drawing:
    """Draw the same step in every form that was recorded (cuda_step_peers)."""
    sides = {"kit": record.candidate}
    return draw_bars(
        "The same step in five forms",
        {
            f"{record.parameters['num_layers']} layers, measured": {
                told: column(sides.get(form, record.baseline), f"{form}_s", _MS)
                for form, told in FORMS.items()
            },
            "32 layers, computed from them": {
                told: column(sides.get(form, record.baseline), f"{form}_of_32_layers_s", _MS)
                for form, told in FORMS.items()
            },
        },
        unit=_TIME,
    )


def draw_peaks(record: Record) -> Drawing:
    """Draw the peak of a request, as planned and as a card's allocator saw it (cuda_memory)."""
    names = {"planned": record.baseline, "measured": record.candidate}
    return draw_bars(
        f"Most memory of a request, {record.parameters['num_layers']} layers",
        {
            name: {
                f"{tokens}": column(_of_image(side, tokens), "peak_bytes", 1 / _GIB)
                for tokens in _image_tokens(record)
            }
            for name, side in names.items()
        },
        unit="peak / GiB",
        groups="image tokens",
    )


def peak_ratios(record: Record) -> dict[str, Estimate]:
    """Return measured over planned peaks by image tokens (cuda_memory)."""
    found: dict[str, Estimate] = {}
    for tokens in _image_tokens(record):
        planned = column(_of_image(record.baseline, tokens), "peak_bytes").value
        measured = _of_image(record.candidate, tokens)
        found[f"{tokens} image tokens"] = column(measured, "peak_bytes", 1 / planned)
    return found


def _sides(record: Record) -> dict[str, Measurement]:
    assert record.baseline is not None, "a record that is ok has both sides"
    assert record.candidate is not None, "a record that is ok has both sides"
    return {side.name.split(",")[0]: side for side in (record.baseline, record.candidate)}


def _list(record: Record, name: str) -> list[object]:
    found = record.parameters[name]
    assert isinstance(found, list), f"{name} is a list in this workload's records"
    return list(found)


def _image_tokens(record: Record) -> list[int]:
    assert record.candidate is not None, "a record that is ok has both sides"
    return sorted({int(str(row["image_tokens"])) for row in record.candidate.rows})


def _of_image(side: Measurement | None, tokens: int) -> Measurement:
    assert side is not None, "a record that is ok has both sides"
    rows = tuple(row for row in side.rows if row["image_tokens"] == tokens)
    return Measurement(side.name, rows)
