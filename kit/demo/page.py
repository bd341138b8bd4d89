"""Puts the tabs together into one page and serves what they link to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import gradio as gr
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kit.demo.answers import Info
from kit.demo.client import AnswerError, UnreachableError
from kit.demo.compare_tab import CompareTab, page_key
from kit.demo.create_tab import CreateTab
from kit.demo.deployment_tab import DeploymentTab
from kit.demo.desk import Desk
from kit.demo.feed import ServerFeed
from kit.demo.form import RequestForm
from kit.demo.pages_tab import PagesTab
from kit.demo.theme import THEME
from kit.demo.words import say_state

TITLE = "HunyuanImage-3.0 with a paged KV cache"
_FOLDER = Path(__file__).parent
_STATE_INTERVAL_S = 1.0
_UPLOADS = (600, 86_400)
"""Reference images lie in a temporary folder: looked at so often, gone at this age or with the
page, in seconds."""

_MAX_UPLOAD_BYTES = 64 << 20
"""Of one file; a server takes a body of that length, unless it is told otherwise."""

_FORWARDED = ("metrics", "openapi.json")
_POLICY = (
    "default-src 'self' data: blob:; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; frame-ancestors 'self'"
)


@dataclass(frozen=True)
class _Known:
    """What one browser page shows of the servers."""

    offered: tuple[Mapping[str, Info], ...]
    """For each form, the servers whose reach it offers; empty before all of them said anything."""

    states: str = ""

    can_ask: tuple[bool, ...] = ()
    """For each start button, whether the servers that it needs answer."""


class _Asking(NamedTuple):
    """A form, its start button, the name of what it draws on a browser page, the servers that it
    needs.
    """

    form: RequestForm
    start: gr.Button
    key: Callable[[str], str]
    needed: list[ServerFeed]


def build_app(desk: Desk) -> FastAPI:
    """Return the page as an application; it watches its servers while it runs."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        del app
        async with desk.watch():
            yield

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/pictures/{key}")
    async def picture(key: str) -> Response:
        data = desk.shelf.get(key)
        if data is None:
            return PlainTextResponse("this page does not keep that picture any more", 404)
        headers = {"cache-control": "private, max-age=86400, immutable"}
        return Response(data, media_type="image/png", headers=headers)

    @app.get("/servers/{index}/{path}")
    async def forward(index: int, path: str) -> Response:
        if path not in _FORWARDED or not 0 <= index < len(desk.feeds):
            return PlainTextResponse("no such page", 404)
        try:
            return PlainTextResponse(await desk.feeds[index].client.text(f"/{path}"))
        except (UnreachableError, AnswerError) as error:
            return PlainTextResponse(str(error), 502)

    app.add_middleware(_OwnHostOnly)
    gr.mount_gradio_app(
        app,
        build_blocks(desk),
        path="/",
        footer_links=[],
        show_error=False,
        max_file_size=_MAX_UPLOAD_BYTES,
        ssr_mode=False,
        theme=THEME,
        css_paths=_FOLDER / "page.css",
        head=f"<script>{(_FOLDER / 'page.js').read_text()}</script>",
    )
    return app


def build_blocks(desk: Desk) -> gr.Blocks:
    """Return the page's tabs and what keeps them fresh."""
    blocks: gr.Blocks = gr.Blocks(
        title=TITLE, analytics_enabled=False, fill_width=True, delete_cache=_UPLOADS
    )
    with blocks:
        gr.HTML(_header(desk), elem_id="kit-header")
        state = gr.HTML(_states(desk), elem_id="kit-states", elem_classes="kit-live")
        with gr.Tabs(overflow_behavior="wrap"):
            with gr.Tab("Create", id="create") as create_item:
                create = CreateTab(desk)
            asking = [_Asking(create.form, create.start, str, [desk.main])]
            quiet = [create_item]
            if desk.other is not None:
                with gr.Tab("Compare", id="compare") as compare_item:
                    compare = CompareTab(desk, desk.other)
                asking.append(_Asking(compare.form, compare.start, page_key, desk.feeds))
                quiet.append(compare_item)
            with gr.Tab("Pages", id="pages") as pages_item:
                pages = PagesTab(desk)
            with gr.Tab("Deployment", id="deployment") as deployment_item:
                deployment = DeploymentTab(desk, create.last)
        timers = {pages_item: pages.timer, deployment_item: deployment.timer}
        for item in [*quiet, *timers]:
            item.select(
                lambda item=item: [gr.Timer(active=other is item) for other in timers],
                None,
                list(timers.values()),
                show_progress="hidden",
                concurrency_limit=None,
            )
        known = gr.State(_Known(({},) * len(asking)))
        offered = [field for asked in asking for field in asked.form.offered]

        def look(request: gr.Request, known_now: _Known, *values: Any) -> dict[Any, Any]:
            states, left = _states(desk), iter(values)
            updates: dict[Any, Any] = {}
            if states != known_now.states:
                updates[state] = states
            offers = list(known_now.offered)
            for index, asked in enumerate(asking):
                shown = [next(left) for _ in asked.form.offered]
                infos = {feed.name: feed.info for feed in asked.needed if feed.info is not None}
                are_known = len(infos) == len(asked.needed)
                if are_known and _offer_key(infos) != _offer_key(offers[index]):
                    updates |= asked.form.offer(infos, offers[index], shown)
                    offers[index] = infos
            can_ask = tuple(all(feed.answers for feed in asked.needed) for asked in asking)
            if can_ask != known_now.can_ask:
                session = str(request.session_hash)
                for asked, possible in zip(asking, can_ask, strict=True):
                    # What is drawn holds its button, and looks again at its end.
                    if not desk.drawings.is_running(asked.key(session)):
                        updates[asked.start] = gr.update(interactive=possible)
            updates[known] = _Known(tuple(offers), states, can_ask)
            return updates

        gr.Timer(_STATE_INTERVAL_S).tick(
            look,
            [known, *offered],
            [
                state,
                known,
                *offered,
                *(field for asked in asking for field in asked.form.shown),
                *(asked.start for asked in asking),
            ],
            show_progress="hidden",
            concurrency_limit=None,
        )

        def leave(request: gr.Request) -> None:
            for key in (str(request.session_hash), page_key(str(request.session_hash))):
                desk.drawings.cancel(key)

        blocks.unload(leave)
    blocks.queue(default_concurrency_limit=None)
    return blocks


def _header(desk: Desk) -> str:
    notice = f'<p class="kit-notice">{escape(desk.notice)}</p>' if desk.notice else ""
    return (
        f'<header><h1>{TITLE}</h1><p class="kit-lead">A diffusion transformer whose keys and '
        f"values lie in pages that a Scheduler books. Draw, compare, and watch the pages."
        f"</p>{notice}"
        "</header>"
    )


def _states(desk: Desk) -> str:
    return f'<div class="kit-states">{"".join(map(say_state, desk.feeds))}</div>'


def _offer_key(infos: Mapping[str, Info]) -> list[Any]:
    """What a form offers changes when this does; empty while unknown."""
    return [(info.name, info.fingerprint, info.defaults) for info in infos.values()]


class _OwnHostOnly:
    """ASGI middleware: tells browsers to load nothing from anywhere else."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message["headers"],
                    (b"content-security-policy", _POLICY.encode()),
                    (b"x-content-type-options", b"nosniff"),
                ]
            await send(message)

        await self._app(scope, receive, guarded)
