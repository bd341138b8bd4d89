"""The tensors of every step, under the names other implementations can be held against."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from kit.tokenizer.layout import Rows, positions_yx


class Trace:
    """Collects named tensors of one request and writes them as one safetensors file.

    Axes: B rows, S sequence, C latent channels; the leading 1 is the request axis of the names'
    convention (R requests).

        input_ids           int32 [B, S]       positions_yx        int32 [1, S, 2]
        noise_bf16          bf16 [1, C, h, w]  sigmas, timesteps   float32 [steps+1], [steps]
        step{i}.latents_in, .pred_guided, .latents_out             float32 [1, C, h, w]
        step{i}.pred        float32 [B, C, h, w]
        step{i}.timestep, .timestep_r, .guidance                   float32 [1]
        vae_decode_out      float32 [1, 3, 1, H, W]                image_u8  uint8 [1, H, W, 3]

    and of reference j, with h x w latents and n tokens of patches:

        ref{j}.vae_moments  float32 [1, 2C, 1, h, w]               ref{j}.cond_latents  [C, h, w]
        ref{j}.vit_aligned_embeds  [n, hidden], in the model's dtype
    """

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}

    def add(self, name: str, tensor: Tensor) -> None:
        """Keep a copy on the CPU, so that later in-place work cannot change it."""
        self.tensors[name] = tensor.detach().to("cpu", copy=True).contiguous()

    def add_rows(self, rows: Rows) -> None:
        self.add("input_ids", torch.tensor(rows.token_ids, dtype=torch.int32))
        self.add("positions_yx", torch.from_numpy(positions_yx(rows.layout))[None])

    def save(self, path: Path) -> None:
        save_file(self.tensors, path)
