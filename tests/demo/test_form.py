"""What the form sends, and what it refuses to send."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from demo_pools import size_of

from kit.checkpoint.shipped import DEFAULT_FINGERPRINT
from kit.demo.answers import Info
from kit.demo.desk import Desk, Servers
from kit.demo.form import FieldError, fill, read_fields, read_images, say_no_references
from kit.demo.page import build_blocks


def values(**fields: Any) -> list[Any]:
    """What the browser sends, in the order of the form's inputs."""
    blank: dict[str, Any] = {"prompt": "a cat", "size": "auto", "steps": "", "guidance": ""}
    blank |= {"seed": "7", "new_seed": True, "images": None, "reference_seed": ""}
    return list((blank | {"count": 1} | fields).values())


def test_a_blank_field_is_left_to_the_server() -> None:
    assert read_fields(values()) == {"prompt": "a cat", "size": "auto", "n": 1}


def test_numbers_arrive_as_they_were_written() -> None:
    read = read_fields(
        values(steps=" 20 ", guidance="2.5", new_seed=False, seed="9223372036854775807")
    )
    assert (read["num_inference_steps"], read["guidance_scale"]) == (20, 2.5)
    assert isinstance(read["num_inference_steps"], int)
    assert read["seed"] == 9223372036854775807
    # Out of range, for the server to refuse.
    assert read_fields(values(steps="2.5", guidance="-1"))["num_inference_steps"] == 2.5
    assert isinstance(read_fields(values(steps="20.0"))["num_inference_steps"], float)


@pytest.mark.parametrize("text", ["x", "1e999", "nan", "1,5", "1_0", "07", "+7", "٧"])
@pytest.mark.parametrize("field", ["steps", "guidance", "seed", "reference_seed"])
def test_what_is_no_number_is_said_at_its_field(field: str, text: str) -> None:
    with pytest.raises(FieldError) as raised:
        read_fields(values(new_seed=False, **{field: text}))
    assert raised.value.field == field.replace("_", "-")
    assert repr(text) in raised.value.text


def test_a_reference_seed_is_sent_as_it_was_written() -> None:
    read = read_fields(values(reference_seed=" 9223372036854775807 "))
    assert read["reference_seed"] == 9223372036854775807
    assert "reference_seed" not in read_fields(values(reference_seed=" "))
    # Without an image, for the server to refuse.
    assert read_fields(values(reference_seed="-1"))["reference_seed"] == -1


def test_images_are_read_in_their_order(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("b.png", "a.png")]
    for path in paths:
        path.touch()
    shown = [(str(path), None) for path in paths]
    assert read_images(values(images=shown)) == tuple(paths)
    assert read_images(values()) == read_images(values(images=[])) == ()
    assert read_fields(values(images=shown)) == read_fields(values()), "they stand beside the body"
    paths[1].unlink()
    with pytest.raises(FieldError, match=r"this page has a.png no more; choose it again") as raised:
        read_images(values(images=shown))
    assert raised.value.field == "images"


def info_of(steps: int, guidance: float, *sides: int) -> Info:
    return Info(
        name="any",
        fingerprint="f",
        mode="paged_scheduler",
        sizes=tuple(size_of(side) for side in sides),
        page_size=4,
        page_bytes=512,
        pool_bytes=4096,
        defaults={
            "width": 256, "height": 256, "num_inference_steps": steps, "guidance_scale": guidance,
        },
        limits={"reference_images": 3},
        cfg_distilled=False,
        reference_refusal=None,
        refused={},
        raw={},
    )  # fmt: skip


def test_only_the_shipped_weights_are_the_shipped_checkpoint() -> None:
    info = info_of(20, 5.0)
    assert not info.shipped
    assert replace(info, fingerprint=DEFAULT_FINGERPRINT).shipped


@pytest.mark.parametrize(
    ("before", "typed", "shown"),
    [
        (None, ("auto", "", ""), ("auto", "30", "2.5")),
        # Left as they were: the new server's defaults.
        (info_of(20, 5.0, 2, 4), ("32x32", "20", "5"), ("32x32", "30", "2.5")),
        # Changed, cleared as well: they stay. A size that is offered no more does not.
        (info_of(20, 5.0, 2, 4), ("64x64", "3", ""), ("auto", "3", "")),
    ],
)
def test_defaults_fill_what_the_user_left_alone(
    before: Info | None, typed: tuple[str, ...], shown: tuple[str, ...]
) -> None:
    assert fill(info_of(30, 2.5, 2), before, typed) == shown


def servers_with(*refusals: str | None) -> dict[str, Info]:
    """Servers of other weights each, with the reasons why they take no reference images."""
    return {
        f"{name} server": replace(info_of(20, 5.0), fingerprint=name, reference_refusal=refusal)
        for name, refusal in zip(("first", "second"), refusals, strict=False)
    }


@pytest.mark.parametrize(
    ("refusals", "said"),
    [
        ((None,), None),
        ((None, None), None),
        (("no tower",), "This checkpoint takes no reference images: no tower."),
        (("no tower",) * 2, "This checkpoint takes no reference images: no tower."),
        (
            (None, "no tower"),
            "The checkpoint of the second server takes no reference images: no tower. "
            "Both servers get the same request, so none can be added here.",
        ),
        (
            ("no tower", "pretrain"),
            "The checkpoint of the first server takes no reference images: no tower. "
            "The checkpoint of the second server takes no reference images: pretrain. "
            "Both servers get the same request, so none can be added here.",
        ),
    ],
)
def test_why_images_cannot_go_to_all_servers(
    refusals: tuple[str | None, ...], said: str | None
) -> None:
    assert say_no_references(servers_with(*refusals)) == said


class Looks:
    """A page whose servers' answers a test sets; `look` is what its timer calls."""

    def __init__(self) -> None:
        nowhere = "http://127.0.0.1:9"
        self.desk = Desk(Servers(nowhere, nowhere))
        blocks: Any = build_blocks(self.desk)
        [self._look] = [fn for fn in blocks.fns.values() if fn.name == "look"]
        self._known, *self._fields = self._look.inputs
        self._now = self._known.value
        self.values: dict[str, Any] = {}

    def look(self, first: Info | None, second: Info | None) -> dict[str, dict[str, Any]]:
        """Return what the page is told to show anew, by the fields' ids."""
        for feed, info in zip(self.desk.feeds, (first, second), strict=True):
            feed.info = info
        typed = [self.values.get(one.elem_id, one.value) for one in self._fields]
        updates = self._look.fn(SimpleNamespace(session_hash="s"), self._now, *typed)
        self._now = updates.pop(self._known)
        shown = {one.elem_id: update for one, update in updates.items() if one.elem_id}
        self.values |= {
            name: update["value"]
            for name, update in shown.items()
            if isinstance(update, dict) and "value" in update
        }
        return shown


def test_each_form_offers_what_its_servers_can_do() -> None:
    # Where no event loop runs, Gradio opens some that it never closes.
    asyncio.run(look_at_servers_that_differ())


async def look_at_servers_that_differ() -> None:
    page, (able, unable) = Looks(), servers_with(None, "no tower").values()
    seen = page.look(able, None)
    assert seen["create-images"]["interactive"]
    assert seen["create-with-images"]["visible"]
    assert seen["create-edit-example"]["visible"]
    assert seen["create-steps"]["value"] == "20"
    assert not {"compare-images", "compare-steps"} & seen.keys(), "one has not answered yet"
    seen = page.look(able, unable)
    assert not {"create-images", "create-steps"} & seen.keys()
    assert seen["compare-steps"]["value"] == "20"
    assert seen["compare-images"] == {"interactive": False, "value": None, "__type__": "update"}
    assert not seen["compare-with-images"]["visible"]
    assert not seen["compare-edit-example"]["visible"]
    assert "The checkpoint of the second server takes no" in seen["compare-images-note"]
    # Nothing new, or a server that went away.
    assert page.look(able, unable) == page.look(able, None) == {}
    page.values |= {"compare-steps": "3", "compare-reference-seed": "5"}
    seen = page.look(able, able)
    assert seen["compare-images"]["interactive"]
    assert seen["compare-with-images"]["visible"]
    assert (page.values["compare-steps"], page.values["compare-reference-seed"]) == ("3", "5")
    assert "At most 3" in seen["compare-images-note"]
    seen = page.look(unable, able)
    assert seen["create-reference-seed"]["value"] == seen["compare-reference-seed"]["value"] == ""
    assert "This checkpoint takes no" in seen["create-images-note"]
    assert "The checkpoint of the first server takes no" in seen["compare-images-note"]
