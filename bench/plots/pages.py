"""Drawings of the page pool and of page tables, from what an engine tells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from matplotlib.patches import Rectangle

from bench.plots.drawing import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PALE,
    Drawing,
    Number,
    new_figure,
    put_legend,
    put_title,
)
from kit.engine.kv_view import KVView, RequestView

_FACES: Final[Mapping[str, tuple[str, str]]] = {
    "free": (PALE, ""),
    "prefix": (ORANGE, "////"),
    "target": (BLUE, ""),
    "shared": (GREEN, "...."),
}
_COLUMNS = 16


def draw_pool(title: str, view: KVView) -> Drawing:
    """Draw a square a page: what lies in it by colour, whose it is by a letter and its row.

    For pools of some hundred pages.
    """
    num_rows = -(-view.pages.total // _COLUMNS)
    figure, (ax,) = new_figure(0.8 + 0.36 * num_rows)
    held: dict[int, tuple[str, str]] = {}
    for letter, request in zip("ABCDEFGH", view.requests, strict=False):
        for row, table in enumerate(request.rows):
            held |= {page.page: (page.kind, f"{letter}{row + 1}") for page in table}
    for page in range(view.pages.total):
        kind, owner = held.get(page, ("free", ""))
        colour, hatch = _FACES[kind]
        x, y = page % _COLUMNS, page // _COLUMNS
        ax.add_patch(
            Rectangle((x, y), 0.92, 0.92, facecolor=colour, hatch=hatch, edgecolor="white")
        )
        ax.text(
            x + 0.46,
            y + 0.46,
            owner,
            ha="center",
            va="center",
            fontsize=7,
            bbox={"facecolor": "white", "pad": 0.8, "linewidth": 0} if owner else None,
        )
    kinds = [kind for kind, _ in held.values()]
    numbers: dict[str, Number] = {
        "free": float(view.pages.total - len(held)),
        **{kind: float(kinds.count(kind)) for kind in _FACES if kind in kinds},
    }
    for kind, count in numbers.items():
        colour, hatch = _FACES[kind]
        label = f"{count:.0f} {kind}"
        patch = Rectangle((0, 0), 0, 0, facecolor=colour, hatch=hatch, edgecolor="white")
        ax.add_patch(patch)
        patch.set_label(label)
    ax.set_xlim(0, _COLUMNS)
    ax.set_ylim(num_rows, 0)
    ax.set_axis_off()
    put_title(ax, title)
    put_legend(figure, 4)
    return Drawing(title, figure, numbers)


def draw_rows(title: str, request: RequestView, page_size: int) -> Drawing:
    """Draw the rows of a request to scale: slots, page borders, page ids.

    [0, P) prefix | [P, P + T) target | the rest of the last page: tail
    """
    figure, (ax,) = new_figure(0.9 + 0.5 * len(request.rows))
    prefix, target = request.prefix_tokens, request.target_tokens
    slots = len(request.rows[0]) * page_size
    parts = (
        (0, prefix, ORANGE, "////", f"prefix, {prefix} tokens"),
        (prefix, target, BLUE, "", f"target, {target} tokens"),
        (prefix + target, slots - prefix - target, PALE, "", "tail, zeroed"),
    )
    for at, table in enumerate(request.rows):
        for start, width, colour, hatch, label in parts:
            ax.barh(
                at,
                width,
                0.7,
                left=start,
                color=colour,
                hatch=hatch,
                edgecolor="white",
                linewidth=0,
                label=label if at == 0 else None,
            )
        for place, page in enumerate(table):
            left = place * page_size
            ax.add_patch(Rectangle((left, at - 0.35), page_size, 0.7, fill=False, linewidth=0.6))
            ax.text(
                left + page_size / 2,
                at,
                str(page.page),
                ha="center",
                va="center",
                fontsize=6,
                bbox={"facecolor": "white", "pad": 0.6, "linewidth": 0},
            )
    ax.set_yticks(range(len(request.rows)), _row_names(len(request.rows)))
    ax.set_xlim(0, slots)
    ax.set_ylim(len(request.rows) - 0.5, -0.5)
    ax.set_xlabel(f"slot in token order; numbers are page ids, {page_size} slots each", fontsize=8)
    ax.spines["left"].set_color(GREY)
    put_title(ax, title)
    put_legend(figure, 3)
    numbers: dict[str, Number] = {
        "prefix tokens": float(prefix),
        "target tokens": float(target),
        "tail slots": float(slots - prefix - target),
        "pages": float(sum(len(table) for table in request.rows)),
    }
    return Drawing(title, figure, numbers)


def _row_names(num_rows: int) -> list[str]:
    return ["with prompt", "without"][:num_rows]
