"""Trains the judge's network on drawn pictures, tries it on held-out ones, writes both files.

No generated picture is seen, neither in training nor in choosing anything.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from bench.environment import Environment
from bench.judge import Judge
from bench.shape_classifier import (
    load_shape_net,
    save_shape_net,
    train_shape_net,
    training_crops,
)
from kit.checkpoint.dataset import map_chunks
from kit.checkpoint.evaluation import FAMILIES, EvaluationCaption, evaluation_captions
from kit.checkpoint.preset import NAMED_SIZES, SQUARE
from kit.checkpoint.render import render
from kit.checkpoint.training_record import thinned

SHIPPED_NET = Path(__file__).parent / "shape_net.safetensors"
"""The weights of the network that judges."""

MIN_RIGHT = 0.98
"""Share of drawn held-out pictures that a judge must be right about."""

_CAPTIONS_SEED = 7
"""Other than that of any benchmark: these captions only try the judge."""


@dataclass(frozen=True)
class Settings:
    """What one training is made from."""

    num_pictures: int = 8000
    num_steps: int = 1200
    seed: int = 1
    num_held_out: int = 24
    """Captions of each family and size that the network is tried on."""


def train_judge(
    settings: Settings,
    weights: Path,
    record: Path,
    *,
    command: Sequence[str],
    environment: Environment,
    num_workers: int,
) -> dict[str, Any]:
    """Write `weights` and then `record`; returns what the record holds."""
    started = time.perf_counter()
    crops, labels = training_crops(settings.num_pictures, settings.seed, num_workers=num_workers)
    drawn = time.perf_counter()
    points: list[dict[str, float]] = []
    net = train_shape_net(
        crops,
        labels,
        seed=settings.seed,
        num_steps=settings.num_steps,
        on_step=lambda step, loss: points.append({"step": step, "loss": round(loss, 4)}),
    )
    trained = time.perf_counter()
    save_shape_net(net, weights)
    held_out = try_judge(weights, settings.num_held_out, num_workers=num_workers)
    curve = thinned(points)
    content = {
        "schema_version": 1,
        "name": "shape_net",
        "command": list(command),
        "environment": TypeAdapter(Environment).dump_python(environment, mode="json"),
        "settings": asdict(settings),
        "num_crops": len(labels),
        "drawing_s": round(drawn - started, 1),
        "training_s": round(trained - drawn, 1),
        "curve": {name: [point[name] for point in curve] for name in ("step", "loss")},
        "weights_sha256": sha256(weights.read_bytes()).hexdigest(),
        "held_out": held_out,
    }
    record.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return content


def try_judge(weights: Path, num: int, *, num_workers: int = 1) -> dict[str, dict[str, int]]:
    """Judge drawn pictures, `num` of each family and size; returns pictures and right ones."""
    captions = [
        caption
        for size in (SQUARE, *NAMED_SIZES)
        for family in FAMILIES
        for caption in evaluation_captions(family, num, seed=_CAPTIONS_SEED, size=size)
    ]
    chunks = map_chunks(partial(_judge_drawn, captions, weights), len(captions), num_workers)
    right = [one for chunk in chunks for one in chunk]
    found: dict[str, dict[str, int]] = {}
    for caption, is_right in zip(captions, right, strict=True):
        counts = found.setdefault(caption.family, {"pictures": 0, "right": 0})
        counts["pictures"] += 1
        counts["right"] += is_right
    return found


def share_right(held_out: dict[str, dict[str, int]]) -> float:
    """Return the share of all pictures that were judged right, 0 to 1."""
    total = sum(counts["pictures"] for counts in held_out.values())
    return sum(counts["right"] for counts in held_out.values()) / total


def _judge_drawn(
    captions: Sequence[EvaluationCaption], weights: Path, indices: range
) -> list[bool]:
    judge = Judge(load_shape_net(weights))
    pictures: list[NDArray[np.uint8]] = [render(captions[at].scene) for at in indices]
    pairs = zip(pictures, indices, strict=True)
    return [judge.judge(picture, captions[at].facts).right for picture, at in pairs]
