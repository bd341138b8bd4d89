"""Weights from the official checkpoint files into modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn
from tqdm import tqdm

from kit.model import offload
from kit.model.fused import use_fused_kernels
from kit.model.moe import Experts, Router
from kit.model.readers import Pair, Readers
from kit.model.reference_encoder import ReferenceEncoder
from kit.model.shard import WHOLE, Cut, Shard, SlicedLinear
from kit.model.transformer import HunyuanImage3
from kit.model.vae import VAEDecoder
from kit.modelspec.config import ModelConfig
from kit.modelspec.files import CheckpointFiles
from kit.modelspec.tensors import check_tensors

OnBytes = Callable[[int], None]
"""Called with the stored bytes of every tensor, or of the rank's part of it, after it was read."""

_UNCUT = Cut(0, 0, 1)


def load_transformer(
    folder: Path,
    config: ModelConfig,
    *,
    device: torch.device,
    dtype: torch.dtype,
    on_bytes: OnBytes | None = None,
    stream_layers: bool = False,
    shard: Shard = WHOLE,
    show_progress: bool = False,
) -> HunyuanImage3:
    """Load a rank's shard of the denoiser in `dtype`; router weights stay float32.

    Only the rank's slices are read, from mapped files. With `stream_layers` the layers wait in host
    memory, see StreamedLayers. Raises CheckpointError, before anything is read, for files or
    tensors that are missing, damaged, of another shape or dtype than `config` wants, or unexpected.
    """
    files = _open_checked(folder, config)
    with torch.device("meta"):
        model = HunyuanImage3(config, shard)
    host = "model.layers." if stream_layers else None
    _fill(model, "", files, device, dtype, on_bytes, host=host, show_progress=show_progress)
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
    show_progress: bool = False,
) -> VAEDecoder:
    """Load the decoder of the autoencoder in `dtype`, to run on `device`; errors as above.

    Its weights lie in host memory if it `waits`, see WaitingModule.
    """
    files = _open_checked(folder, config)
    with torch.device("meta"):
        decoder = VAEDecoder(config.vae)
    host = "" if waits else None
    _fill(
        decoder,
        "vae.decoder.",
        files,
        device,
        dtype,
        on_bytes,
        host=host,
        show_progress=show_progress,
    )
    use_fused_kernels(decoder, device, dtype)
    return decoder


def load_reference_encoder(
    folder: Path,
    config: ModelConfig,
    *,
    device: torch.device,
    dtype: torch.dtype,
    vae_dtype: torch.dtype,
    on_bytes: OnBytes | None = None,
    waits: bool = False,
    show_progress: bool = False,
) -> ReferenceEncoder:
    """Load what reads reference images, the autoencoder's part in `vae_dtype`; as above.

    The files hold all of it.
    """
    files = _open_checked(folder, config)
    with torch.device("meta"):
        encoder = ReferenceEncoder(config)
    parts: tuple[tuple[nn.Module, str, torch.dtype], ...] = (
        (encoder.vae_encoder, "vae.encoder.", vae_dtype),
        (encoder.vision_model, "vision_model.", dtype),
        (encoder.vision_aligner, "vision_aligner.", dtype),
    )
    for part, prefix, own_dtype in parts:
        _fill(
            part,
            prefix,
            files,
            device,
            own_dtype,
            on_bytes,
            host="" if waits else None,
            show_progress=show_progress,
        )
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
    for name, view, _ in official_parts(module):
        yield name, view


def official_parts(module: nn.Module) -> Iterator[tuple[str, Tensor, Cut]]:
    """Yield the same, and which part of the stored tensor the view holds."""
    for path, part in module.named_modules():
        prefix = f"{path}." if path else ""
        if isinstance(part, Experts):
            for name, view, cut in part.official_views():
                yield prefix + name, view, cut
        else:
            cut = part.cut if isinstance(part, SlicedLinear) else _UNCUT
            for name, view in part.named_parameters(recurse=False):
                yield prefix + name, view, cut


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
    host: str | None,
    show_progress: bool,
) -> None:
    """Give a module on the meta device its memory and weights, file by file, in place.

    Modules whose path begins with `host` get host memory.
    """
    in_dtype(module, dtype)
    for path, part in module.named_modules():
        place = torch.device("cpu") if host is not None and path.startswith(host) else device
        for name, parameter in list(part.named_parameters(recurse=False)):
            # Module.to_empty asks the meta device for a copy, which imports torch's compiler.
            memory = torch.empty(parameter.shape, dtype=parameter.dtype, device=place)
            setattr(part, name, nn.Parameter(memory, requires_grad=False))
    parts = {prefix + name: (view, cut) for name, view, cut in official_parts(module)}
    entries = sorted((files.tensors[name] for name in parts), key=lambda e: (e.path, e.name))
    what = prefix.rstrip(".") or "transformer"
    num_bytes = {entry.name: parts[entry.name][1].share(entry.num_bytes) for entry in entries}
    bar = tqdm(
        total=sum(num_bytes.values()),
        desc=what,
        unit="B",
        unit_scale=True,
        disable=None if show_progress else True,  # None: no bar where stderr is no terminal
    )
    with bar, Readers(device) as readers:
        for path, in_file in groupby(entries, key=lambda entry: entry.path):
            # Mapped, not read: no second copy of a file beside the parameters, and what the rank
            # does not hold is never touched.
            with safe_open(path, framework="pt", device="cpu") as file:
                names = [entry.name for entry in in_file]
                pairs = [_pairs(file.get_tensor(name), *parts[name]) for name in names]
                for name, _ in zip(names, readers.copy(pairs), strict=True):
                    bar.update(num_bytes[name])
                    if on_bytes is not None:
                        on_bytes(num_bytes[name])


def _pairs(stored: Tensor, view: Tensor, cut: Cut) -> list[Pair]:
    pairs = list(zip(cut.places(view), cut.of(stored), strict=True))
    assert all(place.shape == part.shape for place, part in pairs), "table and module disagree"
    return pairs
