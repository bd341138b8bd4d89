"""Draws the page pool as SVG: one square a page, what lies in it told by pattern and colour."""

from __future__ import annotations

import math
from collections import Counter
from html import escape

from kit.demo.answers import KINDS, Holder, Page, Pool

NUM_COLUMNS = 32
MAX_SQUARES = 2048
"""Above that one square stands for several pages."""

_SIDE, _GAP = 10, 2
_PITCH = _SIDE + _GAP


def count_kinds(pool: Pool) -> Counter[str]:
    """Return how many pages are free, and how many hold what."""
    kinds = Counter(kind for kind, _, _ in _held(pool).values())
    kinds["free"] = pool.free
    return kinds


def say_pool(pool: Pool) -> str:
    """Return the pool in one sentence."""
    kinds = count_kinds(pool)
    held = ", ".join(f"{kinds[kind]} {kind}" for kind in KINDS)
    cached = f", {pool.cached} of them cached" if pool.cached else ""
    return (
        f"{pool.used} of {pool.total} pages in use: {held}; {pool.free} free{cached}, "
        f"peak {pool.peak}"
    )


def draw_map(pool: Pool) -> str:
    """Return the pool as an SVG whose squares name their page and kind in data attributes."""
    held = _held(pool)
    per_square = math.ceil(pool.total / MAX_SQUARES)
    num_squares = math.ceil(pool.total / max(1, per_square))
    num_rows = math.ceil(num_squares / NUM_COLUMNS)
    squares = []
    for square in range(num_squares):
        pages = range(square * per_square, min((square + 1) * per_square, pool.total))
        squares.append(_square(square, pages, held))
    width, height = NUM_COLUMNS * _PITCH - _GAP, max(1, num_rows) * _PITCH - _GAP
    scale = f"<p class='kit-note'>One square is {per_square} pages.</p>" if per_square > 1 else ""
    return (
        f'<svg class="kit-map" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(say_pool(pool))}" data-version="{pool.version}">'
        f"{PATTERNS}{''.join(squares)}</svg>{scale}"
    )


def _held(pool: Pool) -> dict[int, tuple[str, Holder, int]]:
    """(kind, holder, row) of each page that is in use."""
    return {
        page.number: (page.kind, holder, row)
        for holder in pool.holders
        for row, table in enumerate(holder.rows)
        for page in table
    }


def _square(square: int, pages: range, held: dict[int, tuple[str, Holder, int]]) -> str:
    found = [held[page] for page in pages if page in held]
    kind = Counter(kind for kind, _, _ in found).most_common(1)[0][0] if found else "free"
    x, y = square % NUM_COLUMNS * _PITCH, square // NUM_COLUMNS * _PITCH
    waits = " kit-waits" if found and not any(holder.is_running for _, holder, _ in found) else ""
    name = f"page {pages[0]}" if len(pages) == 1 else f"pages {pages[0]} to {pages[-1]}"
    told = f"{name}: {kind}"
    if found:
        _, holder, row = found[0]
        told += f", row {row + 1} of {holder.request_id}"
    return (
        f'<rect class="kit-{kind}{waits}" data-page="{pages[0]}" data-kind="{kind}" '
        f'x="{x}" y="{y}" width="{_SIDE}" height="{_SIDE}" rx="2">'
        f"<title>{escape(told)}</title></rect>"
    )


def legend(pool: Pool) -> str:
    """Return the kinds with their pattern, word and number of pages."""
    kinds = count_kinds(pool)
    meaning = {
        "free": "in no request",
        "prefix": "prompt only: written by the first step, then read",
        "target": "picture tokens: written anew by every step",
        "shared": "prefix of several rows or requests",
    }
    items = "".join(
        f'<li><svg viewBox="0 0 10 10" aria-hidden="true"><rect class="kit-{kind}" width="10" '
        f'height="10" rx="2"/></svg><b>{kinds[kind]}</b> {kind} <span>{meaning[kind]}</span></li>'
        for kind in ("free", *KINDS)
    )
    return f'<ul class="kit-legend">{items}</ul>'


def draw_row(table: tuple[Page, ...], holder: Holder, page_size: int) -> str:
    """Return one row's pages in token order, each slot to scale.

    [0, P) prefix | [P, P + T) target | the rest of the last page: tail
    """
    num_slots = len(table) * page_size
    prefix, end = holder.prefix_tokens, holder.prefix_tokens + holder.target_tokens
    bars = "".join(
        f'<rect class="kit-{kind}" x="{start}" width="{stop - start}" height="12"/>'
        for kind, start, stop in (("prefix", 0, prefix), ("target", prefix, end))
    )
    borders = "".join(
        f'<line x1="{slot}" x2="{slot}" y1="0" y2="12"/>'
        for slot in range(page_size, num_slots, page_size)
    )
    told = (
        f"{len(table)} pages: {prefix} prefix tokens, {holder.target_tokens} target tokens, "
        f"{num_slots - end} unused slots"
    )
    return (
        f'<svg class="kit-row" viewBox="0 0 {num_slots} 12" preserveAspectRatio="none" role="img" '
        f'aria-label="{told}">{bars}{borders}</svg>'
    )


PATTERNS = (
    '<defs><pattern id="kit-hatch" width="4" height="4" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><rect class="kit-hatch-ground" width="4" height="4"/>'
    '<rect class="kit-hatch-line" width="1.4" height="4"/></pattern>'
    '<pattern id="kit-dots" width="5" height="5" patternUnits="userSpaceOnUse">'
    '<rect class="kit-dots-ground" width="5" height="5"/>'
    '<circle class="kit-dots-dot" cx="2.5" cy="2.5" r="1.2"/></pattern></defs>'
)
"""Fills that tell target and shared pages apart without colour; once on the page is enough."""
