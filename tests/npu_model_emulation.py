"""Test code only: the NPU operators of the model's other parts, computed in float32 on the CPU.

As tests/fia_emulation.py says: rules and meanings are those of the operators' documents, and
nothing here was compared with an NPU.
"""

from __future__ import annotations

from typing import Any

import torch
from fia_emulation import CALLS, need
from torch import Tensor

RMS_NORM = "npu_rms_norm(Tensor input, Tensor gamma, float epsilon=1e-06) -> (Tensor, Tensor)"
SWIGLU = "npu_swiglu(Tensor input, int dim=-1) -> Tensor"
ROTARY = (
    "npu_rotary_mul(Tensor input, Tensor r1, Tensor r2, str rotary_mode='half', "
    "Tensor? rotate=None) -> Tensor"
)
TOP_K_SOFTMAX = (
    "npu_moe_gating_top_k_softmax(Tensor x, Tensor? finished=None, int k=1) -> "
    "(Tensor, Tensor, Tensor)"
)
INIT_ROUTING = (
    "npu_moe_init_routing_v2(Tensor x, Tensor expert_idx, *, Tensor? scale=None, "
    "Tensor? offset=None, int active_num=-1, int expert_capacity=-1, int expert_num=-1, "
    "int drop_pad_mode=0, int expert_tokens_num_type=0, bool expert_tokens_num_flag=False, "
    "int quant_mode=-1, int[2] active_expert_range=[], int row_idx_type=0, int? x_dtype=None) -> "
    "(Tensor, Tensor, Tensor, Tensor)"
)
GROUPED_MATMUL = (
    "npu_grouped_matmul(Tensor[] x, Tensor[] weight, *, Tensor[]? bias=None, "
    "Tensor[]? scale=None, Tensor[]? offset=None, Tensor[]? antiquant_scale=None, "
    "Tensor[]? antiquant_offset=None, Tensor[]? per_token_scale=None, Tensor? group_list=None, "
    "Tensor[]? activation_input=None, Tensor[]? activation_quant_scale=None, "
    "Tensor[]? activation_quant_offset=None, int? split_item=0, int? group_type=None, "
    "int? group_list_type=0, int? act_type=0, int[]? tuning_config=None, int? output_dtype=None, "
    "int? x_dtype=None, int? weight_dtype=None, int? scale_dtype=None, "
    "int? per_token_scale_dtype=None) -> Tensor[]"
)
UNPERMUTE = (
    "npu_moe_token_unpermute(Tensor permuted_tokens, Tensor sorted_indices, Tensor? probs=None, "
    "bool padded_mode=False, int[]? restore_shape=None) -> Tensor"
)

_FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def rms_norm(x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """npu_rms_norm: a pair, of which the first is the norm."""
    CALLS.append(("rms_norm", {}))
    need(x.dtype == gamma.dtype and gamma.shape == x.shape[-1:], "gamma fits the last axis")
    scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + epsilon)
    return (x.float() * scale * gamma.float()).to(x.dtype), scale


def swiglu(x: Tensor, dim: int = -1) -> Tensor:
    """npu_swiglu: silu of the first half, times the second."""
    CALLS.append(("swiglu", {}))
    first, second = x.float().chunk(2, dim)
    return (torch.nn.functional.silu(first) * second).to(x.dtype)


def rotary(
    x: Tensor, cos: Tensor, sin: Tensor, rotary_mode: str = "half", rotate: Tensor | None = None
) -> Tensor:
    """npu_rotary_mul of [B, S, N, D] with tables [1, S, 1, D]."""
    CALLS.append(("rotary", {"rotary_mode": rotary_mode}))
    need(rotate is None, "no matrix")
    need(x.dim() == cos.dim() == 4 and cos.shape == sin.shape, "four axes, two tables alike")
    B, S, N, D = x.shape
    need(cos.shape == (1, S, 1, D), f"tables of [1, {S}, 1, {D}]")
    need(D % 2 == 0 and D < 896 and B < 1000 and N < 1000, "even D below 896, B and N below 1000")
    need(x.dtype == cos.dtype == sin.dtype and x.dtype in _FLOATS, "one dtype of floats")
    need(float(cos.abs().max()) <= 1 and float(sin.abs().max()) <= 1, "tables within [-1, 1]")
    need(rotary_mode in ("half", "interleave"), f"rotary_mode {rotary_mode}")
    if rotary_mode == "half":
        first, second = x.float().chunk(2, -1)
        turned = torch.cat((-second, first), -1)
    else:
        turned = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2).float()
    return (cos.float() * x.float() + sin.float() * turned).to(x.dtype)


def top_k_softmax(
    x: Tensor, finished: Tensor | None = None, k: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """npu_moe_gating_top_k_softmax: the k largest of the softmax, not normalised again."""
    CALLS.append(("top_k_softmax", {"dtype": x.dtype}))
    need(finished is None, "no finished rows")
    need(x.dim() in (2, 3) and x.dtype in _FLOATS, "two or three axes of floats")
    need(0 < k <= min(1024, x.shape[-1]), f"k {k} of {x.shape[-1]}")
    y, indices = x.float().softmax(-1).topk(k)
    rows = torch.arange(indices.numel()).view(k, -1).T.reshape(indices.shape)
    return y.to(x.dtype), indices.int(), rows.int()


def init_routing(
    x: Tensor, expert_idx: Tensor, **given: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """npu_moe_init_routing_v2: tokens in the order of their experts, places, counts."""
    CALLS.append(("init_routing", given))
    N, num_experts = len(x), given.get("expert_num", -1)
    need(x.dim() == 2 and x.dtype in _FLOATS, "tokens are [N, H]")
    need(
        expert_idx.dtype == torch.int32 and expert_idx.dim() == 2 and len(expert_idx) == N,
        "experts of a token are int32 [N, k]",
    )
    need(given.get("quant_mode", -1) == -1 and not given.get("scale"), "no quantization")
    need(given.get("drop_pad_mode", 0) == 0, "nothing is dropped")
    need(given.get("active_num", -1) in (-1, 0, expert_idx.numel()), "all tokens")
    need(0 < num_experts <= 10240, f"expert_num {num_experts}")
    need(list(given.get("active_expert_range", [])) == [0, num_experts], "the range of all experts")
    need(given.get("expert_tokens_num_type", 0) in (1, 2), "counts, or counts with keys")
    need(given.get("expert_tokens_num_flag", False), "counts are asked for")
    need(given.get("row_idx_type", 0) in (0, 1), "row_idx_type")
    need(bool(((expert_idx >= 0) & (expert_idx < num_experts)).all()), "expert out of range")
    need(given.get("expert_tokens_num_type") == 1, "this emulation counts without keys")
    order = expert_idx.flatten().long().argsort(stable=True)
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order))
    if given.get("row_idx_type", 0) == 1:  # from rows to pairs
        places = order
    counts = torch.bincount(expert_idx.flatten(), minlength=num_experts)
    return x[order // expert_idx.shape[1]], places.int(), counts, torch.zeros(len(order))


def grouped_matmul(x: list[Tensor], weight: list[Tensor], **given: Any) -> list[Tensor]:
    """npu_grouped_matmul of one x and one stack of matrices, in groups of rows."""
    CALLS.append(("grouped_matmul", given))
    used = {"group_list", "split_item", "group_type", "group_list_type"}
    need(set(given) <= used, f"arguments that nothing uses: {set(given) - used}")
    need(len(x) == len(weight) == 1, "one x, one stack")
    (rows,), (stack,), groups = x, weight, given.get("group_list")
    need(rows.dim() == 2 and stack.dim() == 3, "x is [M, K], the stack [E, K, N]")
    need(rows.is_contiguous(), "x is contiguous")
    need(
        stack.is_contiguous() or stack.transpose(1, 2).is_contiguous(),
        "the stack is contiguous, or the view of one with its last axes exchanged",
    )
    need(rows.dtype == stack.dtype and rows.dtype in _FLOATS, "one dtype of floats")
    need(rows.shape[1] == stack.shape[1], f"x has {rows.shape[1]}, the matrices {stack.shape[1]}")
    inner = (rows.shape[1], stack.shape[2] if stack.is_contiguous() else stack.shape[1])
    need(max(inner) < 65536, f"a last axis of {max(inner)}")
    need(given.get("split_item", 0) in (2, 3), "split_item 2 or 3: one result")
    need(given.get("group_type") == 0, "group_type 0: groups of rows")
    need(
        isinstance(groups, Tensor) and groups.dtype == torch.int64 and groups.dim() == 1,
        "groups are int64 [E]",
    )
    assert isinstance(groups, Tensor)
    need(len(groups) == len(stack), "a group for each matrix")
    if given.get("group_list_type", 0) == 1:
        need(len(groups) > 1, "lengths of more than one group")
        need(bool((groups >= 0).all()), "lengths are not negative")
        ends = groups.cumsum(0)
    else:
        need(bool((groups.diff() >= 0).all()) and int(groups[0]) >= 0, "ends do not fall")
        ends = groups
    need(int(ends[-1]) <= len(rows), f"groups of {int(ends[-1])} rows, x has {len(rows)}")
    # What no group covers is not written on a device.
    out = torch.full((len(rows), stack.shape[2]), float("nan"), dtype=torch.float32)
    start = 0
    for matrix, end in zip(stack, ends.tolist(), strict=True):
        out[start:end] = rows[start:end].float() @ matrix.float()
        start = end
    return [out.to(rows.dtype)]


def unpermute(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    probs: Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: list[int] | None = None,
) -> Tensor:
    """npu_moe_token_unpermute: each token's weighted rows, summed."""
    CALLS.append(("unpermute", {}))
    need(not padded_mode and restore_shape is None, "no padding")
    need(permuted_tokens.dim() == 2 and permuted_tokens.dtype in _FLOATS, "rows are [M, H]")
    need(sorted_indices.dtype == torch.int32, "places are int32")
    need(sorted_indices.shape == (len(permuted_tokens),), "a place for each row")
    need(
        torch.equal(sorted_indices.long().sort().values, torch.arange(len(permuted_tokens))),
        "every row has one place",
    )
    need(probs is not None and probs.dim() == 2, "weights are [N, k]")
    assert probs is not None
    need(probs.dtype == permuted_tokens.dtype, "rows and weights of one dtype")
    need(probs.numel() == len(permuted_tokens) and probs.shape[1] <= 512, "a weight for each row")
    rows: Tensor = permuted_tokens[sorted_indices.long()].float().unflatten(0, probs.shape)
    return (rows * probs.float()[..., None]).sum(1).to(permuted_tokens.dtype)
