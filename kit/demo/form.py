"""The fields of a request, each with a place for what is wrong with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

from kit.demo.answers import Info
from kit.demo.words import show_error

EXAMPLES = (
    "A red ceramic vase on a wooden table",
    "a yellow moon at night",
    "two orange fish in the sea",
    "a blue cup to the left of a green apple",
)
"""What hunyuan_image3_tiny was trained for."""

_AUTO = "auto"
_IMAGES = 6
"""Place of the reference images among a form's inputs."""

_MAX_COUNT = 4
"""More pictures at once than a page shows well; the server may allow more."""


class FieldError(Exception):
    """What a field holds cannot be sent."""

    def __init__(self, field: str, text: str) -> None:
        self.field, self.text = field, text
        super().__init__(text)


class RequestForm:
    """Builds its fields where it is made; `slots` are the places for errors, by field."""

    def __init__(self, name: str, *, with_count: bool) -> None:
        self.slots: dict[str, gr.HTML] = {}
        self.prompt = gr.Textbox(
            label="Prompt",
            lines=3,
            max_lines=8,
            value=EXAMPLES[0],
            elem_id=f"{name}-prompt",
        )
        self._slot(name, "prompt")
        with gr.Row(elem_classes="kit-examples") as self.examples:
            buttons = [gr.Button(text, size="sm", variant="secondary") for text in EXAMPLES]
        for button, text in zip(buttons, EXAMPLES, strict=True):
            button.click(lambda text=text: text, None, self.prompt, show_progress="hidden")
        with gr.Row(elem_classes="kit-fields"):
            with gr.Column(min_width=130, scale=2):
                # What a server's defaults fill takes no input before, which they would overwrite.
                self.size = gr.Dropdown(
                    [("default", _AUTO)],
                    value=_AUTO,
                    label="Size",
                    interactive=False,
                    elem_id=f"{name}-size",
                )
                self._slot(name, "size")
            with gr.Column(min_width=90):
                self.steps = _number_field(name, "Steps")
                self._slot(name, "steps")
            with gr.Column(min_width=90):
                self.guidance = _number_field(name, "Guidance")
                self._slot(name, "guidance")
        with gr.Row(elem_classes="kit-fields"):
            with gr.Column(min_width=130, scale=2):
                # Text: a browser's numbers lose the last digits of large seeds.
                self.seed = gr.Textbox(
                    label="Seed", value="7", interactive=not with_count, elem_id=f"{name}-seed"
                )
                self.new_seed = gr.Checkbox(
                    label="New seed each time",
                    value=with_count,
                    elem_id=f"{name}-new-seed",
                    elem_classes="kit-new-seed",
                )
                self.new_seed.change(
                    lambda drawn: gr.Textbox(interactive=not drawn),
                    self.new_seed,
                    self.seed,
                    show_progress="hidden",
                    concurrency_limit=None,
                )
                self._slot(name, "seed")
            if with_count:
                with gr.Column(min_width=180, scale=2):
                    self.count = gr.Slider(
                        1, _MAX_COUNT, value=1, step=1, label="Pictures", elem_id=f"{name}-count"
                    )
                    self._slot(name, "count")
        self.images = gr.Gallery(
            label="Reference images",
            columns=3,
            fit_columns=False,
            object_fit="contain",
            allow_preview=False,
            buttons=[],
            file_types=["image"],
            sources=["upload"],
            interactive=False,
            elem_id=f"{name}-images",
            elem_classes="kit-images",
        )
        self._slot(name, "images")
        self._images_note = gr.HTML(elem_id=f"{name}-images-note", elem_classes="kit-slot")
        self.inputs = [
            self.prompt,
            self.size,
            self.steps,
            self.guidance,
            self.seed,
            self.new_seed,
            self.images,
            *([self.count] if with_count else []),
        ]

    def show_errors(self, field: str | None = None, text: str = "") -> dict[Any, Any]:
        """Return updates that put a text beside its field and clear the other places."""
        return {
            slot: show_error(text if name == field else "") for name, slot in self.slots.items()
        }

    def offer(self, info: Info, before: Info | None, values: Sequence[Any]) -> dict[Any, Any]:
        """Return updates that offer what a server can do.

        `values` are those of `offered` now; `before` is what was offered last, None for nothing.
        """
        default = f"{info.defaults['width']} × {info.defaults['height']} (default)"
        choices = [(default, _AUTO)]
        choices += [(f"{size.width} × {size.height}", size.name) for size in info.sizes]
        shown = fill(info, before, values)
        return {
            self.size: gr.update(choices=choices, value=shown[0], interactive=True),
            self.steps: gr.update(value=shown[1], interactive=True),
            self.guidance: gr.update(value=shown[2], interactive=True),
            self.examples: gr.update(visible=info.shipped),
            **self._offer_images(info),
        }

    @property
    def offered(self) -> list[Any]:
        """The fields that `offer` fills."""
        return [self.size, self.steps, self.guidance]

    @property
    def shown(self) -> list[Any]:
        """What else `offer` updates."""
        return [self.examples, self.images, self._images_note]

    def _offer_images(self, info: Info) -> dict[Any, Any]:
        """Open the field, or close it with the reason; images that cannot be sent leave it."""
        field, refusal = gr.update(interactive=True), info.reference_refusal
        note = (
            f"At most {info.limits['reference_images']}, in the order in which the prompt speaks "
            f"of them. The default size is that of the first."
        )
        if refusal is not None:
            field = gr.update(interactive=False, value=None)
            note = f"This checkpoint takes no reference images: {refusal}."
        return {self.images: field, self._images_note: f'<p class="kit-note">{escape(note)}</p>'}

    def _slot(self, name: str, field: str) -> None:
        self.slots[field] = gr.HTML(elem_id=f"{name}-{field}-error", elem_classes="kit-slot")


def fill(info: Info, before: Info | None, values: Sequence[str]) -> tuple[str, str, str]:
    """Return size, steps and guidance: defaults where `values` are still those of `before`."""
    size, steps, guidance = values
    sizes = {size.name for size in info.sizes}
    old, new = _defaults(before), _defaults(info)
    return (
        size if size in sizes else _AUTO,
        new[0] if steps == old[0] else steps,
        new[1] if guidance == old[1] else guidance,
    )


def read_fields(values: Sequence[Any]) -> dict[str, Any]:
    """Return the body of a request from the values of a form's inputs; raises FieldError.

    What is blank is left out, what is out of range is not looked at: both are the server's to say.
    """
    prompt, size, steps, guidance, seed, new_seed, _, *count = values
    if not prompt.strip():
        raise FieldError("prompt", "Prompt: say what the picture should show.")
    body = {"prompt": prompt, "size": size, "n": int(count[0]) if count else 1}
    if steps.strip():
        body["num_inference_steps"] = _number("steps", "Steps", steps)
    if guidance.strip():
        body["guidance_scale"] = _number("guidance", "Guidance", guidance)
    if not new_seed:
        body["seed"] = _seed(seed)
    return body


def read_images(values: Sequence[Any]) -> tuple[Path, ...]:
    """Return the files of the reference images of a form's inputs; raises FieldError."""
    images = tuple(Path(path) for path, _ in values[_IMAGES] or ())
    for image in images:
        if not image.is_file():
            raise FieldError(
                "images", f"Reference images: this page has {image.name} no more; choose it again."
            )
    return images


def _defaults(info: Info | None) -> tuple[str, str]:
    """Steps and guidance as the fields show them; blank before a server said them."""
    if info is None:
        return "", ""
    return str(info.defaults["num_inference_steps"]), f"{info.defaults['guidance_scale']:g}"


def _number(field: str, label: str, text: str) -> float | int:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise FieldError(
            field, f"{label}: {text.strip()!r:.40} is no number; give one, or none for the default."
        )
    return int(number) if number.is_integer() else number


def _seed(text: str) -> int:
    try:
        return int(text.strip())
    except ValueError:
        raise FieldError(
            "seed", f"Seed: {text.strip()!r:.40} is no whole number; give one, or let it be drawn."
        ) from None


def _number_field(name: str, label: str) -> gr.Textbox:
    # Text: an empty number would be sent as 0, an empty text is left out.
    return gr.Textbox(
        label=label,
        max_lines=1,
        placeholder="default",
        interactive=False,
        elem_id=f"{name}-{label.lower()}",
    )
