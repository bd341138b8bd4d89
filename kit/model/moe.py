"""The mixture-of-experts MLP of a decoder layer.

Axis letters: N tokens of all rows together, E experts, H hidden size, I expert width,
k experts per token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kit.model.shard import WHOLE, Cut, Shard, sliced_inputs, sliced_outputs
from kit.parallel.group import RankGroup

Gate = Callable[[Tensor], Tensor]
"""Of both halves [N, 2I], in the order of the weight's; returns [N, I]."""

GroupedLayer = Callable[["MoE", Tensor], Tensor]
"""Runs a layer on tokens [N, H] without waiting for the host; returns [N, H]."""


class Router(nn.Module):
    """Chooses the experts of each token. Weight and arithmetic are float32 in every model dtype."""

    def __init__(self, hidden_size: int, num_experts: int, top_k: int) -> None:
        super().__init__()
        self.wg = nn.Linear(hidden_size, num_experts, bias=False, dtype=torch.float32)
        self.top_k = top_k

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Route [N, H] tokens; returns weights float32 [N, k] and expert indices int64 [N, k].

        Softmax over all experts, the k most probable ones, renormalised to sum 1
        (HunyuanImage-3.0 reference, `HunyuanTopKGate`). Ordered by falling probability.
        """
        logits: Tensor = self.wg(tokens.float())
        weights, indices = logits.softmax(dim=-1).topk(self.top_k, dim=-1)
        return weights / weights.sum(dim=-1, keepdim=True).clamp_min(1e-8), indices


class GatedMLP(nn.Module):
    """The MLP that every token passes, whatever its experts; ranks share its width."""

    def __init__(self, hidden_size: int, width: int, ranks: RankGroup) -> None:
        super().__init__()
        self.gate_and_up_proj = sliced_outputs(hidden_size, 2 * width, ranks, blocks=2)
        self.down_proj = sliced_inputs(width, hidden_size, ranks)
        self.gate: Gate = gate_second

    def forward(self, x: Tensor) -> Tensor:
        """Map [N, H] to this rank's term of [N, H]."""
        return gated_mlp(x, self.gate_and_up_proj.weight, self.down_proj.weight, self.gate)


class Experts(nn.Module):
    """The weights of a layer's experts on this rank, stacked along their first axis.

    Slices of all experts, or some whole ones: those from `first` on.
    """

    def __init__(
        self, hidden_size: int, width: int, num_experts: int, shard: Shard = WHOLE
    ) -> None:
        super().__init__()
        rank, size = shard.tensor.rank, shard.tensor.size
        self.num_all, self.first = num_experts, 0
        if shard.whole_experts:
            num_experts //= size
            self.first = rank * num_experts
            rank, size = 0, 1
        width //= size
        self.up_cut, self.down_cut = Cut(0, rank, size, blocks=2), Cut(1, rank, size)
        self.gate_and_up_proj = nn.Parameter(torch.empty(num_experts, 2 * width, hidden_size))
        self.down_proj = nn.Parameter(torch.empty(num_experts, hidden_size, width))
        self.gate: Gate = gate_second

    def forward(self, tokens: Tensor, weights: Tensor, indices: Tensor) -> Tensor:
        """Return this rank's term of sum_k weights * expert(token), float32 [N, H].

        tokens [N, H]; weights float32 [N, k]; indices int64 [N, k]. An expert sees its own tokens
        only. A token's terms are added in the order of expert ids, once per expert call, so the
        sum is deterministic and independent of how other tokens are routed (but for the rounding
        of a matrix product of another height).
        """
        top_k = indices.shape[1]
        experts = indices.flatten()  # [N*k], one entry per (token, choice) pair
        pairs = experts.argsort(stable=True)  # grouped by expert, tokens in order
        token_of_pair = pairs // top_k
        weight_of_pair = weights.flatten()[pairs][:, None]
        ends = torch.bincount(experts, minlength=self.num_all).cumsum(0).tolist()
        own_ends = (0, *ends)[self.first : self.first + len(self.down_proj) + 1]
        total = torch.zeros(tokens.shape, dtype=torch.float32, device=tokens.device)
        for expert, (start, end) in enumerate(pairwise(own_ends)):
            if start == end:
                continue
            chosen = token_of_pair[start:end]
            x = tokens.index_select(0, chosen)
            y = gated_mlp(x, self.gate_and_up_proj[expert], self.down_proj[expert], self.gate)
            total.index_add_(0, chosen, y.float() * weight_of_pair[start:end])
        return total

    def official_views(self) -> Iterator[tuple[str, Tensor, Cut]]:
        """Yield every single matrix below this module: the checkpoint's name, view and cut."""
        for at in range(len(self.down_proj)):
            name = str(self.first + at)
            yield f"{name}.gate_and_up_proj.weight", self.gate_and_up_proj[at], self.up_cut
            yield f"{name}.down_proj.weight", self.down_proj[at], self.down_cut


class MoE(nn.Module):
    """Shared MLP plus routed experts."""

    def __init__(
        self,
        hidden_size: int,
        width: int,
        num_experts: int,
        top_k: int,
        num_shared: int,
        shard: Shard = WHOLE,
    ) -> None:
        super().__init__()
        self.ranks = shard.tensor
        self.gate = Router(hidden_size, num_experts, top_k)
        self.shared_mlp = GatedMLP(hidden_size, width * num_shared, self.ranks)
        self.experts = Experts(hidden_size, width, num_experts, shard)
        self.fused = False
        """Run the kit's kernels, without waiting for the host; see kit.model.fused."""

        self.grouped: GroupedLayer | None = None
        """On an NPU, if its operators passed; see kit.model.npu."""

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, T, H] to [B, T, H]; the branches are added in float32, the ranks after them."""
        tokens = x.flatten(0, 1)  # [N, H]
        return self.ranks.sum_(self.own(tokens)).view_as(x)

    def own(self, tokens: Tensor) -> Tensor:
        """Return this rank's part of the result of [N, H] tokens."""
        if self.fused:
            return self._grouped(tokens)
        if self.grouped is not None:
            return self.grouped(self, tokens)
        weights, indices = self.gate(tokens)
        routed: Tensor = self.experts(tokens, weights, indices)
        shared: Tensor = self.shared_mlp(tokens)
        return (routed + shared).to(tokens.dtype)

    def _grouped(self, tokens: Tensor) -> Tensor:
        from kit.kernels import experts, routing

        weights, indices = routing.route(tokens, self.gate.wg.weight, self.gate.top_k)
        up, down = self.shared_mlp.gate_and_up_proj.weight, self.shared_mlp.down_proj.weight
        shared = F.linear(experts.gate(F.linear(tokens, up)), down)
        return experts.experts(
            tokens,
            weights,
            indices,
            self.experts.gate_and_up_proj,
            self.experts.down_proj,
            shared,
            first=self.experts.first,
        )


def gate_second(x: Tensor) -> Tensor:
    """Return first * silu(second) of the halves of [N, 2I].

    The *second* half is the gate: against the usual order, and the name gate_and_up.
    """
    first, second = x.chunk(2, dim=-1)
    return first * F.silu(second)


def gated_mlp(x: Tensor, gate_and_up: Tensor, down: Tensor, gate: Gate = gate_second) -> Tensor:
    """Return down(gate(gate_and_up(x))) of [N, H], weights [2I, H] and [H, I]."""
    return F.linear(gate(F.linear(x, gate_and_up)), down)
