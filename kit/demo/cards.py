"""Pictures as HTML: the file itself, how it was made, and ways to keep it."""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from kit.checkpoint.shipped import DEFAULT_FINGERPRINT
from kit.demo.answers import Picture

PICTURES_PATH = "pictures"
"""Relative: the page may be shown below another path."""


@dataclass(frozen=True)
class Card:
    """A finished picture as the gallery keeps it; its file lies on the shelf under `key`."""

    key: str
    prompt: str
    seed: int
    size: str
    reference_seed: int | None
    """None without reference images."""

    num_steps: int
    guidance: float
    total_time_s: float
    replay: dict[str, Any]
    warnings: tuple[str, ...]
    images: tuple[str, ...]
    """Names of the reference images' files."""


def make_card(picture: Picture, key: str, images: Sequence[str] = ()) -> Card:
    """Keep what the gallery says of a picture."""
    return Card(
        key=key,
        prompt=picture.prompt,
        seed=picture.seed,
        size=picture.size,
        reference_seed=picture.sampling["reference_seed"],
        num_steps=picture.sampling["num_inference_steps"],
        guidance=picture.sampling["guidance_scale"],
        total_time_s=picture.metrics["total_time_s"],
        replay=picture.replay,
        warnings=picture.warnings,
        images=tuple(images),
    )


def file_name(seed: int, key: str) -> str:
    """Name a picture's file; an edit may have the seed of the picture that it is made from."""
    return f"kit-seed-{seed}-{key[:8]}.png"


def replay_command(card: Card) -> str:
    """Return what makes the picture again: on as many threads, for sums depend on their number.

    Only its user knows where another checkpoint than the shipped one lies.
    """
    num_threads = card.replay["record"]["platform"]["num_threads"]
    model = "" if _is_of_shipped(card) else " --model CHECKPOINT"
    images = "".join(f" --image {shlex.quote(name)}" for name in card.images)
    return (
        f"OMP_NUM_THREADS={num_threads} kit replay {file_name(card.seed, card.key)}{model}{images}"
    )


def _is_of_shipped(card: Card) -> bool:
    return bool(card.replay["record"]["model"]["fingerprint"] == DEFAULT_FINGERPRINT)


def gallery(cards: list[Card]) -> str:
    """Return all cards; the newest comes first."""
    if not cards:
        return '<p class="kit-empty">Your pictures will be here.</p>'
    return f'<div class="kit-gallery">{"".join(map(show_card, cards))}</div>'


def show_card(card: Card) -> str:
    """Return one picture with its facts, its download and its replay record."""
    width, height = card.size.split("x")
    url, name = f"{PICTURES_PATH}/{card.key}", file_name(card.seed, card.key)
    record = escape(json.dumps(card.replay, indent=2, ensure_ascii=False))
    warnings = "".join(f'<p class="kit-note">{escape(text)}</p>' for text in card.warnings)
    reference_seed = (
        ""
        if card.reference_seed is None
        else f"<div><dt>reference seed</dt><dd>{card.reference_seed}</dd></div>"
    )
    where = (
        ""
        if _is_of_shipped(card)
        else ", with the folder or hub id of its checkpoint for CHECKPOINT"
    )
    return (
        f'<figure class="kit-card" data-seed="{card.seed}">'
        f'<img src="{url}" alt="{escape(card.prompt)}, seed {card.seed}" width="{width}" '
        f'height="{height}">'
        f'<figcaption><p class="kit-prompt">{escape(card.prompt)}</p>'
        f"<dl><div><dt>seed</dt><dd>{card.seed}</dd></div>{reference_seed}"
        f"<div><dt>time</dt><dd>{card.total_time_s:.2f} s</dd></div>"
        f"<div><dt>steps</dt><dd>{card.num_steps}</dd></div>"
        f"<div><dt>guidance</dt><dd>{card.guidance:g}</dd></div>"
        f"<div><dt>size</dt><dd>{width} × {height}</dd></div></dl>"
        f'<p class="kit-actions"><a href="{url}" download="{name}">Download PNG</a>'
        f'<button type="button" data-reuse="{card.key}" data-seed="{card.seed}">Use as reference '
        "image</button></p>"
        f"<details><summary>Replay record</summary>"
        f'<p class="kit-note">It also lies in the file. This makes the picture again and compares'
        f"{where}:</p>{code_block(escape(replay_command(card)))}"
        f'<p class="kit-note">The record:</p>{code_block(record)}</details>{warnings}'
        "</figcaption></figure>"
    )


def code_block(escaped: str) -> str:
    """Return escaped text as code with a button that copies it."""
    return (
        '<div class="kit-code"><button type="button" data-copy>Copy</button>'
        f'<pre tabindex="0">{escaped}</pre></div>'
    )


def show_preview(data: bytes | None) -> str:
    """Return the picture that is drawn now as far as it is known."""
    if data is None:
        return '<div class="kit-preview kit-blank"></div>'
    source = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return f'<div class="kit-preview"><img src="{source}" alt="Preview, not finished yet"></div>'


def show_progress(done: int, total: int, told: str) -> str:
    """Return a bar of steps with its words; the words are read out by the region around it."""
    return (
        f'<div class="kit-progress"><progress max="{total}" value="{done}" '
        f'aria-label="Steps done"></progress><p>{escape(told)}</p></div>'
    )
