"""Holds a trace of the kit against what the reference implementation recorded."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

LIMIT = 1e-4


def rows_of(wanted: Tensor, index: int, num_requests: int) -> Tensor:
    """Rows of request `index`: all conditional rows come first, then all unconditional ones."""
    return wanted[index::num_requests]


def check_trace(
    seen: dict[str, Tensor], wanted: dict[str, Tensor], index: int, num_requests: int
) -> None:
    """Compare request `index` of a case; `wanted` has what the case recorded for all of them."""
    length = seen["input_ids"].shape[1]
    ids = rows_of(wanted["input_ids"], index, num_requests)
    assert torch.equal(seen["input_ids"], ids[:, :length])
    positions = wanted["positions_yx"][index if wanted["positions_yx"].shape[0] > 1 else 0]
    assert torch.equal(seen["positions_yx"][0], positions[:length])
    assert torch.equal(seen["noise_bf16"], wanted["noise_bf16"][index : index + 1])
    assert torch.equal(seen["sigmas"], wanted["sigmas"])
    assert torch.equal(seen["timesteps"], wanted["timesteps"])
    compared = 0
    for key, value in wanted.items():
        if not key.startswith(("step", "ref")):
            continue
        if key.startswith("ref"):
            assert num_requests == 1, "cases with references are single requests"
        elif key.endswith(".pred"):
            value = rows_of(value, index, num_requests)
        elif value.dim() > 1:
            value = value[index : index + 1]
        torch.testing.assert_close(
            seen[key], value, atol=LIMIT, rtol=0, msg=partial("{}: {}".format, key)
        )
        compared += 1
    assert compared >= 3 * wanted["timesteps"].numel()
    if "vae_decode_out" in wanted:
        torch.testing.assert_close(
            seen["vae_decode_out"], wanted["vae_decode_out"][index : index + 1], atol=LIMIT, rtol=0
        )
