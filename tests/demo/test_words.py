"""States and errors in plain words, and the field that an error belongs to."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from kit.demo.children import Child
from kit.demo.client import AnswerError, ServerClient, UnreachableError
from kit.demo.feed import ServerFeed, ServerState, StateKind
from kit.demo.words import name_server, say_error, say_state, show_error
from kit.errors import CancelledError, KitError


@pytest.mark.parametrize(
    ("error", "field", "text"),
    [
        (
            AnswerError(
                "num_inference_steps: got 0, expected an integer from 1 to 1000",
                status=400,
                param="num_inference_steps",
            ),
            "steps",
            "Steps: got 0, expected an integer from 1 to 1000",
        ),
        (AnswerError("size: no", status=400, param="size"), "size", "Size: no"),
        (AnswerError("the prompt is too long", status=400, param="prompt"), "prompt",
         "Prompt: the prompt is too long"),
        (AnswerError("image: no", status=501, param="image", code="unsupported"), "images",
         "Reference images: no"),
        (AnswerError("image[1]: no", status=400, param="image[1]"), "images",
         "Reference images, number 2: no"),
        (AnswerError("reference_seed: no", status=400, param="reference_seed"), "reference-seed",
         "Reference seed: no"),
        (AnswerError("template: no", status=400, param="template"), None, "template: no"),
        (
            AnswerError("full", status=503, code="overloaded", retry_after_s=4),
            None,
            "The server is full: its queue takes no more requests. Try again in 4 s.",
        ),
        (AnswerError("shutting down", status=503, code="unavailable"), None,
         "The server cannot serve now: shutting down."),
        (AnswerError("no", status=401, code="invalid_api_key"), None,
         "The server wants a key: start this page with the key in KIT_API_KEY."),
    ],
)  # fmt: skip
def test_a_refusal_goes_where_it_belongs(error: KitError, field: str | None, text: str) -> None:
    assert say_error(error) == (field, text)


def test_a_lost_server_and_a_cancelled_request_are_told_apart() -> None:
    lost, cancelled = say_error(UnreachableError("x")), say_error(CancelledError("x"))
    assert lost[1].startswith("The server went away")
    assert "Cancelled" in cancelled[1]


@pytest.mark.parametrize(
    ("kind", "word", "advice"),
    [
        ("unknown", "asking", None),
        ("down", "does not answer", "Start the server"),
        ("starting", "is starting", "loads the weights"),
        ("refused", "cannot serve now", "It says: why"),
        ("ready", "ready", None),
        ("busy", "drawing, 3 waiting", None),
        ("full", "full", "3 requests wait"),
    ],
)
def test_every_state_has_a_word_beside_its_colour(
    kind: StateKind, word: str, advice: str | None
) -> None:
    feed = ServerFeed("server", ServerClient("http://127.0.0.1:9"))
    feed.state = ServerState(kind, "why", 3)
    shown = say_state(feed)
    assert f'data-state="{kind}"' in shown
    assert f"<span>{word}</span>" in shown
    assert ("kit-advice" in shown) == (advice is not None)
    assert advice is None or advice in shown


@pytest.mark.parametrize(
    ("program", "advice"),
    [
        ("", "kit demo does not start it again: stop the demo in its terminal with Ctrl-C"),
        ("input()", "Its process runs: wait"),
    ],
)
def test_a_server_of_the_demo_is_not_said_to_come_back_by_itself(program: str, advice: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, text=True)
    if not program:
        process.wait()
    child = Child("paged", 9, process, threading.Event())
    feed = ServerFeed("server", ServerClient(child.url), child)
    feed.state = ServerState("down")
    shown = say_state(feed)
    process.communicate("\n")
    assert advice in shown
    assert "Start the server" not in shown


@pytest.mark.parametrize(
    "error",
    [
        UnreachableError("x"),
        CancelledError("x"),
        *(
            AnswerError("no", status=503, code=code)
            for code in ("overloaded", "unavailable", "deadline_exceeded", "invalid_api_key")
        ),
    ],
)
def test_of_two_servers_the_one_that_failed_is_named(error: KitError) -> None:
    feed = ServerFeed("second server", ServerClient("http://127.0.0.1:9"))
    assert "The second server " in say_error(error, name_server(feed))[1]
    feed.label = "dense_legacy"
    assert "The second server (dense_legacy) " in say_error(error, name_server(feed))[1]


def test_errors_are_read_out_and_cannot_carry_html() -> None:
    assert show_error("") == ""
    shown = show_error("<b>no</b>")
    assert 'role="alert"' in shown
    assert "<b>" not in shown
