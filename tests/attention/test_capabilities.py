"""Which backends exist where, and what they refuse."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kit.attention.capabilities import (
    CAPABILITIES,
    capability,
    resolve_kernel,
    resolve_page_size,
)
from kit.config.deploy import KVMode
from kit.errors import ConfigError, UnsupportedError


@pytest.mark.parametrize(
    ("backend", "kv_mode", "kernel"),
    [
        ("FLASH_ATTN", "dense_legacy", "cpu_reference"),
        ("FLASH_ATTN", "paged_scheduler", "cpu_reference"),
        ("TORCH_SDPA", "dense_legacy", "torch_sdpa"),
    ],
)
def test_kernels_of_the_cpu(backend: str, kv_mode: KVMode, kernel: str) -> None:
    assert resolve_kernel(backend, "cpu", kv_mode) == kernel


@pytest.mark.parametrize(
    ("backend", "platform", "kv_mode", "reason"),
    [
        ("TORCH_SDPA", "cpu", "paged_scheduler", "no page table; use FLASH_ATTN"),
        ("CUDNN_ATTN", "cpu", "paged_scheduler", "NVIDIA GPUs only; use FLASH_ATTN"),
        ("CUDNN_ATTN", "cpu", "dense_legacy", "NVIDIA GPUs only; use FLASH_ATTN or TORCH_SDPA"),
        ("FLASH_ATTN", "cuda", "paged_scheduler", r"cuda devices \(not built yet\)"),
        ("FLASH_ATTN", "cuda", "dense_legacy", r"cuda devices \(not built yet\)"),
        ("TORCH_SDPA", "cuda", "dense_legacy", r"cuda devices \(not built yet\)"),
        ("FLASH_ATTN", "npu", "paged_scheduler", r"npu devices \(not built yet\)"),
    ],
)
def test_a_missing_kernel_is_refused_with_its_reason(
    backend: str, platform: str, kv_mode: KVMode, reason: str
) -> None:
    with pytest.raises(UnsupportedError, match=reason) as caught:
        resolve_kernel(backend, platform, kv_mode)
    assert backend in str(caught.value)
    assert kv_mode in str(caught.value)
    assert platform in str(caught.value)


@pytest.mark.parametrize(("backend", "platform"), [("XFORMERS", "cpu"), ("FLASH_ATTN", "mps")])
def test_unknown_names_are_refused(backend: str, platform: str) -> None:
    with pytest.raises(UnsupportedError, match="knows FLASH_ATTN, TORCH_SDPA, CUDNN_ATTN on cpu"):
        capability(backend, platform)


def test_every_missing_kernel_has_a_reason() -> None:
    for entry in CAPABILITIES:
        complete = entry.dense_kernel is not None and entry.paged_kernel is not None
        assert bool(entry.reason) is not complete, entry
        assert (entry.page_rule is None) is (entry.paged_kernel is None), entry


@pytest.mark.parametrize(("requested", "size"), [(None, 32), (1, 1), (176, 176), (4096, 4096)])
def test_the_cpu_reads_pages_of_any_size(requested: int | None, size: int) -> None:
    assert resolve_page_size("FLASH_ATTN", "cpu", head_dim=64, requested=requested) == size


@pytest.mark.parametrize("requested", [0, -16, True, 16.0])
def test_page_sizes_that_are_none_are_refused(requested: int) -> None:
    with pytest.raises(ConfigError, match="positive multiples of 1") as caught:
        resolve_page_size("FLASH_ATTN", "cpu", head_dim=64, requested=requested)
    assert caught.value.field == "diffusion_kv_page_size"
    assert caught.value.value is requested


def test_a_backend_without_pages_has_no_page_size() -> None:
    with pytest.raises(UnsupportedError, match="no page table"):
        resolve_page_size("TORCH_SDPA", "cpu", head_dim=64, requested=None)


def test_importing_it_loads_no_torch() -> None:
    code = "import sys, kit.attention.capabilities; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
