"""Tables of the two-dimensional rotary embedding."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from kit.attention.rotary import Rotary


def rotary_tables(
    positions_yx: npt.NDArray[np.int32], head_dim: int, theta: float, device: torch.device
) -> Rotary:
    """Return the tables of tokens at int32 [T, 2] (y, x) positions, float32 [T, head_dim] each.

    Frequency j = theta^(-2j/D) turns with y where j is even, with x where j is odd; the D/2
    angles stand twice along D, so that pairs are (j, j + D/2). Text has y = x and gets plain
    1-D RoPE (HunyuanImage-3.0 reference, `build_2d_rope`).
    """
    assert head_dim % 4 == 0, "y and x share the D/2 frequencies evenly"
    # Computed on the CPU: at positions in the thousands, one unit in the last place of a
    # frequency is already 1e-3 in the angle, and each platform rounds its powers differently.
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / (theta**exponents)
    positions = torch.from_numpy(positions_yx.astype(np.float32))
    angles = (positions[:, None] * frequencies.view(-1, 2)).flatten(1)  # [T, D/4, 2] -> [T, D/2]
    angles = angles.repeat(1, 2)  # [T, D]
    return Rotary(angles.cos().to(device), angles.sin().to(device))
