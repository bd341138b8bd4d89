"""Which backends exist where, and what they refuse."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kit.attention.capabilities import (
    BACKENDS,
    PLATFORMS,
    capability,
    resolve_kernel,
    resolve_page_size,
)
from kit.config.deploy import KVMode
from kit.errors import ConfigError, UnsupportedError

HOPPER = (9, 0)
AMPERE = (8, 0)
MODES: tuple[KVMode, ...] = ("dense_legacy", "paged_scheduler")

FLASH_3_FLAGS = {"FLASHATTENTION_DISABLE_HDIM96": True, "FLASHATTENTION_DISABLE_PAGEDKV": False}


def kernel(backend: str, platform: str, kv_mode: KVMode, **changes: Any) -> str:
    settings: dict[str, Any] = {"dtype": "bfloat16", "head_dim": 128}
    if platform == "cuda":
        settings["compute_capability"] = HOPPER
    return resolve_kernel(backend, platform, kv_mode, **settings | changes)


def page_size(requested: int | None, platform: str = "cpu", **changes: Any) -> int:
    settings: dict[str, Any] = {"head_dim": 64}
    return resolve_page_size("FLASH_ATTN", platform, requested=requested, **settings | changes)


@pytest.fixture
def flash_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package as FlashAttention 3 installs itself, found but never called."""
    install_flash_3(tmp_path, monkeypatch, FLASH_3_FLAGS)


def install_flash_3(folder: Path, monkeypatch: pytest.MonkeyPatch, flags: dict[str, bool]) -> None:
    (folder / "flash_attn_interface.py").write_text("")
    (folder / "flash_attn_config.py").write_text(f"CONFIG = {{'build_flags': {flags!r}}}\n")
    information = folder / "some_fa3-3.1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: some-fa3\nVersion: 3.1\n")
    (information / "top_level.txt").write_text("flash_attn_config\nflash_attn_interface\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "flash_attn_config", raising=False)


@pytest.mark.parametrize(
    ("backend", "kv_mode", "name"),
    [
        ("FLASH_ATTN", "dense_legacy", "cpu_reference"),
        ("FLASH_ATTN", "paged_scheduler", "cpu_reference"),
        ("TORCH_SDPA", "dense_legacy", "torch_sdpa"),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_kernels_of_the_cpu(backend: str, kv_mode: KVMode, name: str, dtype: str) -> None:
    assert kernel(backend, "cpu", kv_mode, dtype=dtype) == name


@pytest.mark.parametrize(
    ("backend", "kv_mode", "name"),
    [
        ("FLASH_ATTN", "dense_legacy", "flash_attn_3"),
        ("FLASH_ATTN", "paged_scheduler", "flash_attn_3"),
        ("TORCH_SDPA", "dense_legacy", "torch_sdpa"),
        ("CUDNN_ATTN", "dense_legacy", "torch_cudnn"),
    ],
)
@pytest.mark.usefixtures("flash_3")
def test_kernels_of_a_hopper_card(backend: str, kv_mode: KVMode, name: str) -> None:
    assert kernel(backend, "cuda", kv_mode) == name


@pytest.mark.parametrize(
    ("backend", "platform", "kv_mode", "reason"),
    [
        ("TORCH_SDPA", "cpu", "paged_scheduler", "no page table; use FLASH_ATTN"),
        ("CUDNN_ATTN", "cpu", "paged_scheduler", "NVIDIA GPUs only; use FLASH_ATTN"),
        ("CUDNN_ATTN", "cpu", "dense_legacy", "NVIDIA GPUs only; use FLASH_ATTN or TORCH_SDPA"),
        ("FLASH_ATTN", "npu", "paged_scheduler", r"torch-npu is not installed"),
        ("FLASH_ATTN", "npu", "dense_legacy", r"torch-npu is not installed.*; use TORCH_SDPA"),
        ("CUDNN_ATTN", "npu", "dense_legacy", "NVIDIA GPUs only; use TORCH_SDPA"),
        ("TORCH_SDPA", "npu", "paged_scheduler", "no page table$"),
        # Nothing is installed here: what a card of this capability would need is named.
        ("FLASH_ATTN", "cuda", "paged_scheduler", "no module flash_attn_interface"),
        (
            "FLASH_ATTN",
            "cuda",
            "dense_legacy",
            "no module flash_attn_interface.*use TORCH_SDPA or CUDNN_ATTN",
        ),
        ("TORCH_SDPA", "cuda", "paged_scheduler", "no page table"),
    ],
)
def test_a_missing_kernel_is_refused_with_its_reason(
    backend: str, platform: str, kv_mode: KVMode, reason: str
) -> None:
    with pytest.raises(UnsupportedError, match=reason) as caught:
        kernel(backend, platform, kv_mode)
    assert backend in str(caught.value)
    assert kv_mode in str(caught.value)
    assert platform in str(caught.value)


@pytest.mark.parametrize(
    ("card", "reason"),
    [
        ((7, 5), "compute capability 7.5: FlashAttention needs at least 8.0"),
        (AMPERE, "compute capability 8.0 takes FlashAttention 2.*pip install flash-attn"),
        ((10, 0), "compute capability 10.0 takes FlashAttention 2"),
    ],
)
@pytest.mark.usefixtures("flash_3")
def test_flash_attention_3_is_for_hopper_cards_alone(card: Any, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        kernel("FLASH_ATTN", "cuda", "paged_scheduler", compute_capability=card)


def test_a_build_without_pages_is_refused_for_pages_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_flash_3(tmp_path, monkeypatch, {"FLASHATTENTION_DISABLE_PAGEDKV": True})
    assert kernel("FLASH_ATTN", "cuda", "dense_legacy") == "flash_attn_3"
    with pytest.raises(UnsupportedError, match=r"some-fa3 3\.1 was built without paged KV"):
        kernel("FLASH_ATTN", "cuda", "paged_scheduler")


def test_a_head_size_that_was_not_built_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_flash_3(tmp_path, monkeypatch, {"FLASHATTENTION_DISABLE_HDIM256": True})
    with pytest.raises(UnsupportedError, match="no head size 256, built are 64, 96, 128, 192"):
        kernel("FLASH_ATTN", "cuda", "paged_scheduler", head_dim=256)


@pytest.mark.parametrize("backend", ["FLASH_ATTN", "CUDNN_ATTN"])
@pytest.mark.usefixtures("flash_3")
def test_kernels_that_take_bfloat16_refuse_float32(backend: str) -> None:
    with pytest.raises(ConfigError, match=r"takes bfloat16.*use TORCH_SDPA") as caught:
        kernel(backend, "cuda", "dense_legacy", dtype="float32")
    assert caught.value.field == "dtype"
    assert kernel("TORCH_SDPA", "cuda", "dense_legacy", dtype="float32") == "torch_sdpa"


@pytest.mark.parametrize(("backend", "platform"), [("XFORMERS", "cpu"), ("FLASH_ATTN", "mps")])
def test_unknown_names_are_refused(backend: str, platform: str) -> None:
    with pytest.raises(UnsupportedError, match="knows FLASH_ATTN, TORCH_SDPA, CUDNN_ATTN on cpu"):
        capability(backend, platform)


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_missing_kernel_has_a_reason(backend: str, platform: str) -> None:
    entry = capability(backend, platform, HOPPER)
    complete = entry.dense_kernel is not None and entry.paged_kernel is not None
    assert bool(entry.reason) is not complete
    assert (entry.page_rule is None) is (entry.paged_kernel is None)


@pytest.mark.parametrize(("requested", "size"), [(None, 32), (1, 1), (176, 176), (4096, 4096)])
def test_the_cpu_reads_pages_of_any_size(requested: int | None, size: int) -> None:
    assert page_size(requested) == size


@pytest.mark.parametrize(
    ("head_dim", "tile"), [(64, 192), (80, 176), (96, 176), (128, 176), (192, 112), (256, 80)]
)
@pytest.mark.usefixtures("flash_3")
def test_flash_attention_3_reads_pages_of_whole_tiles_of_the_head_size(
    head_dim: int, tile: int
) -> None:
    # 80 and 96 run as 128, as this build has no 96.
    hopper: dict[str, Any] = {
        "platform": "cuda",
        "compute_capability": HOPPER,
        "head_dim": head_dim,
    }
    assert page_size(None, **hopper) == tile
    assert page_size(8 * tile, **hopper) == 8 * tile
    with pytest.raises(ConfigError, match=f"multiples of {tile}.*leave it out for {tile}"):
        page_size(tile + 16, **hopper)


@pytest.mark.parametrize("requested", [0, -16, True, 16.0])
def test_page_sizes_that_are_none_are_refused(requested: int) -> None:
    with pytest.raises(ConfigError, match="positive multiples of 1") as caught:
        page_size(requested)
    assert caught.value.field == "diffusion_kv_page_size"
    assert caught.value.value is requested


def test_a_backend_without_pages_has_no_page_size() -> None:
    with pytest.raises(UnsupportedError, match="no page table"):
        resolve_page_size("TORCH_SDPA", "cpu", head_dim=64, requested=None)


def test_importing_it_loads_no_torch() -> None:
    code = "import sys, kit.attention.capabilities; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("platform", "capability_of_card", "size"),
    [("cuda", HOPPER, 176), ("cuda", AMPERE, 256), ("npu", None, 128), ("cpu", None, 32)],
)
def test_pages_of_a_device_that_is_elsewhere(
    platform: str, capability_of_card: tuple[int, int] | None, size: int
) -> None:
    """Whatever is installed here: nothing of FlashAttention is."""
    planned = {"head_dim": 128, "compute_capability": capability_of_card, "is_planned": True}
    assert page_size(None, platform, **planned) == size
    if platform == "npu":
        with pytest.raises(ConfigError, match=r"positive multiples of 128 up to 128 \(got 256\)"):
            page_size(256, platform, **planned)
    else:
        assert page_size(2 * size, platform, **planned) == 2 * size
    if platform != "cpu":
        with pytest.raises(ConfigError, match=f"positive multiples of {size}"):
            page_size(size + 1, platform, **planned)


def test_a_planned_card_that_is_too_old_has_no_kernel() -> None:
    with pytest.raises(UnsupportedError, match=r"needs at least 8\.0; use TORCH_SDPA"):
        kernel("FLASH_ATTN", "cuda", "dense_legacy", compute_capability=(7, 5), is_planned=True)


@pytest.fixture
def torch_npu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Something called torch_npu, found but never imported."""
    (tmp_path / "torch_npu.py").write_text("raise AssertionError('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("torch_npu")
def test_kernels_of_an_npu() -> None:
    assert kernel("TORCH_SDPA", "npu", "dense_legacy") == "torch_sdpa"
    for mode in MODES:
        assert kernel("FLASH_ATTN", "npu", mode) == "ascend_fia"
        # Flash on a card runs these as the next larger size, an NPU does not.
        for head_dim in (32, 96, 192):
            said = f"no head size {head_dim}, built are 64, 128"
            with pytest.raises(UnsupportedError, match=said):
                kernel("FLASH_ATTN", "npu", mode, head_dim=head_dim)
        with pytest.raises(ConfigError, match="takes bfloat16"):
            kernel("FLASH_ATTN", "npu", mode, dtype="float32")
