"""Pools as a server shows them, made by the kit's own page accounting."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from kit.demo.answers import Pool, Size, read_pool
from kit.engine.kv_view import KVView, view_request
from kit.engine.status import PageCounts
from kit.kv.geometry import KVGeometry
from kit.kv.manager import KVCacheManager
from kit.request import StepEvent
from kit.scheduler.scheduler import Holding
from kit.tokenizer.layout import Layout

PAGE_SIZE = 4


def make_manager(num_pages: int) -> KVCacheManager:
    geometry = KVGeometry(
        num_layers=2, num_kv_heads=2, head_dim=8, dtype_bytes=2, page_size=PAGE_SIZE
    )
    return KVCacheManager(geometry, num_pages, 2)


def answer_of(manager: KVCacheManager, layouts: dict[str, Layout], *, step: int = 0) -> Any:
    """The body of GET /v1/kv when each request holds two rows of its layout; the first runs."""
    requests = []
    for index, (name, layout) in enumerate(layouts.items()):
        allocation = manager.reserve(name, 2, layout.kv_len)
        assert allocation is not None, "the test's pool is too small"
        last = StepEvent(name, step, 9, 0.1, 2 * layout.target_len) if step and not index else None
        requests.append(view_request(Holding(name, 0, index == 0, allocation), layout, 9, last))
    pool = manager.pool
    counts = PageCounts(
        pool.num_pages, pool.num_used, pool.num_free, pool.num_used, pool.num_cached
    )
    view = KVView(7, "paged_scheduler", PAGE_SIZE, 512, counts, (counts,), tuple(requests))
    return json.loads(json.dumps(asdict(view)))


def pool_of(manager: KVCacheManager, layouts: dict[str, Layout], *, step: int = 0) -> Pool:
    return read_pool(answer_of(manager, layouts, step=step))


def size_of(side: int) -> Size:
    """A square of `side` tokens a side."""
    return Size(f"{side * 16}x{side * 16}", side * 16, side * 16, 1 + side * side)
