"""Who holds pages, as HTML: rows with their page tables, tokens written, what still fits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape

from kit.demo.answers import Holder, Info, Pool, Size
from kit.demo.page_map import draw_row

_ROW_NAMES = ("conditional", "unconditional")
_BAR_PITCH, _BAR_HEIGHT = 6, 24
TYPICAL_PREFIX_TOKENS = 16
"""Of a short prompt; taken until a request has shown its own."""


def holders(pool: Pool, written: Mapping[str, Mapping[int, int]]) -> str:
    """Return every request that holds pages; `written`: tokens by request and step."""
    if not pool.holders:
        return '<p class="kit-empty">No request holds pages now. Create a picture to see them.</p>'
    return "".join(
        _holder(holder, pool, written.get(holder.request_id, {})) for holder in pool.holders
    )


def pages_per_image(size: Size, *, prefix_tokens: int, num_rows: int, page_size: int) -> int:
    """Return how many pages a picture takes: every row is padded to whole pages."""
    return num_rows * math.ceil((prefix_tokens + size.target_tokens) / page_size)


def fits(info: Info, pool: Pool, *, prefix_tokens: int | None, num_rows: int) -> str:
    """Return how many more pictures of each size the free pages hold."""
    assert pool.page_size is not None, "only a paged pool can fit anything"
    prefix = TYPICAL_PREFIX_TOKENS if prefix_tokens is None else prefix_tokens
    groups: dict[int, list[Size]] = {}
    for size in info.sizes:
        need = pages_per_image(
            size, prefix_tokens=prefix, num_rows=num_rows, page_size=pool.page_size
        )
        groups.setdefault(need, []).append(size)
    rows = "".join(
        f'<tr><td class="kit-num" data-need="{need}">{pool.free // need}</td>'
        f'<td class="kit-num">{need}</td><td>{_names(sizes)}</td></tr>'
        for need, sizes in sorted(groups.items())
    )
    rows_word = "two rows, as with guidance" if num_rows == 2 else "one row"
    whose = "of a short prompt" if prefix_tokens is None else "as in the last request"
    return (
        '<table class="kit-table"><caption>More pictures that fit into the free pages</caption>'
        '<thead><tr><th scope="col">fit now</th><th scope="col">pages each</th>'
        f'<th scope="col">size</th></tr></thead><tbody>{rows}</tbody></table>'
        f'<p class="kit-note">For {prefix} prefix tokens ({whose}) and {rows_word}.</p>'
    )


def _holder(holder: Holder, pool: Pool, written: Mapping[int, int]) -> str:
    assert pool.page_size is not None, "only a paged pool lists requests"
    state = "running" if holder.is_running else "waits, its pages are booked"
    found = f"; {holder.cached_tokens} tokens of each row found" if holder.cached_tokens else ""
    rows = "".join(_row(number, holder, pool.page_size) for number in range(len(holder.rows)))
    return (
        f'<article class="kit-holder"><h4>{escape(holder.request_id)}</h4>'
        f"<p>{state}; step {holder.step} of {holder.num_steps}; {holder.num_pages} pages{found}</p>"
        f"{rows}{_written(holder, written)}</article>"
    )


def _row(number: int, holder: Holder, page_size: int) -> str:
    table = holder.rows[number]
    name = _ROW_NAMES[number] if len(holder.rows) == 2 else "only row"
    pages = ", ".join(str(page.number) for page in table)
    return (
        f'<div class="kit-row-line"><span>Row {number + 1}, {name}</span>'
        f"{draw_row(table, holder, page_size)}</div>"
        f'<p class="kit-table-of-pages"><span>page table</span> {pages}</p>'
    )


def _written(holder: Holder, written: Mapping[int, int]) -> str:
    if not written:
        return "<p>Nothing written yet.</p>"
    most, target = max(written.values()), len(holder.rows) * holder.target_tokens
    bars = "".join(_bar(step, written[step], target, most) for step in sorted(written))
    last = max(written)
    told = f"Step {last} wrote {written[last]} tokens, all rows together"
    if 1 in written:
        told += (
            f"; step 1 also wrote the prefix, {written[1] - target} tokens, which is written once"
        )
    width = holder.num_steps * _BAR_PITCH
    return (
        f"<p>{told}.</p>"
        f'<svg class="kit-bars" viewBox="0 0 {width} {_BAR_HEIGHT}" preserveAspectRatio="none" '
        f'role="img" aria-label="Tokens written in each step">{bars}</svg>'
        f'<div class="kit-bars-ends" aria-hidden="true"><span>step 1</span>'
        f"<span>step {holder.num_steps}</span></div>"
    )


def _bar(step: int, tokens: int, target: int, most: int) -> str:
    """One step's tokens: the target below, what else was written on top of it."""
    parts, top = [], float(_BAR_HEIGHT)
    for kind, part in (("target", min(tokens, target)), ("prefix", max(0, tokens - target))):
        height = _BAR_HEIGHT * part / most
        top -= height
        if part:
            parts.append(
                f'<rect class="kit-bar-{kind}" x="{(step - 1) * _BAR_PITCH}" y="{top:.2f}" '
                f'width="{_BAR_PITCH - 1}" height="{height:.2f}"/>'
            )
    return f"<g><title>step {step}: {tokens} tokens</title>{''.join(parts)}</g>"


def _names(sizes: list[Size]) -> str:
    return ", ".join(
        f'<span class="kit-size">{size.width}\u2009×\u2009{size.height}</span>' for size in sizes
    )
