"""The fields of a request, each with a place for what is wrong with it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.processing_utils import save_bytes_to_cache

from kit.demo.answers import Info
from kit.demo.examples import EDIT_PROMPT, PROMPTS, SOURCE_NAME, draw_source
from kit.demo.words import show_error
from kit.numerals import read_number

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
            value=PROMPTS[0],
            elem_id=f"{name}-prompt",
        )
        self._slot(name, "prompt")
        with gr.Row(elem_classes="kit-examples") as self.examples:
            prompts = {text: gr.Button(text, size="sm", variant="secondary") for text in PROMPTS}
            self._edit_example = gr.Button(
                f"Edit: {EDIT_PROMPT}",
                size="sm",
                variant="secondary",
                visible=False,
                elem_id=f"{name}-edit-example",
            )
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
        row = gr.Row(elem_classes="kit-fields", elem_id=f"{name}-with-images", visible=False)
        with row as self._with_images, gr.Column(min_width=130):
            self.reference_seed = _number_field(name, "Reference seed", interactive=True)
            self._slot(name, "reference-seed")
        self.max_images = gr.State(0)
        for text, button in prompts.items():
            self._fill_on_click(button, text)
        self._fill_on_click(self._edit_example, EDIT_PROMPT, with_source=True)
        self.inputs = [
            self.prompt,
            self.size,
            self.steps,
            self.guidance,
            self.seed,
            self.new_seed,
            self.images,
            self.reference_seed,
            *([self.count] if with_count else []),
        ]

    def show_errors(self, field: str | None = None, text: str = "") -> dict[Any, Any]:
        """Return updates that put a text beside its field and clear the other places."""
        return {
            slot: show_error(text if name == field else "") for name, slot in self.slots.items()
        }

    def offer(
        self, infos: Mapping[str, Info], before: Mapping[str, Info], values: Sequence[Any]
    ) -> dict[Any, Any]:
        """Return updates that offer what servers can do: defaults and sizes of the first, reference
        images where all take them.

        `infos` are by the server's name. `values` are those of `offered` now; `before` is what was
        offered last, empty for nothing.
        """
        info = next(iter(infos.values()))
        default = f"{info.defaults['width']} × {info.defaults['height']} (default)"
        choices = [(default, _AUTO)]
        choices += [(f"{size.width} × {size.height}", size.name) for size in info.sizes]
        shown = fill(info, next(iter(before.values()), None), values)
        return {
            self.size: gr.update(choices=choices, value=shown[0], interactive=True),
            self.steps: gr.update(value=shown[1], interactive=True),
            self.guidance: gr.update(value=shown[2], interactive=True),
            self.examples: gr.update(visible=info.shipped),
            **self._offer_images(infos),
        }

    @property
    def offered(self) -> list[Any]:
        """The fields that `offer` fills."""
        return [self.size, self.steps, self.guidance]

    @property
    def shown(self) -> list[Any]:
        """What else `offer` updates."""
        return [
            self.examples,
            self._edit_example,
            self.images,
            self._images_note,
            self._with_images,
            self.reference_seed,
            self.max_images,
        ]

    def keep_image(self, data: bytes, name: str) -> str:
        """Write a file among those of the field's images, which go with the page; return where."""
        path: str = save_bytes_to_cache(data, name, self.images.GRADIO_CACHE)
        return path

    def _offer_images(self, infos: Mapping[str, Info]) -> dict[Any, Any]:
        """Open the fields, or close them with the reason; what cannot be sent leaves them."""
        refusal = say_no_references(infos)
        if refusal is not None:
            return {
                self.images: gr.update(interactive=False, value=None),
                self._images_note: _note(refusal),
                self._with_images: gr.update(visible=False),
                self._edit_example: gr.update(visible=False),
                self.reference_seed: gr.update(value=""),
                self.max_images: 0,
            }
        most = min(info.limits["reference_images"] for info in infos.values())
        many = f"At most {most}, in the order in which the prompt speaks of them. "
        return {
            self.images: gr.update(interactive=True),
            self._images_note: _note(
                f"{'At most 1. ' if most == 1 else many}The default size is that of the first, "
                f"the default reference seed the seed of the first picture."
            ),
            self._with_images: gr.update(visible=True),
            self._edit_example: gr.update(visible=True),
            self.max_images: most,
        }

    def _fill_on_click(self, button: gr.Button, prompt: str, *, with_source: bool = False) -> None:
        """Let a button fill in an example: a prompt, and the image that it speaks of or none."""

        def example() -> tuple[str, list[str] | None, str]:
            images = [self.keep_image(draw_source(), SOURCE_NAME)] if with_source else None
            return prompt, images, ""

        filled = [self.prompt, self.images, self.slots["images"]]
        button.click(example, None, filled, show_progress="hidden", concurrency_limit=None)

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


def say_no_references(infos: Mapping[str, Info]) -> str | None:
    """Say why reference images cannot go to all of these servers; None where they can."""
    refused = {
        name: info.reference_refusal
        for name, info in infos.items()
        if info.reference_refusal is not None
    }
    if not refused:
        return None
    if len(refused) == len(infos) and len(set(refused.values())) == 1:
        return f"This checkpoint takes no reference images: {next(iter(refused.values()))}."
    told = [
        f"The checkpoint of the {name} takes no reference images: {reason}."
        for name, reason in refused.items()
    ]
    return " ".join([*told, "Both servers get the same request, so none can be added here."])


def read_fields(values: Sequence[Any]) -> dict[str, Any]:
    """Return the body of a request from the values of a form's inputs; raises FieldError.

    What is blank is left out, what is out of range is not looked at: both are the server's to say.
    """
    prompt, size, steps, guidance, seed, new_seed, _, reference_seed, *count = values
    if not prompt.strip():
        raise FieldError("prompt", "Prompt: say what the picture should show.")
    body = {"prompt": prompt, "size": size, "n": int(count[0]) if count else 1}
    if steps.strip():
        body["num_inference_steps"] = _number("steps", "Steps", steps)
    if guidance.strip():
        body["guidance_scale"] = _number("guidance", "Guidance", guidance)
    if not new_seed:
        body["seed"] = _integer("seed", "Seed", seed, "let it be drawn")
    if reference_seed.strip():
        body["reference_seed"] = _integer(
            "reference-seed", "Reference seed", reference_seed, "none for the default"
        )
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


def _note(text: str) -> str:
    return f'<p class="kit-note">{escape(text)}</p>'


def _defaults(info: Info | None) -> tuple[str, str]:
    """Steps and guidance as the fields show them; blank before a server said them."""
    if info is None:
        return "", ""
    return str(info.defaults["num_inference_steps"]), f"{info.defaults['guidance_scale']:g}"


def _number(field: str, label: str, text: str) -> float | int:
    number = read_number(text.strip())
    if number is None or not abs(number) < math.inf:
        raise FieldError(
            field,
            f"{label}: {text.strip()!r:.40} is no number such as 7 or 2.5; give one, or none for "
            f"the default.",
        )
    return number


def _integer(field: str, label: str, text: str, otherwise: str) -> int:
    number = read_number(text.strip())
    if not isinstance(number, int):
        raise FieldError(
            field,
            f"{label}: {text.strip()!r:.40} is no whole number such as 7; give one, or "
            f"{otherwise}.",
        )
    return number


def _number_field(name: str, label: str, *, interactive: bool = False) -> gr.Textbox:
    # Text: an empty number would be sent as 0, an empty text is left out.
    return gr.Textbox(
        label=label,
        value="",  # a field that was never shown would send None
        max_lines=1,
        placeholder="default",
        interactive=interactive,
        elem_id=f"{name}-{label.lower().replace(' ', '-')}",
    )
