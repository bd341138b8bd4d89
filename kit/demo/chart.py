"""The step times of several pictures as one SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 640, 180, 44, 22


def draw_steps(series: Mapping[str, Sequence[float]]) -> str:
    """Return step times by name as lines, in milliseconds; each line has its own mark."""
    most = _round_up(max((time for times in series.values() for time in times), default=0.0))
    num_steps = max((len(times) for times in series.values()), default=1)
    lines = "".join(
        _line(index, times, most, num_steps) for index, times in enumerate(series.values())
    )
    grid = "".join(
        f'<line class="kit-grid" x1="{_LEFT}" x2="{_WIDTH}" y1="{_y(part * most, most):.1f}" '
        f'y2="{_y(part * most, most):.1f}"/><text x="{_LEFT - 6}" '
        f'y="{_y(part * most, most) + 4:.1f}" text-anchor="end">{part * most * 1000:.0f}</text>'
        for part in (0.0, 0.5, 1.0)
    )
    ends = (
        f'<text x="{_LEFT}" y="{_HEIGHT - 4}">step 1</text>'
        f'<text x="{_WIDTH}" y="{_HEIGHT - 4}" text-anchor="end">step {num_steps}</text>'
    )
    key = "".join(
        f'<li><svg viewBox="0 0 20 10" aria-hidden="true"><line class="kit-line kit-line-{index}" '
        f'x1="0" x2="20" y1="5" y2="5"/></svg>{escape(name)}</li>'
        for index, name in enumerate(series)
    )
    return (
        f'<figure class="kit-chart"><figcaption>Time of each step, milliseconds</figcaption>'
        f'<ul class="kit-legend">{key}</ul>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(_told(series))}">{grid}{lines}{ends}</svg></figure>'
    )


def _round_up(time: float) -> float:
    """Return the next time whose half is short to read, too."""
    if not time:
        return 1.0
    unit: float = 10 ** math.floor(math.log10(time))
    return next(step * unit for step in (1, 2, 4, 6, 8, 10, 20) if step * unit >= time)


def _line(index: int, times: Sequence[float], most: float, num_steps: int) -> str:
    span = (_WIDTH - _LEFT) / max(1, num_steps - 1)
    points = " ".join(
        f"{_LEFT + step * span:.1f},{_y(time, most):.1f}" for step, time in enumerate(times)
    )
    return f'<polyline class="kit-line kit-line-{index}" points="{points}"/>'


def _y(time: float, most: float) -> float:
    top = 10
    return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - top) * time / most


def _told(series: Mapping[str, Sequence[float]]) -> str:
    return "; ".join(
        f"{name}: {len(times)} steps, {sum(times):.2f} s together" for name, times in series.items()
    )
