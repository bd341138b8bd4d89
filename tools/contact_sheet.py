"""Draw held-out captions with a checkpoint, as the engine draws them, side by side on one PNG.

usage: contact_sheet.py CHECKPOINT FILE [--seed N]
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from kit.api import GenerationRequest, ImageEngine, SamplingParams, load_config
from kit.checkpoint.evaluation import FAMILIES, evaluation_captions

PER_FAMILY, COLUMNS = 3, 6
SIDE, TEXT_HEIGHT, GAP = 160, 32, 6
LINE_LENGTH = 31


def captions(seed: int) -> list[str]:
    """A few captions of every family that adherence is judged on; training never saw any."""
    return [c.text for f in FAMILIES for c in evaluation_captions(f, PER_FAMILY, seed=seed)]


def sheet(pictures: Sequence[NDArray[np.uint8]], texts: Sequence[str]) -> Image.Image:
    """Lay out pictures with their captions below, row by row."""
    rows = -(-len(pictures) // COLUMNS)
    width, height = COLUMNS * (SIDE + GAP) + GAP, rows * (SIDE + TEXT_HEIGHT + GAP) + GAP
    canvas = Image.new("RGB", (width, height), "white")
    draw, font = ImageDraw.Draw(canvas), ImageFont.load_default(9)
    for at, (picture, text) in enumerate(zip(pictures, texts, strict=True)):
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
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    texts = captions(options.seed)
    pictures = []
    with ImageEngine(options.checkpoint, load_config(options.checkpoint)) as engine:
        for at, text in enumerate(texts):
            request = GenerationRequest(text, SamplingParams(seed=options.seed + at))
            pictures.append(engine.generate(request).image)
    sheet(pictures, texts).save(options.file, optimize=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
