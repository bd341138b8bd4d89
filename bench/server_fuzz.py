"""Requests that nobody should send: every field of every body with values it must not have.

A few of them are right by chance, and then a picture is drawn; values that would draw for long are
left out.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from kit.server.fields import ImageFields
from kit.server.protocol import ChatCompletionBody, ImageEditForm, ImageGenerationBody

IMAGES: Final = "/v1/images/generations"
EDITS: Final = "/v1/images/edits"
CHAT: Final = "/v1/chat/completions"
JOBS: Final = "/v1/jobs"

_JSON = "application/json"
_BOUNDARY = "fuzz-boundary"
_QUICK: dict[str, Any] = {
    "size": "256x256",
    "num_inference_steps": 1,
    "guidance_scale": 1,
    "seed": 1,
}
_TEXTS: dict[str, dict[str, Any]] = {
    IMAGES: {"prompt": "a cat"},
    JOBS: {"prompt": "a cat"},
    CHAT: {"messages": [{"role": "user", "content": "a cat"}]},
}
_BODIES: dict[str, type[ImageFields]] = {
    IMAGES: ImageGenerationBody,
    JOBS: ImageGenerationBody,
    CHAT: ChatCompletionBody,
}
_INFINITY = float("inf")
_VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    2,
    11,
    1.5,
    -0.0,
    5e-324,
    1e308,
    float("nan"),
    _INFINITY,
    -_INFINITY,
    2**63 - 1,
    2**63,
    -(2**63) - 1,
    10**400,
    "",
    " \t\n",
    "2",
    "auto",
    "none",
    "256x256",
    "12x",
    "100000x10000",
    "jpeg",
    "b64_json",
    "a" * 40_000,
    "\0",
    "\ud800",
    "\u202e\U0001f431\u0301",
    "<img>",
    "../../etc/passwd",
    "http://127.0.0.1:1/x.png",
    [],
    [None],
    ["image"],
    [[[[[[]]]]]],
    {},
    {"": ""},
    {"type": "text"},
    {"seed": "1"},
    {"url": "file:///etc/passwd"},
)
_PARTS: tuple[Any, ...] = (
    {"type": "text", "text": "a dog"},
    {"type": "text"},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    {"type": "image_url", "image_url": "file:///etc/passwd"},
    {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
    {"type": "x"},
    {},
    "text",
)
_RAW: tuple[bytes, ...] = (
    b"",
    b"{",
    b"null",
    b"[]",
    b'"prompt"',
    b"\xff\xfe",
    b"\xef\xbb\xbf{}",
    b"[" * 50_000,
    b'{"prompt": ' * 500,
    b'{"prompt": "a", "prompt": "b", "n": 0}',
    b'{"prompt": "a", "seed": 1' + b"0" * 5000 + b"}",
    b'{"prompt": "\\ud83d", "n": 1}',
    b"prompt=a+cat",
)
_STRANGE_PATHS: tuple[tuple[str, str], ...] = (
    ("GET", "/"),
    ("GET", "/v1/images/generations"),
    ("PUT", "/v1/models"),
    ("DELETE", "/v1/jobs/%00"),
    ("GET", "/v1/jobs/..%2f..%2fetc%2fpasswd"),
    ("GET", "/v1/models/%ff%fe"),
    ("GET", "/v1/models/" + "a" * 3000),
    ("GET", "/v1/kv?stream=maybe"),
    ("POST", "/v1/chat/completions/"),
    ("OPTIONS", "/v1/jobs/x"),
)


@dataclass(frozen=True)
class FuzzRequest:
    """One request as bytes."""

    method: str
    path: str
    content: bytes = b""
    content_type: str = _JSON


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    """Names in lower case."""

    content: bytes


Send = Callable[[FuzzRequest], Answer]


def _targets() -> Iterator[tuple[str, str, bool] | None]:
    """Every field of every body, True for a form's; None, now and then, is no body at all."""
    fields = [(path, name, False) for path, body in _BODIES.items() for name in body.model_fields]
    fields += [(EDITS, name, True) for name in (*ImageEditForm.model_fields, "image", "mask")]
    # A job reads the same form; what it does with it is its own.
    fields += [(JOBS, name, True) for name in ("image", "stream", "n")]
    for at, field in enumerate(fields):
        yield field
        if at % 16 == 0:
            yield None


_TARGETS = tuple(_targets())
ROUND = len(_TARGETS)
"""Requests that touch every field once."""


def fuzz_requests(num: int, seed: int) -> Iterator[FuzzRequest]:
    """Yield `num` requests, the same ones for the same seed.

    They go round all fields of all bodies: ROUND of them touch every one.
    """
    draw = random.Random(seed)
    values = _shuffled_for_ever(_VALUES, draw)
    for target in itertools.islice(itertools.cycle(_TARGETS), num):
        if target is None:
            yield _malformed(draw)
        else:
            path, name, is_form = target
            yield (_form if is_form else _json_body)(path, name, values, draw)


def problem_of(request: FuzzRequest, answer: Answer) -> str | None:
    """Say what is wrong with an answer; None when it is as it should be."""
    what = f"{request.method} {request.path} {request.content[:300]!r}: {answer.status}"
    is_form = request.content_type.startswith("multipart/")
    allowed = (501,) if is_form and request.path in (EDITS, JOBS) else ()
    if answer.status >= 500 and answer.status not in allowed:
        return f"{what}, {answer.content[:300]!r}"
    if "x-request-id" not in answer.headers:
        return f"{what} without an id"
    if answer.status >= 400:
        try:
            error = json.loads(answer.content)["error"]
            kinds = [type(error[name]) for name in ("message", "type", "param", "code")]
        except (ValueError, TypeError, KeyError):
            return f"{what}, which is no error object: {answer.content[:300]!r}"
        if kinds[:2] != [str, str] or not set(kinds[2:]) <= {str, type(None)}:
            return f"{what}, which is no error object: {answer.content[:300]!r}"
    return None


def send_and_tidy(request: FuzzRequest, send: Send) -> Answer:
    """Send a request; a job that it started is cancelled, so that the queue stays short."""
    answer = send(request)
    if answer.status == 202:
        send(FuzzRequest("DELETE", f"{JOBS}/{json.loads(answer.content)['id']}"))
    return answer


def _shuffled_for_ever(values: tuple[Any, ...], draw: random.Random) -> Iterator[Any]:
    while True:
        yield from draw.sample(values, len(values))


def _json_body(path: str, name: str, values: Iterator[Any], draw: random.Random) -> FuzzRequest:
    body: dict[str, Any] = {**_TEXTS[path], **_QUICK}
    for field in (name, *draw.sample(list(_BODIES[path].model_fields), draw.randrange(3))):
        value = _value(field, values, draw)
        place = draw.randrange(4)
        if place == 0 and isinstance(extra := body.get("extra_body", {}), dict):
            body["extra_body"] = {**extra, field: value}
            if draw.random() < 0.5:
                body.pop(field, None)
        else:
            body[field] = value
    if draw.random() < 0.05:
        body[draw.choice(("sede", "", "__proto__", "trace_path"))] = next(values)
    return FuzzRequest("POST", path, json.dumps(body).encode())


def _value(field: str, values: Iterator[Any], draw: random.Random) -> Any:
    if field == "messages" and draw.random() < 0.8:
        role = draw.choice(("user", "user", "system", "assistant", "x", None))
        content = draw.sample(_PARTS, draw.randrange(4)) if draw.random() < 0.7 else next(values)
        return [{"role": role, "content": content}] * draw.choice((1, 1, 2, 300))
    return next(value for value in values if not _takes_long(field, value))


def _takes_long(field: str, value: Any) -> bool:
    """A time limit of less than a picture takes ends in 504, which is right and no 5xx to count."""
    return (
        field == "timeout_s"
        and isinstance(value, int | float)
        and not isinstance(value, bool)
        and 0 < value < 600
    )


def _form(path: str, name: str, values: Iterator[Any], draw: random.Random) -> FuzzRequest:
    parts: list[tuple[str, bytes, bool]] = [("prompt", b"a cat", False)]
    if draw.random() < 0.8:
        parts.append((draw.choice(("image", "image[]")), draw.choice(_FILES), True))
    value = next(values)
    text = value if isinstance(value, str) else json.dumps(value)
    spelled = draw.choice((name, name, f"{name}[]", f"{name}[x]", f"{name}["))
    parts.append((spelled, text.encode("utf-8", "surrogatepass"), draw.random() < 0.2))
    lines = []
    for field, content, is_file in parts:
        filename = '; filename="a.png"' if is_file else ""
        head = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="{field}"{filename}\r\n\r\n'
        lines += [head.encode(), content, b"\r\n"]
    # A form that breaks off within a file leaves that file to the garbage collector.
    is_cut = not parts[-1][2] and draw.random() < 0.1
    end = b"" if is_cut else f"--{_BOUNDARY}--\r\n".encode()
    content_type = f"multipart/form-data; boundary={_BOUNDARY}"
    return FuzzRequest("POST", path, b"".join((*lines, end)), content_type)


def _malformed(draw: random.Random) -> FuzzRequest:
    if draw.random() < 0.3:
        return FuzzRequest(*draw.choice(_STRANGE_PATHS))
    path = draw.choice((IMAGES, EDITS, CHAT, JOBS))
    kinds = (_JSON, _JSON, "", "text/plain", "multipart/form-data", "application/json; charset=x")
    return FuzzRequest("POST", path, draw.choice(_RAW), draw.choice(kinds))


_PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108020000009077"
    "53de0000000c49444154789c63f8cfc0000003010100c9fe92ef0000000049454e44ae426082"
)
_FILES = (_PNG, _PNG, _PNG[:20], b"", b"RIFF\0\0\0\0WEBPVP8X" + b"\xff" * 20, b"\xff\xd8\xff" * 9)
