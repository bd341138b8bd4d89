"""The VAE decoder of the published width in strips on two cards, against one card."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from bench.cuda_model import published_config
from bench.rank_model import together
from bench.ranks import num_cards, run_on_ranks
from bench.records import EqualityCheck, Measurement, Record, Row, pair_ratios
from bench.registry import Context
from bench.workloads.cuda_vae import random_decoder
from kit.model.fused import use_fused_kernels
from kit.modelspec.config import VAEConfig
from kit.parallel.group import ALONE, Mesh
from kit.parallel.topology import Topology

NUM_RANKS = 2
ERROR_LIMIT = 1e-3


@dataclass(frozen=True)
class Setting:
    """What is decoded, and where."""

    device: str
    """cuda, or cpu: to try the measurement by gloo."""

    config: VAEConfig
    size: int

    @property
    def dtype(self) -> torch.dtype:
        return torch.float16 if self.device == "cuda" else torch.float32


def run(context: Context) -> Record:
    """Compare in float32 and time in float16, both on the same two cards in turn."""
    num_cards()
    return measure_setting(context, Setting("cuda", published_config(1).vae, size=1024))


def measure_setting(context: Context, setting: Setting) -> Record:
    """Decode the same latents alone and together."""
    topology = Topology(tensor=NUM_RANKS)
    ranks = run_on_ranks(topology, setting.device, on_rank, setting, context.repeats)
    leader = ranks[0]
    difference = max(rank["float32_error"] for rank in ranks)
    medians = {
        name: statistics.median(row["decode_s"] for row in leader["rows"][name])
        for name in ("baseline", "candidate")
    }
    return context.record(
        parameters={
            "size": setting.size,
            "block_out_channels": list(setting.config.block_out_channels),
            "dtype": f"{setting.dtype}; compared in float32 without TF32 and in this one",
            "weights": "random, the same on both ranks",
            "num_ranks": NUM_RANKS,
            "order": "baseline, candidate, alternating; ranks begin together, and in the baseline "
            "each decodes the whole image",
        },
        equality=EqualityCheck.of(
            compared="pixels in float32, one rank against two, largest absolute difference over "
            "the largest pixel",
            limit=ERROR_LIMIT,
            seen=difference,
        ),
        baseline=Measurement("one rank, all rows", tuple(leader["rows"]["baseline"])),
        candidate=Measurement(
            "two ranks, a strip of rows each", tuple(leader["rows"]["candidate"])
        ),
        paired=True,
        ratios=pair_ratios(("decode_s",)),
        findings={
            "timed_dtype_error": max(rank["timed_dtype_error"] for rank in ranks),
            "share_of_linear": medians["baseline"] / (NUM_RANKS * medians["candidate"]),
        },
    )


@torch.inference_mode()
def on_rank(mesh: Mesh, device: torch.device, setting: Setting, repeats: int) -> dict[str, object]:
    """Measure on one rank; only numbers come back."""
    torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    decoder = random_decoder(setting.config, device)
    side = setting.size // setting.config.ffactor_spatial
    latents = torch.randn(1, setting.config.latent_channels, side, side, device=device)
    use_fused_kernels(decoder, device, torch.float32)
    groups = {"baseline": ALONE, "candidate": mesh.everyone}
    found: dict[str, object] = {}
    for name, dtype in (("float32_error", torch.float32), ("timed_dtype_error", setting.dtype)):
        decoder.to(dtype)
        alone, shared = (decoder(latents, ranks) for ranks in groups.values())
        found[name] = _difference(shared, alone)
        del alone, shared
    for ranks in groups.values():  # libraries choose algorithms at first use
        decoder(latents, ranks)
    rows: dict[str, list[Row]] = {name: [] for name in groups}
    for _ in range(repeats):
        for name, ranks in groups.items():
            rows[name].append(_measure(mesh, device, partial(decoder, latents, ranks)))
    return found | {"rows": rows}


def _difference(seen: Tensor, wanted: Tensor) -> float:
    return float((seen - wanted).abs().max() / wanted.abs().max())


def _measure(mesh: Mesh, device: torch.device, decode: Callable[[], Tensor]) -> Row:
    if device.type != "cuda":
        return {"decode_s": together(mesh, device, decode)}
    torch.cuda.reset_peak_memory_stats(device)
    at_rest = torch.cuda.memory_allocated(device)
    time = together(mesh, device, decode)
    return {
        "decode_s": time,
        "working_bytes": torch.cuda.max_memory_allocated(device) - at_rest,
    }
