"""The replay record: made from a run, written as JSON, read back."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter, ValidationError, with_config

from kit.engine.preprocess import PreparedRequest
from kit.engine.references import pixel_hash
from kit.errors import RecordError
from kit.request import (
    GenerationRequest,
    RecordedDeployment,
    RecordedImage,
    RecordedModel,
    RecordedPlatform,
    RecordedRequest,
    ReplayRecord,
)
from kit.telemetry.strict import STRICT

FORMAT: Final = "kit.replay/3"
"""Changes when the record's fields do. Older ones are read as what they meant: 1 had no reference
images, 2 drew their latents with the request's own seed."""

MAX_RECORD_BYTES = 1 << 20
"""A row of 22,800 tokens, the longest of the official checkpoints, has about 100 KB of text."""


@with_config(STRICT)
@dataclass(frozen=True)
class _Document:
    format: Literal["kit.replay/1", "kit.replay/2", "kit.replay/3"]
    record: ReplayRecord


_DOCUMENT = TypeAdapter(_Document)


@dataclass(frozen=True)
class EngineFacts:
    """What is the same for every picture of a started engine."""

    model: RecordedModel
    deployment: RecordedDeployment
    platform: RecordedPlatform


def make_record(
    request: GenerationRequest,
    prepared: PreparedRequest,
    facts: EngineFacts,
    image: npt.NDArray[np.uint8],
) -> ReplayRecord:
    """Return the record of uint8 [H, W, 3] pixels that a request gave."""
    return ReplayRecord(
        request=RecordedRequest(
            prompt=request.prompt,
            system_prompt=request.system_prompt,
            cot_text=request.cot_text,
            template=prepared.template,
            sampling=prepared.sampling,
            images=tuple(image.source for image in request.images),
        ),
        model=facts.model,
        deployment=facts.deployment,
        platform=facts.platform,
        image=RecordedImage(image.shape[0], image.shape[1], pixel_hash(image)),
    )


def record_to_dict(record: ReplayRecord) -> dict[str, Any]:
    """Return the record as plain JSON values, with the name of its format."""
    tree = asdict(record)
    tree["request"]["images"] = list(tree["request"]["images"])
    return {"format": FORMAT, "record": tree}


def record_to_json(record: ReplayRecord, *, ascii_only: bool = False) -> str:
    """Return the record as one line of JSON; equal records give equal text.

    ascii_only: write other characters as escapes.
    """
    return json.dumps(
        record_to_dict(record),
        ensure_ascii=ascii_only,
        allow_nan=False,
        separators=(",", ":"),
        sort_keys=True,
    )


def record_from_json(text: str | bytes) -> ReplayRecord:
    """Read a record from a file of unknown origin; raises RecordError.

    Only its form is checked here. Its values go the way of every request and every deployment,
    which refuse what is out of range.
    """
    size = len(text.encode(errors="replace")) if isinstance(text, str) else len(text)
    if size > MAX_RECORD_BYTES:
        raise RecordError(
            f"the replay record has {size} bytes, at most {MAX_RECORD_BYTES} are read; "
            f"the kit wrote no such record"
        )
    try:
        return _completed(_DOCUMENT.validate_json(text).record)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the record"
        got = "" if first["type"] == "json_invalid" else f" (got {first['input']!r:.80})"
        hint = ""
        if where == "format":
            hint = f"; this kit reads the format {FORMAT}, replay it with the kit that made it"
        raise RecordError(f"replay record: {where}: {first['msg']}{got}{hint}") from error


def _completed(record: ReplayRecord) -> ReplayRecord:
    """Name the seed of the reference images that records before kit.replay/3 leave out."""
    request = record.request
    if not request.images or request.sampling.reference_seed is not None:
        return record
    sampling = replace(request.sampling, reference_seed=request.sampling.seed)
    return replace(record, request=replace(request, sampling=sampling))
