"""Chooses, when a worker starts, how an NPU's fused attention is called.

Older stacks refuse queries of several rows over pages, and wrong numbers without an error have been
reported; so both kinds of segment run against the oracle before the first request.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from kit.attention.ascend.fia import PAGED_FORMS, FiaDense, FiaPaged
from kit.attention.ascend.limits import PAGE_SIZE, check_heads, check_pool
from kit.attention.ascend.operators import Operators
from kit.attention.ascend.rotation import try_rotation
from kit.attention.ascend.trial import log_trial
from kit.attention.base import KVBackend
from kit.attention.dense import DenseKV
from kit.attention.paged import PagedKV
from kit.attention.rotary import Rotary
from kit.attention.segment_check import NUM_ROWS, SegmentError, check_layout, descending_pages
from kit.errors import UnsupportedError
from kit.kv.allocation import KVAllocation
from kit.kv.store import KVShape, PagedStore
from kit.telemetry.log import get_logger
from kit.tokenizer.layout import Layout, ReferenceSpan

RELATIVE_LIMIT = 2e-2
"""Of a segment; right numbers in bfloat16 are at 0.002, every fault that we planted above 0.3."""

_REFERENCE = ReferenceSpan(
    timestep=200, latent_grid=(12, 10), patch_grid=(3, 4), num_patch_tokens=16
)

# Past 512 keys; pages end inside prefix and target, and exactly between, and with the row.
_LAYOUTS = (
    Layout(600, 1, (13, 11), 0, (_REFERENCE,)),
    Layout(639, 1, (8, 16), 0),
    Layout(127, 1, (1, 2), 0),
)

logger = get_logger("attention")


def open_paged(operators: Operators, shape: KVShape, num_heads: int, num_pages: int) -> FiaPaged:
    """Return the kernel in the first form that passes, for pools of `num_pages`.

    Raises UnsupportedError, with what was seen, if none passes or the heads are not served, and
    ConfigError for a pool that is too large.
    """
    check_heads(num_heads, shape.num_kv_heads, shape.head_dim)
    check_pool(num_pages, shape.num_kv_heads, shape.head_dim)
    operators = _with_rotation(operators, shape)
    failures: list[str] = []
    for form in PAGED_FORMS:
        kernel = FiaPaged(operators, num_heads, form)
        failure = self_test(kernel, shape, num_heads)
        if failure is None:
            for reason in failures:
                logger.warning("%s; the kernel calls it once for each row (BSH) instead", reason)
            logger.info("self-test of %s %s passed", kernel.name, kernel.version)
            return kernel
        failures.append(_failed(kernel, failure))
    raise _refusal(failures)


def open_dense(operators: Operators, shape: KVShape, num_heads: int) -> FiaDense:
    """Return the kernel over contiguous rows; raises UnsupportedError if it does not pass."""
    check_heads(num_heads, shape.num_kv_heads, shape.head_dim)
    kernel = FiaDense(_with_rotation(operators, shape), num_heads)
    failure = self_test(kernel, shape, num_heads)
    if failure is not None:
        raise _refusal([_failed(kernel, failure)])
    logger.info("self-test of %s %s over contiguous rows passed", kernel.name, kernel.version)
    return kernel


def _with_rotation(operators: Operators, shape: KVShape) -> Operators:
    trial = try_rotation(shape.device, shape.head_dim)
    log_trial(trial)
    return operators if trial.part is None else replace(operators, prepare=trial.part)


def _failed(kernel: FiaPaged | FiaDense, failure: str) -> str:
    return f"self-test of {kernel.name} {kernel.version}: {failure}"


def _refusal(failures: list[str]) -> UnsupportedError:
    return UnsupportedError(
        f"diffusion_attention_backend FLASH_ATTN: {'; '.join(failures)}. Install the CANN that "
        "torch-npu's table of versions names, or use TORCH_SDPA with dense_legacy"
    )


def self_test(kernel: FiaPaged | FiaDense, shape: KVShape, num_heads: int) -> str | None:
    """Say what is wrong with the kernel; None: nothing."""
    errors: list[SegmentError] = []
    for layout in _LAYOUTS:
        try:
            errors += _run(kernel, shape, num_heads, layout)
        except (RuntimeError, TypeError) as refusal:  # the device's own, or another signature
            return f"refused ({refusal})"
    wrong = [error for error in errors if not error.relative_error <= RELATIVE_LIMIT]  # NaN as well
    if not wrong:
        return None
    first = wrong[0]
    kind = "causal" if first.causal else "full"
    return (
        f"{len(wrong)} of {len(errors)} segments are wrong: the {kind} one [{first.start}, "
        f"{first.end}) of a {first.step} step is off by {first.relative_error:.2g} of its "
        f"norm, the limit is {RELATIVE_LIMIT:g}"
    )


def _run(
    kernel: FiaPaged | FiaDense, shape: KVShape, num_heads: int, layout: Layout
) -> list[SegmentError]:
    one_layer = KVShape(1, shape.num_kv_heads, shape.head_dim, shape.dtype, shape.device)
    backend, allocation = _backend(kernel, one_layer, layout)
    angles = torch.linspace(0, 60, layout.kv_len)[:, None] * torch.linspace(
        1, 0.01, shape.head_dim // 2
    )
    angles = angles.repeat(1, 2).to(shape.device)
    rotary = Rotary(angles.cos(), angles.sin())
    return check_layout(
        backend, layout, allocation, one_layer, rotary, num_heads=num_heads, eps=1e-5
    )


def _backend(
    kernel: FiaPaged | FiaDense, shape: KVShape, layout: Layout
) -> tuple[KVBackend, KVAllocation | None]:
    """Pages: every slot that no token is written to holds NaN, but for the tails that are zeroed
    when a request is opened.
    """
    if isinstance(kernel, FiaDense):
        return DenseKV("FLASH_ATTN", shape, kernel), None
    allocation = descending_pages(layout, PAGE_SIZE)
    store = PagedStore(shape, allocation.num_pages + NUM_ROWS, PAGE_SIZE)
    for tensor in store.keys + store.values:
        tensor.fill_(math.nan)
    return PagedKV("FLASH_ATTN", store, kernel), allocation
