"""Keys of prefix pages: equal exactly where keys and values are, in near misses and at random."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast, get_args

import pytest

from kit.config.deploy import PrefixLevel
from kit.kv.prefix import PrefixKeys, PrefixScope, prefix_keys
from kit.modelspec.config import load_model_config
from kit.request import Template
from kit.tokenizer.buckets import Bucket
from kit.tokenizer.layout import Layout, ReferenceSpan, Rows
from kit.tokenizer.template import ReferenceShape, build_rows
from kit.tokenizer.tokenizer import Tokenizer

ALL = frozenset(get_args(PrefixLevel))
SCOPE = PrefixScope(model="weights", dtype="bfloat16", page_size=4, row_ranks=1, levels=ALL)
IMG = 9
"""The placeholder of every token of a picture."""


@dataclass(frozen=True)
class Asked:
    """All that decides the keys of a request."""

    rows: Rows
    template: Template = "instruct"
    pictures: tuple[str, ...] = ()
    seed: int = 0
    parent_id: str | None = None
    scope: PrefixScope = SCOPE

    def keys(self) -> PrefixKeys:
        return prefix_keys(
            self.scope,
            self.rows,
            self.template,
            pictures=self.pictures,
            picture_seed=self.seed,
            parent_id=self.parent_id,
        )


def rows_of(*ids: Sequence[int], spans: Sequence[ReferenceSpan] = ()) -> Rows:
    """Rows with these prefixes and a target of its own kind behind them."""
    layout = Layout(len(ids[0]), 1, (2, 2), tail_len=1, references=tuple(spans))
    after = (5, IMG, IMG, IMG, IMG, 6)
    return Rows(layout, tuple((*row, *after) for row in ids))


def span_at(timestep: int, side: int = 2) -> ReferenceSpan:
    """side x side latents, a separator, two patches: with its <timestep> side² + 4 tokens."""
    return ReferenceSpan(timestep, (side, side), (1, 2), num_patch_tokens=2)


PROMPT = (1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4)
# <timestep> at 5, then seven tokens up to 13: pages 1, 2 and 3 of four hold some of it.
PICTURE = (1, 2, 3, 4, 5, 8, IMG, IMG, IMG, IMG, 7, IMG, IMG, 3, 4, 5, 6)
ONE = Asked(rows_of(PICTURE, spans=[span_at(5)]), pictures=("a cat",))


def known(first: Asked, second: Asked) -> int:
    """How many leading pages of the first row a request finds after another one."""
    keys, others = first.keys().tables[0], second.keys().tables[0]
    same = [key == other for key, other in zip(keys, others, strict=False)]
    assert same == sorted(same, reverse=True), "behind another page every page is another"
    return sum(same)


def test_equal_requests_have_equal_keys_for_their_whole_prefix_pages() -> None:
    assert len(Asked(rows_of(PROMPT)).keys().tables[0]) == 3
    assert len(Asked(rows_of(PROMPT[:11])).keys().tables[0]) == 2, "the last one is not whole"
    assert known(Asked(rows_of(PROMPT)), Asked(rows_of(PROMPT))) == 3
    assert known(ONE, ONE) == 4
    assert len({*Asked(rows_of((1,) * 12)).keys().tables[0]}) == 3, "a page is not its neighbour"


@pytest.mark.parametrize(("at", "num_known"), [(0, 0), (3, 0), (4, 1), (11, 2), (12, 3)])
def test_a_token_changes_its_page_and_those_behind(at: int, num_known: int) -> None:
    ids = (*PROMPT, 1)
    changed = (*ids[:at], 0, *ids[at + 1 :])
    assert known(Asked(rows_of(ids)), Asked(rows_of(changed))) == num_known


def test_the_picture_behind_the_prefix_changes_nothing() -> None:
    other = replace(rows_of(PROMPT), layout=Layout(12, 1, (4, 4), tail_len=1))
    assert known(Asked(rows_of(PROMPT)), Asked(other)) == 3


@pytest.mark.parametrize(
    "other",
    [
        replace(ONE, template="pretrain"),
        *(
            replace(ONE, scope=replace(SCOPE, **change))
            for change in cast(
                list[dict[str, Any]],
                [{"model": "others"}, {"dtype": "float32"}, {"page_size": 2}],
            )
        ),
    ],
    ids=["template", "model", "dtype", "page size"],
)
def test_another_way_to_compute_shares_nothing(other: Asked) -> None:
    assert set(ONE.keys().tables[0]).isdisjoint(other.keys().tables[0])


@pytest.mark.parametrize(
    "other",
    [
        replace(ONE, pictures=("a dog",)),
        replace(ONE, seed=1),
        replace(ONE, rows=rows_of(PICTURE, spans=[replace(span_at(5), latent_grid=(1, 4))])),
        replace(ONE, rows=rows_of(PICTURE, spans=[replace(span_at(5), latent_grid=(4, 1))])),
        replace(ONE, rows=rows_of(PICTURE, spans=[replace(span_at(5), patch_grid=(2, 1))])),
        replace(ONE, rows=rows_of(PICTURE), pictures=()),
    ],
    ids=["pixels", "seed", "flat latents", "tall latents", "patches", "no picture at all"],
)
def test_the_same_placeholders_for_another_picture(other: Asked) -> None:
    assert known(ONE, other) == 1, "what stands before the picture is the same"


def test_a_seed_is_nothing_to_a_prompt_without_pictures() -> None:
    prompt = Asked(rows_of(PROMPT))
    assert known(prompt, replace(prompt, seed=1)) == 3


def test_a_page_in_a_picture_depends_on_what_lies_in_later_pages() -> None:
    """Page 1 holds three of its tokens; the one that differs lies in page 3."""
    ids = list(PICTURE)
    ids[12] = 8
    other = replace(ONE, rows=rows_of(ids, spans=[span_at(5)]))
    assert known(ONE, other) == 1
    ids = list(PICTURE)
    ids[13] = 8  # behind it, and causal
    assert known(ONE, replace(ONE, rows=rows_of(ids, spans=[span_at(5)]))) == 3


def test_a_picture_moved_by_a_token() -> None:
    """Even where the ids of all pages are the same."""
    ids = (1,) * 4 + (IMG,) * 16
    first, moved = (Asked(rows_of(ids, spans=[span_at(at)]), pictures=("a",)) for at in (5, 6))
    assert known(first, moved) == 1


def test_the_same_pictures_in_another_order() -> None:
    spans = [span_at(1), span_at(9)]
    two = Asked(rows_of((IMG,) * 18, spans=spans), pictures=("a", "b"))
    assert known(two, replace(two, pictures=("b", "a"))) == 0
    assert known(two, replace(two, pictures=("a", "a"))) == 2, "the first one is the same"


def test_a_picture_is_another_as_the_second_one() -> None:
    """The latents of all pictures come from one generator, one after another."""
    alone = Asked(rows_of((IMG,) * 17, spans=[span_at(9)]), pictures=("a",))
    after = Asked(rows_of((IMG,) * 17, spans=[span_at(1), span_at(9)]), pictures=("a", "a"))
    assert known(alone, after) == 0


def test_rows_share_what_is_equal_from_their_first_token_on() -> None:
    other = (*PROMPT[:6], 0, *PROMPT[7:])
    keys = Asked(rows_of(PROMPT, other)).keys()
    assert keys.num_shared_tokens == 6, "exact, not rounded to pages"
    first, second = keys.tables
    assert [a == b for a, b in zip(first, second, strict=True)] == [True, False, False]
    assert first == Asked(rows_of(PROMPT)).keys().tables[0], "a row alone computes the same"
    assert second == Asked(rows_of(other)).keys().tables[0]


def test_rows_share_the_prefix_and_no_target() -> None:
    assert Asked(rows_of(PROMPT, PROMPT)).keys().num_shared_tokens == 12
    assert Asked(rows_of(PROMPT)).keys().num_shared_tokens == 0, "there is one row"


def test_rows_that_differ_within_a_picture_share_what_is_before_it() -> None:
    ids = list(PICTURE)
    ids[12] = 8
    keys = Asked(rows_of(PICTURE, ids, spans=[span_at(5)]), pictures=("a",)).keys()
    assert keys.num_shared_tokens == 5
    assert [a == b for a, b in zip(*keys.tables, strict=True)] == [True, False, False, False]


def test_rows_on_ranks_of_their_own_have_one_table_that_stands_for_both() -> None:
    scope = replace(SCOPE, row_ranks=2)
    other = (*PROMPT[:6], 0, *PROMPT[7:])
    single, pair, flipped, twice = (
        Asked(rows_of(*ids), scope=scope)
        for ids in ((PROMPT,), (PROMPT, other), (other, PROMPT), (PROMPT, PROMPT))
    )
    for asked in (single, pair, flipped, twice):
        assert asked.keys().num_shared_tokens == 0
        assert len(asked.keys().tables) == 1
    assert known(single, twice) == 3, "both ranks have the same in both"
    assert known(single, pair) == 1, "then the second rank has another row"
    assert known(pair, flipped) == 1
    assert known(pair, replace(pair, rows=rows_of(PROMPT, (*other[:11], 0)))) == 2


LEVELS: tuple[PrefixLevel, ...] = ("rows", "images", "requests")


@pytest.mark.parametrize("level", LEVELS)
def test_levels_one_by_one(level: PrefixLevel) -> None:
    scope = replace(SCOPE, levels=frozenset([level]))
    pair = Asked(rows_of(PROMPT, PROMPT), scope=scope)
    keys, child = pair.keys(), replace(pair, parent_id="p").keys()
    assert keys.num_shared_tokens == (12 if level == "rows" else 0)
    assert bool(keys.tables[0]) == (level == "requests"), "a request of its own"
    assert bool(child.tables[0]) == (level in ("images", "requests"))
    assert len(keys.tables) == len(child.tables) == 2
    if level != "rows":
        assert set(child.tables[0]).isdisjoint(child.tables[1]), "rows are kept apart"
    if level == "requests":
        assert child == keys, "whose child it is does not matter"


def test_images_meet_those_of_their_own_request_only() -> None:
    scope = replace(SCOPE, levels=frozenset[PrefixLevel](["images"]))
    child = Asked(rows_of(PROMPT), scope=scope, parent_id="p")
    assert known(child, child) == 3
    assert known(child, replace(child, parent_id="q")) == 0
    assert known(child, replace(child, scope=SCOPE)) == 0


def test_without_rows_a_single_row_never_meets_the_second_one() -> None:
    scope = replace(SCOPE, levels=ALL - {"rows"})
    single = Asked(rows_of(PROMPT), scope=scope)
    pair = replace(single, rows=rows_of(PROMPT, PROMPT))
    assert pair.keys().tables[0] == single.keys().tables[0]
    assert set(pair.keys().tables[1]).isdisjoint(single.keys().tables[0])
    on_ranks = replace(scope, row_ranks=2)
    assert known(replace(single, scope=on_ranks), replace(pair, scope=on_ranks)) == 0


def content(asked: Asked, row: int, end: int) -> object:
    """All that the keys and values of a row's tokens [0, end) depend on, spelled out."""
    rows, scope = asked.rows, asked.scope
    spans = [
        (ordinal, span, asked.pictures[ordinal], asked.seed, rows.token_ids[row][: span.end])
        for ordinal, span in enumerate(rows.layout.references)
        if span.timestep < end
    ]
    root = (asked.template, scope.model, scope.dtype, scope.page_size)
    return root, rows.token_ids[row][:end], tuple(spans)


def draw_request(draw: random.Random, scope: PrefixScope) -> Asked:
    """A request from so few values that many begin alike and all kinds of twins come up."""
    spans: list[ReferenceSpan] = []
    at = draw.randint(0, 3)
    for _ in range(draw.choice((0, 1, 1, 2))):
        spans.append(span_at(at, side=draw.choice((1, 1, 2))))
        at = spans[-1].end + draw.randint(0, 2)
    length = at + draw.randint(0, 8)
    ids = [IMG if draw.random() < 0.95 else 1 for _ in range(length)]
    prefixes = [ids]
    if draw.random() < 0.5:
        changed = draw.randint(0, length)
        prefixes.append([*ids[:changed], *(draw.choice((IMG, 1)) for _ in ids[changed:])])
    return Asked(
        rows_of(*prefixes, spans=spans),
        template=draw.choice(("instruct", "instruct", "pretrain")),
        pictures=tuple(draw.choice(("a", "a", "b")) for _ in spans),
        seed=draw.choice((0, 0, 1)),
        parent_id=draw.choice(("p", "q")),
        scope=scope,
    )


@pytest.mark.parametrize("row_ranks", [1, 2])
@pytest.mark.parametrize("levels", [ALL, ALL - {"rows"}, ALL - {"requests"}], ids=sorted)
@pytest.mark.parametrize("page_size", [1, 3, 4])
def test_keys_are_equal_exactly_where_contents_are(
    levels: frozenset[PrefixLevel], page_size: int, row_ranks: int
) -> None:
    draw = random.Random(f"{sorted(levels)} {page_size} {row_ranks}")
    scope = replace(SCOPE, page_size=page_size, row_ranks=row_ranks, levels=levels)
    by_key: dict[bytes, object] = {}
    by_content: dict[object, bytes] = {}
    num_pages = 0
    for _ in range(400):
        asked = draw_request(draw, scope)
        keys, num_rows = asked.keys(), asked.rows.num_rows
        assert len(keys.tables) == (1 if row_ranks == 2 else num_rows)
        if keys.num_shared_tokens:
            num = keys.num_shared_tokens
            assert content(asked, 0, num) == content(asked, 1, num)
            if num < asked.rows.layout.prefix_len:
                assert content(asked, 0, num + 1) != content(asked, 1, num + 1)
        for table, chain in enumerate(keys.tables):
            met = (0, num_rows - 1) if row_ranks == 2 else (table,)
            for page, key in enumerate(chain):
                lies = tuple(content(asked, row, (page + 1) * page_size) for row in met)
                names = () if "rows" in levels else tuple(dict.fromkeys(met))
                parent = asked.parent_id if "requests" not in levels else None
                assert by_key.setdefault(key, (lies, names, parent)) == (lies, names, parent)
                assert by_content.setdefault((lies, names, parent), key) == key
                num_pages += 1
    assert len(by_key) < 0.9 * num_pages, "hardly any twins were drawn"


SQUARE = ReferenceShape(Bucket(256, 256, 16), (8, 8))


def test_real_rows(checkpoint: Path) -> None:
    """Rows of a template: both have the same up to the prompt, and other words are other keys."""
    model = load_model_config(checkpoint)
    tokenizer = Tokenizer.from_folder(checkpoint, model)

    def asked(prompt: str = "a cat", **changes: Any) -> Asked:
        options: dict[str, Any] = {
            "system_prompt": "Draw what is asked for, nothing else.",
            "cot_text": None,
            "template": "instruct",
            "height": 256,
            "width": 256,
            "num_rows": 2,
            "drop_think": False,
            "references": (SQUARE,),
        }
        rows = build_rows(tokenizer, model, prompt=prompt, **(options | changes))
        pictures = ("pixels",) * len(rows.layout.references)
        return Asked(rows, changes.get("template", "instruct"), pictures)

    first = asked()
    shared = first.keys().num_shared_tokens
    assert shared == first.rows.layout.references[0].end + 1, "<eoi> is the last equal token"
    conditional, unconditional = (row[shared:] for row in first.rows.token_ids)
    assert conditional[0] != unconditional[0]
    assert known(first, asked("a dog")) == shared // 4
    assert known(first, asked(num_rows=1)) == len(first.keys().tables[0])
    assert known(first, asked(system_prompt="Draw something else.")) < 3
    alone = asked(references=())
    assert known(first, alone) < first.rows.layout.references[0].timestep // 4 + 1
    assert known(alone, asked(references=(), template="pretrain")) == 0
