"""The network that ships is the one whose training is on record, and it is still right."""

from __future__ import annotations

import json
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from bench.environment import capture
from bench.judge import Judge
from bench.judge_training import (
    MIN_RIGHT,
    SHIPPED_NET,
    Settings,
    share_right,
    train_judge,
    try_judge,
)
from bench.shape_classifier import load_shape_net
from kit.checkpoint.render import render
from kit.checkpoint.scenes import Scene, SceneObject

RECORD = Path(__file__).parents[2] / "bench" / "results" / "shape_net_training.json"


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge(load_shape_net(SHIPPED_NET))


def test_the_record_is_of_the_weights_that_ship() -> None:
    record = json.loads(RECORD.read_text())
    assert record["weights_sha256"] == sha256(SHIPPED_NET.read_bytes()).hexdigest()
    assert record["settings"] == asdict(Settings())
    assert record["environment"]["git"]["dirty"] is False
    assert share_right(record["held_out"]) >= MIN_RIGHT
    assert SHIPPED_NET.stat().st_size < 2 << 20


def test_drawn_held_out_pictures_are_judged_right() -> None:
    held_out = try_judge(SHIPPED_NET, 1)
    assert sum(counts["pictures"] for counts in held_out.values()) == 56
    assert share_right(held_out) >= MIN_RIGHT


@pytest.mark.parametrize("across", [True, False])
def test_objects_that_touch_are_told_apart(judge: Judge, across: bool) -> None:
    looks = (("cat", "red"), ("car", "blue"))
    places = ((88, 128), (160, 128)) if across else ((128, 92), (128, 156))
    objects = tuple(
        SceneObject(kind, colour, "matte", "medium", 80, *place)
        for (kind, colour), place in zip(looks, places, strict=True)
    )
    seen = judge.look(render(Scene(256, 256, "grey", 0, objects)))
    assert {(one.kind, one.colour) for one in seen.objects} == set(looks)


def test_one_object_is_not_cut_in_two(judge: Judge) -> None:
    one = SceneObject("umbrella", "red", "matte", "large", 152, 128, 128)
    seen = judge.look(render(Scene(256, 256, "grey", 0, (one,))))
    assert [(found.kind, found.colour) for found in seen.objects] == [("umbrella", "red")]


def test_half_an_object_has_no_name(judge: Judge) -> None:
    one = SceneObject("car", "red", "matte", "large", 152, 128, 128)
    picture = render(Scene(256, 256, "grey", 0, (one,))).copy()
    empty: np.ndarray = render(Scene(256, 256, "grey", 0, ()))
    picture[:, 128:] = empty[:, 128:]
    assert judge.look(picture).objects[0].kind != "car"


def test_a_training_leaves_weights_and_record(tmp_path: Path) -> None:
    weights, path = tmp_path / "net.safetensors", tmp_path / "record.json"
    settings = Settings(num_pictures=12, num_steps=3, num_held_out=1)
    content = train_judge(
        settings, weights, path, command=("train",), environment=capture(), num_workers=1
    )
    assert json.loads(path.read_text()) == content
    assert content["weights_sha256"] == sha256(weights.read_bytes()).hexdigest()
    assert content["curve"]["step"] == [0, 1, 2]
    # Three steps teach nothing: what tells a trained network from this one is the score.
    assert share_right(content["held_out"]) < MIN_RIGHT
