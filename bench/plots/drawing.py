"""A figure together with the numbers that it shows."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend

from bench.agreement import text_of
from bench.statistics import Estimate

BLUE: Final = "#0072B2"
ORANGE: Final = "#E69F00"
GREEN: Final = "#009E73"
RED: Final = "#D55E00"
SKY: Final = "#56B4E9"
PURPLE: Final = "#CC79A7"
GREY: Final = "#7F7F7F"
PALE: Final = "#E8E8E8"
COLOURS: Final = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED)
"""Okabe and Ito's, told apart by eyes that lack a kind of cone; hatches say the same again."""

HATCHES: Final = ("", "////", "....", "xxxx", "\\\\\\\\", "++")

_DPI = 160
_WIDTH_IN = 7.0

Number = Estimate | float


@dataclass(frozen=True)
class Drawing:
    """What a notebook shows: a figure, and every number in it by name."""

    title: str
    figure: Figure
    numbers: Mapping[str, Number]

    def save(self, folder: str | Path, name: str) -> None:
        """Write NAME.pdf for print; an empty folder writes nothing."""
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.figure.savefig(Path(folder, f"{name}.pdf"))

    def __str__(self) -> str:
        """Return the title and a line a number, for readers that see no picture."""
        return "\n".join([self.title, *(f"  {k}: {_text(v)}" for k, v in self.numbers.items())])

    def _repr_mimebundle_(
        self, **_: object
    ) -> tuple[dict[str, str | bytes], dict[str, dict[str, str]]]:
        """IPython's protocol: the picture, and the numbers as plain text."""
        png = io.BytesIO()
        self.figure.savefig(png, format="png", dpi=_DPI)
        return (
            {"image/png": png.getvalue(), "text/plain": str(self)},
            {"image/png": {"alt": self.title}},
        )


def new_figure(height_in: float, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """Return a figure of a page's width with axes beside each other."""
    figure = Figure(figsize=(_WIDTH_IN, height_in), layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False)
    found = list(axes[0])
    for ax in found:
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=8)
        ax.set_axisbelow(True)
    return figure, found


def put_title(ax: Axes, text: str) -> None:
    """Set a title that starts where the axes do."""
    ax.set_title(text, loc="left", fontsize=9, fontweight="bold")


def put_legend(figure: Figure, columns: int) -> Legend:
    """Place a legend below all axes, where it hides nothing."""
    return figure.legend(
        loc="outside lower center", fontsize=8, frameon=False, ncols=columns, handleheight=1.0
    )


def spread(estimate: Estimate) -> tuple[float, float]:
    """Return how far an interval reaches below and above its value; 0 where there is none."""
    low = estimate.value if estimate.low is None else estimate.low
    high = estimate.value if estimate.high is None else estimate.high
    return estimate.value - low, high - estimate.value


def _text(number: Number) -> str:
    return text_of(number) if isinstance(number, Estimate) else f"{number:.6g}"
