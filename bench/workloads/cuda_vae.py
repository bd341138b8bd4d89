"""The VAE decoder of the published width on a card: the kit's form against the plain one."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from bench.cuda_baselines import PlainClipConv3d
from bench.cuda_model import published_config
from bench.cuda_timing import seconds, the_card
from bench.records import EqualityCheck, Measurement, Record, pair_ratios
from bench.registry import Context
from kit.model.clip_conv import ClipConv3d
from kit.model.fused import use_fused_kernels
from kit.model.group_norm import GroupNorm
from kit.model.vae import VAEDecoder
from kit.modelspec.config import VAEConfig

SIZE = 1024
ERROR_LIMIT = 1e-3


@torch.inference_mode()
def run(context: Context) -> Record:
    """Compare both forms in float32, then time them in float16 in turn."""
    device = the_card()
    config = published_config(1).vae
    decoder = random_decoder(config, device)
    side = SIZE // config.ffactor_spatial
    latents = torch.randn(1, config.latent_channels, side, side, device=device)
    plain = plain_form(decoder)
    use_fused_kernels(decoder, device, torch.float32)
    difference = _difference(decoder, plain, latents)
    decoder.half()
    plain.half()
    forms = {"baseline": plain, "candidate": decoder}
    for form in forms.values():
        form(latents)
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in forms}
    for _ in range(context.repeats):
        for name, form in forms.items():
            torch.cuda.reset_peak_memory_stats()
            at_rest = torch.cuda.memory_allocated()
            time = seconds(lambda form=form: form(latents))  # type: ignore[misc]
            peak = torch.cuda.max_memory_allocated() - at_rest
            rows[name].append({"decode_s": time, "working_bytes": peak})
    return context.record(
        parameters={
            "size": SIZE,
            "block_out_channels": list(config.block_out_channels),
            "dtype": "float16; compared in float32 without TF32",
            "weights": "random",
            "order": "baseline, candidate, alternating",
        },
        equality=EqualityCheck.of(
            compared="pixels in float32, largest absolute difference over the largest pixel",
            limit=ERROR_LIMIT,
            seen=difference,
        ),
        baseline=Measurement(
            "Conv3d with all taps, torch's group norm, then SiLU", tuple(rows["baseline"])
        ),
        candidate=Measurement(
            "frames beside each other, no taps on padding, fused group norm",
            tuple(rows["candidate"]),
        ),
        paired=True,
        ratios=pair_ratios(("decode_s",)),
    )


def random_decoder(config: VAEConfig, device: torch.device) -> VAEDecoder:
    """Make a float32 decoder whose convolutions keep the scale of what they read."""
    with torch.device("meta"):
        decoder = VAEDecoder(config)
    decoder.to_empty(device=device)
    for part in decoder.modules():
        if isinstance(part, GroupNorm):
            part.weight.fill_(1.0)
            part.bias.zero_()
        elif isinstance(part, ClipConv3d):
            part.weight.normal_(std=part.weight[0].numel() ** -0.5)
            part.bias.zero_()
    return decoder


def plain_form(decoder: VAEDecoder) -> VAEDecoder:
    """Return a copy of a decoder with every convolution as Conv3d computes it."""
    plain = copy.deepcopy(decoder)
    for parent in list(plain.modules()):
        for name, part in list(parent.named_children()):
            if isinstance(part, ClipConv3d):
                setattr(parent, name, PlainClipConv3d(part))
    return plain


def _difference(decoder: nn.Module, plain: nn.Module, latents: Tensor) -> float:
    allowed = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        seen, wanted = decoder(latents), plain(latents)
    finally:
        torch.backends.cudnn.allow_tf32 = allowed
    return float((seen - wanted).abs().max() / wanted.abs().max())
