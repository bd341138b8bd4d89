"""What a rank will hold when a request is drawn in both KV modes, before anything is made."""

from __future__ import annotations

from collections.abc import Mapping

from bench.cuda_model import NUM_ROWS
from bench.rank_model import Setting
from kit.errors import UnsupportedError
from kit.modelspec.footprint import (
    Split,
    activation_bytes,
    contiguous_bytes,
    kept_rows_bytes,
    kv_token_bytes,
    own_rows,
    row_bytes,
    weight_bytes,
)
from kit.parallel.topology import Topology
from kit.platforms.detect import device_memory

UTILIZATION = 0.95
"""Most of a card that may be taken: contexts, NCCL's buffers and what torch keeps take the rest."""

_GIB = 2**30


def predicted_bytes(setting: Setting, topology: Topology) -> Mapping[str, int]:
    """Return the bytes of one rank by what they are for; both modes keep their stores.

    dense_rows stay from request to request on a card, where graphs hold their address; graphs have
    working memory of their own. With all ranks decoding together.
    """
    config, layout = setting.config(setting.num_layers), setting.layout()
    split = Split(topology.tensor, topology.ulysses, topology.cfg, decode=topology.size)
    itemsize, vae_itemsize = setting.dtype.itemsize, setting.vae_dtype.itemsize
    token_bytes = kv_token_bytes(config, itemsize, split)
    rows = own_rows(NUM_ROWS, topology.cfg)
    height, width = (config.vae_downsample_factor * side for side in setting.grid)
    working = activation_bytes(
        config,
        height=height,
        width=width,
        prefix_len=setting.prefix_len,
        num_rows=NUM_ROWS,
        dtype_bytes=itemsize,
        fused=setting.is_card,
        vae_dtype_bytes=vae_itemsize,
        split=split,
    )
    dense = contiguous_bytes(rows, layout.kv_len, token_bytes)
    return {
        "weights": weight_bytes(config, itemsize, vae_dtype_bytes=vae_itemsize, split=split),
        "pages": rows * row_bytes(layout.kv_len, token_bytes, setting.page_size),
        "dense_rows": kept_rows_bytes(config, token_bytes, split) if setting.is_card else dense,
        "graphs": working.denoise if setting.is_card else 0,
        "working": working.peak,
    }


def check_fits(setting: Setting, topology: Topology) -> None:
    """Raise UnsupportedError, with the numbers, where a device has no room for its rank."""
    parts = predicted_bytes(setting, topology)
    devices = tuple(range(topology.size)) if setting.is_card else ()
    memory = device_memory(devices, topology.size)
    needed, allowed = sum(parts.values()), memory.allowed_bytes(UTILIZATION)
    room = min(memory.free_bytes, allowed)
    if needed <= room:
        return
    listed = ", ".join(f"{name} {size / _GIB:.1f}" for name, size in parts.items())
    raise UnsupportedError(
        f"{topology}: a rank with {setting.num_layers} layers needs {needed / _GIB:.1f} GiB "
        f"({listed}), and a device has {room / _GIB:.1f} GiB for it; share the weights among more "
        "ranks (tensor parallel)"
    )
