"""The published figures of paged against dense on several cards, and our records beside them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bench.agreement import text_of
from bench.records import Record
from bench.registry import part_name
from bench.report import table
from bench.statistics import CONFIDENCE, Estimate, paired_ratio, percentile, tail_carried
from kit.parallel.topology import Topology

SOURCE: Final = "a public report of vLLM-Omni on four Hopper cards"
"""1024x1024, 8 steps, FlashAttention 3, one warm-up and 30 measured requests."""


@dataclass(frozen=True)
class PublishedFigure:
    """Mean seconds of an image in both modes."""

    topology: Topology
    dense_s: float
    paged_s: float


PUBLISHED_FIGURES: Final = (
    PublishedFigure(Topology(tensor=4), 2.278, 2.290),
    PublishedFigure(Topology(tensor=2, ulysses=2), 2.395, 2.358),
    PublishedFigure(Topology(tensor=2, cfg=2), 2.175, 2.194),
)

ALL_TOPOLOGIES: Final = (
    Topology(tensor=2),
    Topology(ulysses=2),
    Topology(cfg=2),
    *(figure.topology for figure in PUBLISHED_FIGURES),
    Topology(tensor=8),
    Topology(tensor=4, cfg=2),
)
"""The published ones between those that show the same on two cards and on eight."""

MAX_IMAGE_S: Final = 1.30
MAX_RATIO: Final = 1.01
MIN_REQUESTS: Final = 30
"""What we want from MIN_CARDS on: mean seconds in both modes, the upper end of the interval of
paged / dense, and requests of each mode, all with a picture."""

MIN_CARDS: Final = 4

NOT_RUN: Final = "not run"

WORKLOAD: Final = "published_topologies"

_NUM_LAYERS = 32
_GIB = 2**30
_SIDES = (("dense_legacy", "baseline"), ("paged_scheduler", "candidate"))
_OTHER_STORE = {"dense_legacy": "pages", "paged_scheduler": "dense_rows"}
"""Of the mode that waits while this one runs, in `predicted_bytes_of_a_rank`."""


def image_table(records: Mapping[str, Record]) -> str:
    """Return mean seconds of an image, the published ones and ours; a line for each topology.

    records: those of the workload, by their names.
    """
    published = {figure.topology: figure for figure in PUBLISHED_FIGURES}
    lines = []
    for topology in ALL_TOPOLOGIES:
        figure, record = published.get(topology), records.get(_record_name(topology))
        theirs = ("", "") if figure is None else (f"{figure.dense_s:.3f}", f"{figure.paged_s:.3f}")
        ours = (NOT_RUN,) * 5 if record is None else _image_cells(record)
        is_wanted = record is not None and topology.size >= MIN_CARDS
        wanted = ("no", "yes")[meets_limits(record)] if record and is_wanted else ""
        lines.append((str(topology.size), _title(topology, record), *theirs, *ours, wanted))
    head = ("cards", "topology", "dense, published", "paged, published", "dense", "paged")
    return table((*head, "paged / dense", "latents", "pictures", "as wanted"), lines)


def part_table(records: Mapping[str, Record]) -> str:
    """Return the spread of our seconds and their parts; a line for each topology and mode."""
    lines = []
    for topology in ALL_TOPOLOGIES:
        record = records.get(_record_name(topology))
        for mode, side in _SIDES:
            cells = (NOT_RUN,) * 7 if record is None else _part_cells(record, mode, side)
            lines.append((_title(topology, record), mode, *cells))
    head = ("topology", "mode", "p50", "tail", "prepare", "first step", "later step", "decode")
    return table((*head, "GiB of a rank"), lines)


def meets_limits(record: Record) -> bool:
    """Whether a record shows what we want: MAX_IMAGE_S, MAX_RATIO, MIN_REQUESTS."""
    sides = _image_seconds(record)
    if record.status != "ok" or any(len(seconds) < MIN_REQUESTS for seconds in sides):
        return False
    slowest, high = max(map(statistics.fmean, sides)), _ratio(record).high
    return slowest <= MAX_IMAGE_S and high is not None and high <= MAX_RATIO


def _image_cells(record: Record) -> tuple[str, ...]:
    if record.equality is None:
        return (record.status,) * 5
    is_picture = [row["is_picture"] is True for rows in _rows(record) for row in rows]
    return (
        *(f"{statistics.fmean(seconds):.3f}" for seconds in _image_seconds(record)),
        text_of(_ratio(record)),
        "equal" if record.equality.equal else f"NOT EQUAL: {record.equality.seen:g}",
        f"{sum(is_picture)} of {len(is_picture)}",
    )


def _part_cells(record: Record, mode: str, side: str) -> tuple[str, ...]:
    if record.equality is None:
        return (record.status,) * 7
    image_s = _column(record, side, "image_s")
    share = tail_carried(len(image_s))
    tail = ""
    if share is not None and share > 0.5:
        tail = f"p{100 * share:.0f} {_spread(percentile(image_s, share))}"
    num_steps = record.parameters["steps"]
    assert isinstance(num_steps, int), "the workload writes a number"
    first, later, decode, prepare = (
        statistics.median(_column(record, side, f"{name}_s"))
        for name in ("first_step", "later_steps", "decode", "prepare")
    )
    return (
        _spread(percentile(image_s, 0.5)),
        tail,
        *(f"{seconds:.4f}" for seconds in (prepare, first, later / (num_steps - 1), decode)),
        _memory(record, mode, side),
    )


def _memory(record: Record, mode: str, side: str) -> str:
    """Return the most GiB that a rank's tensors took, without the store of the other mode."""
    peak = max(_column(record, side, "peak_bytes"))
    if peak == 0:  # the CPU does not tell
        return ""
    predicted = record.parameters["predicted_bytes_of_a_rank"]
    assert isinstance(predicted, dict), "the workload writes parts by name"
    other = predicted[_OTHER_STORE[mode]]
    assert isinstance(other, int), "bytes are whole"
    return f"{(peak - other) / _GIB:.1f}"


def _record_name(topology: Topology) -> str:
    return f"{WORKLOAD}_{part_name(str(topology))}"


def _title(topology: Topology, record: Record | None) -> str:
    """Say so where not all layers ran."""
    layers = None if record is None else record.parameters.get("num_layers")
    if layers in (None, _NUM_LAYERS):
        return str(topology)
    return f"{topology}, {layers} of {_NUM_LAYERS} layers"


def _ratio(record: Record) -> Estimate:
    dense_s, paged_s = _image_seconds(record)
    return paired_ratio(paged_s, dense_s, CONFIDENCE)


def _spread(estimate: Estimate | None) -> str:
    return "" if estimate is None else text_of(estimate)


def _image_seconds(record: Record) -> tuple[list[float], list[float]]:
    dense_s, paged_s = (_column(record, side, "image_s") for _, side in _SIDES)
    return dense_s, paged_s


def _column(record: Record, side: str, name: str) -> list[float]:
    measurement = getattr(record, side)
    return [] if measurement is None else [float(row[name]) for row in measurement.rows]


def _rows(record: Record) -> list[Sequence[Mapping[str, object]]]:
    assert record.baseline is not None, "a record with an equality check has both sides"
    assert record.candidate is not None, "a record with an equality check has both sides"
    return [record.baseline.rows, record.candidate.rows]
