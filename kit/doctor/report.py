"""What `kit doctor` checks, and the report that a user can attach to a question."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from kit.attention.capabilities import resolve_page_size
from kit.checkpoint.shipped import GOLDEN_CHECKPOINT
from kit.config.deploy import KVMode
from kit.doctor.golden import FLOAT32_LIMIT, PIXEL_LIMIT, run_golden
from kit.doctor.npu import BENCHMARK, examine_npu
from kit.doctor.segments import RELATIVE_LIMIT, check_segments
from kit.errors import KitError
from kit.modelspec.config import load_generation_config, load_model_config
from kit.modelspec.files import CheckpointFiles
from kit.modelspec.footprint import FLOAT32_BYTES, activation_bytes, weight_bytes
from kit.modelspec.tensors import check_tensors, missing_reference_parts
from kit.platforms.ascend import AscendPlatform
from kit.platforms.cpu import CpuPlatform
from kit.platforms.detect import platform_name
from kit.telemetry.environment import capture_environment
from kit.tokenizer.references import reference_refusal
from kit.tokenizer.template import supported_sizes
from kit.tokenizer.tokenizer import Tokenizer

KV_MODES: tuple[KVMode, ...] = ("dense_legacy", "paged_scheduler")


@dataclass(frozen=True)
class Check:
    """One question and its answer."""

    name: str
    status: Literal["ok", "failed"]
    detail: str
    data: dict[str, Any]


@dataclass(frozen=True)
class Report:
    """All checks of one run."""

    checkpoint: str
    environment: dict[str, Any]
    checks: tuple[Check, ...]

    @property
    def healthy(self) -> bool:
        return all(check.status == "ok" for check in self.checks)

    def as_text(self) -> str:
        packages = self.environment["packages"]
        versions = ", ".join(f"{name} {version}" for name, version in packages.items())
        lines = [f"checkpoint {self.checkpoint}"]
        lines.append(f"on {self.environment['cpu']}, {self.environment['python']}: {versions}")
        lines += [f"{check.status:>6}  {check.name}: {check.detail}" for check in self.checks]
        lines.append("healthy" if self.healthy else "not healthy: see the failed lines")
        return "\n".join(lines)

    def as_json(self) -> str:
        return json.dumps(asdict(self) | {"healthy": self.healthy}, indent=2, sort_keys=True)


def run_doctor(checkpoint: Path) -> Report:
    """Run every check; a check that fails is an answer, not an error."""
    chosen = _CHECKS | (_NPU_CHECKS if platform_name() == "npu" else {})
    checks = [_attempt(name, check, checkpoint) for name, check in chosen.items()]
    return Report(str(checkpoint), asdict(capture_environment()), tuple(checks))


def _attempt(name: str, check: Callable[[Path], Check], checkpoint: Path) -> Check:
    try:
        return check(checkpoint)
    except KitError as error:
        return Check(name, "failed", str(error), {"error": type(error).__name__})


def _check(name: str, passed: bool, detail: str, **data: Any) -> Check:
    return Check(name, "ok" if passed else "failed", detail, data)


def _files(checkpoint: Path) -> Check:
    files = CheckpointFiles.open(checkpoint)
    check_tensors(files, load_model_config(checkpoint))
    dtypes: dict[str, int] = {}
    for entry in files.tensors.values():
        dtypes[entry.dtype] = dtypes.get(entry.dtype, 0) + 1
    shown = ", ".join(f"{count} {dtype}" for dtype, count in sorted(dtypes.items()))
    detail = f"{len(files.tensors)} tensors with the names and shapes of config.json ({shown})"
    return _check("tensors", True, detail, dtypes=dtypes, fingerprint=files.fingerprint())


def _tokenizer(checkpoint: Path) -> Check:
    model = load_model_config(checkpoint)
    tokenizer = Tokenizer.from_folder(checkpoint, model)
    generation = load_generation_config(checkpoint)
    sizes = [str(size) for size in supported_sizes(tokenizer, model)]
    refusal = reference_refusal(
        CheckpointFiles.open(checkpoint), model, generation, tokenizer.special
    )
    detail = f"special tokens agree with config.json, {len(sizes)} image sizes, "
    detail += f"no reference images: {refusal}" if refusal else "reference images"
    return _check(
        "tokenizer",
        True,
        detail,
        sizes=sizes,
        reference_refusal=refusal,
        generation=asdict(generation),
    )


def _room(checkpoint: Path) -> Check:
    model, platform = load_model_config(checkpoint), CpuPlatform()
    dtype_bytes = FLOAT32_BYTES
    square = model.image_base_size
    references = not missing_reference_parts(CheckpointFiles.open(checkpoint), model)
    weights = weight_bytes(model, dtype_bytes, references=references)
    working = activation_bytes(
        model,
        height=square,
        width=square,
        prefix_len=0,
        num_rows=2,
        dtype_bytes=dtype_bytes,
        reference_hw=(square, square) if references else None,
    ).peak
    free_memory, free_disk = platform.memory().free_bytes, shutil.disk_usage(checkpoint).free
    detail = (
        f"one {platform.name} rank takes {weights / 2**30:.2f} GiB of weights and about "
        f"{working / 2**30:.2f} GiB to draw {square}x{square}; "
        f"{free_memory / 2**30:.2f} GiB of memory and {free_disk / 2**30:.2f} GiB of disk are free"
    )
    return _check(
        "room",
        weights + working < free_memory,
        detail,
        weight_bytes=weights,
        activation_bytes=working,
        free_memory=free_memory,
        free_disk=free_disk,
    )


def _golden(checkpoint: Path) -> Check:
    """The case belongs to the golden checkpoint, whatever checkpoint is examined."""
    del checkpoint
    reports = {mode: run_golden(GOLDEN_CHECKPOINT, mode) for mode in KV_MODES}
    lines = [
        f"{mode}: largest prediction error of each step "
        f"{_list(s.prediction for s in report.steps)} (limit {FLOAT32_LIMIT:g}), pixels off by at "
        f"most {report.max_pixel_difference} of 255 (limit {PIXEL_LIMIT})"
        for mode, report in reports.items()
    ]
    passed = all(report.passed for report in reports.values())
    data = {mode: asdict(report) for mode, report in reports.items()}
    return _check("golden case", passed, "; ".join(lines), **data)


def _segments(checkpoint: Path) -> Check:
    model = load_model_config(checkpoint)
    page_size = resolve_page_size(
        "FLASH_ATTN", "cpu", head_dim=model.attention_head_dim, requested=None
    )
    errors = []
    for mode in KV_MODES:
        size = page_size if mode == "paged_scheduler" else None
        errors += check_segments(model, mode, size, device="cpu", dtype=torch.float32)
    worst = max(error.relative_error for error in errors)
    detail = f"{len(errors)} segments, worst relative error {worst:.1e} (limit {RELATIVE_LIMIT:g})"
    # Each by itself: NaN is below no limit.
    passed = all(error.relative_error <= RELATIVE_LIMIT for error in errors)
    return _check("attention", passed, detail, segments=[asdict(error) for error in errors])


def _npu(checkpoint: Path) -> Check:
    platform = AscendPlatform(0)
    memory = platform.memory()
    try:
        report = examine_npu(load_model_config(checkpoint), torch.device("npu", platform.ordinal))
    except RuntimeError as error:  # the device's own refusal
        return _check("npu", False, f"refused: {error}", error=type(error).__name__)
    free, total = memory.free_bytes / 2**30, memory.total_bytes / 2**30
    detail = (
        f"{free:.2f} of {total:.2f} GiB free; {report.as_text()}. Two minutes more, and it is "
        f"measured: {BENCHMARK}"
    )
    return _check("npu", report.passed, detail, **asdict(report))


def _list(values: Iterable[float]) -> str:
    return "[" + ", ".join(f"{value:.1e}" for value in values) + "]"


_CHECKS: dict[str, Callable[[Path], Check]] = {
    "tensors": _files,
    "tokenizer": _tokenizer,
    "room": _room,
    "golden case": _golden,
    "attention": _segments,
}

_NPU_CHECKS: dict[str, Callable[[Path], Check]] = {"npu": _npu}
"""Where the driver lists an NPU."""
