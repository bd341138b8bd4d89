"""Draw held-out captions with a checkpoint, as the engine draws them, side by side on one PNG.

usage: contact_sheet.py CHECKPOINT FILE [--edits] [--seed N]

With --edits held-out edits, each right of its source.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from bench.adherence import EditTask
from bench.workloads.adherence import edit_picture
from kit.api import GenerationRequest, ImageEngine, SamplingParams, load_config
from kit.checkpoint.evaluation import (
    FAMILIES,
    JUDGED_EDITS,
    evaluation_captions,
    evaluation_edits,
)
from kit.checkpoint.render import render

PER_FAMILY, PER_KIND, COLUMNS = 3, 2, 6
SIDE, TEXT_HEIGHT, GAP = 160, 32, 6
LINE_LENGTH = 31


def draw_captions(engine: ImageEngine, seed: int) -> Iterator[tuple[NDArray[np.uint8], str]]:
    """Draw a few captions of every family that adherence is judged on; training never saw any."""
    texts = [c.text for f in FAMILIES for c in evaluation_captions(f, PER_FAMILY, seed=seed)]
    for at, text in enumerate(texts):
        request = GenerationRequest(text, SamplingParams(seed=seed + at))
        yield engine.generate(request).image, text


def draw_edits(engine: ImageEngine, seed: int) -> Iterator[tuple[NDArray[np.uint8], str]]:
    """Make a few edits of every kind that adherence is judged on; yields the source before each."""
    edits = [e for kind in JUDGED_EDITS for e in evaluation_edits(kind, PER_KIND, seed=seed)]
    for at, one in enumerate(edits):
        yield render(one.edit.source), ""
        yield edit_picture(engine, EditTask(one, seed + at)).image, one.text


def sheet(drawn: Sequence[tuple[NDArray[np.uint8], str]]) -> Image.Image:
    """Lay out pictures with their texts below, row by row."""
    rows = -(-len(drawn) // COLUMNS)
    width, height = COLUMNS * (SIDE + GAP) + GAP, rows * (SIDE + TEXT_HEIGHT + GAP) + GAP
    canvas = Image.new("RGB", (width, height), "white")
    draw, font = ImageDraw.Draw(canvas), ImageFont.load_default(9)
    for at, (picture, text) in enumerate(drawn):
        x = GAP + at % COLUMNS * (SIDE + GAP)
        y = GAP + at // COLUMNS * (SIDE + TEXT_HEIGHT + GAP)
        small = Image.fromarray(picture).resize((SIDE, SIDE), Image.Resampling.LANCZOS)
        canvas.paste(small, (x, y))
        lines = "\n".join(textwrap.wrap(text, LINE_LENGTH)[:3])
        draw.multiline_text((x, y + SIDE + 1), lines, fill="black", font=font, spacing=0)
    return canvas


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="contact_sheet.py")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--edits", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    with ImageEngine(options.checkpoint, load_config(options.checkpoint)) as engine:
        draw = draw_edits if options.edits else draw_captions
        drawn = list(draw(engine, options.seed))
    sheet(drawn).save(options.file, optimize=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
