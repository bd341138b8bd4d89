"""What booking the pages of a request costs, against a plain Python loop of the same run."""

from __future__ import annotations

from collections import Counter

from bench.page_work import (
    EDIT,
    GEOMETRY,
    LARGE_POOL,
    MAX_GROWTH,
    MAX_PREFIX_RATIO,
    MAX_REFUSAL_RATIO,
    MAX_RESERVE_RELEASE_RATIO,
    NUM_ROWS,
    NUM_TOKENS,
    SMALL_POOL,
    measure,
)
from bench.records import EqualityCheck, Measurement, Record
from bench.registry import Context
from kit.kv.allocation import KVAllocation
from kit.kv.manager import KVCacheManager


def run(context: Context) -> Record:
    """Check the accounting first, then time it `context.repeats` times."""
    equality = check_accounting(KVCacheManager(GEOMETRY, LARGE_POOL, NUM_ROWS))
    rows = [measure() for _ in range(context.repeats)]
    cases = sorted(name.removesuffix("_ratio") for name in rows[0] if name.endswith("_ratio"))
    columns = [f"{case}_s" for case in cases] + [f for f in rows[0] if f.startswith("growth_")]
    return context.record(
        parameters={
            "num_rows": NUM_ROWS,
            "num_tokens": NUM_TOKENS,
            "page_size": GEOMETRY.page_size,
            "pools_pages": [SMALL_POOL, LARGE_POOL],
            "limit_reserve_release_ratio": MAX_RESERVE_RELEASE_RATIO,
            "limit_refusal_ratio": MAX_REFUSAL_RATIO,
            "limit_growth": MAX_GROWTH,
            "edit_tokens": EDIT.kv_len,
            "edit_prefix_tokens": EDIT.prefix_len,
            "limit_prefix_ratio": MAX_PREFIX_RATIO,
        },
        equality=equality,
        baseline=Measurement(
            "a plain Python loop of 20,000 steps",
            tuple({"yardstick_s": row["yardstick_s"]} for row in rows),
        ),
        candidate=Measurement(
            "reserve and release of one request, or its refusal",
            tuple({column: row[column] for column in columns} for row in rows),
        ),
        ratios={case: (f"candidate.{case}_s", "baseline.yardstick_s") for case in cases},
    )


def check_accounting(manager: KVCacheManager) -> EqualityCheck:
    """Fill an empty pool with requests, empty it again, and count every page that went wrong."""
    num_pages = manager.pool.num_pages
    held: list[KVAllocation] = []
    while allocation := manager.reserve(f"request {len(held)}", NUM_ROWS, NUM_TOKENS):
        held.append(allocation)
    owners = Counter(page for a in held for table in a.page_tables for page in table)
    wrong = owners.total() - len(owners)
    wrong += sum(1 for page in owners if not 0 <= page < num_pages)
    wrong += abs(num_pages - manager.pool.num_free - owners.total())
    for allocation in held:
        manager.release(allocation)
    wrong += num_pages - manager.pool.num_free
    return EqualityCheck.of(
        compared=(
            f"pages of {len(held)} requests: given out twice, out of range, "
            "miscounted or not returned"
        ),
        limit=0,
        seen=wrong,
    )
