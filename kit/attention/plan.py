"""The segments of attention that one forward pass runs, as token intervals.

A query at absolute index i of a causal segment [a, b) sees keys [0, i]; a query of a full
segment sees keys [0, b). Segments are the same for all rows of a request.

    first step   [0, P+s) causal          [P+s, P+s+N) full
    later step   [P, P+s) causal          [P+s, P+s+N) full

Each reference image [a, b) cuts the causal segment of the first step: [0, a) causal, [a, b) full,
[b, P+s) causal.

Where pages hold the first c tokens already, the first step begins at c. Where rows have their first
tokens in common, one row runs these alone before all rows run the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

from kit.tokenizer.layout import Layout


@dataclass(frozen=True)
class Segment:
    """Queries [start, end) that share one attention rule; all keys below `end` are written."""

    start: int
    end: int
    causal: bool

    @property
    def kv_len(self) -> int:
        return self.end


@dataclass(frozen=True)
class StepPlan:
    """What one forward pass computes: queries [start, end) cut into segments."""

    start: int
    segments: tuple[Segment, ...]
    is_repeated: bool = False
    """Whether steps run it again and again: those after the first."""

    def __post_init__(self) -> None:
        at = self.start
        for segment in self.segments:
            assert segment.start == at < segment.end, "segments must tile the queries in order"
            at = segment.end

    @property
    def end(self) -> int:
        return self.segments[-1].end

    @property
    def num_tokens(self) -> int:
        return self.end - self.start

    def between(self, start: int, end: int) -> StepPlan:
        """Return the part that computes queries [start, end); the keys before it are written.

        A full segment may lose its beginning but not its end: its queries see keys up to there.
        """
        assert self.start <= start < end <= self.end, "a part of this plan"
        cut = []
        for segment in self.segments:
            first, last = max(start, segment.start), min(end, segment.end)
            if first < last:
                assert segment.causal or last == segment.end, "a full segment keeps its end"
                cut.append(Segment(first, last, segment.causal))
        return StepPlan(start, tuple(cut), self.is_repeated)


def plan_step(layout: Layout, *, first: bool) -> StepPlan:
    """Return the segments of the first step (whole sequence) or a later one (target only)."""
    start = at = 0 if first else layout.prefix_len
    full = [(ref.start, ref.end) for ref in layout.references if first]
    segments: list[Segment] = []
    for begin, end in (*full, (layout.image_span.start, layout.image_span.end)):
        segments += (Segment(at, begin, causal=True), Segment(begin, end, causal=False))
        at = end
    return StepPlan(start, tuple(segments), is_repeated=not first)
