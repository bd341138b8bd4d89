"""What lies in the pages of a row, against a token-by-token count."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kit.engine.kv_view import PageView, shared_pages, view_rows
from kit.kv.allocation import KVAllocation
from kit.scheduler.scheduler import Holding
from kit.tokenizer.layout import Layout


def allocation_of(layout: Layout, page_size: int, num_rows: int) -> KVAllocation:
    per_row = -(-layout.kv_len // page_size)
    tables = tuple(tuple(range(r * per_row, (r + 1) * per_row)) for r in range(num_rows))
    return KVAllocation("r", 1, tables, layout.kv_len, page_size)


def test_a_page_at_the_end_of_the_prefix_is_a_target_page() -> None:
    layout = Layout(prefix_len=10, num_special=1, grid=(2, 2), tail_len=9)
    [row] = view_rows(allocation_of(layout, 4, 1), layout)
    assert row == (
        PageView(0, "prefix", 4, 0),
        PageView(1, "prefix", 4, 0),
        PageView(2, "target", 4, 0),  # tokens 8 and 9 are prefix, 10 and 11 target
        PageView(3, "target", 3, 1),
    )


def test_a_page_in_several_tables_of_one_group_is_shared() -> None:
    def holding(name: str, group: int, *tables: tuple[int, ...]) -> Holding:
        return Holding(name, group, False, KVAllocation(name, 1, tables, 16, 4))

    held = [
        holding("two rows", 0, (0, 1, 2), (0, 3, 4)),
        holding("reads one of them", 0, (3, 5, 6)),
        holding("same numbers elsewhere", 1, (0, 1, 2)),
    ]
    shared = shared_pages(held)
    assert shared == {0: {0, 3}, 1: set()}
    layout = Layout(prefix_len=8, num_special=1, grid=(1, 3), tail_len=1)
    tables = ((0, 1, 2), (0, 3, 4))
    rows = view_rows(KVAllocation("r", 1, tables, 12, 4), layout, shared[0])
    assert [[page.kind for page in row] for row in rows] == [
        ["shared", "prefix", "target"],
        ["shared", "shared", "target"],
    ]


@given(
    st.integers(1, 60), st.integers(1, 3), st.integers(1, 6), st.integers(1, 70), st.integers(1, 2)
)
def test_every_slot_is_counted_once(
    prefix_len: int, num_special: int, side: int, page_size: int, num_rows: int
) -> None:
    layout = Layout(prefix_len, num_special, (side, side), tail_len=5)
    allocation = allocation_of(layout, page_size, num_rows)
    kinds = ["prefix"] * prefix_len + ["target"] * layout.target_len
    for table, row in zip(allocation.page_tables, view_rows(allocation, layout), strict=True):
        assert tuple(view.page for view in row) == table
        for index, view in enumerate(row):
            held = kinds[index * page_size : (index + 1) * page_size]
            assert view.kind == ("target" if "target" in held else "prefix")
            assert (view.num_tokens, view.tail_slots) == (len(held), page_size - len(held))
        assert all(view.tail_slots == 0 for view in row[:-1])
