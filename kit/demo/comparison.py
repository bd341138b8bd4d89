"""Two pictures of one request side by side, as HTML: how far apart, how long, how much memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from statistics import median
from typing import Any

from kit.demo.answers import Info, Picture
from kit.demo.cards import PICTURES_PATH, Card, show_card
from kit.demo.chart import draw_steps
from kit.demo.difference import compare

_MIB = 1 << 20


def show_comparison(
    names: Sequence[str],
    pictures: Sequence[Picture],
    cards: Sequence[Card],
    infos: Sequence[Info | None],
    *,
    keep: Callable[[bytes], str],
) -> str:
    """Return the comparison of two pictures; `keep` stores the file of a difference."""
    labels = [f"{name}, server {i + 1}" for i, name in enumerate(names)]
    labels = list(names) if len(set(names)) == len(names) else labels
    figures = "".join(
        f"<div><h4>{escape(label)}</h4>{show_card(card)}</div>"
        for label, card in zip(labels, cards, strict=True)
    )
    steps = {
        label: picture.metrics["step_times_s"]
        for label, picture in zip(labels, pictures, strict=True)
    }
    return (
        f"{_verdict(pictures, infos, keep)}"
        f'<div class="kit-pair">{figures}</div>'
        f"{_table(labels, pictures, infos)}{draw_steps(steps)}"
    )


def _verdict(
    pictures: Sequence[Picture], infos: Sequence[Info | None], keep: Callable[[bytes], str]
) -> str:
    difference = compare(pictures[0].data, pictures[1].data)
    models = {info.fingerprint for info in infos if info is not None}
    other_model = (
        '<p class="kit-note">The servers run different weights.</p>' if len(models) > 1 else ""
    )
    if difference is None:
        kind, text, shown = "different", "The pictures differ in size.", ""
    elif not difference.num_different:
        kind, shown = "identical", ""
        text = f"Identical: all {difference.num_pixels:,} pixels are equal."
    else:
        kind = "different"
        text = (
            f"Different: {difference.num_different:,} of {difference.num_pixels:,} pixels, by at "
            f"most {difference.largest} of 255 levels, {difference.mean:.3f} on average."
        )
        assert difference.shown is not None, "pictures that differ have a difference to show"
        shown = (
            f'<figure class="kit-difference"><img src="{PICTURES_PATH}/{keep(difference.shown)}" '
            'alt="Difference of the two pictures"><figcaption>The difference, its largest level '
            "made white</figcaption></figure>"
        )
    return f'<p class="kit-verdict" data-verdict="{kind}">{text}</p>{other_model}{shown}'


def _table(labels: Sequence[str], pictures: Sequence[Picture], infos: Sequence[Info | None]) -> str:
    rows: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
        ("waited in the queue", lambda m: f"{m['queue_time_s']:.2f} s"),
        ("time, without waiting", lambda m: f"{m['total_time_s'] - m['queue_time_s']:.2f} s"),
        ("first step", lambda m: f"{m['first_step_time_s'] * 1000:.0f} ms"),
        ("later steps, median", lambda m: _later(m["step_times_s"])),
        ("decoding", lambda m: f"{m['decode_time_s'] * 1000:.0f} ms"),
        ("keys and values of this picture", lambda m: f"{m['kv_bytes'] / _MIB:.1f} MiB"),
        ("pages", lambda m: str(m["num_pages"]) if m["num_pages"] else "none"),
        ("peak memory of the server", lambda m: f"{m['peak_memory_bytes'] / _MIB:.0f} MiB"),
    ]
    pools = [
        f"{info.pool_bytes / _MIB:.0f} MiB" if info and info.pool_bytes else "none"
        for info in infos
    ]
    head = "".join(f'<th scope="col">{escape(label)}</th>' for label in labels)
    lines = [(name, [show(picture.metrics) for picture in pictures]) for name, show in rows]
    lines.insert(-1, ("page pool, taken at start", pools))
    body = "".join(
        f'<tr><th scope="row">{name}</th>'
        + "".join(f'<td class="kit-num">{cell}</td>' for cell in cells)
        + "</tr>"
        for name, cells in lines
    )
    return (
        '<table class="kit-table"><caption>Where time and memory went</caption>'
        f"<thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def _later(times: Sequence[float]) -> str:
    return f"{median(times[1:]) * 1000:.0f} ms" if len(times) > 1 else "none"
