"""Cards, the shelf, the comparison of two pictures, and requests as code."""

from __future__ import annotations

import io
import json
import shlex
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from kit.checkpoint.shipped import DEFAULT_FINGERPRINT
from kit.demo.answers import Picture
from kit.demo.cards import gallery, make_card, replay_command, show_card
from kit.demo.chart import draw_steps
from kit.demo.client import ServerClient
from kit.demo.comparison import show_comparison
from kit.demo.difference import compare
from kit.demo.shelf import Shelf
from kit.demo.snippets import as_curl, as_python

BODY: dict[str, Any] = {
    "prompt": 'it\'s a "cat" <b>\n$HOME 花',
    "size": "auto",
    "n": 2,
    "guidance_scale": 1.5,
    "seed": 2**63 - 1,
}


def png(edit: tuple[int, int, int] | None = None, side: int = 4) -> bytes:
    """A grey PNG; edit: (row, column, level) of one pixel's green."""
    pixels = np.full((side, side, 3), 100, np.uint8)
    if edit is not None:
        pixels[edit[0], edit[1], 1] = edit[2]
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def picture(data: bytes, prompt: str = "a cat", fingerprint: str = DEFAULT_FINGERPRINT) -> Picture:
    metrics = {
        "queue_time_s": 0.5,
        "first_step_time_s": 0.3,
        "step_times_s": [0.3, 0.1, 0.2],
        "decode_time_s": 0.1,
        "total_time_s": 1.5,
        "kv_bytes": 1 << 20,
        "num_pages": 0,
        "peak_memory_bytes": 5 << 20,
    }
    sampling: dict[str, Any] = {
        "width": 4,
        "height": 4,
        "num_inference_steps": 3,
        "guidance_scale": 3.0,
    }
    sampling["reference_seed"] = None
    model = {"version": "hunyuan_image3_tiny", "fingerprint": fingerprint}
    record = {"platform": {"num_threads": 3}, "model": model}
    replay = {"format": "kit.replay/1", "record": record}
    return Picture(0, data, 7, prompt, sampling, metrics, replay, ())


def test_equal_pictures_have_no_difference() -> None:
    found = compare(png(), png())
    assert found is not None
    assert (found.num_pixels, found.num_different, found.largest, found.shown) == (16, 0, 0, None)


def test_one_level_of_one_channel_is_found_and_shown_white() -> None:
    found = compare(png(), png((1, 2, 101)))
    assert found is not None
    assert (found.num_different, found.largest) == (1, 1)
    assert found.mean == pytest.approx(1 / 48)
    assert found.shown is not None
    with Image.open(io.BytesIO(found.shown)) as image:
        shown = np.asarray(image)
    assert shown[1, 2].tolist() == [0, 255, 0]
    assert int(shown.sum()) == 255


def test_pictures_of_two_sizes_cannot_be_compared() -> None:
    assert compare(png(), png(side=5)) is None


@pytest.mark.parametrize(
    ("right", "verdict", "text"),
    [
        (png(), "identical", "Identical: all 16 pixels are equal."),
        (png((0, 0, 90)), "different", "Different: 1 of 16 pixels, by at most 10 of 255 levels"),
        (png(side=5), "different", "The pictures differ in size."),
    ],
)
def test_a_comparison_says_what_it_saw(right: bytes, verdict: str, text: str) -> None:
    pictures, shelf = [picture(png()), picture(right)], Shelf()
    cards = [make_card(p, shelf.put(p.data)) for p in pictures]
    shown = show_comparison(["dense", "paged"], pictures, cards, [None, None], keep=shelf.put)
    assert f'data-verdict="{verdict}"' in shown
    assert text in shown
    assert "1.00 s" in shown  # 1.5 s less the 0.5 s in the queue
    assert "150 ms" in shown  # the median of the steps after the first


def test_a_card_holds_every_fact_and_no_html_of_the_prompt() -> None:
    card = make_card(picture(png(), '<img src=x onerror="alert(1)">'), "0123456789")
    shown = gallery([card])
    assert "onerror=" not in shown.replace("onerror=&quot;", "")
    for part in (
        "<dd>7</dd>",
        "1.50 s",
        "4 × 4",
        "kit.replay/1",
        'download="kit-seed-7-01234567.png"',
        'data-reuse="0123456789" data-seed="7"',
        "OMP_NUM_THREADS=3 kit replay kit-seed-7-01234567.png",
    ):
        assert part in shown
    assert "reference seed" not in shown
    assert "<dt>reference seed</dt><dd>0</dd>" in show_card(replace(card, reference_seed=0))
    odd = replace(card, images=("b.png", "it's.png"))
    assert replay_command(odd).endswith(""" --image b.png --image 'it'"'"'s.png'""")
    assert show_card(replace(card, warnings=("odd",))).count("odd") == 1


def test_another_checkpoint_than_the_shipped_one_is_asked_for_in_the_replay_command() -> None:
    """Whatever it calls itself."""
    other = make_card(picture(png(), fingerprint="0" * 64), "key", ["b.png"])
    command = "OMP_NUM_THREADS=3 kit replay kit-seed-7-key.png --model CHECKPOINT --image b.png"
    assert replay_command(other) == command
    assert "of its checkpoint for CHECKPOINT" in show_card(other)
    assert "CHECKPOINT" not in show_card(make_card(picture(png()), "key"))


def test_the_shelf_keeps_bytes_and_forgets_the_oldest() -> None:
    shelf = Shelf(max_bytes=10)
    first, second = shelf.put(b"123456"), shelf.put(b"1234")
    assert (shelf.get(first), shelf.get(second)) == (b"123456", b"1234")
    shelf.put(b"123456")  # again: not counted twice, and now the newest
    third = shelf.put(b"abcd")
    assert shelf.get(second) is None
    assert (shelf.get(first), shelf.get(third)) == (b"123456", b"abcd")


def test_the_chart_draws_every_step_of_both() -> None:
    shown = draw_steps({"dense": [0.3, 0.1], "paged": [0.3, 0.1, 0.2]})
    lines = [part.split('"')[0] for part in shown.split('points="')[1:]]
    assert [len(line.split()) for line in lines] == [2, 3]


def test_curl_line_holds_the_body_as_the_shell_reads_it() -> None:
    line = as_curl(ServerClient("http://127.0.0.1:9/"), BODY)
    words = shlex.split(line.replace("\\\n", " "))
    assert json.loads(words[words.index("-d") + 1]) == BODY
    assert words[2] == "http://127.0.0.1:9/v1/images/generations"
    assert "Authorization" not in line


def test_curl_line_of_an_edit_sends_text_as_text_and_files_as_files() -> None:
    """What a form's text starts with, `@` and `<`, would name files to curl."""
    body = {**BODY, "prompt": "@/etc/passwd; <b>"}
    words = shlex.split(as_curl(ServerClient("http://x:9"), body, ["a;b.png", 'c".png']))
    words = [word for word in words if word != "\n"]
    assert words[2] == "http://x:9/v1/images/edits"
    texts = [words[at + 1] for at, word in enumerate(words) if word == "--form-string"]
    assert texts == [f"{name}={value}" for name, value in body.items()]
    files = [words[at + 1] for at, word in enumerate(words) if word == "-F"]
    assert files == ['image[]=@"a;b.png"', 'image[]=@"c\\".png"']


def test_what_a_user_copies_goes_to_the_public_url() -> None:
    client = ServerClient("http://server:1", public_url="http://localhost:8091/")
    for shown in (as_curl(client, BODY), as_python(client, BODY)):
        assert "http://localhost:8091/v1/" in shown
        assert "http://server:1" not in shown


def test_python_program_holds_the_body_and_reads_the_key() -> None:
    program = as_python(ServerClient("http://127.0.0.1:9", "secret-key"), BODY)
    head = program.split("request =")[0]
    scope: dict[str, Any] = {}
    exec(head, scope)
    assert scope["body"] == BODY
    compile(program, "program", "exec")
    assert "os.environ['KIT_API_KEY']" in program
    assert "secret-key" not in program + as_curl(
        ServerClient("http://127.0.0.1:9", "secret-key"), BODY
    )
