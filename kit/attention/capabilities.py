"""Which attention backends exist where, which of them read pages, and why the others do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

from kit.attention.ascend.limits import FIA, HEAD_SIZES, PAGE_SIZE
from kit.attention.cuda.build import (
    ComputeCapability,
    FlashBuild,
    NoFlashBuild,
    find_flash_build,
    published_flash_build,
)
from kit.config.deploy import KVMode
from kit.errors import ConfigError, UnsupportedError

BACKENDS = ("FLASH_ATTN", "TORCH_SDPA", "CUDNN_ATTN")
PLATFORMS = ("cpu", "cuda", "npu")


@dataclass(frozen=True)
class PageRule:
    """The page sizes that a kernel reads."""

    default: int
    multiple: int
    """Every multiple of this many tokens is readable."""

    largest: int | None = None
    """None: no limit."""


@dataclass(frozen=True)
class Capability:
    """What one logical backend can do on one platform."""

    backend: str
    platform: str
    dense_kernel: str | None
    """The kernel that reads contiguous rows; None if there is none."""

    paged_kernel: str | None
    """The kernel that reads pages; None if there is none."""

    reason: str
    """Why a kernel is missing; empty if none is."""

    page_rule: Callable[[int], PageRule] | None = None
    """Of a head size; None without a paged kernel."""

    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    head_sizes: tuple[int, ...] | None = None
    """None: any."""

    pads_heads: bool = True
    """A smaller head runs as the next larger size."""


_NO_PAGE_TABLE = "scaled_dot_product_attention takes contiguous keys and no page table"


def capability(
    backend: str,
    platform: str,
    compute_capability: ComputeCapability | None = None,
    *,
    is_planned: bool = False,
) -> Capability:
    """Look up what a backend can do; on cuda also what is installed for a card's capability.

    is_planned: the device is somewhere else, so every package that it takes counts as installed.

    Raises UnsupportedError for a name or a platform that is not known.
    """
    if backend not in BACKENDS or platform not in PLATFORMS:
        raise UnsupportedError(
            f"diffusion_attention_backend {backend!r} on platform {platform!r}: this kit knows "
            f"{', '.join(BACKENDS)} on {', '.join(PLATFORMS)}"
        )
    if backend == "TORCH_SDPA":
        return Capability(backend, platform, "torch_sdpa", None, _NO_PAGE_TABLE)
    if backend == "CUDNN_ATTN" and platform != "cuda":
        reason = "cuDNN runs on NVIDIA GPUs only"
        return Capability(backend, platform, None, None, reason)
    if platform == "npu":
        return _fia_on_ascend(is_planned)
    if platform == "cpu":
        kernel = "cpu_reference"
        return Capability(backend, platform, kernel, kernel, "", lambda _: PageRule(32, 1))
    if backend == "CUDNN_ATTN":
        return Capability(
            backend, platform, "torch_cudnn", None, _NO_PAGE_TABLE, dtypes=("bfloat16",)
        )
    assert compute_capability is not None, "a card is asked for its compute capability first"
    find = published_flash_build if is_planned else find_flash_build
    return _flash_on_cuda(find(compute_capability))


def resolve_kernel(
    backend: str,
    platform: str,
    kv_mode: KVMode,
    *,
    dtype: str,
    head_dim: int,
    compute_capability: ComputeCapability | None = None,
    is_planned: bool = False,
) -> str:
    """Return the name of the kernel that runs; `is_planned` as for capability.

    Raises UnsupportedError with the reason if there is none, for a head size that it was not built
    for, and ConfigError for a dtype that it does not take.
    """
    entry = capability(backend, platform, compute_capability, is_planned=is_planned)
    kernel = entry.paged_kernel if kv_mode == "paged_scheduler" else entry.dense_kernel
    if kernel is None:
        raise UnsupportedError(_refusal(entry, kv_mode, compute_capability, is_planned))
    sizes = entry.head_sizes
    if sizes is not None and (head_dim > sizes[-1] or not (entry.pads_heads or head_dim in sizes)):
        raise UnsupportedError(
            f"diffusion_attention_backend {backend}: {kernel} has no head size {head_dim}, built "
            f"are {', '.join(map(str, sizes))}; use TORCH_SDPA with dense_legacy"
        )
    if dtype not in entry.dtypes:
        raise ConfigError(
            "dtype",
            f"{kernel}, which {backend} runs on {platform}, takes {' or '.join(entry.dtypes)}",
            value=dtype,
            remedy=f"set dtype to {entry.dtypes[0]}, or use TORCH_SDPA with dense_legacy",
        )
    return kernel


def resolve_page_size(
    backend: str,
    platform: str,
    *,
    head_dim: int,
    requested: int | None,
    compute_capability: ComputeCapability | None = None,
    is_planned: bool = False,
) -> int:
    """Return the tokens of a page: `requested` if the kernel reads it, its default for None.

    Raises UnsupportedError if the backend reads no pages, ConfigError for a size it cannot read.
    """
    entry = capability(backend, platform, compute_capability, is_planned=is_planned)
    if entry.page_rule is None:
        raise UnsupportedError(_refusal(entry, "paged_scheduler", compute_capability, is_planned))
    rule = entry.page_rule(head_dim)
    if requested is None:
        return rule.default
    strict = isinstance(requested, int) and not isinstance(requested, bool)
    largest = requested if rule.largest is None else rule.largest
    if not strict or not 1 <= requested <= largest or requested % rule.multiple:
        limit = "" if rule.largest is None else f" up to {rule.largest}"
        raise ConfigError(
            "diffusion_kv_page_size",
            f"page sizes of {entry.paged_kernel} at head size {head_dim} are the "
            f"positive multiples of {rule.multiple}{limit}",
            value=requested,
            remedy=f"leave it out for {rule.default}",
        )
    return requested


def _fia_on_ascend(is_planned: bool) -> Capability:
    if not is_planned and find_spec("torch_npu") is None:
        reason = "torch-npu is not installed (no module torch_npu)"
        return Capability("FLASH_ATTN", "npu", None, None, reason)
    return Capability(
        "FLASH_ATTN",
        "npu",
        FIA,
        FIA,
        "",
        lambda _: PageRule(PAGE_SIZE, PAGE_SIZE, PAGE_SIZE),
        ("bfloat16",),
        HEAD_SIZES,
        pads_heads=False,
    )


def _flash_on_cuda(build: FlashBuild | NoFlashBuild) -> Capability:
    if not isinstance(build, FlashBuild):
        return Capability("FLASH_ATTN", "cuda", None, None, build.reason)

    def page_rule(head_dim: int) -> PageRule:
        multiple = build.page_multiple(head_dim)
        return PageRule(multiple, multiple)

    reads = build.reads_pages
    return Capability(
        "FLASH_ATTN",
        "cuda",
        build.kernel,
        build.kernel if reads else None,
        "" if reads else f"{build.version} was built without paged KV",
        page_rule if reads else None,
        ("bfloat16",),
        build.head_sizes,
    )


def _refusal(
    entry: Capability,
    kv_mode: KVMode,
    compute_capability: ComputeCapability | None,
    is_planned: bool,
) -> str:
    others = []
    for backend in BACKENDS:
        other = capability(backend, entry.platform, compute_capability, is_planned=is_planned)
        if other.paged_kernel if kv_mode == "paged_scheduler" else other.dense_kernel:
            others.append(backend)
    remedy = f"; use {' or '.join(others)}" if others else ""
    return (
        f"diffusion_attention_backend {entry.backend} with diffusion_kv_mode {kv_mode} on "
        f"{entry.platform}: {entry.reason}{remedy}"
    )
