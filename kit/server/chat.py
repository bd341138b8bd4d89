"""POST /v1/chat/completions: an assistant that answers with pictures."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from fastapi import FastAPI, Request
from fastapi.responses import Response

from kit.errors import InvalidRequestError
from kit.server.answers import ChatAnswer
from kit.server.normalise import PublicRequest, public_request, with_images
from kit.server.pictures import chat_answer
from kit.server.protocol import ChatCompletionBody, ImagePart, ImageURL, Message, TextPart
from kit.server.references import read_urls
from kit.server.service import Service, answers, json_answer
from kit.server.streams import ChatChunks, stream


def install_chat(app: FastAPI, service: Service) -> None:
    """Add POST /v1/chat/completions."""

    @app.post(
        "/v1/chat/completions",
        tags=["pictures"],
        response_model=ChatAnswer,
        responses=answers(
            ChatAnswer,
            "One choice a picture, or with `stream` their chunks",
            stream="chat.completion.chunk events, then [DONE]",
        ),
    )
    async def chat(body: ChatCompletionBody, request: Request) -> Response:
        """Draw pictures from the messages of the user."""
        service.check_model(body.model)
        name = service.settings.name
        try:
            # Reading reference images may take a second.
            public = await asyncio.to_thread(read_chat, body, service)
            if public.stream:
                options = body.stream_options
                include_usage = bool(options and options.include_usage)
                events = ChatChunks(public, name, include_usage=include_usage)
                return stream(await service.start(public), events)
            pictures = await service.draw(request, public)
        except InvalidRequestError as error:
            raise _in_messages(error) from error
        return json_answer(chat_answer(public, pictures, name))


def read_chat(body: ChatCompletionBody, service: Service) -> PublicRequest:
    """Return what a conversation asks for; raises InvalidRequestError naming the field.

    The texts of all user messages are the prompt, those of system and developer messages the
    system prompt, each joined by line breaks; the images of user messages are the references.
    """
    warnings: tuple[str, ...] = ()
    if body.modalities is None:
        warnings = ('modalities was absent and taken as ["image"]',)
    elif body.modalities != ["image"]:
        raise InvalidRequestError(
            f'modalities: got {body.modalities!r:.100}, this server makes pictures; send ["image"]',
            param="modalities",
        )
    if body.stream_options is not None and not body.stream:
        raise InvalidRequestError(
            "stream_options: there is no stream; send stream: true, or leave it out",
            param="stream_options",
        )
    user: list[str] = []
    system: list[str] = []
    urls: list[tuple[str, str]] = []
    for index, message in enumerate(body.messages):
        if message.role == "assistant":
            raise InvalidRequestError(
                f"messages[{index}]: an assistant message cannot be continued by this model; send "
                f"its text as cot_text, or leave it out",
                param=f"messages[{index}]",
            )
        where = f"messages[{index}].content"
        if text := _text(message, where):
            (user if message.role == "user" else system).append(text)
        urls += _urls(message, where)
    if any(_has_detail(message) for message in body.messages):
        warnings = (*warnings, "detail has no effect on a picture")
    public = public_request(
        body,
        prompt="\n".join(user),
        defaults=service.defaults,
        system_message="\n".join(system) if system else None,
        warnings=warnings,
    )
    return with_images(public, read_urls(urls, service.engine.preprocessor, service.settings))


def _text(message: Message, where: str) -> str:
    if isinstance(message.content, str):
        return message.content
    texts = []
    for index, part in enumerate(message.content):
        if isinstance(part, TextPart):
            texts.append(part.text)
        elif not isinstance(part, ImagePart) or message.role != "user":
            known = "text and image_url" if message.role == "user" else "text"
            raise InvalidRequestError(
                f"{where}[{index}]: got a part of type {part.type!r} in a message of the role "
                f"{message.role}; send {known} parts",
                param=f"{where}[{index}]",
            )
    return "\n".join(texts)


def _urls(message: Message, where: str) -> Iterator[tuple[str, str]]:
    """Yield the field and the URL of every image of a message."""
    for index, part in enumerate(message.content):
        if isinstance(part, ImagePart):
            image = part.image_url
            yield f"{where}[{index}].image_url", image if isinstance(image, str) else image.url


def _has_detail(message: Message) -> bool:
    return any(
        isinstance(part, ImagePart)
        and isinstance(part.image_url, ImageURL)
        and part.image_url.detail is not None
        for part in message.content
    )


def _in_messages(error: InvalidRequestError) -> InvalidRequestError:
    """A conversation has no field `prompt`: what is wrong with it is wrong with its messages."""
    if error.param != "prompt":
        return error
    reason = str(error).removeprefix("prompt: ")
    return InvalidRequestError(f"messages (the texts of the user): {reason}", param="messages")
