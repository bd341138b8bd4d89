"""The tab that shows the page pool of the first server as it changes."""

from __future__ import annotations

from typing import Any

import gradio as gr

from kit.demo.desk import Desk
from kit.demo.feed import ServerFeed
from kit.demo.page_map import draw_map, legend, say_pool
from kit.demo.pool_text import fits, holders

INTERVAL_S = 0.4


class PagesTab:
    """Builds the tab where it is made; its timer runs while the tab is open."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        with gr.Row(elem_classes="kit-columns"):
            with gr.Column(scale=6, min_width=300):
                self._map = gr.HTML(elem_id="page-map")
            with gr.Column(scale=7, min_width=300):
                self._holders = gr.HTML(elem_id="holders")
                self._fits = gr.HTML(elem_id="fits")
        self.timer = gr.Timer(INTERVAL_S, active=False)
        shown = gr.State("")
        outputs = [self._map, self._holders, self._fits, shown]
        self.timer.tick(self._tick, shown, outputs, show_progress="hidden", concurrency_limit=None)

    def _tick(self, shown: str) -> Any:
        feed = self._desk.main
        pool, info = feed.look(), feed.info
        now = f"{feed.state.kind in ('down', 'refused')} {info is not None} "
        now += "none" if pool is None else str(pool.version)
        if now == shown:
            return [gr.skip()] * 4
        if pool is None:
            return [_absent(feed), "", "", now]
        if pool.page_size is None:
            return [
                '<p class="kit-empty">This server keeps contiguous tensors (dense_legacy): it has '
                "no pages to show.</p>",
                "",
                "",
                now,
            ]
        drawn = (
            f"<h3>The pool</h3><p>{say_pool(pool)}.</p>{draw_map(pool)}{legend(pool)}"
            f'<p class="kit-note">A page is {pool.page_size} tokens of all layers, '
            f"{pool.page_bytes / 1024:.0f} KiB. Pale: booked by a request that waits.</p>"
        )
        last = feed.last_holder
        fit = ""
        if info is not None:
            rows = (1 if info.cfg_distilled else 2) if last is None else len(last.rows)
            fit = fits(
                info, pool, prefix_tokens=last.prefix_tokens if last else None, num_rows=rows
            )
        return [drawn, f"<h3>Requests</h3>{holders(pool, feed.written)}", fit, now]


def _absent(feed: ServerFeed) -> str:
    if feed.state.kind in ("down", "refused"):
        return '<p class="kit-empty">The server shows no pages now; see its state above.</p>'
    return '<p class="kit-empty">Asking for the pages.</p>'
