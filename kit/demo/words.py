"""Every state and error of the page in plain words."""

from __future__ import annotations

from html import escape

from kit.demo.client import AnswerError, UnreachableError
from kit.demo.feed import ServerFeed
from kit.errors import CancelledError, KitError

FIELDS = {
    "prompt": "prompt",
    "size": "size",
    "height": "size",
    "width": "size",
    "num_inference_steps": "steps",
    "guidance_scale": "guidance",
    "seed": "seed",
    "n": "count",
    "image": "images",
    "reference_seed": "reference-seed",
}
"""The page's field for each field of a request that it sends."""

_LABELS = {
    "prompt": "Prompt",
    "size": "Size",
    "steps": "Steps",
    "guidance": "Guidance",
    "seed": "Seed",
    "count": "Pictures",
    "images": "Reference images",
    "reference-seed": "Reference seed",
}
_STATES = {
    "unknown": "asking",
    "down": "does not answer",
    "starting": "is starting",
    "refused": "cannot serve now",
    "ready": "ready",
    "busy": "drawing",
    "full": "full",
}


def say_state(feed: ServerFeed) -> str:
    """Return one server's state as HTML: a word, and what to do where something is to be done."""
    url, state, name = feed.client.url, feed.state, feed.label
    told = _STATES[state.kind]
    if state.kind == "busy" and state.num_queued:
        told += f", {state.num_queued} waiting"
    advice = {
        "down": f"Nothing answers at {url}. {_say_remedy(feed)}",
        "starting": "It loads the weights. Requests may be sent, they wait until it is ready.",
        "refused": f"It says: {state.detail}",
        "full": f"{state.num_queued} requests wait, no more are taken. Try again in a moment.",
    }.get(state.kind)
    more = f'<span class="kit-advice">{escape(advice)}</span>' if advice else ""
    return (
        f'<div class="kit-state" data-server="{escape(feed.name)}" data-state="{state.kind}">'
        f'<span class="kit-dot kit-is-{state.kind}" aria-hidden="true"></span>'
        f"<b>{escape(name)}</b> <span>{told}</span>{more}</div>"
    )


def say_error(error: KitError, server: str = "The server") -> tuple[str | None, str]:
    """Return (the page's field to blame, None for none; what happened and what to do)."""
    if isinstance(error, CancelledError):
        return None, f"Cancelled. {server} stopped before its next step; its pages are free again."
    if isinstance(error, UnreachableError):
        return None, (
            f"{server} went away or does not answer. Nothing of this request is left there; "
            "the state on top of this page says what to do."
        )
    if isinstance(error, AnswerError):
        return _say_refusal(error, server)
    return None, str(error)


def name_server(feed: ServerFeed) -> str:
    """Tell one of two servers apart at the start of a sentence."""
    mode = "" if feed.label == feed.name else f" ({feed.label})"
    return f"The {feed.name}{mode}"


def show_error(text: str) -> str:
    """Return an error as HTML that screen readers read out at once."""
    return f'<p class="kit-error" role="alert">{escape(text)}</p>' if text else ""


def _say_remedy(feed: ServerFeed) -> str:
    if feed.child is None:
        return "Start the server, or wait: this page keeps asking."
    if feed.child.has_ended:
        return (
            "It has ended, and kit demo does not start it again: stop the demo in its terminal "
            "with Ctrl-C and start it anew."
        )
    return "Its process runs: wait, this page keeps asking."


def _say_refusal(error: AnswerError, server: str) -> tuple[str | None, str]:
    if error.code == "overloaded":
        wait = f" in {error.retry_after_s} s" if error.retry_after_s else " in a moment"
        return None, f"{server} is full: its queue takes no more requests. Try again{wait}."
    if error.code == "unavailable":
        return None, f"{server} cannot serve now: {error.message}."
    if error.code == "deadline_exceeded":
        return None, f"{server} stopped the request: it took longer than the server allows."
    if error.code == "invalid_api_key":
        return None, f"{server} wants a key: start this page with the key in KIT_API_KEY."
    # image[1] is the second image; people count from 1.
    name, _, index = (error.param or "").removesuffix("]").partition("[")
    field = FIELDS.get(name)
    if field is None:
        return None, error.message
    # "steps: got 0, expected ...": the field is named by its place on the page.
    reason = error.message.removeprefix(f"{error.param}: ")
    place = f", number {int(index) + 1}" if index.isdecimal() else ""
    return field, f"{_LABELS[field]}{place}: {reason}"
