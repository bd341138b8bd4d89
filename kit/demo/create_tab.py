"""The tab that draws pictures."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import gradio as gr

from kit.demo.answers import Picture, Preview, Step
from kit.demo.cards import Card, gallery, make_card, show_preview, show_progress
from kit.demo.desk import Desk
from kit.demo.feed import ServerFeed
from kit.demo.form import FieldError, RequestForm, read_fields, read_images
from kit.demo.reuse import ON_LOAD, let_reuse
from kit.demo.words import say_error, show_error
from kit.errors import KitError

_NUM_PREVIEWS = 3
_MAX_CARDS = 24


def at_rest(*needed: ServerFeed) -> tuple[Any, Any, str]:
    """Return what the start button, the cancel button and the progress show between requests.

    An event of its own, after the one that drew: the browser drops clicks while that one ends.
    """
    can_ask = all(feed.answers for feed in needed)
    return gr.update(interactive=can_ask), gr.update(interactive=False), ""


class CreateTab:
    """Builds the tab where it is made.

    `last` holds the last request of this browser page: its body, and the names of its images.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        with gr.Row(elem_classes="kit-columns"):
            with gr.Column(scale=5, min_width=300):
                self.form = RequestForm("create", with_count=True)
                with gr.Row(elem_classes="kit-buttons"):
                    self.start = gr.Button("Create", variant="primary", elem_id="create-button")
                    self._cancel = gr.Button("Cancel", interactive=False, elem_id="cancel-button")
                self._said = gr.HTML(elem_id="create-said", elem_classes="kit-slot kit-live")
            with gr.Column(scale=6, min_width=300):
                self._progress = gr.HTML(elem_id="create-progress", elem_classes="kit-slot")
                self._gallery = gr.HTML(gallery([]), js_on_load=ON_LOAD, elem_id="gallery")
        let_reuse(self._gallery, self.form, desk.shelf)
        self._cards = gr.State([])
        self.last = gr.State(None)
        self.start.click(
            self._create,
            [*self.form.inputs, self._cards],
            [
                *self.form.slots.values(),
                self.form.seed,
                self.start,
                self._cancel,
                self._said,
                self._progress,
                self._gallery,
                self._cards,
                self.last,
            ],
            show_progress="hidden",
            concurrency_limit=None,
        ).then(
            lambda: at_rest(desk.main),
            None,
            [self.start, self._cancel, self._progress],
            show_progress="hidden",
            concurrency_limit=None,
        )
        self._cancel.click(self._stop, show_progress="hidden", concurrency_limit=None)

    async def _create(self, request: gr.Request, *values: Any) -> AsyncIterator[dict[Any, Any]]:
        *fields, cards = values
        try:
            body, images = read_fields(fields), read_images(fields)
        except FieldError as error:
            yield self.form.show_errors(error.field, error.text) | {self._said: ""}
            return
        # The pool is watched from the start on: Pages, opened later, then knows every step.
        self._desk.main.look()
        yield {
            **self.form.show_errors(),
            self._said: "",
            self.start: gr.update(interactive=False),
            self._cancel: gr.update(interactive=True),
            self._progress: show_progress(0, 1, "Waiting"),
        }
        asked = body | {"stream": True, "partial_images": _NUM_PREVIEWS}
        drawing = self._desk.drawings.start(
            str(request.session_hash), self._desk.main.client, asked, images
        )
        names = [image.name for image in images]
        shown, finished = _Shown(body), list[Picture]()
        try:
            async for event in drawing.events():
                self._desk.main.look()
                if isinstance(event, Picture):
                    finished.append(event)
                    cards = [make_card(event, self._desk.shelf.put(event.data), names), *cards]
                    cards = cards[:_MAX_CARDS]
                    yield self._finished(body, names, finished, cards)
                shown.take(event)
                yield {self._progress: shown.html()}
        except KitError as error:
            field, text = say_error(error)
            yield {
                **self.form.show_errors(field, text),
                self._said: "" if field else show_error(text),
            }
        else:
            seconds = max(picture.metrics["total_time_s"] for picture in finished)
            count = "1 picture" if len(finished) == 1 else f"{len(finished)} pictures"
            yield {self._said: f'<p class="kit-done">{count} in {seconds:.1f} s.</p>'}
        finally:
            drawing.cancel()

    def _finished(
        self, body: dict[str, Any], names: list[str], finished: list[Picture], cards: list[Card]
    ) -> dict[Any, Any]:
        first = min(finished, key=lambda picture: picture.image_index)
        return {
            self._gallery: gallery(cards),
            self._cards: cards,
            # One that was given is there already, unless the next one is typed over it.
            self.form.seed: gr.skip() if "seed" in body else str(first.seed),
            self.last: (body | {"seed": first.seed}, names),
        }

    async def _stop(self, request: gr.Request) -> None:
        self._desk.drawings.cancel(str(request.session_hash))


class _Shown:
    """What the page shows of a request on its way."""

    def __init__(self, body: dict[str, Any]) -> None:
        self._num_images = body["n"]
        self._previews: dict[int, bytes] = {}
        self._done: set[int] = set()
        self._step: Step | None = None

    def take(self, event: Step | Preview | Picture) -> None:
        if isinstance(event, Step):
            self._step = event
        elif isinstance(event, Preview):
            self._previews[event.image_index] = event.data
        else:
            self._done.add(event.image_index)

    def html(self) -> str:
        if self._step is None:
            return show_progress(0, 1, "Waiting")
        step = self._step
        done = step.image_index * step.num_steps + step.step
        told = f"Step {step.step} of {step.num_steps}"
        if self._num_images > 1:
            told = f"Picture {step.image_index + 1} of {self._num_images}: {told.lower()}"
        bar = show_progress(done, self._num_images * step.num_steps, told)
        if step.image_index in self._done:
            return bar
        return bar + show_preview(self._previews.get(step.image_index))
