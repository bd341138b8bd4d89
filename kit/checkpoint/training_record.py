"""The record of a training run: what ran, where, how long, and the curves of its log."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from kit.checkpoint.preset import Preset
from kit.telemetry.environment import SystemEnvironment, capture_environment

_MAX_POINTS = 120


def capture_machine() -> dict[str, Any]:
    """Return what the stage runs on, as JSON values."""
    environment: dict[str, Any] = TypeAdapter(SystemEnvironment).dump_python(
        capture_environment(), mode="json"
    )
    return environment


def training_record(
    preset: Preset, log: Path, notes: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Assemble the record from the log and what each stage noted about itself."""
    entries = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    curves: dict[str, dict[str, list[float]]] = {}
    for stage in ("vae", "dit", "edit"):
        points = thinned([e for e in entries if e["stage"] == stage and "step" in e])
        if not points:
            continue
        columns = sorted({name for point in points for name in point} - {"stage"})
        curves[stage] = {name: [point[name] for point in points] for name in columns}
    return {
        "schema_version": 1,
        "name": preset.name,
        "preset": asdict(preset),
        # A piece after a restore began with that checkpoint's weights.
        "pieces": [e for e in entries if e["stage"] in ("piece", "restore")],
        "results": dict(notes),
        "curves": curves,
    }


def thinned(points: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Keep at most _MAX_POINTS of a curve, evenly, the last one among them."""
    stride = -(-len(points) // _MAX_POINTS) or 1
    return list(points[::-1][::stride][::-1])
