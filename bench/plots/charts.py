"""Charts that several notebooks draw: numbers with their intervals, and bars made of parts."""

from __future__ import annotations

from collections.abc import Mapping

from bench.plots.drawing import (
    BLUE,
    COLOURS,
    GREY,
    HATCHES,
    PALE,
    Drawing,
    Number,
    new_figure,
    put_legend,
    put_title,
    spread,
)
from bench.statistics import Estimate

Series = Mapping[str, Mapping[str, Estimate]]
"""By series, then by group."""


def draw_bars(title: str, series: Series, *, unit: str, groups: str = "") -> Drawing:
    """Draw the series of each group beside each other, with whiskers of 95 %."""
    figure, (ax,) = new_figure(3.2)
    names = list(dict.fromkeys(group for values in series.values() for group in values))
    width = 0.8 / len(series)
    numbers: dict[str, Number] = {}
    for at, (label, values) in enumerate(series.items()):
        places = [names.index(group) + (at - (len(series) - 1) / 2) * width for group in values]
        spreads = [spread(one) for one in values.values()]
        ax.bar(
            places,
            [one.value for one in values.values()],
            width * 0.92,
            label=label,
            color=COLOURS[at],
            hatch=HATCHES[at],
            edgecolor="white",
            linewidth=0.5,
            yerr=list(zip(*spreads, strict=True)) if any(map(any, spreads)) else None,
            error_kw={"elinewidth": 1.2, "capsize": 3, "ecolor": "black"},
        )
        for group, one in values.items():
            numbers[f"{label}, {' '.join(group.split())}"] = one
        for place, one in zip(places, values.values(), strict=True):
            top = one.value + spread(one)[1]
            ax.annotate(
                f"{one.value:,.0f}" if one.value >= 100 else f"{one.value:.3g}",
                (place, top),
                xytext=(0, 3),
                textcoords="offset points",
                ha="center",
                fontsize=7,
            )
    ax.set_xticks(range(len(names)), names)
    ax.set_xlabel(groups, fontsize=8)
    ax.set_ylabel(unit, fontsize=8)
    ax.margins(y=0.12)
    ax.grid(axis="y", color=PALE)
    put_title(ax, title)
    if len(series) > 1:
        put_legend(figure, len(series))
    return Drawing(title, figure, numbers)


def draw_ratios(
    title: str,
    ratios: Mapping[str, Estimate],
    *,
    label: str,
    noise: Mapping[str, Estimate] | None = None,
    same: float | None = None,
) -> Drawing:
    """Draw ratios around 1 with their intervals, and those of the noise below each.

    same: how far from 1 still counts as the same, as a band.
    """
    noise = noise or {}
    figure, (ax,) = new_figure(0.9 + 0.42 * len(ratios))
    numbers: dict[str, Number] = {}
    ax.axvline(1, color="black", linewidth=0.8)
    if same is not None:
        ax.axvspan(1 - same, 1 + same, color=PALE, zorder=0, label=f"within {100 * same:g} % of 1")
    for at, (name, ratio) in enumerate(ratios.items()):
        own = (at - 0.13 if name in noise else at, ratio, BLUE, "o", "ratio with its interval")
        shown = [own]
        numbers[name] = ratio
        if name in noise:
            again = "noise: the baseline over itself"
            shown.append((at + 0.18, noise[name], GREY, "D", again))
            numbers[f"{name}, noise"] = noise[name]
        for place, one, colour, marker, told in shown:
            low, high = spread(one)
            ax.errorbar(
                one.value,
                place,
                xerr=[[low], [high]],
                color=colour,
                marker=marker,
                markersize=5,
                capsize=3,
                linewidth=1.4,
                label=told if at == 0 else None,
            )
    ax.set_yticks(range(len(ratios)), list(ratios))
    ax.set_ylim(len(ratios) - 0.5, -0.5)
    ax.set_xlabel(label, fontsize=8)
    ax.grid(axis="x", color=PALE)
    put_title(ax, title)
    if noise or same is not None:
        put_legend(figure, 3)
    return Drawing(title, figure, numbers)


def draw_parts(
    title: str,
    bars: Mapping[str, Mapping[str, float]],
    *,
    unit: str,
    limits: Mapping[str, float],
    notes: Mapping[str, str],
) -> Drawing:
    """Draw each bar as its parts one after the other, with its limit as a line and a note."""
    figure, (ax,) = new_figure(1.2 + 0.36 * len(bars))
    parts = list(dict.fromkeys(part for bar in bars.values() for part in bar))
    numbers: dict[str, Number] = {}
    starts = dict.fromkeys(bars, 0.0)
    for at, part in enumerate(parts):
        found = {name: bar[part] for name, bar in bars.items() if part in bar}
        ax.barh(
            [list(bars).index(name) for name in found],
            list(found.values()),
            0.62,
            left=[starts[name] for name in found],
            label=part,
            color=COLOURS[at % len(COLOURS)],
            hatch=HATCHES[at % len(HATCHES)],
            edgecolor="white",
            linewidth=0.5,
        )
        for name, value in found.items():
            starts[name] += value
            numbers[f"{name}, {part}"] = value
    for name, limit in limits.items():
        place = list(bars).index(name)
        first = "may be taken" if name == next(iter(limits)) else "_"
        ax.vlines(limit, place - 0.42, place + 0.42, color="black", linewidth=2, label=first)
        numbers[f"{name}, may be taken"] = limit
    for name, note in notes.items():
        right = max(starts[name], limits.get(name, 0.0))
        ax.annotate(
            note,
            (right, list(bars).index(name)),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=7,
        )
    ax.set_yticks(range(len(bars)), list(bars))
    ax.set_ylim(len(bars) - 0.4, -0.6)
    ax.set_xlabel(unit, fontsize=8)
    ax.margins(x=0.2 if notes else 0.03)
    ax.grid(axis="x", color=PALE)
    put_title(ax, title)
    put_legend(figure, 4)
    return Drawing(title, figure, numbers)
