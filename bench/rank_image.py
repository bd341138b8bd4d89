"""One request on all ranks, from noise to pixels as a worker runs it, and what it took."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.rank_model import Requests, Setting, synchronize
from bench.workloads.cuda_vae import random_decoder
from kit.config.deploy import KVMode
from kit.errors import WorkerError
from kit.model.fused import use_fused_kernels
from kit.model.vae import VAEDecoder
from kit.modelspec.config import VAEConfig
from kit.parallel.group import Mesh
from kit.pipeline.postprocess import to_pixels


@dataclass(frozen=True)
class DrawnImage:
    """What a request left behind on one rank."""

    times: dict[str, float]
    """By the host's clock: `image_s` and its parts, which add up to it."""

    latents: Tensor
    """Of the last step, float32 [1, C, h, w]; the next request may overwrite it."""

    is_picture: bool
    """On the leader: finite, of the asked size, and not of one colour. True on other ranks."""


def same_decoder(config: VAEConfig, device: torch.device, setting: Setting) -> VAEDecoder:
    """Make the decoder of random weights, the same on every rank: they decode together."""
    torch.manual_seed(0)
    decoder = random_decoder(config, device)
    use_fused_kernels(decoder, device, setting.vae_dtype)
    return decoder.to(setting.vae_dtype)


def draw(
    mesh: Mesh, device: torch.device, requests: Requests, mode: KVMode, decoder: VAEDecoder
) -> DrawnImage:
    """Run a whole request; ranks begin together, agree between steps and decode together.

    Raises WorkerError for latents that are not finite.
    """
    synchronize(device)
    mesh.any(False)
    started = time.perf_counter()
    loop = requests.loop(mode, requests.num_image_steps)
    synchronize(device)
    ends = [time.perf_counter()]
    while not loop.finished:
        mesh.any(False)
        loop.step()
        synchronize(device)
        ends.append(time.perf_counter())
    if mesh.any(not bool(torch.isfinite(loop.latents).all())):
        raise WorkerError(f"{mode}: latents are not finite after {loop.num_steps} steps")
    image = decoder(loop.latents, mesh.everyone)
    pixels = to_pixels(image) if mesh.is_leader else None
    mesh.any(False)
    ended = time.perf_counter()
    is_picture = True
    if pixels is not None:
        factor = decoder.config.ffactor_spatial
        height, width = (factor * side for side in requests.layout.grid)
        is_picture = pixels.shape == (height, width, 3) and float(pixels.std()) > 0
        is_picture = is_picture and bool(torch.isfinite(image).all())
    times = {
        "image_s": ended - started,
        "prepare_s": ends[0] - started,
        "first_step_s": ends[1] - ends[0],
        "later_steps_s": ends[-1] - ends[1],
        "decode_s": ended - ends[-1],
    }
    return DrawnImage(times, loop.latents, is_picture)
