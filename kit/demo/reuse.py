"""A finished picture becomes a reference image of the next request."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

from kit.demo.cards import file_name
from kit.demo.form import RequestForm
from kit.demo.shelf import Shelf
from kit.demo.words import show_error

ON_LOAD = """element.addEventListener("click", (event) => {
  const button = event.target.closest("[data-reuse]");
  if (button) trigger("select", { key: button.dataset.reuse, seed: button.dataset.seed });
})"""
"""What a gr.HTML that shows cards does with a click on a card's button."""


def let_reuse(shown: gr.HTML, form: RequestForm, shelf: Shelf) -> None:
    """Let the buttons of the cards in `shown`, made with ON_LOAD, fill the form's field."""

    def reuse(event: gr.EventData, images: Any, most: int) -> dict[Any, Any]:
        slot = form.slots["images"]
        if not most:  # closed since the click: its note says why
            return {slot: ""}
        data = shelf.get(event.key)
        if data is None:
            gone = "Reference images: this page does not keep that picture any more; draw it again."
            return {slot: show_error(gone)}
        kept = [Path(path).resolve() for path, _ in images or ()]
        new = Path(form.keep_image(data, file_name(int(event.seed), event.key))).resolve()
        placed, told = place_image(kept, new, most)
        return {
            form.images: [str(path) for path in placed],
            slot: f'<p class="kit-done" role="status">{escape(told)}</p>',
        }

    shown.select(
        reuse,
        [form.images, form.max_images],
        [form.images, form.slots["images"]],
        show_progress="hidden",
        concurrency_limit=None,
    )


def place_image(images: Sequence[Path], new: Path, most: int) -> tuple[list[Path], str]:
    """Return the images with `new` behind them, in place of the last where there is no room.

    Beside them stands what to say of it.
    """
    if new in images:
        return [*images], f"{new.name} is reference image {images.index(new) + 1} already."
    if len(images) < most:
        return [*images, new], f"{new.name} is reference image {len(images) + 1} now."
    *others, last = images
    taken = "is" if most == 1 else "are"
    return [*others, new], (
        f"{new.name} is reference image {len(images)} now, in place of {last.name}: at most {most} "
        f"{taken} taken."
    )
