from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from bench.picture_analysis import Region
from bench.shape_classifier import (
    CLASSES,
    NO_OBJECT,
    ShapeNet,
    classify,
    load_shape_net,
    save_shape_net,
    take_crop,
    train_shape_net,
    training_crops,
)

Crops = tuple[NDArray[np.uint8], NDArray[np.int64]]


@pytest.fixture(scope="module")
def crops() -> Crops:
    return training_crops(30, 0)


def test_crops_are_labelled_and_repeat_by_seed(crops: Crops) -> None:
    pixels, labels = crops

    assert pixels.shape == (len(labels), 80, 80, 3)
    assert len(labels) > 30
    assert 0 < (labels == CLASSES.index(NO_OBJECT)).sum() < len(labels) / 3
    again, _ = training_crops(30, 0)
    np.testing.assert_array_equal(pixels, again)


def test_training_learns(crops: Crops) -> None:
    losses: list[float] = []
    net = train_shape_net(
        *crops,
        seed=0,
        num_steps=12,
        batch_size=16,
        on_step=lambda _, loss: losses.append(loss),
    )

    assert len(losses) == 12
    assert np.mean(losses[-3:]) < np.mean(losses[:3]) - 0.1
    assert not net.training


def test_a_network_is_loaded_as_saved(tmp_path: Path, crops: Crops) -> None:
    torch.manual_seed(0)
    net = ShapeNet().eval()
    save_shape_net(net, tmp_path / "shapes.safetensors")
    loaded = load_shape_net(tmp_path / "shapes.safetensors")

    some = list(crops[0][:5])
    assert classify(loaded, some) == classify(net, some)
    assert not loaded.training


def test_classes_come_with_a_probability(crops: Crops) -> None:
    net = ShapeNet().eval()
    found = classify(net, list(crops[0][:3]))

    assert len(found) == 3
    assert all(name in CLASSES and 0 < chance <= 1 for name, chance in found)
    assert classify(net, []) == []


def test_size_of_the_network() -> None:
    num_parameters = sum(value.numel() for value in ShapeNet().parameters())

    assert 300_000 < num_parameters < 600_000


def test_a_crop_is_square_around_the_region_and_goes_on_outside() -> None:
    picture = np.zeros((128, 256, 3), dtype=np.uint8)
    picture[:, :10] = 200
    picture[40:60, 0:40] = (255, 0, 0)
    crop = take_crop(picture, Region(40, 0, 60, 40, "red", 1.0))

    assert crop.shape == (80, 80, 3)
    # Left of the picture its first column is repeated.
    assert (crop[40, :5] == (255, 0, 0)).all()
    assert (crop[5, :5] == 200).all()
    assert (crop[:10, 60:] == 0).all()
