"""Weights from the official checkpoint files into modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn

from kit.model import offload
from kit.model.fused import use_fused_kernels
from kit.model.moe import Experts, Router
from kit.model.reference_encoder import ReferenceEncoder
from kit.model.transformer import HunyuanImage3
from kit.model.vae import VAEDecoder
from kit.modelspec.config import ModelConfig
from kit.modelspec.files import CheckpointFiles
from kit.modelspec.tensors import check_tensors

OnBytes = Callable[[int], None]
"""Called with the stored bytes of every tensor after it was read."""


def load_transformer(
    folder: Path,
    config: ModelConfig,
    *,
    device: torch.device,
    dtype: torch.dtype,
    on_bytes: OnBytes | None = None,
    stream_layers: bool = False,
) -> HunyuanImage3:
    """Load the denoiser in `dtype`; router weights stay float32.

    With `stream_layers` the layers wait in host memory, see StreamedLayers. Raises CheckpointError,
    before anything is read, for files or tensors that are missing, damaged, of another shape or
    dtype than `config` wants, or unexpected.
    """
    files = _open_checked(folder, config)
    with torch.device("meta"):
        model = HunyuanImage3(config)
    host = "model.layers." if stream_layers else None
    _fill(model, "", files, device, dtype, on_bytes, host=host)
    if stream_layers:
        offload.stream_layers(model, device)
    use_fused_kernels(model, device, dtype)
    return model


def load_vae_decoder(
    folder: Path,
    config: ModelConfig,
    *,
    device: torch.device,
    dtype: torch.dtype,
    on_bytes: OnBytes | None = None,
    waits: bool = False,
) -> VAEDecoder:
    """Load the decoder of the autoencoder in `dtype`, to run on `device`; errors as above.

    Its weights lie in host memory if it `waits`, see WaitingModule.
    """
    files = _open_checked(folder, config)
    with torch.device("meta"):
        decoder = VAEDecoder(config.vae)
    host = "" if waits else None
    _fill(decoder, "vae.decoder.", files, device, dtype, on_bytes, host=host)
    use_fused_kernels(decoder, device, dtype)
    return decoder


def load_reference_encoder(
    folder: Path,
    config: ModelConfig,
    *,
    device: torch.device,
    dtype: torch.dtype,
    vae_dtype: torch.dtype,
    waits: bool = False,
) -> ReferenceEncoder:
    """Load what reads reference images, the autoencoder's part in `vae_dtype`; as above.

    The files hold all of it.
    """
    files = _open_checked(folder, config)
    with torch.device("meta"):
        encoder = ReferenceEncoder(config)
    host = "" if waits else None
    _fill(encoder.vae_encoder, "vae.encoder.", files, device, vae_dtype, None, host=host)
    _fill(encoder.vision_model, "vision_model.", files, device, dtype, None, host=host)
    _fill(encoder.vision_aligner, "vision_aligner.", files, device, dtype, None, host=host)
    use_fused_kernels(encoder, device, vae_dtype)
    return encoder.eval()


def in_dtype(module: nn.Module, dtype: torch.dtype) -> None:
    """Make a module's weights `dtype`, its routers' float32, and the module one that only runs."""
    module.to(dtype).requires_grad_(False).eval()
    for part in module.modules():
        if isinstance(part, Router):
            part.float()


def official_views(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the official name (below the module's own) and a view of every stored tensor.

    Writing to a view writes to the parameter: experts are stored stacked, one official tensor
    is one slice.
    """
    for path, part in module.named_modules():
        prefix = f"{path}." if path else ""
        if isinstance(part, Experts):
            tensors = part.official_views()
        else:
            tensors = part.named_parameters(recurse=False)
        for name, tensor in tensors:
            yield prefix + name, tensor


def _open_checked(folder: Path, config: ModelConfig) -> CheckpointFiles:
    files = CheckpointFiles.open(folder)
    check_tensors(files, config)
    return files


def _fill(
    module: nn.Module,
    prefix: str,
    files: CheckpointFiles,
    device: torch.device,
    dtype: torch.dtype,
    on_bytes: OnBytes | None,
    *,
    host: str | None = None,
) -> None:
    """Give a module on the meta device its memory and weights, shard by shard, in place.

    Modules whose path begins with `host` get host memory.
    """
    in_dtype(module, dtype)
    for path, part in module.named_modules():
        place = torch.device("cpu") if host is not None and path.startswith(host) else device
        for name, parameter in list(part.named_parameters(recurse=False)):
            # Module.to_empty asks the meta device for a copy, which imports torch's compiler.
            memory = torch.empty(parameter.shape, dtype=parameter.dtype, device=place)
            setattr(part, name, nn.Parameter(memory, requires_grad=False))
    views = {prefix + name: view for name, view in official_views(module)}
    entries = sorted((files.tensors[name] for name in views), key=lambda e: (e.path, e.name))
    for shard_path, shard_entries in groupby(entries, key=lambda entry: entry.path):
        # Mapped, not read: no second copy of a shard beside the parameters.
        with safe_open(shard_path, framework="pt", device="cpu") as shard:
            for entry in shard_entries:
                view = views[entry.name]
                assert view.shape == entry.shape, f"{entry.name}: table and module disagree"
                view.copy_(shard.get_tensor(entry.name))
                if on_bytes is not None:
                    on_bytes(entry.num_bytes)
