"""What Ascend's fused attention takes, checked on the host; imports no torch.

A device refuses some breaches with a number and reads wild memory at others, so the lengths of
every call are checked before the first layer runs. The rules are those of
npu_fused_infer_attention_score over pages, where its documents agree: docs/ascend.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from kit.errors import ConfigError, KVCacheError, UnsupportedError, WorkerError
from kit.modelspec.footprint import num_pages

FIA = "ascend_fia"
"""The kernel's name."""

PAGE_SIZE = 128
HEAD_SIZES = (64, 128)

MAX_QUERIES = 65_536
"""Query tokens of one call, all rows together."""

_MAX_ROWS = 4096
_MAX_HEADS = 256
_MAX_GROUP = 64
_MAX_WIDTH = 65_535
_MAX_ELEMENTS = 2**31 - 1
"""Of a layer's page tensor: the operator counts them in 32 bits."""


def check_heads(num_heads: int, num_kv_heads: int, head_dim: int) -> None:
    """Raise UnsupportedError for heads that the operator does not take."""
    problem = ""
    if head_dim not in HEAD_SIZES:
        problem = f"head size {head_dim}, it takes {' and '.join(map(str, HEAD_SIZES))}"
    elif num_heads > _MAX_HEADS:
        problem = f"{num_heads} query heads on a rank, it takes {_MAX_HEADS}"
    elif num_heads % num_kv_heads or num_heads // num_kv_heads > _MAX_GROUP:
        problem = (
            f"{num_heads} query heads over {num_kv_heads} kv heads, it takes up to {_MAX_GROUP} "
            "whole ones for each"
        )
    elif num_kv_heads * head_dim > _MAX_WIDTH:
        problem = f"{num_kv_heads} kv heads of {head_dim}, it takes {_MAX_WIDTH} elements a token"
    if problem:
        raise UnsupportedError(
            f"Ascend's fused attention: {problem}; use TORCH_SDPA with dense_legacy"
        )


def check_pool(pool: int, num_kv_heads: int, head_dim: int) -> None:
    """Raise ConfigError for a pool whose tensors of one layer are too large."""
    most = _MAX_ELEMENTS // (PAGE_SIZE * num_kv_heads * head_dim)
    if pool > most:
        raise ConfigError(
            "kv_cache_memory_bytes",
            f"Ascend's fused attention reads at most {most} pages of {num_kv_heads} kv heads",
            value=f"{pool} pages",
            remedy=f"lower it to {most} pages, or set max_num_seqs to 1",
        )


def check_call(
    query_lens: Sequence[int], kv_lens: Sequence[int], pages_per_row: int, pool: int
) -> None:
    """Check one call: queries and keys of each row, and the pages of the pool.

    Raises WorkerError for a call that is too long, KVCacheError for pages that do not serve it. The
    operator counts a page that two rows share twice, so a pool can be too small for a call whose
    page ids are all good.
    """
    if len(query_lens) > _MAX_ROWS or sum(query_lens) > MAX_QUERIES:
        raise WorkerError(
            f"Ascend's fused attention takes {_MAX_ROWS} rows of together {MAX_QUERIES} query "
            f"tokens, this request has {len(query_lens)} rows of together {sum(query_lens)}; ask "
            "for a smaller image"
        )
    counted = 0
    for row, (num_queries, kv_len) in enumerate(zip(query_lens, kv_lens, strict=True)):
        pages = num_pages(kv_len, PAGE_SIZE)
        counted += pages
        if num_queries > kv_len:
            raise KVCacheError(f"row {row}: {num_queries} query tokens over {kv_len} keys")
        if pages > pages_per_row:
            raise KVCacheError(f"row {row}: {kv_len} keys need {pages} pages, got {pages_per_row}")
    if counted > pool:
        raise KVCacheError(
            f"Ascend's fused attention counts {counted} pages for the rows of this request, shared "
            f"ones once for each row, and the pool has {pool}; raise kv_cache_memory_bytes"
        )
