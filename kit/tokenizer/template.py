"""A request's texts and size to its token rows.

Sections, each tokenised on its own; N is the number of image tokens:

    image      <boi> <img_size_B> <img_ratio_k>
               <timestep> [<guidance>] [<timestep_r>] <img>*N  <eoi>
    reference  <boi> <img_size_B> <img_ratio_k> <timestep> <img>*V <joint_img_sep> <img>*W <eoi>
    pretrain   <|startoftext|> | system | prompt | image
    instruct   <|startoftext|> | system | "\\n\\n" | "User: " | reference* | prompt | "\\n\\n"
               | "Assistant: " | cot | <answer> | image | </answer> | "\\n\\n"

The unconditional row has <cfg> for each token of the prompt and of the text of the cot, one for
one, so both rows have the same layout (HunyuanImage-3.0 reference, `apply_general_template`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import get_args

from kit.errors import InvalidRequestError
from kit.modelspec.config import ModelConfig
from kit.modelspec.vision import VisionConfig
from kit.request import Template
from kit.tokenizer.buckets import Bucket, fitting_sizes, largest_fitting, nearest_bucket
from kit.tokenizer.layout import NUM_BEFORE_TIMESTEP, Layout, ReferenceSpan, Rows
from kit.tokenizer.special import TAGS
from kit.tokenizer.tokenizer import Tokenizer

_SEPARATOR = "\n\n"
_USER = "User: "
_ASSISTANT = "Assistant: "
_TAG = re.compile(f"({'|'.join(TAGS)})")
_COT_PARTS = (("<think>", "</think>"), ("<recaption>", "</recaption>"))

# Far above every bucket; the ratio of much larger numbers does not fit a float.
_LARGEST_SIDE = 1_000_000


@dataclass(frozen=True)
class ReferenceShape:
    """What decides the tokens of a reference image."""

    bucket: Bucket
    """Size of the picture that the autoencoder reads."""

    patch_grid: tuple[int, int]
    """(rows, columns) of the patches that the vision tower reads."""


@dataclass(frozen=True)
class _Section:
    """Some tokens of the prefix."""

    ids: list[int]
    field: str = ""
    """The request's field that they come from; empty for the template's own."""

    hidden: bool = False
    """Whether the unconditional row shows <cfg> instead."""

    reference: ReferenceShape | None = None
    """Of the reference image that it is."""


def build_rows(
    tokenizer: Tokenizer,
    model: ModelConfig,
    *,
    prompt: str,
    system_prompt: str | None,
    cot_text: str | None,
    template: Template,
    height: int,
    width: int,
    num_rows: int,
    drop_think: bool,
    references: Sequence[ReferenceShape] = (),
) -> Rows:
    """Return `num_rows` rows of one layout: 1 is conditional only, 2 adds the unconditional one.

    `cot_text` holds a `<think>..</think>` part, a `<recaption>..</recaption>` part or both, or it
    is text without tags, which becomes an answer before the image; `drop_think` leaves the think
    part out. A blank system prompt is none. A distilled model takes one row. `references` stand
    before the prompt, in both rows; the checkpoint takes some. Raises InvalidRequestError with
    param prompt, system_prompt, cot_text, template, size or image.
    """
    assert num_rows in (1, 2), f"a request has 1 or 2 rows, got {num_rows}"
    _check_texts(prompt, system_prompt, cot_text, template)
    if references and template != "instruct":
        raise InvalidRequestError(
            f"template: the {template} template has no place for reference images; use the "
            f"instruct template or send none",
            param="template",
        )
    sizes = supported_sizes(tokenizer, model)
    bucket = _find_bucket(sizes, height, width)
    special = tokenizer.special
    system = _system_section(tokenizer, system_prompt or "")
    user = _Section(tokenizer.encode(prompt), "prompt", hidden=True)
    image = _Section([special.boi, special.img_size, special.img_ratio[bucket.ratio_index]])
    bos = _Section([special.bos])
    tail = [special.eoi]
    if template == "pretrain":
        sections = [bos, *system, user, image]
    else:
        separator = _Section(tokenizer.encode(_SEPARATOR))
        sections = [bos, *system, *([separator] if system else [])]
        sections += [_Section(tokenizer.encode(_USER))]
        sections += [_reference_section(tokenizer, model, shape) for shape in references]
        sections += [user, separator]
        sections += [_Section(tokenizer.encode(_ASSISTANT))]
        sections += _cot_sections(tokenizer, cot_text or "", drop_think=drop_think)
        sections += [_Section([special.tags["<answer>"]]), image]
        tail += [special.tags["</answer>"], *separator.ids]

    layout = Layout(
        prefix_len=sum(len(section.ids) for section in sections),
        num_special=len(special.target),
        grid=model.latent_grid(bucket.height, bucket.width),
        tail_len=len(tail),
        references=tuple(_reference_spans(model, sections)),
    )
    if layout.seq_len > model.max_position_embeddings:
        raise _too_long(layout, sections, bucket, sizes, model)
    after_prefix = (*special.target, *(special.img,) * layout.num_image, *tail)
    conditional = [i for section in sections for i in section.ids]
    unconditional = [special.cfg if s.hidden else i for s in sections for i in s.ids]
    prefixes = (conditional, unconditional)[:num_rows]
    return Rows(layout, tuple((*prefix, *after_prefix) for prefix in prefixes))


def supported_sizes(tokenizer: Tokenizer, model: ModelConfig) -> tuple[Bucket, ...]:
    """Return the sizes of a checkpoint; raises CheckpointError if there is none."""
    return fitting_sizes(tokenizer.buckets, model)


def _check_texts(
    prompt: str, system_prompt: str | None, cot_text: str | None, template: Template
) -> None:
    if template not in get_args(Template):
        raise InvalidRequestError(
            f"template: expected one of {', '.join(get_args(Template))}, got {template!r}",
            param="template",
        )
    texts = {"prompt": prompt, "system_prompt": system_prompt, "cot_text": cot_text}
    for field, text in texts.items():
        _check_unicode(field, text or "")
    if not prompt.strip():
        raise InvalidRequestError(
            f"prompt: expected text that describes the image, got {prompt[:40]!r}", param="prompt"
        )
    if cot_text is not None:
        _check_cot(cot_text, template)


def _check_unicode(field: str, text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        # JSON can spell half of a surrogate pair; no tokenizer takes it.
        raise InvalidRequestError(
            f"{field}: expected valid Unicode, got half of a surrogate pair "
            f"(U+{ord(text[error.start]):04X}) at index {error.start}",
            param=field,
        ) from None


def _check_cot(text: str, template: Template) -> None:
    if template != "instruct":
        raise InvalidRequestError(
            f"cot_text: the {template} template has no place for it; use the instruct template "
            f"or leave cot_text out",
            param="cot_text",
        )
    if not text.strip():
        raise InvalidRequestError(
            f"cot_text: got {text[:40]!r}; leave it out to have none", param="cot_text"
        )
    tags = _TAG.findall(text)
    parts = list(zip(tags[::2], tags[1::2], strict=False))
    if len(tags) % 2 or len(set(parts)) < len(parts) or not set(parts) <= set(_COT_PARTS):
        raise InvalidRequestError(
            f"cot_text: expected at most one <think>..</think> and one <recaption>..</recaption>, "
            f"not nested, without <answer>; got the tags {' '.join(tags)[:200]}",
            param="cot_text",
        )


def _find_bucket(sizes: tuple[Bucket, ...], height: int, width: int) -> Bucket:
    for bucket in sizes:
        if (bucket.height, bucket.width) == (height, width):
            return bucket
    nearest = ""
    if 0 < height <= _LARGEST_SIDE and 0 < width <= _LARGEST_SIDE:
        nearest = f"; nearest supported: {nearest_bucket(sizes, height, width)}"
    raise InvalidRequestError(
        f"size: {width}x{height} is not supported{nearest}; sizes (WIDTHxHEIGHT): "
        f"{', '.join(map(str, sizes))}",
        param="size",
    )


def _system_section(tokenizer: Tokenizer, text: str) -> list[_Section]:
    """Encode a system prompt, where TAGS are tokens and all else is text.

    The official system prompts describe the form of an answer by these tags, and the official
    tokenizer makes them tokens there.
    """
    text = text.strip()
    if not text:
        return []
    tags = tokenizer.special.tags
    ids = [i for s in _TAG.split(text) for i in ([tags[s]] if s in tags else tokenizer.encode(s))]
    return [_Section(ids, "system_prompt")]


def _reference_section(tokenizer: Tokenizer, model: ModelConfig, shape: ReferenceShape) -> _Section:
    special = tokenizer.special
    assert special.joint_img_sep is not None, "the checkpoint takes references"
    h, w = model.latent_grid(shape.bucket.height, shape.bucket.width)
    head = [special.boi, special.img_size, special.img_ratio[shape.bucket.ratio_index]]
    latents = [special.target[0], *(special.img,) * (h * w), special.joint_img_sep]
    patches = (special.img,) * _num_patch_tokens(model)
    return _Section([*head, *latents, *patches, special.eoi], "image", reference=shape)


def _reference_spans(model: ModelConfig, sections: list[_Section]) -> Iterator[ReferenceSpan]:
    start = 0
    for section in sections:
        if (shape := section.reference) is not None:
            yield ReferenceSpan(
                timestep=start + NUM_BEFORE_TIMESTEP,
                latent_grid=model.latent_grid(shape.bucket.height, shape.bucket.width),
                patch_grid=shape.patch_grid,
                num_patch_tokens=_num_patch_tokens(model),
            )
        start += len(section.ids)


def _num_patch_tokens(model: ModelConfig) -> int:
    assert isinstance(model.vision, VisionConfig), "the checkpoint takes references"
    return model.vision.max_num_patches


def _cot_sections(tokenizer: Tokenizer, text: str, *, drop_think: bool) -> Iterator[_Section]:
    """Yield the sections of a checked cot_text; its tags stay visible, its text is hidden."""
    tags = tokenizer.special.tags
    pieces = _TAG.split(text)
    if len(pieces) == 1 and text:
        # The reference writes the two tags into the section's text, so they are hidden with it.
        ids = [tags["<answer>"], *tokenizer.encode(text), tags["</answer>"]]
        yield _Section(ids, "cot_text", hidden=True)
        return
    dropping = False
    for piece in pieces:
        dropping = dropping or (drop_think and piece == "<think>")
        if not dropping and piece in tags:
            yield _Section([tags[piece]], "cot_text")
        elif not dropping:
            yield _Section(tokenizer.encode(piece), "cot_text", hidden=True)
        dropping = dropping and piece != "</think>"


def _too_long(
    layout: Layout,
    sections: list[_Section],
    bucket: Bucket,
    sizes: tuple[Bucket, ...],
    model: ModelConfig,
) -> InvalidRequestError:
    """Name what takes the most room, and the largest size that would leave enough, if one does."""
    limit = model.max_position_embeddings
    num = {
        field: sum(len(section.ids) for section in sections if section.field == field)
        for field in ("prompt", "system_prompt", "cot_text", "image")
    }
    got = f"the row has {layout.seq_len} tokens, the model takes {limit}"
    fitting = largest_fitting(model, sizes, layout.prefix_len + layout.tail_len, limit)
    other_size = f" or use {fitting}, the largest size that fits" if fitting else ""
    num_prompt = num.pop("prompt")
    room = limit - (layout.seq_len - num_prompt)
    if room > 0:
        return InvalidRequestError(
            f"prompt: {got}; at most {room} prompt tokens fit beside the rest and an image of "
            f"{bucket}, got {num_prompt}; shorten it{other_size}",
            param="prompt",
        )
    longest = max(num, key=lambda field: num[field])
    if num[longest]:
        change = "send fewer reference images" if longest == "image" else "shorten it"
        others = "".join(f", {n} of {field}" for field, n in num.items() if n and field != longest)
        return InvalidRequestError(
            f"{longest}: {got}; no prompt token fits beside its {num[longest]} tokens{others} and "
            f"an image of {bucket}; {change}{other_size}",
            param=longest,
        )
    return InvalidRequestError(
        f"size: {got}; no prompt token fits beside an image of {bucket}; use a smaller size",
        param="size",
    )
