"""The drawn pool, square by square, against what the pool itself answers."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

from demo_pools import PAGE_SIZE, answer_of, make_manager, pool_of

from kit.demo.answers import Pool, read_pool
from kit.demo.page_map import MAX_SQUARES, count_kinds, draw_map, draw_row, say_pool
from kit.tokenizer.layout import Layout

# 10 prefix tokens in pages of 4: two whole prefix pages, then one that both share.
LONG = Layout(prefix_len=10, num_special=1, grid=(3, 3), tail_len=2)
SHORT = Layout(prefix_len=2, num_special=1, grid=(2, 2), tail_len=2)


def squares(svg: str) -> list[dict[str, str]]:
    root = ElementTree.fromstring(svg)
    return [dict(rect.attrib) for rect in root.iter("rect") if "data-page" in rect.attrib]


def kinds_in(answer: Any) -> dict[int, str]:
    """What each page holds, by the pool's own answer."""
    kinds = dict.fromkeys(range(answer["pages"]["total"]), "free")
    for request in answer["requests"]:
        for row in request["rows"]:
            kinds |= {page["page"]: page["kind"] for page in row}
    return kinds


def test_every_square_shows_what_its_page_holds() -> None:
    answer = answer_of(make_manager(40), {"first": LONG, "second": SHORT})
    drawn = squares(draw_map(read_pool(answer)))
    assert {int(s["data-page"]): s["data-kind"] for s in drawn} == kinds_in(answer)
    assert {s["data-kind"] for s in drawn} == {"free", "prefix", "target"}
    # What a reader sees is the class; it must not say anything else.
    assert all(s["class"].split()[0] == f"kit-{s['data-kind']}" for s in drawn)


def test_pages_of_a_request_that_waits_are_pale() -> None:
    pool = pool_of(make_manager(40), {"first": LONG, "second": SHORT})
    pale = {int(s["data-page"]) for s in squares(draw_map(pool)) if "kit-waits" in s["class"]}
    assert pale == {page.number for row in pool.holders[1].rows for page in row}
    assert pale


def test_squares_lie_apart_and_inside() -> None:
    svg = draw_map(pool_of(make_manager(70), {"r": LONG}))
    places = [(float(s["x"]), float(s["y"])) for s in squares(svg)]
    assert len(set(places)) == 70
    _, _, width, height = map(float, ElementTree.fromstring(svg).attrib["viewBox"].split())
    assert max(x for x, _ in places) + 10 <= width
    assert max(y for _, y in places) + 10 <= height


def test_a_large_pool_is_drawn_with_fewer_squares_and_says_so() -> None:
    pool = pool_of(make_manager(3 * MAX_SQUARES), {"r": LONG})
    shown = draw_map(pool)
    svg, note = shown.split("</svg>")
    drawn = squares(svg + "</svg>")
    assert len(drawn) == MAX_SQUARES
    assert "One square is 3 pages" in note
    # Pages 0 to 4 of the first row: two of prefix, then target.
    assert [s["data-kind"] for s in drawn[:2]] == ["prefix", "target"]


def test_the_sentence_and_the_counts_are_those_of_the_pool() -> None:
    pool = pool_of(make_manager(40), {"first": LONG})
    assert count_kinds(pool) == {"free": 30, "prefix": 4, "target": 6}
    assert say_pool(pool) == (
        "10 of 40 pages in use: 4 prefix, 6 target, 0 shared; 30 free, peak 10"
    )
    assert sum(count_kinds(pool).values()) == pool.total


def test_a_shared_page_is_drawn_once_as_shared() -> None:
    answer = answer_of(make_manager(40), {"first": LONG})
    other = {**answer["requests"][0], "request_id": "second", "state": "admitted"}
    for request in (answer["requests"][0], other):
        for row in request["rows"]:
            row[0] = {**row[0], "kind": "shared"}
    answer["requests"].append(other)
    pool = read_pool(answer)
    assert count_kinds(pool) == {"free": 30, "prefix": 2, "target": 6, "shared": 2}


def test_free_pages_that_are_cached_are_told() -> None:
    answer = answer_of(make_manager(40), {"first": LONG})
    assert "cached" not in say_pool(read_pool(answer))
    answer["pages"]["cached"] = 7
    assert say_pool(read_pool(answer)).endswith("; 30 free, 7 of them cached, peak 10")


def test_a_row_is_drawn_to_scale() -> None:
    pool = pool_of(make_manager(40), {"first": LONG})
    holder = pool.holders[0]
    svg = ElementTree.fromstring(draw_row(holder.rows[0], holder, PAGE_SIZE))
    bars = [(r.attrib["class"], r.attrib["x"], r.attrib["width"]) for r in svg.iter("rect")]
    assert bars == [("kit-prefix", "0", "10"), ("kit-target", "10", "10")]
    assert svg.attrib["viewBox"] == "0 0 20 12"
    assert [line.attrib["x1"] for line in svg.iter("line")] == ["4", "8", "12", "16"]
    assert "10 prefix tokens, 10 target tokens, 0 unused slots" in svg.attrib["aria-label"]


def test_an_id_that_looks_like_html_stays_text() -> None:
    pool: Pool = pool_of(make_manager(40), {"<script>alert(1)</script>": SHORT})
    assert "<script>" not in draw_map(pool)
