"""torch's scaled_dot_product_attention over contiguous rows, by any kernel or by cuDNN's."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from kit.attention.contiguous import RowWriter
from kit.attention.plan import Segment, StepPlan
from kit.attention.rotary import QKNorm, Rotary
from kit.kv.store import DenseStore


class TorchSDPA:
    """A DenseKernel that calls scaled_dot_product_attention once per segment."""

    name = "torch_sdpa"
    version = str(torch.__version__)

    def step(self, store: DenseStore, plan: StepPlan) -> TorchSDPAStep:
        """Build the masks of the plan's segments once, for all layers."""
        return TorchSDPAStep(store, plan)


class TorchCuDNN:
    """TorchSDPA that allows cuDNN's kernel only."""

    name = "torch_cudnn"
    version = str(torch.__version__)

    def step(self, store: DenseStore, plan: StepPlan) -> TorchSDPAStep:
        """Build the masks of the plan's segments once, for all layers."""
        return TorchSDPAStep(store, plan, SDPBackend.CUDNN_ATTENTION)


class TorchSDPAStep:
    """A StepKV that hands whole rows to torch."""

    def __init__(self, store: DenseStore, plan: StepPlan, only: SDPBackend | None = None) -> None:
        self._store, self._plan, self._only = store, plan, only
        self._writer = RowWriter(store, plan)
        self._masks = [_mask(segment, store.shape.device) for segment in plan.segments]

    @property
    def address_key(self) -> object:
        """See StepKV.address_key."""
        return self

    def write(self, layer: int, qkv: Tensor, rotary: Rotary, norm: QKNorm) -> Tensor:
        """Rotate and normalise, write k and v into their rows, return q; see StepKV.write."""
        return self._writer.write(layer, qkv, rotary, norm)

    @torch.no_grad()
    def attend(self, layer: int, q: Tensor) -> Tensor:
        """Run the plan's segments; see StepKV.attend."""
        keys = self._store.keys[layer].transpose(1, 2)  # [B, K, S, D]
        values = self._store.values[layer].transpose(1, 2)
        lengths = [segment.end - segment.start for segment in self._plan.segments]
        out = q.new_empty(q.shape)
        pieces = zip(
            torch.split(q, lengths, dim=1),
            torch.split(out, lengths, dim=1),
            self._plan.segments,
            self._masks,
            strict=True,
        )
        with self._kernels():
            for q_piece, out_piece, segment, mask in pieces:
                # enable_gqa, not heads expanded with stride 0: with a mask, torch 2.11's efficient
                # kernel gets the last query row of expanded heads wrong at T = N + 1.
                result = F.scaled_dot_product_attention(
                    q_piece.transpose(1, 2),
                    keys[:, :, : segment.kv_len],
                    values[:, :, : segment.kv_len],
                    attn_mask=mask,
                    is_causal=segment.causal and mask is None,
                    enable_gqa=True,
                )
                out_piece.copy_(result.transpose(1, 2))
        return out

    def _kernels(self) -> AbstractContextManager[None]:
        return nullcontext() if self._only is None else sdpa_kernel(self._only)


def _mask(segment: Segment, device: torch.device) -> Tensor | None:
    """Return bool [T, S] of a causal segment that starts past token 0, true = visible.

    None for full segments, and where `is_causal` says the same: torch aligns it to the first key,
    which is right only if the first query is token 0.
    """
    if not segment.causal or segment.start == 0:
        return None
    queries = torch.arange(segment.start, segment.end, device=device)
    return torch.arange(segment.kv_len, device=device) <= queries[:, None]
