"""Keys of prefix pages: pages with equal keys hold equal keys and values.

What a page holds depends on every token up to its end, on the model and its dtype, and on the
pixels of each reference image that begins before its end: the tokens of a reference all see one
another, so a page in its middle depends on what lies pages further. A key covers all of that:

    key of page i = sha256(key of page i-1, each reference that it touches as a whole, its tokens)

What has no fixed length goes behind its length, so that no two inputs are spelled alike.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kit.config.deploy import PrefixLevel
from kit.modelspec.footprint import own_rows
from kit.request import Template
from kit.tokenizer.layout import ReferenceSpan, Rows

_ID_BYTES = array("i").itemsize


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
    num_equal = _num_equal(rows) if shares_rows else 0
    num_shared = num_equal if num_tables > 1 and scope.row_ranks == 1 else 0
    salt = _salt(scope, parent_id)
    if salt is None:
        return PrefixKeys(((),) * num_tables, num_shared)

    whole = layout.prefix_len // size
    num_lead = num_equal // size
    lead_end = num_lead * size
    drawn = [
        _digest(picture.encode(), _numbers(ordinal, picture_seed))
        for ordinal, picture in enumerate(pictures)
    ]
    spans = list(zip(layout.references, drawn, strict=True))
    first = _id_bytes(rows.token_ids[0][: layout.prefix_len])
    equal_spans = [
        (span, _span_digest(span, picture, [first], 0))
        for span, picture in spans
        if span.end <= num_equal
    ]
    root = (template.encode(), scope.model.encode(), scope.dtype.encode(), _numbers(size), *salt)
    lead = list(_chain(_digest(*root), range(num_lead), size, [first], 0, equal_spans))
    ids = [first[lead_end * _ID_BYTES :]]
    ids += [_id_bytes(row[lead_end : layout.prefix_len]) for row in rows.token_ids[1:]]
    tables = []
    for table in range(num_tables):
        # The ranks have the same tables, and each its own rows in them: at one place of a table
        # lies a row of every rank.
        met = range(table, num_rows, num_tables)
        key = lead[-1] if lead else _digest(*root, *(() if shares_rows else (_numbers(*met),)))
        own = [ids[row] for row in met]
        own_spans = equal_spans + [
            (span, _span_digest(span, picture, own, lead_end))
            for span, picture in spans
            if span.end > num_equal
        ]
        rest = _chain(key, range(num_lead, whole), size, own, lead_end, own_spans)
        tables.append((*lead, *rest))
    return PrefixKeys(tuple(tables), num_shared)


def _salt(scope: PrefixScope, parent_id: str | None) -> tuple[bytes, ...] | None:
    """What keeps keys apart that must not meet; None if a request's keys may meet no others."""
    if "requests" in scope.levels:
        return (b"requests",)
    if "images" in scope.levels and parent_id is not None:
        return (b"images", parent_id.encode())
    return None


def _num_equal(rows: Rows) -> int:
    """Count the leading tokens of the prefix whose keys and values are the same in all rows."""
    first, *others = rows.token_ids
    limit = rows.layout.prefix_len
    num = min((_num_equal_ids(first, other, limit) for other in others), default=limit)
    for span in rows.layout.references:
        if span.timestep < num < span.end:
            return span.timestep
    return num


def _num_equal_ids(first: tuple[int, ...], other: tuple[int, ...], limit: int) -> int:
    """By bisection: comparing slices is many times faster than a loop."""
    if first[:limit] == other[:limit]:
        return limit
    equal, unequal = 0, limit
    while unequal - equal > 1:
        middle = (equal + unequal) // 2
        if first[equal:middle] == other[equal:middle]:
            equal = middle
        else:
            unequal = middle
    return equal


def _chain(
    key: bytes,
    pages: range,
    page_size: int,
    rows: Sequence[bytes],
    start: int,
    spans: Sequence[tuple[ReferenceSpan, bytes]],
) -> Iterator[bytes]:
    """Yield the keys of `pages`, the first behind `key`; `rows` are token ids from `start` on."""
    num_bytes = page_size * _ID_BYTES
    for page in pages:
        first, end = page * page_size, (page + 1) * page_size
        touched = [digest for span, digest in spans if span.timestep < end and first < span.end]
        at = (first - start) * _ID_BYTES
        tokens = [row[at : at + num_bytes] for row in rows]
        counts = _numbers(len(touched), len(rows))
        key = hashlib.sha256(b"".join((key, counts, *touched, *tokens))).digest()
        yield key


def _span_digest(span: ReferenceSpan, picture: bytes, rows: Sequence[bytes], start: int) -> bytes:
    """Hash all that the keys and values of a reference depend on, but what stands before it."""
    numbers = (span.timestep, *span.latent_grid, *span.patch_grid, span.num_patch_tokens)
    ids = slice((span.timestep - start) * _ID_BYTES, (span.end - start) * _ID_BYTES)
    return _digest(_numbers(*numbers), picture, *(row[ids] for row in rows))


def _id_bytes(ids: tuple[int, ...]) -> bytes:
    return array("i", ids).tobytes()


def _numbers(*numbers: int) -> bytes:
    return array("q", numbers).tobytes()


def _digest(*parts: bytes) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(_numbers(len(part)))
        digest.update(part)
    return digest.digest()
