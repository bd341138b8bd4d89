"""Drawings of one request: how its picture comes about, and where its time goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.ticker import MaxNLocator

from bench.plots.drawing import (
    BLUE,
    COLOURS,
    ORANGE,
    PALE,
    Drawing,
    Number,
    new_figure,
    put_legend,
    put_title,
)
from bench.plots.samples import median, table
from kit.request import RequestMetrics

Picture = npt.NDArray[np.uint8]
"""uint8 [height, width, 3], RGB."""


def draw_pictures(title: str, pictures: Mapping[str, Picture]) -> Drawing:
    """Draw pictures beside each other, each with its name and its mean level as its number."""
    figure, axes = new_figure(2.2, len(pictures))
    for ax, (name, picture) in zip(axes, pictures.items(), strict=True):
        ax.imshow(picture)
        ax.set_axis_off()
        ax.set_title(name, fontsize=8)
    figure.suptitle(title, x=0.01, ha="left", fontsize=9, fontweight="bold")
    means = {f"{name}, mean level": float(picture.mean()) for name, picture in pictures.items()}
    return Drawing(title, figure, means)


def draw_step_times(title: str, runs: Sequence[RequestMetrics]) -> Drawing:
    """Draw the time of every step of the same request, run several times.

    The median of a step is a bar, each run a dot.
    """
    figure, (ax,) = new_figure(2.8)
    times = np.array([run.step_times_s for run in runs]) * 1e3
    steps = np.arange(1, times.shape[1] + 1)
    medians = np.median(times, axis=0)
    for part, colour, hatch, label in (
        (slice(0, 1), ORANGE, "////", "first step: prefix and target"),
        (slice(1, None), BLUE, "", "later steps: target only"),
    ):
        ax.bar(
            steps[part],
            medians[part],
            color=colour,
            hatch=hatch,
            edgecolor="white",
            linewidth=0.5,
            label=label,
        )
    for run in times:
        ax.plot(steps, run, ".", color="black", markersize=3)
    ax.set_xticks(steps)
    ax.set_xlabel(f"step, {len(runs)} runs", fontsize=8)
    ax.set_ylabel("time / ms", fontsize=8)
    ax.grid(axis="y", color=PALE)
    put_title(ax, title)
    put_legend(figure, 2)
    numbers: dict[str, Number] = {
        f"step {step}, ms": median(list(times[:, step - 1])) for step in steps.tolist()
    }
    return Drawing(title, figure, numbers)


def draw_written(title: str, written: Mapping[str, Sequence[int]]) -> Drawing:
    """Draw the tokens whose keys and values a request has written after each step.

    written: tokens of each step, by request. The dashed line is what it would be if every step
    computed the whole sequence as the first one does.
    """
    figure, (ax,) = new_figure(3.0)
    numbers: dict[str, Number] = {}
    for (name, tokens), colour, marker in zip(written.items(), COLOURS, "os^DvP", strict=False):
        made = np.cumsum(tokens)
        steps = np.arange(1, len(made) + 1)
        whole = steps * tokens[0]
        ax.plot(steps, made, marker=marker, color=colour, markersize=4, label=name)
        ax.plot(steps, whole, "--", color=colour, linewidth=1, label=f"{name}, nothing kept")
        numbers[f"{name}, tokens written"] = float(made[-1])
        numbers[f"{name}, tokens if nothing were kept"] = float(whole[-1])
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("steps made", fontsize=8)
    ax.set_ylabel("tokens written, all rows", fontsize=8)
    ax.set_ylim(bottom=0)
    ax.grid(color=PALE)
    put_title(ax, title)
    put_legend(figure, 2)
    return Drawing(title, figure, numbers)


def summarise_runs(runs: Sequence[RequestMetrics]) -> str:
    """Return a Markdown table of where the time of the same request went."""
    phases = {
        "first step": [run.first_step_time_s for run in runs],
        "a later step, median": [float(np.median(run.step_times_s[1:])) for run in runs],
        "all steps": [sum(run.step_times_s) for run in runs],
        "VAE decoder": [run.decode_time_s for run in runs],
        "from submission to picture": [run.total_time_s for run in runs],
    }
    lines = [
        (name, *(f"{1e3 * value:.1f}" for value in (min(times), np.median(times), max(times))))
        for name, times in phases.items()
    ]
    return table(("time / ms", "least", "median", "most"), lines)
