"""The tab that draws one request on two servers and compares."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from typing import Any

import gradio as gr

from kit.demo.answers import Picture, Preview, Step
from kit.demo.cards import make_card, show_preview, show_progress
from kit.demo.comparison import show_comparison
from kit.demo.create_tab import at_rest
from kit.demo.desk import Desk
from kit.demo.drawing import Drawing
from kit.demo.feed import ServerFeed
from kit.demo.form import FieldError, RequestForm, read_fields, read_images
from kit.demo.reuse import ON_LOAD, let_reuse
from kit.demo.words import name_server, say_error, show_error
from kit.errors import KitError

_NUM_PREVIEWS = 3


def page_key(session: str) -> str:
    """Name what this tab draws apart from what Create draws on the same browser page."""
    return f"{session}/compare"


class CompareTab:
    """Builds the tab where it is made; the first server is drawn on last."""

    def __init__(self, desk: Desk, other: ServerFeed) -> None:
        self._desk, self._other = desk, other
        with gr.Row(elem_classes="kit-columns"):
            with gr.Column(scale=5, min_width=300):
                self.form = RequestForm("compare", with_count=False)
                with gr.Row(elem_classes="kit-buttons"):
                    self.start = gr.Button("Compare", variant="primary", elem_id="compare-button")
                    self._cancel = gr.Button(
                        "Cancel", interactive=False, elem_id="compare-cancel-button"
                    )
                self._said = gr.HTML(elem_id="compare-said", elem_classes="kit-slot kit-live")
                gr.HTML(
                    '<p class="kit-note">One after the other, so that neither takes time from the '
                    "other. The first picture after a start is slower.</p>"
                )
            with gr.Column(scale=8, min_width=300):
                self._progress = gr.HTML(elem_id="compare-progress", elem_classes="kit-slot")
                self._result = gr.HTML(
                    '<p class="kit-empty">Both pictures will be here, and how far they are '
                    "apart.</p>",
                    js_on_load=ON_LOAD,
                    elem_id="comparison",
                )
        let_reuse(self._result, self.form, desk.shelf)
        self.start.click(
            self._compare,
            self.form.inputs,
            [
                *self.form.slots.values(),
                self.form.seed,
                self.start,
                self._cancel,
                self._said,
                self._progress,
                self._result,
            ],
            show_progress="hidden",
            concurrency_limit=None,
        ).then(
            lambda: at_rest(other, desk.main),
            None,
            [self.start, self._cancel, self._progress],
            show_progress="hidden",
            concurrency_limit=None,
        )
        self._cancel.click(self._stop, show_progress="hidden", concurrency_limit=None)

    async def _compare(self, request: gr.Request, *values: Any) -> AsyncIterator[dict[Any, Any]]:
        try:
            body, images = read_fields(values), read_images(values)
        except FieldError as error:
            yield self.form.show_errors(error.field, error.text) | {self._said: ""}
            return
        body.setdefault("seed", secrets.randbits(31))
        feeds = [self._other, self._desk.main]
        yield {
            **self.form.show_errors(),
            self.form.seed: str(body["seed"]),
            self._said: "",
            self.start: gr.update(interactive=False),
            self._cancel: gr.update(interactive=True),
            self._progress: show_progress(0, 1, "Waiting"),
        }
        pictures: list[Picture] = []
        try:
            for feed in feeds:
                drawing = self._desk.drawings.start(
                    page_key(str(request.session_hash)),
                    feed.client,
                    body | {"stream": True, "partial_images": _NUM_PREVIEWS},
                    images,
                )
                async for html in _draw(drawing, feed.label, pictures):
                    yield {self._progress: html}
            names = [image.name for image in images]
            kept = [make_card(one, self._desk.shelf.put(one.data), names) for one in pictures]
            shown = show_comparison(
                [feed.label for feed in feeds],
                pictures,
                kept,
                [feed.info for feed in feeds],
                keep=self._desk.shelf.put,
            )
            yield {self._result: shown, self._said: '<p class="kit-done">Compared.</p>'}
        except KitError as error:
            field, text = say_error(error, name_server(feed))
            yield {
                **self.form.show_errors(field, text),
                self._said: "" if field else show_error(text),
            }

    async def _stop(self, request: gr.Request) -> None:
        self._desk.drawings.cancel(page_key(str(request.session_hash)))


async def _draw(drawing: Drawing, mode: str, pictures: list[Picture]) -> AsyncIterator[str]:
    """Yield the progress as HTML; the picture is added to `pictures`."""
    preview: bytes | None = None
    bar = show_progress(0, 1, f"{mode}: waiting")
    async for event in drawing.events():
        if isinstance(event, Step):
            told = f"{mode}: step {event.step} of {event.num_steps}"
            bar = show_progress(event.step, event.num_steps, told)
        elif isinstance(event, Preview):
            preview = event.data
        else:
            pictures.append(event)
        yield bar + show_preview(preview)
