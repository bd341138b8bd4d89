"""What a rank measures of whole requests in both KV modes, in turn on one model."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bench.cuda_model import MODES
from bench.cuda_timing import matmul_flops, warm_up
from bench.rank_image import draw, same_decoder
from bench.rank_model import (
    Requests,
    Setting,
    error_against_one_rank,
    give_memory_back,
    random_shard,
    synchronize,
)
from kit.model.shard import Shard
from kit.model.vae import VAEDecoder
from kit.parallel.group import Mesh

NUM_PARITY_LAYERS = 2

Latents = npt.NDArray[np.float32]


@dataclass(frozen=True)
class RankResult:
    """What comes back from a rank: numbers only."""

    error_against_one_rank: float
    create_s: float
    start_s: float
    """From the rank's first line to its first request that counts."""

    weight_bytes: int
    pool_bytes: int
    device_bytes: int
    """Taken on the card at the end, by whatever: context, NCCL's buffers, torch's reserve."""

    latents: Latents
    """Of the first request, [1, C, h, w]."""

    rows: Mapping[str, Sequence[Mapping[str, float]]]
    """By side, one a request."""


@torch.inference_mode()
def measure_rank(
    mesh: Mesh,
    device: torch.device,
    setting: Setting,
    repeats: int,
    make_requests: Callable[..., Requests] = Requests,
) -> RankResult:
    """Measure on one rank; `make_requests` takes what Requests does."""
    started = time.perf_counter()
    if setting.is_card:
        ceiling = matmul_flops(device)
        warm_up(ceiling)
        del ceiling
    error = error_against_one_rank(mesh, device, setting, NUM_PARITY_LAYERS)
    give_memory_back()
    creating = time.perf_counter()
    config = setting.config(setting.num_layers)
    model = random_shard(config, device, setting.dtype, Shard.of(mesh))
    decoder = same_decoder(config.vae, device, setting)
    synchronize(device)
    create_s = time.perf_counter() - creating
    modules = (model, decoder)
    weight_bytes = sum(weight.nbytes for module in modules for weight in module.parameters())
    requests = make_requests(setting, model, mesh.cfg)
    own = [draw(mesh, device, requests, mode, decoder).latents.clone() for mode in MODES.values()]
    # Of the leader in dense_legacy: another rank or mode that differs shows in its rows.
    wanted = mesh.everyone.gather(own[0], 0)[:1]
    start_s = time.perf_counter() - started
    rows: dict[str, list[dict[str, float]]] = {side: [] for side in MODES}
    for repeat in range(repeats):
        for side in tuple(MODES)[:: -1 if repeat % 2 else 1]:
            rows[side].append(_row(mesh, device, requests, side, decoder, wanted))
    return RankResult(
        error_against_one_rank=error,
        create_s=create_s,
        start_s=start_s,
        weight_bytes=weight_bytes,
        pool_bytes=requests.pool_bytes,
        device_bytes=_device_bytes(device),
        latents=wanted.cpu().numpy(),
        rows=rows,
    )


def _row(
    mesh: Mesh,
    device: torch.device,
    requests: Requests,
    side: str,
    decoder: VAEDecoder,
    wanted: Tensor,
) -> dict[str, float]:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    drawn = draw(mesh, device, requests, MODES[side], decoder)
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    return {
        **drawn.times,
        "is_picture": drawn.is_picture,
        "difference": float((drawn.latents - wanted).abs().max()),
        "peak_bytes": peak,
    }


def _device_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return total - free
