"""Which attention backends exist where, which of them read pages, and why the others do not."""

from __future__ import annotations

from dataclasses import dataclass

from kit.config.deploy import KVMode
from kit.errors import ConfigError, UnsupportedError


@dataclass(frozen=True)
class PageRule:
    """The page sizes that a kernel reads."""

    default: int
    multiple: int
    """Every multiple of this many tokens is readable."""


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

    page_rule: PageRule | None = None
    """None without a paged kernel."""


def _missing(backend: str, platform: str, reason: str) -> Capability:
    return Capability(backend, platform, None, None, reason)


_NOT_BUILT = "this version has no kernels for {} devices (not built yet); run on device cpu"
_NO_PAGE_TABLE = "scaled_dot_product_attention takes contiguous keys and no page table"

CAPABILITIES: tuple[Capability, ...] = (
    Capability("FLASH_ATTN", "cpu", "cpu_reference", "cpu_reference", "", PageRule(32, 1)),
    Capability("TORCH_SDPA", "cpu", "torch_sdpa", None, _NO_PAGE_TABLE),
    _missing("CUDNN_ATTN", "cpu", "cuDNN runs on NVIDIA GPUs only"),
    *(
        _missing(backend, platform, _NOT_BUILT.format(platform))
        for platform in ("cuda", "npu")
        for backend in ("FLASH_ATTN", "TORCH_SDPA", "CUDNN_ATTN")
    ),
)


def capability(backend: str, platform: str) -> Capability:
    """Look up a backend; raises UnsupportedError for a name or a platform that is not known."""
    for entry in CAPABILITIES:
        if (entry.backend, entry.platform) == (backend, platform):
            return entry
    backends = dict.fromkeys(entry.backend for entry in CAPABILITIES)
    platforms = dict.fromkeys(entry.platform for entry in CAPABILITIES)
    raise UnsupportedError(
        f"diffusion_attention_backend {backend!r} on platform {platform!r}: this kit knows "
        f"{', '.join(backends)} on {', '.join(platforms)}"
    )


def resolve_kernel(backend: str, platform: str, kv_mode: KVMode) -> str:
    """Return the name of the kernel that runs; raises UnsupportedError with the reason."""
    entry = capability(backend, platform)
    paged = kv_mode == "paged_scheduler"
    kernel = entry.paged_kernel if paged else entry.dense_kernel
    if kernel is None:
        raise UnsupportedError(_refusal(entry, kv_mode))
    return kernel


def resolve_page_size(backend: str, platform: str, *, head_dim: int, requested: int | None) -> int:
    """Return the tokens of a page: `requested` if the kernel reads it, its default for None.

    Raises UnsupportedError if the backend reads no pages, ConfigError for a size it cannot read.
    """
    entry = capability(backend, platform)
    rule = entry.page_rule
    if rule is None:
        raise UnsupportedError(_refusal(entry, "paged_scheduler"))
    if requested is None:
        return rule.default
    strict = isinstance(requested, int) and not isinstance(requested, bool)
    if not strict or requested < 1 or requested % rule.multiple:
        raise ConfigError(
            "diffusion_kv_page_size",
            f"page sizes of {entry.paged_kernel} at head size {head_dim} are the positive "
            f"multiples of {rule.multiple}",
            value=requested,
            remedy=f"leave it out for {rule.default}",
        )
    return requested


def _refusal(entry: Capability, kv_mode: KVMode) -> str:
    others = [
        other.backend
        for other in CAPABILITIES
        if other.platform == entry.platform
        and (other.paged_kernel if kv_mode == "paged_scheduler" else other.dense_kernel)
    ]
    remedy = f"; use {' or '.join(others)}" if others else ""
    return (
        f"diffusion_attention_backend {entry.backend} with diffusion_kv_mode {kv_mode} on "
        f"{entry.platform}: {entry.reason}{remedy}"
    )
