"""Rotary tables against those of the reference implementation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from golden_cases import load_case
from safetensors.torch import load_file

from kit.model.rope import rotary_tables

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["t2i_pretrain_square", "t2i_instruct_landscape"])
def test_tables_against_reference(name: str) -> None:
    case = load_case(name)
    tensors = load_file(case.tensors_path)
    for row, positions in enumerate(tensors["positions_yx"].numpy()):
        rotary = rotary_tables(positions, 32, 10000.0, CPU)
        torch.testing.assert_close(rotary.cos, tensors["rope_cos"][row], rtol=0, atol=1e-6)
        torch.testing.assert_close(rotary.sin, tensors["rope_sin"][row], rtol=0, atol=1e-6)


def test_tables_of_module_golden(golden: dict[str, torch.Tensor]) -> None:
    # Nine tokens, an image of 2x3 at [2, 8): y = 2 + (6-2)//2 + i, x = floor(2 + (6-3)/2) + j.
    y = [0, 1, 4, 4, 4, 5, 5, 5, 8]
    x = [0, 1, 3, 4, 5, 3, 4, 5, 8]
    rotary = rotary_tables(np.array([y, x], dtype=np.int32).T, 32, 10000.0, CPU)
    torch.testing.assert_close(rotary.cos, golden["attn.rope_cos"], rtol=0, atol=1e-6)
    torch.testing.assert_close(rotary.sin, golden["attn.rope_sin"], rtol=0, atol=1e-6)


def test_even_frequencies_turn_with_y_and_odd_ones_with_x() -> None:
    still = rotary_tables(np.array([[0, 0]], dtype=np.int32), 16, 10000.0, CPU).sin
    only_y = rotary_tables(np.array([[3, 0]], dtype=np.int32), 16, 10000.0, CPU).sin
    only_x = rotary_tables(np.array([[0, 3]], dtype=np.int32), 16, 10000.0, CPU).sin
    assert not still.any()
    even = torch.arange(16) % 2 == 0
    assert (only_y[0] != 0).equal(even)
    assert (only_x[0] != 0).equal(~even)


def test_one_row_of_a_table_is_the_table_of_one_row() -> None:
    positions = np.array([[5, 7], [22799, 22799], [12, 9000]], dtype=np.int32)
    whole = rotary_tables(positions, 128, 10000.0, CPU)
    part = rotary_tables(positions[1:], 128, 10000.0, CPU)
    assert whole.cos[1:].equal(part.cos)
    assert whole.sin[1:].equal(part.sin)
    assert whole.cos.shape == (3, 128)
    assert whole.cos.dtype == torch.float32
