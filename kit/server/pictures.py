"""From finished pictures to the bodies of answers."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kit.engine.images import EncodedImage, encode_image
from kit.engine.replay import FORMAT
from kit.request import GenerationResult
from kit.server.answers import (
    ChatAnswer,
    ChatChoice,
    ChatMessage,
    ChatUsage,
    ImageContent,
    ImageData,
    ImageLink,
    ImagesAnswer,
    Metrics,
    Replay,
    TokenDetails,
    Usage,
)
from kit.server.normalise import OutputFormat, PublicRequest


@dataclass(frozen=True)
class Picture:
    """A finished picture, encoded."""

    result: GenerationResult
    encoded: EncodedImage
    b64: str
    encode_time_s: float

    @property
    def data_url(self) -> str:
        return f"data:{self.encoded.media_type};base64,{self.b64}"

    @property
    def size(self) -> str:
        return f"{self.result.sampling.width}x{self.result.sampling.height}"


def encode(result: GenerationResult, output: OutputFormat) -> Picture:
    """Write the file of a picture; takes milliseconds, so never on the event loop."""
    started = time.perf_counter()
    encoded = encode_image(
        result.image, output.image_format, quality=output.quality, record=result.replay
    )
    encode_time_s = time.perf_counter() - started
    return Picture(result, encoded, base64.b64encode(encoded.data).decode(), encode_time_s)


def images_answer(public: PublicRequest, pictures: Sequence[Picture], model: str) -> ImagesAnswer:
    """Return the answer of an images endpoint; `pictures` in the order of their seeds."""
    return ImagesAnswer(
        id=public.request_id,
        created=int(time.time()),
        model=model,
        data=[ImageData(b64_json=p.b64, **facts(p)) for p in pictures],
        output_format=public.output.image_format,
        size=pictures[0].size,
        safety_identifier=public.safety_identifier,
        usage=usage(pictures),
        sampling=pictures[0].result.sampling,
        metrics=combined_metrics(pictures),
        warnings=all_warnings(public, pictures),
    )


def chat_answer(public: PublicRequest, pictures: Sequence[Picture], model: str) -> ChatAnswer:
    """Return the answer of a chat completion: one choice a picture."""
    return ChatAnswer(
        id=public.request_id,
        created=int(time.time()),
        model=model,
        choices=[
            ChatChoice(index=i, message=ChatMessage(content=chat_content(p)), **facts(p))
            for i, p in enumerate(pictures)
        ],
        usage=chat_usage(pictures),
        safety_identifier=public.safety_identifier,
        sampling=pictures[0].result.sampling,
        metrics=combined_metrics(pictures),
        warnings=all_warnings(public, pictures),
    )


def chat_content(picture: Picture) -> list[ImageContent]:
    """Return a picture as the parts of a message."""
    return [ImageContent(image_url=ImageLink(url=picture.data_url))]


def facts(picture: Picture) -> dict[str, Any]:
    """Return the fields of `Facts`."""
    return {
        "seed": picture.result.sampling.seed,
        "sampling": picture.result.sampling,
        "metrics": metrics(picture),
        "replay": Replay(format=FORMAT, record=picture.result.replay),
    }


def metrics(picture: Picture) -> Metrics:
    """Return the metrics of one picture."""
    return Metrics(encode_time_s=picture.encode_time_s, **vars(picture.result.metrics))


def combined_metrics(pictures: Sequence[Picture]) -> Metrics:
    """Return the metrics of a whole request.

    The queue is the wait of the first picture, the total that of the last; steps stand one after
    the other; other times are sums; rows, pages and bytes are those of the largest.
    """
    parts = [metrics(picture) for picture in pictures]
    return Metrics(
        queue_time_s=min(part.queue_time_s for part in parts),
        reference_time_s=sum(part.reference_time_s for part in parts),
        first_step_time_s=sum(part.first_step_time_s for part in parts),
        step_times_s=[seconds for part in parts for seconds in part.step_times_s],
        preview_time_s=sum(part.preview_time_s for part in parts),
        decode_time_s=sum(part.decode_time_s for part in parts),
        encode_time_s=sum(part.encode_time_s for part in parts),
        total_time_s=max(part.total_time_s for part in parts),
        peak_memory_bytes=max(part.peak_memory_bytes for part in parts),
        prefix_tokens=max(part.prefix_tokens for part in parts),
        reference_tokens=max(part.reference_tokens for part in parts),
        target_tokens=max(part.target_tokens for part in parts),
        cached_tokens=max(part.cached_tokens for part in parts),
        shared_tokens=max(part.shared_tokens for part in parts),
        num_rows=max(part.num_rows for part in parts),
        num_pages=max(part.num_pages for part in parts),
        kv_bytes=max(part.kv_bytes for part in parts),
        tokens_written=[count for part in parts for count in part.tokens_written],
    )


def usage(pictures: Sequence[Picture]) -> Usage:
    """Count the tokens of one row of each picture: prefix in, target out."""
    seen = [picture.result.metrics for picture in pictures]
    given, image = sum(m.prefix_tokens for m in seen), sum(m.target_tokens for m in seen)
    references = sum(m.reference_tokens for m in seen)
    return Usage(
        input_tokens=given,
        output_tokens=image,
        total_tokens=given + image,
        input_tokens_details=TokenDetails(image_tokens=references, text_tokens=given - references),
        output_tokens_details=TokenDetails(image_tokens=image, text_tokens=0),
    )


def chat_usage(pictures: Sequence[Picture]) -> ChatUsage:
    """Return the usage by the names of chat completions."""
    counted = usage(pictures)
    return ChatUsage(
        prompt_tokens=counted.input_tokens,
        completion_tokens=counted.output_tokens,
        total_tokens=counted.total_tokens,
    )


def all_warnings(public: PublicRequest, pictures: Sequence[Picture]) -> list[str]:
    """Name what was accepted without effect, then what the engine noticed; nothing twice."""
    engine = [warning for picture in pictures for warning in picture.result.warnings]
    lost = [
        f"the {public.output.image_format} has no room for the replay record; it stands in this "
        f"answer only"
        for picture in pictures
        if not picture.encoded.has_record
    ]
    return list(dict.fromkeys((*public.warnings, *engine, *lost)))
