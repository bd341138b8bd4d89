"""The model's parts that torch-npu has operators for; the others run as torch runs them.

Each part is tried against plain torch when a model is loaded, and used if it passes. Run through an
emulation only, never on an NPU: docs/ascend.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kit.attention.ascend.trial import Trial, log_trial, relative_error, try_part
from kit.attention.rotary import rms_norm
from kit.model.moe import Experts, Gate, GatedMLP, GroupedLayer, MoE
from kit.model.norm import Norm, RMSNorm

_EXPERT_OPERATORS = (
    "npu_moe_gating_top_k_softmax",
    "npu_moe_init_routing_v2",
    "npu_grouped_matmul",
    "npu_moe_token_unpermute",
)


@torch.no_grad()
def use_npu_operators(model: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    """Have norms, gates and expert layers of a loaded model run in operators; call it once.

    Exchanges the halves of every gate_and_up weight in place: the checkpoint has the gate second.
    """
    norms = [part for part in model.modules() if isinstance(part, RMSNorm)]
    gated = [part for part in model.modules() if isinstance(part, GatedMLP | Experts)]
    layers = [part for part in model.modules() if isinstance(part, MoE)]
    if norms and (norm := _chosen(try_norm(device, dtype))) is not None:
        for part in norms:
            part.compute = norm
    if gated and (gate := _chosen(try_gate(device, dtype))) is not None:
        for gated_part in gated:
            for weight in _gate_and_up(gated_part):
                weight.copy_(torch.cat(weight.chunk(2)[::-1]))
            gated_part.gate = gate
    if layers and (grouped := _chosen(try_experts(layers[0], device, dtype))) is not None:
        for layer in layers:
            layer.grouped = grouped


def try_norm(device: torch.device, dtype: torch.dtype) -> Trial[Norm]:
    """Try npu_rms_norm."""

    def build(operator: Callable[..., tuple[Tensor, Tensor]]) -> Norm:
        def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
            # Contiguous: rows of one request share their first embeddings by stride 0.
            return operator(x.contiguous(), weight, epsilon=eps)[0]

        return norm

    def measure(norm: Norm) -> float:
        x, weight = _random(device, dtype, 300, 1024), _random(device, dtype, 1024)
        # Not the operator's default, and large enough to show.
        wanted = rms_norm(x.float(), weight.float(), 0.1)
        return relative_error(norm(x, weight, 0.1), wanted)

    return try_part("norm", ("npu_rms_norm",), build, measure)


def try_gate(device: torch.device, dtype: torch.dtype) -> Trial[Gate]:
    """Try npu_swiglu: the *first* half of what it takes is the gate."""

    def measure(gate: Gate) -> float:
        x = _random(device, dtype, 300, 1024)
        first, second = x.float().chunk(2, dim=-1)
        return relative_error(gate(x), F.silu(first) * second)

    return try_part("gate", ("npu_swiglu",), lambda operator: operator, measure)


def try_experts(layer: MoE, device: torch.device, dtype: torch.dtype) -> Trial[GroupedLayer]:
    """Try routing and grouped products on a loaded layer, against its own loop over experts."""

    def measure(grouped: GroupedLayer) -> float:
        tokens = _random(device, dtype, 300, layer.gate.wg.in_features)
        return relative_error(grouped(layer, tokens), layer.own(tokens))

    name = "expert layer"
    if layer.experts.num_all != len(layer.experts.down_proj):
        # They leave rows of other ranks' experts unwritten, and a zero weight does not hide NaN.
        return Trial(name, None, None, "ranks that hold whole experts have no operators")
    return try_part(name, _EXPERT_OPERATORS, grouped_on, measure)


def grouped_on(
    top_k_softmax: Callable[..., tuple[Tensor, Tensor, Tensor]],
    init_routing: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]],
    grouped_matmul: Callable[..., list[Tensor]],
    unpermute: Callable[..., Tensor],
) -> GroupedLayer:
    """Return an expert layer on torch-npu's operators, which never waits for the host."""

    def grouped(layer: MoE, tokens: Tensor) -> Tensor:
        router, experts = layer.gate, layer.experts
        logits = router.wg(tokens.float())
        weights, indices, _ = top_k_softmax(logits, k=router.top_k)
        weights = weights / weights.sum(dim=-1, keepdim=True).clamp_min(1e-8)
        num_experts = len(experts.down_proj)
        # Each token once for each of its experts, in the order of experts; where its copies went;
        # how many each expert got.
        rows, places, counts, _ = init_routing(
            tokens,
            indices,
            active_num=indices.numel(),
            expert_num=num_experts,
            expert_tokens_num_type=1,
            expert_tokens_num_flag=True,
            active_expert_range=[0, num_experts],
            quant_mode=-1,
        )

        def product(x: Tensor, matrices: Tensor) -> Tensor:
            (y,) = grouped_matmul(
                [x],
                [matrices.transpose(1, 2)],
                group_list=counts,
                group_list_type=1,  # lengths, not ends
                group_type=0,  # of rows of x
                split_item=2,  # one result
            )
            return y

        rows = product(experts.gate(product(rows, experts.gate_and_up_proj)), experts.down_proj)
        # The documents differ on float32 weights beside rows of bfloat16.
        routed = unpermute(rows, places, probs=weights.to(rows.dtype))
        out: Tensor = routed + layer.shared_mlp(tokens)
        return out

    return grouped


def random_layer(device: torch.device, dtype: torch.dtype) -> MoE:
    """Make an expert layer to try operators on where no model is loaded."""
    layer = MoE(256, 128, num_experts=16, top_k=4, num_shared=1)
    with torch.no_grad():
        for parameter in layer.parameters():
            weight = _random(torch.device("cpu"), torch.float32, *parameter.shape)
            parameter.copy_(weight / parameter.shape[-1] ** 0.5)
    layer.to(device, dtype).requires_grad_(False)
    layer.gate.float()
    return layer


def try_all(device: torch.device, dtype: torch.dtype) -> tuple[Trial[Any], ...]:
    """Try every part without a model."""
    layer = random_layer(device, dtype)
    return try_norm(device, dtype), try_gate(device, dtype), try_experts(layer, device, dtype)


def _chosen(trial: Trial[Any]) -> Any:
    log_trial(trial)
    return trial.part


def _gate_and_up(part: GatedMLP | Experts) -> Iterator[Tensor]:
    """Yield matrices [2I, H]: one by one, a copy of all would be gigabytes."""
    if isinstance(part, Experts):
        yield from part.gate_and_up_proj
    else:
        yield part.gate_and_up_proj.weight


def _random(device: torch.device, dtype: torch.dtype, *sizes: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(sizes, generator=generator).to(device, dtype)
