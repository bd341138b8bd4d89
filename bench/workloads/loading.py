"""Loading eight published layers: each rank its slices, against reading the same files in order."""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import JsonValue
from torch import Tensor

from bench.rank_model import give_memory_back, synchronize
from bench.ranks import run_on_ranks
from bench.records import EqualityCheck, Measurement, Record
from bench.registry import Context
from bench.synthetic_checkpoint import evict, read_in_order, write_checkpoint
from kit.model.loader import load_transformer, official_parts
from kit.model.shard import WHOLE, Shard
from kit.model.transformer import HunyuanImage3
from kit.modelspec.config import PUBLISHED_CONFIG, load_model_config
from kit.parallel.group import Mesh
from kit.parallel.topology import Topology

NUM_LAYERS = 8
NUM_COMPARED = 64
"""Tensors of a loaded model that are compared with their files, evenly spread."""

_TEMPERATURES = ("cold", "warm")


@dataclass(frozen=True)
class Setting:
    """What is loaded by how many."""

    device: str
    raw_config: dict[str, Any]
    num_ranks: int
    folder: Path | None = None
    """Where the files are made; None: among the system's temporary ones."""


def run(context: Context) -> Record:
    """Load on all cards here; without a card a narrow model on one process."""
    raw: dict[str, Any] = json.loads(PUBLISHED_CONFIG.read_text())
    cards = torch.cuda.device_count()
    if cards:
        setting = Setting("cuda", {**raw, "num_hidden_layers": NUM_LAYERS}, cards)
    else:
        narrow = {"num_hidden_layers": NUM_LAYERS, "num_experts": 2, "moe_topk": 2}
        setting = Setting("cpu", {**raw, **narrow}, 2)
    return measure_setting(context, setting)


def measure_setting(context: Context, setting: Setting) -> Record:
    """Make the files, check that what is loaded is what they hold, then time in turn."""
    topology = Topology(tensor=setting.num_ranks)
    with tempfile.TemporaryDirectory(dir=setting.folder) as name:
        folder = Path(name)
        paths = write_checkpoint(folder, setting.raw_config)
        args = (folder, paths, context.repeats)
        ranks = run_on_ranks(topology, setting.device, on_rank, *args)
    leader = ranks[0]
    wrong = sum(rank["wrong"] for rank in ranks)
    forms = ("alone", "shared") if setting.num_ranks > 1 else ("alone",)
    baseline = tuple(
        {k: v for k, v in row.items() if k.startswith("read")} for row in leader["rows"]
    )
    candidate = tuple(
        {k: v for k, v in row.items() if not k.startswith("read")} for row in leader["rows"]
    )
    file_bytes = leader["file_bytes"]
    bytes_of_ranks: JsonValue = [rank["bytes"] for rank in ranks]
    findings = {"file_bytes": float(file_bytes)}
    for heat in _TEMPERATURES:
        read = min(row[f"read_{heat}_s"] for row in baseline)
        findings[f"read_{heat}_bytes_per_s"] = file_bytes / read
        for form in forms:
            load = min(row[f"{form}_{heat}_s"] for row in candidate)
            findings[f"share_of_reading_{form}_{heat}"] = read / load
    return context.record(
        parameters={
            "topology": str(topology),
            "device": setting.device,
            "num_layers": setting.raw_config["num_hidden_layers"],
            "num_experts": setting.raw_config["num_experts"],
            "bytes_of_a_rank": bytes_of_ranks,
            "file_bytes": file_bytes,
            "compared_tensors": NUM_COMPARED,
            "dtype": "bfloat16, stored and loaded",
            "alone": "one rank loads all",
            "shared": "all ranks load their slices at once; until the last one is done",
            "read": "one process, in order, into one block of memory",
            "cold": "the system was asked to forget the files",
            "share_of_reading": "lowest seconds of reading over lowest seconds of loading",
        },
        equality=EqualityCheck.of(
            compared="tensors on the device that are not the bits of their files",
            limit=0,
            seen=wrong,
        ),
        baseline=Measurement("reading the files in order", baseline),
        candidate=Measurement("loading them to the device", candidate),
        ratios={
            f"{form}_{heat}": (f"candidate.{form}_{heat}_s", f"baseline.read_{heat}_s")
            for form in forms
            for heat in _TEMPERATURES
        },
        paired=True,
        findings=findings,
    )


def on_rank(
    mesh: Mesh, device: torch.device, folder: Path, paths: list[Path], repeats: int
) -> dict[str, object]:
    """Load on one rank; the leader reads and loads alone as well, while the others wait."""
    rows, wrong, file_bytes, own_bytes = [], 0, 0, 0
    shard = Shard.of(mesh)
    for _ in range(repeats):
        row: dict[str, float] = {}
        for heat in _TEMPERATURES:
            if mesh.is_leader:
                _prepare(paths, heat)
                file_bytes, row[f"read_{heat}_s"] = read_in_order(paths)
                _prepare(paths, heat)
                _, row[f"alone_{heat}_s"], _ = _load(folder, device, WHOLE)
                give_memory_back()
                _prepare(paths, heat)
            mesh.any(False)
            started = time.perf_counter()
            model, _, own_bytes = _load(folder, device, shard)
            mesh.any(False)
            if mesh.everyone.size > 1:
                row[f"shared_{heat}_s"] = time.perf_counter() - started
            wrong += _num_wrong(folder, model)
            del model
            give_memory_back()
        rows.append(row)
    return {"rows": rows, "wrong": wrong, "file_bytes": file_bytes, "bytes": own_bytes}


def _prepare(paths: list[Path], heat: str) -> None:
    if heat == "cold":
        evict(paths)


def _load(folder: Path, device: torch.device, shard: Shard) -> tuple[HunyuanImage3, float, int]:
    """Return the loaded model, the seconds, and the bytes that were read."""
    config, read = load_model_config(folder), list[int]()
    started = time.perf_counter()
    model = load_transformer(
        folder, config, device=device, dtype=torch.bfloat16, on_bytes=read.append, shard=shard
    )
    synchronize(device)
    return model, time.perf_counter() - started, sum(read)


def _num_wrong(folder: Path, model: HunyuanImage3) -> int:
    """Count compared tensors that differ from their files, by their bits: noise holds NaN."""
    from safetensors import safe_open

    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    parts = [part for part in official_parts(model) if part[1].dtype == torch.bfloat16]
    wrong = 0
    for name, view, cut in parts[:: max(1, len(parts) // NUM_COMPARED)]:
        with safe_open(folder / index[name], framework="pt") as file:
            pairs = zip(cut.places(view), cut.of(file.get_tensor(name)), strict=True)
            wrong += sum(not _bits(place).equal(_bits(part)) for place, part in pairs)
    return wrong


def _bits(tensor: Tensor) -> Tensor:
    return tensor.cpu().contiguous().view(torch.int16)
