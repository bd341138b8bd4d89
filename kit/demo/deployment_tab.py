"""The tab that says what runs, and how to ask for it without this page."""

from __future__ import annotations

import json
from html import escape
from typing import Any

import gradio as gr

from kit.demo.answers import Info
from kit.demo.cards import code_block
from kit.demo.desk import Desk
from kit.demo.examples import PROMPTS
from kit.demo.feed import ServerFeed
from kit.demo.snippets import as_curl, as_python

INTERVAL_S = 1.0
_FIRST_BODY: dict[str, Any] = {"prompt": PROMPTS[0], "n": 1, "seed": 7}


class DeploymentTab:
    """Builds the tab where it is made; its timer runs while the tab is open."""

    def __init__(self, desk: Desk, last: gr.State) -> None:
        self._desk = desk
        self._html = gr.HTML(elem_id="deployment")
        self.timer = gr.Timer(INTERVAL_S, active=False)
        shown = gr.State("")
        self.timer.tick(
            self._tick,
            [shown, last],
            [self._html, shown],
            show_progress="hidden",
            concurrency_limit=None,
        )

    def _tick(self, shown: str, last: tuple[dict[str, Any], list[str]] | None) -> Any:
        feeds = self._desk.feeds
        now = json.dumps([last, [feed.info and feed.info.raw for feed in feeds]])
        if now == shown:
            return [gr.skip(), gr.skip()]
        servers = "".join(_server(index, feed) for index, feed in enumerate(feeds))
        main = feeds[0].client
        body, images = last or (_FIRST_BODY, [])
        told = "The last request" if last else "A request"
        ask = (
            f'<section class="kit-ask"><h3>{told} without this page</h3>'
            f"<h4>curl</h4>{code_block(escape(as_curl(main, body, images)))}"
            f"<h4>Python</h4>{code_block(escape(as_python(main, body, images)))}</section>"
        )
        return [f'<div class="kit-servers">{servers}</div>{ask}', now]


def _server(index: int, feed: ServerFeed) -> str:
    url = escape(feed.client.public_url)
    head = f"<h3>{escape(feed.name).capitalize()}</h3><p><code>{url}</code></p>"
    if feed.info is None:
        return f"<section>{head}<p class='kit-empty'>Not known yet.</p></section>"
    links = (
        f'<p class="kit-actions"><a href="servers/{index}/metrics" target="_blank">Metrics</a> '
        f'<a href="servers/{index}/openapi.json" target="_blank">API document</a> '
        f'<a href="{url}/docs" target="_blank" rel="noreferrer">API pages</a>'
        "</p>"
    )
    return f"<section>{head}{links}{_facts(feed.info)}{_settings(feed.info)}</section>"


def _facts(info: Info) -> str:
    raw = info.raw
    kv, model = raw["kv"], raw["model"]
    facts = {
        "keys and values": info.mode,
        "attention backend": kv["backend"],
        "kernel": f"{kv['kernel']} {kv['kernel_version']}",
        "device, dtype": f"{raw['device']}, {raw['dtype']}",
        "topology": _topology(info),
        "page": f"{info.page_size} tokens, {info.page_bytes} bytes" if info.page_size else "none",
        "pool": f"{kv['num_pages']} pages, {info.pool_bytes / (1 << 20):.0f} MiB"
        if info.page_size
        else "none",
        "model": f"{info.name}, {model['architecture']}",
        "weights": f"{model['weight_bytes'] / (1 << 20):.0f} MiB, fingerprint "
        f"{info.fingerprint[:12]}",
    }
    rows = "".join(
        f"<div><dt>{name}</dt><dd>{escape(text)}</dd></div>" for name, text in facts.items()
    )
    return f'<dl class="kit-facts">{rows}</dl>'


def _topology(info: Info) -> str:
    """Every degree above 1; a deployment without one is a single rank."""
    prefix = "stage.parallel_config."
    degrees = [
        f"{name.removeprefix(prefix)} {setting['value']}"
        for name, setting in info.raw["deployment"].items()
        if name.startswith(prefix)
        and not isinstance(setting["value"], bool)
        and (setting["value"] or 1) > 1
    ]
    return ", ".join(degrees) or "one rank"


def _settings(info: Info) -> str:
    settings = "".join(
        f"<tr><th scope='row'><code>{escape(name.removeprefix('stage.'))}</code></th>"
        f"<td>{escape(json.dumps(setting['value']))}</td><td>{escape(setting['source'])}</td></tr>"
        for name, setting in info.raw["deployment"].items()
    )
    refused = "".join(
        f"<tr><th scope='row'><code>{escape(name)}</code></th><td>{escape(reason)}</td></tr>"
        for name, reason in info.refused.items()
    )
    return (
        f"<details><summary>Not supported: {len(info.refused)} fields</summary>"
        f'<div class="kit-scroll"><table class="kit-table"><thead><tr><th scope="col">field</th>'
        f'<th scope="col">reason</th></tr></thead><tbody>{refused}</tbody></table></div></details>'
        "<details><summary>Every setting, and who set it</summary>"
        '<div class="kit-scroll"><table class="kit-table"><thead><tr><th scope="col">setting</th>'
        f'<th scope="col">value</th><th scope="col">set by</th></tr></thead><tbody>{settings}'
        "</tbody></table></div></details>"
    )
