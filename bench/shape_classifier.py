"""A small network that names the object in a region of a picture.

It learns from drawn pictures only, half of them blurred, noisy or compressed, and never sees a
generated one. Halves, pairs and blobs teach it what is no object.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from bench.picture_analysis import Region, find_regions
from kit.checkpoint.dataset import map_chunks, sample
from kit.checkpoint.grounds import GROUNDS
from kit.checkpoint.palette import COLOURS
from kit.checkpoint.shapes import KINDS

NO_OBJECT = "none"
CLASSES = (*KINDS, NO_OBJECT)

TRAINING_SIZES = (
    (256, 256),
    (192, 320),
    (320, 192),
    (224, 288),
    (288, 224),
    (160, 352),
    (352, 160),
)
"""Canvas sizes (height, width) that crops are taken from in turn."""

_CROP, _INPUT = 80, 64
_CROP_PER_BOX = 1.4
"""Sides of a stored crop, of the network's input cut from it, and of the crop per region."""


class ShapeNet(nn.Module):
    """Names crops; 0.38 M parameters."""

    def __init__(self) -> None:
        super().__init__()
        widths, strides = (3, 32, 64, 96, 128, 128), (2, 2, 1, 2, 1)
        layers: list[nn.Module] = []
        for at, stride in enumerate(strides):
            layers += [
                nn.Conv2d(widths[at], widths[at + 1], 3, stride, padding=1, bias=False),
                nn.BatchNorm2d(widths[at + 1]),
                nn.ReLU(inplace=True),
            ]
        self.features = nn.Sequential(*layers, nn.AvgPool2d(2), nn.Flatten(), nn.Dropout(0.2))
        self.head = nn.Linear(widths[-1] * 16, len(CLASSES))

    def forward(self, pixels: Tensor) -> Tensor:
        """float32 [B, 3, 64, 64] in 0 to 1 -> logits float32 [B, len(CLASSES)]."""
        logits: Tensor = self.head(self.features(pixels * 4 - 2))
        return logits


def take_crop(picture: NDArray[np.uint8], region: Region) -> NDArray[np.uint8]:
    """Cut a square around a region, as uint8 [80, 80, 3]; the edge goes on outside the picture."""
    side = _CROP_PER_BOX * max(region.bottom - region.top, region.right - region.left)
    return _cut(picture, (region.top + region.bottom) / 2, (region.left + region.right) / 2, side)


@torch.inference_mode()
def classify(net: ShapeNet, crops: Sequence[NDArray[np.uint8]]) -> list[tuple[str, float]]:
    """Return the class of each crop, as of `take_crop`, with its probability."""
    if not crops:
        return []
    device = next(net.parameters()).device
    pixels = torch.from_numpy(np.stack(crops)).to(device).permute(0, 3, 1, 2).float() / 255
    margin = (_CROP - _INPUT) // 2
    inner = pixels[..., margin : margin + _INPUT, margin : margin + _INPUT]
    chances, names = net(inner).softmax(-1).max(-1)
    pairs = zip(names.tolist(), chances.tolist(), strict=True)
    return [(CLASSES[name], chance) for name, chance in pairs]


def training_crops(
    num_pictures: int, seed: int, *, num_workers: int = 1
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Draw pictures, analyse them as a judge does, and return crops [N, 80, 80, 3] and labels [N].

    With more than one worker, processes are spawned.
    """
    chunks = map_chunks(partial(_chunk_of_crops, seed=seed), num_pictures, num_workers)
    crops, labels = zip(*chunks, strict=True)
    return np.concatenate(crops), np.concatenate(labels)


def train_shape_net(
    crops: NDArray[np.uint8],
    labels: NDArray[np.int64],
    *,
    seed: int,
    num_steps: int,
    batch_size: int = 128,
    on_step: Callable[[int, float], object],
) -> ShapeNet:
    """Train on crops [N, 80, 80, 3] with labels [N] into CLASSES; returns the net in eval mode.

    `on_step` is given each step's number and its loss.
    """
    torch.manual_seed(seed)
    random = torch.Generator().manual_seed(seed)
    net = ShapeNet()
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, num_steps, pct_start=0.15)
    all_pixels = torch.from_numpy(crops).permute(0, 3, 1, 2)
    all_labels = torch.from_numpy(labels)
    for step in range(num_steps):
        at = torch.randint(len(labels), (batch_size,), generator=random)
        logits = net(_augmented(all_pixels[at].float() / 255, random))
        loss = F.cross_entropy(logits, all_labels[at], label_smoothing=0.05)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        on_step(step, loss.item())
    return net.eval()


def save_shape_net(net: ShapeNet, path: Path) -> None:
    save_file({name: value.contiguous() for name, value in net.state_dict().items()}, path)


def load_shape_net(path: Path) -> ShapeNet:
    """Load what `save_shape_net` wrote, in eval mode."""
    net = ShapeNet()
    net.load_state_dict(load_file(path))
    return net.eval()


def degraded(picture: NDArray[np.uint8], draw: np.random.Generator) -> NDArray[np.uint8]:
    """Blur, compress and add noise, as soft as a small VAE's output at worst."""
    image = Image.fromarray(picture).filter(ImageFilter.GaussianBlur(draw.uniform(0.3, 1.4)))
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=int(draw.integers(40, 95)))
    noise = draw.standard_normal(picture.shape, dtype=np.float32) * draw.uniform(0, 4)
    result: NDArray[np.uint8] = np.clip(np.asarray(Image.open(stream)) + noise, 0, 255).astype(
        np.uint8
    )
    return result


def _chunk_of_crops(indices: range, *, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    crops: list[NDArray[np.uint8]] = []
    labels: list[int] = []
    for index in indices:
        size = TRAINING_SIZES[index % len(TRAINING_SIZES)]
        pixels, _, scene = sample(index, seed, size=size, num_captions=0)
        draw = np.random.default_rng((seed, index))
        picture = degraded(pixels, draw) if draw.random() < 0.5 else pixels
        regions = find_regions(picture, scene.background)
        for region in regions:
            inside = [
                one
                for one in scene.objects
                if region.left <= one.x < region.right and region.top <= one.y < region.bottom
            ]
            if len(inside) == 1:
                crops.append(take_crop(picture, region))
                labels.append(CLASSES.index(inside[0].kind))
        if draw.random() < 0.25 and regions:
            crops.append(_no_object(picture, regions, scene.background, draw))
            labels.append(CLASSES.index(NO_OBJECT))
    return np.stack(crops), np.array(labels, dtype=np.int64)


def _no_object(
    picture: NDArray[np.uint8],
    regions: list[Region],
    background: str,
    draw: np.random.Generator,
) -> NDArray[np.uint8]:
    """Return a crop of two objects at once, of half an object, or of a blob."""
    if len(regions) > 1:
        top, bottom = min(r.top for r in regions), max(r.bottom for r in regions)
        left, right = min(r.left for r in regions), max(r.right for r in regions)
        side = 1.2 * max(right - left, bottom - top)
        return _cut(picture, (top + bottom) / 2, (left + right) / 2, side)
    (first,) = regions
    if draw.random() < 0.4:
        return _blob(background, draw)
    height, width = first.bottom - first.top, first.right - first.left
    angle, far = draw.uniform(0, 2 * np.pi), draw.uniform(0.6, 0.8)
    y = (first.top + first.bottom) / 2 + far * height * np.sin(angle)
    x = (first.left + first.right) / 2 + far * width * np.cos(angle)
    return _cut(picture, y, x, _CROP_PER_BOX * max(height, width) * draw.uniform(0.6, 0.9))


def _blob(background: str, draw: np.random.Generator) -> NDArray[np.uint8]:
    """Draw a closed wavy curve in a colour of the palette."""
    angles = np.linspace(0, 2 * np.pi, 120, endpoint=False)
    waves = [
        draw.uniform(0.1, 0.3) * np.cos(count * angles + draw.uniform(0, 2 * np.pi))
        for count in range(2, 6)
    ]
    scale = 4 * _CROP
    radius = scale * 0.25 * (1 + np.sum(waves, axis=0))
    points = np.stack([np.cos(angles), np.sin(angles)], -1) * radius[:, None] + scale / 2
    image = Image.new("RGB", (scale, scale), GROUNDS[background].bands[-1][0])
    colour = list(COLOURS.values())[int(draw.integers(len(COLOURS)))]
    ImageDraw.Draw(image).polygon([(float(x), float(y)) for x, y in points], fill=colour)
    return np.asarray(image.reduce(4))


def _cut(picture: NDArray[np.uint8], y: float, x: float, side: float) -> NDArray[np.uint8]:
    height, width = picture.shape[:2]
    offsets = np.arange(round(side)) - round(side) // 2
    rows = np.clip(offsets + round(y), 0, height - 1)
    columns = np.clip(offsets + round(x), 0, width - 1)
    image = Image.fromarray(picture[rows[:, None], columns])
    return np.asarray(image.resize((_CROP, _CROP), Image.Resampling.BILINEAR))


def _augmented(pixels: Tensor, random: torch.Generator) -> Tensor:
    """Cut [B, 3, 80, 80] to [B, 3, 64, 64] at random places and scales; change light and noise."""
    batch = len(pixels)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(shape, generator=random)

    scale = _INPUT / _CROP
    transform = torch.zeros(batch, 2, 3)
    transform[:, 0, 0] = scale * uniform(0.88, 1.12, batch)
    transform[:, 1, 1] = scale * uniform(0.88, 1.12, batch)
    transform[:, :, 2] = uniform(-0.1, 0.1, batch, 2)
    grid = F.affine_grid(transform, [batch, 3, _INPUT, _INPUT], align_corners=False)
    pixels = F.grid_sample(pixels, grid, padding_mode="border", align_corners=False)
    if torch.rand((), generator=random) < 0.4:
        coarse = int(uniform(24, 60).item())
        pixels = F.interpolate(pixels, size=(coarse, coarse), mode="area")
        pixels = F.interpolate(pixels, size=(_INPUT, _INPUT), mode="bilinear")
    pixels = pixels * uniform(0.85, 1.15, batch, 3, 1, 1) + uniform(-0.06, 0.06, batch, 3, 1, 1)
    noise = torch.randn(pixels.shape, generator=random)
    return (pixels + noise * uniform(0, 0.04, batch, 1, 1, 1)).clamp(0, 1)
