"""The mask oracle against the masks that the official implementation built."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from golden_cases import CASE_NAMES, load_case
from safetensors.torch import load_file

from kit.attention import oracle
from kit.tokenizer.layout import Layout


@pytest.mark.parametrize("name", CASE_NAMES)
def test_layout_mask_against_official_masks(name: str) -> None:
    tensors = load_file(load_case(name).tensors_path)
    image = tensors["image_mask"][0].nonzero().flatten()
    start, end = int(image[0]), int(image[-1]) + 1
    prefix_len = int(tensors["gen_timestep_index"][0])
    seq_len = tensors["image_mask"].shape[1]
    # Only the product of the grid enters the mask.
    layout = Layout(prefix_len, start - prefix_len, (1, end - start), seq_len - end)
    packed = tensors["attention_mask_packed"][0].numpy()
    official = torch.from_numpy(np.unpackbits(packed, axis=-1, count=seq_len)).bool()
    mask = oracle.layout_mask(layout)
    assert mask.shape == (end, end)
    assert torch.equal(mask, official[:end, :end])
    assert not bool(official[:end, end:].any()), "no query reads the tail"


def test_attend_against_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 5, 6, 8, generator=generator)
    k, v = torch.randn(2, 2, 9, 2, 8, generator=generator)
    mask = torch.rand(5, 9, generator=generator) < 0.5
    mask[:, 0] = True
    wanted = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2).repeat_interleave(3, dim=1),
        v.transpose(1, 2).repeat_interleave(3, dim=1),
        attn_mask=mask,
    ).transpose(1, 2)
    torch.testing.assert_close(oracle.attend(q, k, v, mask), wanted)
