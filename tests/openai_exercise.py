"""Uses the real openai package against a running server and prints what it saw as JSON.

Run as `python openai_exercise.py URL`, with whichever version of the package comes first on the
path: not one line here depends on it.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
import sys
import time
import warnings
from typing import Any

import openai
from PIL import Image

MODEL = "hunyuan_image3_tiny"
PROMPT = "a red vase"
FIELDS = {"num_inference_steps": 2, "guidance_scale": 1, "seed": 11}
MESSAGES: Any = [{"role": "user", "content": PROMPT}]


def picture(b64: str) -> dict[str, Any]:
    image = Image.open(io.BytesIO(base64.b64decode(b64)))
    digest = hashlib.sha256(image.convert("RGB").tobytes()).hexdigest()
    return {"format": image.format, "size": list(image.size), "sha256": digest}


def message_picture(content: Any) -> dict[str, Any]:
    return picture(content[0]["image_url"]["url"].split(",", 1)[1])


def png() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "PNG")
    return buffer.getvalue()


def failure(error: Any) -> dict[str, Any]:
    names = [kind.__name__ for kind in type(error).__mro__]
    return {
        "kinds": names[: names.index("Exception")],
        "message": str(error),
        "param": getattr(error, "param", None),
        "code": getattr(error, "code", None),
        "request_id": getattr(error, "request_id", None),
        "status": getattr(error, "status_code", None),
    }


def with_sync(url: str) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        seen["models"] = [model.id for model in client.models.list().data]
        seen["model"] = client.models.retrieve(MODEL).id
        chat = client.chat.completions.create(
            model=MODEL, messages=MESSAGES, n=2, extra_body={"modalities": ["image"], **FIELDS}
        )
        seen["chat"] = [message_picture(choice.message.content) for choice in chat.choices]
        seen["chat_seeds"] = [choice.model_extra["seed"] for choice in chat.choices]
        seen["chat_usage"] = chat.usage.total_tokens
        seen["chat_warnings"] = chat.model_extra["warnings"]
        images = client.images.generate(
            model=MODEL, prompt=PROMPT, n=2, size="256x256", extra_body=FIELDS
        )
        seen["images"] = [picture(image.b64_json) for image in images.data]
        seen["images_metrics"] = sorted(images.model_extra["metrics"])
        seen["images_usage"] = images.usage.total_tokens
        seen["images_request_id"] = images._request_id
        edited = client.images.edit(prompt=PROMPT, image=("a.png", png()), extra_body=FIELDS)
        seen["edit"] = [picture(image.b64_json) for image in edited.data]
        stream = client.images.generate(
            model=MODEL, prompt=PROMPT, stream=True, partial_images=1, extra_body=FIELDS
        )
        seen["image_stream"] = [(event.type, picture(event.b64_json)) for event in stream]
        chunks = list(
            client.chat.completions.create(
                model=MODEL,
                messages=MESSAGES,
                stream=True,
                stream_options={"include_usage": True},
                extra_body=FIELDS,
            )
        )
        seen["chat_stream"] = [
            message_picture(chunk.choices[0].delta.content)
            for chunk in chunks
            if chunk.choices and chunk.choices[0].delta.content
        ]
        seen["chat_stream_finish"] = [
            chunk.choices[0].finish_reason for chunk in chunks if chunk.choices
        ]
        seen["chat_stream_usage"] = chunks[-1].usage.total_tokens
        seen["failures"] = {
            name: failure_of(lambda call=call: call(client)) for name, call in FAILING.items()
        }
    return seen


def failure_of(call: Any) -> dict[str, Any]:
    started = time.monotonic()
    try:
        call()
    except openai.OpenAIError as error:
        return failure(error) | {"seconds": time.monotonic() - started}
    return {"kinds": []}


def consume(stream: Any) -> None:
    for _ in stream:
        pass


FAILING: dict[str, Any] = {
    "bad value": lambda client: client.images.generate(
        model=MODEL, prompt=PROMPT, extra_body={"num_inference_steps": 0}
    ),
    "bad size": lambda client: client.images.generate(model=MODEL, prompt=PROMPT, size="1536x864"),
    "unknown field": lambda client: client.chat.completions.create(
        model=MODEL, messages=MESSAGES, extra_body={"num_steps": 3}
    ),
    "unknown model": lambda client: client.images.generate(model="gpt-image-1", prompt=PROMPT),
    "broken image": lambda client: client.images.edit(
        model=MODEL, prompt=PROMPT, image=("a.png", png()[:40]), extra_body={"seed": 3}
    ),
    "two images and a mask": lambda client: client.images.edit(
        model=MODEL,
        prompt=PROMPT,
        image=[("a.png", png()), ("b.png", png())],
        mask=("m.png", png()),
        n=2,
        size="256x256",
        extra_body={"guidance_scale": 2.5},
    ),
    "no image": lambda client: client.images.edit(model=MODEL, prompt=PROMPT, image=[]),
    "wrong field of an edit": lambda client: client.images.edit(
        model=MODEL, prompt=PROMPT, image=("a.png", png()), extra_body={"url": ["http://x/y"]}
    ),
    "number of an edit": lambda client: client.images.edit(
        model=MODEL, prompt=PROMPT, image=("a.png", png()), extra_body={"seed": "07"}
    ),
    "variation": lambda client: client.images.create_variation(image=("a.png", png())),
    "deadline": lambda client: client.with_options(max_retries=2).images.generate(
        model=MODEL, prompt=PROMPT, extra_body={"num_inference_steps": 1000, "timeout_s": 0.3}
    ),
    "deadline in a stream": lambda client: consume(
        client.images.generate(
            model=MODEL,
            prompt=PROMPT,
            stream=True,
            extra_body={"num_inference_steps": 1000, "timeout_s": 0.3},
        )
    ),
    "deadline in chunks": lambda client: consume(
        client.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            stream=True,
            extra_body={"num_inference_steps": 1000, "timeout_s": 0.3},
        )
    ),
    "own time-out": lambda client: client.with_options(timeout=0.3).images.generate(
        model=MODEL, prompt=PROMPT, extra_body={"num_inference_steps": 1000}
    ),
}


async def with_async(url: str) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        images, chat = await asyncio.gather(
            client.images.generate(prompt=PROMPT, extra_body=FIELDS),
            client.chat.completions.create(model=MODEL, messages=MESSAGES, extra_body=FIELDS),
        )
        seen["images"] = [picture(image.b64_json) for image in images.data]
        seen["chat"] = [message_picture(choice.message.content) for choice in chat.choices]
        stream = await client.images.generate(
            model=MODEL, prompt=PROMPT, stream=True, extra_body=FIELDS
        )
        seen["image_stream"] = [(event.type, picture(event.b64_json)) async for event in stream]
        edited = await client.images.edit(prompt=PROMPT, image=("a.png", png()), extra_body=FIELDS)
        seen["edit"] = [picture(image.b64_json) for image in edited.data]
        try:
            await client.with_options(timeout=0.3).images.generate(
                model=MODEL, prompt=PROMPT, extra_body={"num_inference_steps": 1000}
            )
        except openai.OpenAIError as error:
            seen["own time-out"] = failure(error)
    return seen


def main(url: str) -> None:
    # A list as a message's content is the shape of this API; the package's own types say text.
    warnings.simplefilter("ignore")
    seen: dict[str, Any] = {"version": openai.__version__, "where": openai.__file__}
    seen |= {"sync": with_sync(url), "async": asyncio.run(with_async(url))}
    sys.stdout.write(json.dumps(seen))


if __name__ == "__main__":
    main(sys.argv[1])
