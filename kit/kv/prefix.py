"""Keys of prefix pages: pages with equal keys hold equal keys and values.

What a page holds depends on every token up to its end, on the model and its dtype, and on the
pixels of each reference image that begins before its end: the tokens of a reference all see one
another, so a page in its middle depends on what lies pages further. A key covers all of that:

    key of page i = sha256(key of page i-1, each whole reference that begins in it, its tokens)

What has no fixed length goes behind its length, so that no two inputs are spelled alike.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kit.config.deploy import PrefixLevel
from kit.modelspec.footprint import own_rows
from kit.request import Template
from kit.tokenizer.layout import Layout, ReferenceSpan, Rows


@dataclass(frozen=True)
class PrefixScope:
    """What all requests of an engine have in common, and what they share."""

    model: str
    """Fingerprint of the checkpoint."""

    dtype: str
    page_size: int
    """Token slots per page."""

    row_ranks: int
    """Ranks that share the rows of a request."""

    levels: frozenset[PrefixLevel]


@dataclass(frozen=True)
class PrefixKeys:
    """What is known of a request's prefix before any of it is computed."""

    tables: tuple[tuple[bytes, ...], ...]
    """For each page table of a rank the keys of its leading pages: all that lie wholly in the
    prefix, or none where the request neither looks pages up nor publishes its own."""

    num_shared_tokens: int = 0
    """Leading tokens whose keys and values are the same in all tables; 0 with one table, and with
    rows on ranks of their own."""


def prefix_keys(
    scope: PrefixScope,
    rows: Rows,
    template: Template,
    *,
    pictures: Sequence[str] = (),
    picture_seed: int = 0,
    parent_id: str | None = None,
) -> PrefixKeys:
    """Return the keys of a request's prefix.

    pictures: hash of the pixels of each reference, in the order of the layout's spans.
    picture_seed: what their latents are drawn with, one picture after another.
    parent_id: what the images of one request have in common; None if it is a request of its own.
    """
    layout, num_rows, size = rows.layout, rows.num_rows, scope.page_size
    assert len(pictures) == len(layout.references), "one picture for each span"
    shares_rows = "rows" in scope.levels
    num_tables = own_rows(num_rows, scope.row_ranks)
    num_same = _num_same_ids(rows)
    num_equal = _cut(num_same, layout) if shares_rows else 0
    num_shared = num_equal if num_tables > 1 and scope.row_ranks == 1 else 0
    salt = _salt(scope, parent_id)
    if salt is None:
        return PrefixKeys(((),) * num_tables, num_shared)

    ids = _packed(rows, num_same)
    drawn = [
        (span, _digest(picture.encode(), _numbers(ordinal, picture_seed)))
        for ordinal, (span, picture) in enumerate(zip(layout.references, pictures, strict=True))
    ]
    root = (template.encode(), scope.model.encode(), scope.dtype.encode(), _numbers(size), *salt)
    num_lead, num_whole = num_equal // size, layout.prefix_len // size
    lead = tuple(_chain(_digest(*root), range(num_lead), size, ids[:1], drawn))
    tables = []
    for table in range(num_tables):
        # The ranks have the same tables, and each its own rows in them: at one place of a table
        # lies a row of every rank.
        met = range(table, num_rows, num_tables)
        key = lead[-1] if lead else _digest(*root, *(() if shares_rows else (_numbers(*met),)))
        own = [ids[row] for row in met]
        tables.append((*lead, *_chain(key, range(num_lead, num_whole), size, own, drawn)))
    return PrefixKeys(tuple(tables), num_shared)


def _salt(scope: PrefixScope, parent_id: str | None) -> tuple[bytes, ...] | None:
    """What keeps keys apart that must not meet; None if a request's keys may meet no others."""
    if "requests" in scope.levels:
        return (b"requests",)
    if "images" in scope.levels and parent_id is not None:
        return (b"images", parent_id.encode())
    return None


def _cut(num_same: int, layout: Layout) -> int:
    """Return how many of the leading tokens with the same ids have the same keys and values."""
    for span in layout.references:
        if span.timestep < num_same < span.end:
            return span.timestep
    return num_same


def _num_same_ids(rows: Rows) -> int:
    """Count the leading tokens of the prefix that have the same id in all rows.

    By bisection, because comparing slices takes a tenth of the time of a loop; first at the end of
    the last reference, up to which rows of a template are equal.
    """
    first, *others = rows.token_ids
    num = rows.layout.prefix_len
    for other in others:
        low, high = 0, num
        guess = rows.layout.references[-1].end if rows.layout.references else (num + 1) // 2
        while low < high:
            guess = min(guess, high)
            if first[low:guess] == other[low:guess]:
                low = guess
            else:
                high = guess - 1
            guess = (low + high + 1) // 2
        num = low
    return num


def _packed(rows: Rows, num_same: int) -> list[memoryview]:
    """Return the int32 ids of every row's prefix; this is half the work, so none is done twice."""
    end = rows.layout.prefix_len
    same = struct.pack(f"{num_same}i", *rows.token_ids[0][:num_same])
    others = (struct.pack(f"{end - num_same}i", *row[num_same:end]) for row in rows.token_ids)
    return [memoryview(same + other).cast("i") for other in others]


def _chain(
    key: bytes,
    pages: range,
    page_size: int,
    rows: Sequence[memoryview],
    drawn: Sequence[tuple[ReferenceSpan, bytes]],
) -> Iterator[bytes]:
    """Yield the keys of `pages`, in which `rows` meet; the first follows `key`."""
    begun: dict[int, bytes] = {}
    for span, picture in drawn:
        page = span.timestep // page_size
        if page in pages:
            begun[page] = begun.get(page, b"") + _span_digest(span, picture, rows)
    no_head = _numbers(0, len(rows))
    heads = {page: _numbers(len(spans), len(rows)) + spans for page, spans in begun.items()}
    for page in pages:
        digest = hashlib.sha256(key)
        digest.update(heads.get(page, no_head))
        for row in rows:
            digest.update(row[page * page_size : (page + 1) * page_size])
        key = digest.digest()
        yield key


def _span_digest(span: ReferenceSpan, picture: bytes, rows: Sequence[memoryview]) -> bytes:
    """Hash all that the keys and values of a reference depend on, but what stands before it."""
    numbers = (span.timestep, *span.latent_grid, *span.patch_grid, span.num_patch_tokens)
    ids = (row[span.timestep : span.end] for row in rows)
    return _digest(_numbers(*numbers), picture, *ids)


def _numbers(*numbers: int) -> bytes:
    return struct.pack(f"{len(numbers)}q", *numbers)


def _digest(*parts: bytes | memoryview) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(_numbers(memoryview(part).nbytes))
        digest.update(part)
    return digest.digest()
