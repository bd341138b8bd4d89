"""A finished picture as a reference image: its place in the field, and what a click changes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kit.demo.desk import Desk, Servers
from kit.demo.page import build_blocks
from kit.demo.reuse import place_image

A, B, C, D, NEW = (Path(f"/kept/{name}.png") for name in ("a", "b", "c", "d", "new"))


@pytest.mark.parametrize(
    ("images", "most", "placed", "told"),
    [
        ([], 1, [NEW], "new.png is reference image 1 now."),
        ([A], 3, [A, NEW], "new.png is reference image 2 now."),
        (
            [A],
            1,
            [NEW],
            "new.png is reference image 1 now, in place of a.png: at most 1 is taken.",
        ),
        (
            [A, B, C],
            3,
            [A, B, NEW],
            "new.png is reference image 3 now, in place of c.png: at most 3 are taken.",
        ),
        # The user's own: what is too much is still the server's to say.
        (
            [A, B, C, D],
            3,
            [A, B, C, NEW],
            "new.png is reference image 4 now, in place of d.png: at most 3 are taken.",
        ),
        ([A, NEW, B], 3, [A, NEW, B], "new.png is reference image 2 already."),
    ],
)
def test_where_a_picture_goes(images: list[Path], most: int, placed: list[Path], told: str) -> None:
    assert place_image(images, NEW, most) == (placed, told)


class Click:
    """A page, and what a click on a card's button does to one of its forms."""

    def __init__(self, tab: str) -> None:
        nowhere = "http://127.0.0.1:9"
        self.desk = Desk(Servers(nowhere, nowhere))
        blocks: Any = build_blocks(self.desk)
        place = {"create": "gallery", "compare": "comparison"}[tab]
        self.fn = next(
            fn
            for fn in blocks.fns.values()
            if fn.name == "reuse" and blocks.blocks[fn.targets[0][0]].elem_id == place
        )

    def __call__(self, key: str, *images: str, most: int) -> dict[str, Any]:
        """Return what changes, by the fields' ids; `images` are the field's files."""
        event = SimpleNamespace(key=key, seed="9223372036854775807")
        shown = [(path, None) for path in images]
        return {one.elem_id: new for one, new in self.fn.fn(event, shown, most).items()}


@pytest.mark.parametrize("tab", ["create", "compare"])
def test_a_click_changes_the_images_of_its_form_and_nothing_else(
    tab: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    asyncio.run(click_on_pictures(tab))


async def click_on_pictures(tab: str) -> None:
    click = Click(tab)
    assert {one.elem_id for one in click.fn.outputs} == {f"{tab}-images", f"{tab}-images-error"}
    first, second = (click.desk.shelf.put(data) for data in (b"first", b"second"))
    seen = click(first, most=1)
    [path] = seen[f"{tab}-images"]
    # The name that a download has, so that the replay command finds it; the server's own bytes.
    assert Path(path).name == f"kit-seed-9223372036854775807-{first[:8]}.png"
    assert Path(path).read_bytes() == b"first"
    assert 'role="status"' in seen[f"{tab}-images-error"]
    again = click(first, path, most=1)
    assert again[f"{tab}-images"] == [path]
    assert "already" in again[f"{tab}-images-error"]
    [other] = click(second, path, most=1)[f"{tab}-images"]
    assert Path(other).read_bytes() == b"second"
    assert click(second, path, most=2)[f"{tab}-images"] == [path, other]
    gone = click("unknown", path, most=1)
    assert gone.keys() == {f"{tab}-images-error"}
    assert 'role="alert"' in gone[f"{tab}-images-error"]
    # The field was closed between the click and now.
    assert click(first, most=0) == {f"{tab}-images-error": ""}
