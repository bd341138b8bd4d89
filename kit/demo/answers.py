"""What servers answer, as far as the page shows it."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

from kit.checkpoint.shipped import DEFAULT_FINGERPRINT

KINDS = ("prefix", "target", "shared")
"""What may lie in a page that a request holds."""


@dataclass(frozen=True)
class Size:
    """A size that the model was trained on."""

    name: str
    width: int
    height: int
    target_tokens: int
    """Tokens of one row that every step writes anew."""


@dataclass(frozen=True)
class Info:
    """GET /v1/server/info."""

    name: str
    fingerprint: str
    mode: str
    sizes: tuple[Size, ...]
    page_size: int | None
    page_bytes: int
    pool_bytes: int
    defaults: dict[str, Any]
    limits: dict[str, Any]
    cfg_distilled: bool
    reference_refusal: str | None
    """Why the checkpoint takes no reference images; None where it does."""

    refused: dict[str, str]
    """Fields that this deployment refuses, each with the reason."""

    raw: dict[str, Any]

    @property
    def shipped(self) -> bool:
        """Whether it serves the checkpoint that ships with the kit, for which the examples are."""
        return self.fingerprint == DEFAULT_FINGERPRINT


@dataclass(frozen=True)
class Page:
    """One page of a row."""

    number: int
    kind: str
    num_tokens: int
    tail_slots: int


@dataclass(frozen=True)
class Holder:
    """A request that holds pages."""

    request_id: str
    is_running: bool
    prefix_tokens: int
    target_tokens: int
    cached_tokens: int
    """Of the prefix of each row, found in the pool when the request began."""

    step: int
    num_steps: int
    tokens_written: int
    rows: tuple[tuple[Page, ...], ...]

    @property
    def num_pages(self) -> int:
        return len({page.number for row in self.rows for page in row})


@dataclass(frozen=True)
class Pool:
    """GET /v1/kv."""

    version: int
    mode: str
    page_size: int | None
    page_bytes: int
    total: int
    used: int
    free: int
    peak: int
    cached: int
    """Free pages whose prefix later requests find."""

    holders: tuple[Holder, ...]


@dataclass(frozen=True)
class Step:
    """A picture made a step."""

    image_index: int
    num_images: int
    step: int
    num_steps: int


@dataclass(frozen=True)
class Preview:
    """A picture that is not done yet."""

    image_index: int
    data: bytes


@dataclass(frozen=True)
class Picture:
    """A finished picture: the file as the server wrote it, and how it was made."""

    image_index: int
    data: bytes
    seed: int
    prompt: str
    sampling: dict[str, Any]
    metrics: dict[str, Any]
    replay: dict[str, Any]
    warnings: tuple[str, ...]

    @property
    def size(self) -> str:
        return f"{self.sampling['width']}x{self.sampling['height']}"


def read_info(body: dict[str, Any]) -> Info:
    """Read an answer of /v1/server/info."""
    kv = body["kv"]
    return Info(
        name=body["name"],
        fingerprint=body["model"]["fingerprint"],
        mode=kv["mode"],
        sizes=tuple(
            Size(size["size"], size["width"], size["height"], size["target_tokens"])
            for size in body["sizes"]
        ),
        page_size=kv["page_size"],
        page_bytes=kv["page_bytes"],
        pool_bytes=kv["pool_bytes"],
        defaults=body["defaults"],
        limits=body["limits"],
        cfg_distilled=body["model"]["cfg_distilled"],
        reference_refusal=body["model"]["reference_refusal"],
        refused=body["not_supported"],
        raw=body,
    )


def read_pool(body: dict[str, Any]) -> Pool:
    """Read an answer or an event of /v1/kv."""
    pages = body["pages"]
    return Pool(
        version=body["version"],
        mode=body["mode"],
        page_size=body["page_size"],
        page_bytes=body["page_bytes"],
        total=pages["total"],
        used=pages["used"],
        free=pages["free"],
        peak=pages["peak"],
        cached=pages["cached"],
        holders=tuple(_read_holder(request) for request in body["requests"]),
    )


def read_picture(event: dict[str, Any], prompt: str) -> Picture:
    """Read an image_generation.completed or image_edit.completed event."""
    return Picture(
        image_index=event["image_index"],
        data=base64.b64decode(event["b64_json"]),
        seed=event["seed"],
        prompt=prompt,
        sampling=event["sampling"],
        metrics=event["metrics"],
        replay=event["replay"],
        warnings=tuple(event["warnings"]),
    )


def _read_holder(request: dict[str, Any]) -> Holder:
    return Holder(
        request_id=request["request_id"],
        is_running=request["state"] == "running",
        prefix_tokens=request["prefix_tokens"],
        target_tokens=request["target_tokens"],
        cached_tokens=request["cached_tokens"],
        step=request["step"],
        num_steps=request["num_steps"],
        tokens_written=request["tokens_written"],
        rows=tuple(
            tuple(
                Page(page["page"], page["kind"], page["num_tokens"], page["tail_slots"])
                for page in row
            )
            for row in request["rows"]
        ),
    )
