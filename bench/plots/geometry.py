"""Why pages have the size that they have: tiles of a kernel, slots that stay empty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
from bench.records import Record
from kit.attention.capabilities import resolve_page_size
from kit.errors import ConfigError
from kit.modelspec.footprint import num_pages


def tiles_in_one_page(page_size: int, tile: int, num_tokens: int) -> list[bool]:
    """Return for each tile of keys whether all of its tokens lie in one page."""
    ends = [min(start + tile, num_tokens) for start in range(0, num_tokens, tile)]
    return [
        start // page_size == (end - 1) // page_size
        for start, end in zip(range(0, num_tokens, tile), ends, strict=True)
    ]


def waste(num_tokens: int, page_size: int) -> float:
    """Return the share of a row's slots that hold no token."""
    slots = num_pages(num_tokens, page_size) * page_size
    return 1 - num_tokens / slots


def recorded_waste(record: Record) -> dict[tuple[int, int], float]:
    """Return (prefix, image tokens) to the waste that cuda_attention recorded."""
    found: dict[tuple[int, int], float] = {}
    for name, value in record.findings.items():
        if name.startswith("page_waste_"):
            prefix, image = name.removeprefix("page_waste_").split("_")
            found[int(prefix), int(image)] = value
    return found


@dataclass(frozen=True)
class Kernel:
    """A kernel that reads pages, on a card that may be elsewhere."""

    name: str
    platform: str
    head_dim: int
    compute_capability: tuple[int, int] | None = None


def readable(kernel: Kernel, page_sizes: Sequence[int]) -> dict[int, str]:
    """Ask the kit for each page size; returns "yes", or what a start would say."""
    found: dict[int, str] = {}
    for size in page_sizes:
        try:
            _page_size(kernel, size)
        except ConfigError as error:
            found[size] = str(error)
        else:
            found[size] = "yes"
    return found


def default_page_size(kernel: Kernel) -> int:
    """Return the page size that a start takes when nobody names one."""
    return _page_size(kernel, None)


def _page_size(kernel: Kernel, requested: int | None) -> int:
    return resolve_page_size(
        "FLASH_ATTN",
        kernel.platform,
        head_dim=kernel.head_dim,
        requested=requested,
        compute_capability=kernel.compute_capability,
        is_planned=True,
    )


def draw_tiles(title: str, page_sizes: Sequence[int], tile: int, num_tokens: int) -> Drawing:
    """Draw a row's keys cut into tiles, once a page size, with the borders of pages."""
    figure, (ax,) = new_figure(0.9 + 0.36 * len(page_sizes))
    numbers: dict[str, Number] = {}
    for at, size in enumerate(page_sizes):
        whole = tiles_in_one_page(size, tile, num_tokens)
        for place, is_whole in enumerate(whole):
            start, end = place * tile, min((place + 1) * tile, num_tokens)
            ax.barh(
                at,
                end - start,
                0.5,
                left=start,
                color=BLUE if is_whole else ORANGE,
                hatch="" if is_whole else "////",
                edgecolor="white",
                linewidth=1,
            )
        borders = range(0, num_pages(num_tokens, size) * size + 1, size)
        ax.vlines(borders, at - 0.38, at + 0.38, color="black", linewidth=0.9 if size > 32 else 0.3)
        numbers[f"pages of {size}, share of tiles in one page"] = sum(whole) / len(whole)
    ax.bar(0, 0, color=BLUE, label=f"tile of {tile} keys inside one page")
    ax.bar(0, 0, color=ORANGE, hatch="////", edgecolor="white", label="tile in several pages")
    ax.plot([], [], color="black", linewidth=0.9, label="page border")
    ax.set_yticks(range(len(page_sizes)), [str(size) for size in page_sizes])
    ax.set_ylim(len(page_sizes) - 0.4, -0.6)
    ax.set_xlim(-2, max(num_pages(num_tokens, size) * size for size in page_sizes) + 2)
    ax.set_ylabel("tokens of a page", fontsize=8)
    ax.set_xlabel("key token of the row", fontsize=8)
    put_title(ax, title)
    put_legend(figure, 3)
    return Drawing(title, figure, numbers)


def draw_waste(
    title: str,
    page_sizes: Sequence[int],
    image_tokens: Mapping[str, int],
    prefixes: Sequence[int],
    marked: int,
) -> Drawing:
    """Draw the share of empty slots by page size: mean over the prefixes, least to most as a band.

    image_tokens: tokens of the target by the size's name. marked: a page size to point at.
    """
    figure, (ax,) = new_figure(3.4)
    numbers: dict[str, Number] = {}
    styles = zip(COLOURS, ("o", "s", "^", "D", "v", "P"), strict=True)
    for (name, image), (colour, marker) in zip(image_tokens.items(), styles, strict=False):
        shares = [[100 * waste(p + image, size) for p in prefixes] for size in page_sizes]
        means = [sum(values) / len(values) for values in shares]
        ax.fill_between(
            page_sizes,
            [min(values) for values in shares],
            [max(values) for values in shares],
            color=colour,
            alpha=0.15,
            linewidth=0,
        )
        ax.plot(page_sizes, means, color=colour, marker=marker, markersize=4, label=name)
        numbers |= {
            f"{name}, pages of {size}, mean %": mean
            for size, mean in zip(page_sizes, means, strict=True)
        }
    ax.axvline(marked, color="black", linewidth=0.8, linestyle="--")
    ax.annotate(
        f"{marked}",
        (marked, 1),
        xycoords=("data", "axes fraction"),
        xytext=(3, -8),
        textcoords="offset points",
        fontsize=8,
    )
    ax.set_xscale("log", base=2)
    ax.set_xticks(list(page_sizes), [str(size) for size in page_sizes], rotation=90, fontsize=7)
    ax.minorticks_off()
    ax.set_ylim(bottom=0)
    ax.set_xlabel(
        f"tokens of a page; prefixes of {min(prefixes)} to {max(prefixes)} tokens", fontsize=8
    )
    ax.set_ylabel("slots without a token / %", fontsize=8)
    ax.grid(color=PALE)
    put_title(ax, title)
    put_legend(figure, len(image_tokens))
    return Drawing(title, figure, numbers)
