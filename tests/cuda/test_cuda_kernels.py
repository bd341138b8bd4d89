"""The Triton kernels on a card against plain torch operations; run where there is one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kit.attention.rotary import QKNorm, Rotary, prepare_qkv
from kit.attention.rotary import rms_norm as plain_rms_norm
from kit.model.fused import use_fused_kernels
from kit.model.moe import MoE, Router

pytestmark = pytest.mark.cuda

CUDA = torch.device("cuda")
POISON = 12345.0


@pytest.fixture
def draw() -> torch.Generator:
    # Fresh numbers in every run: the kernels compute the same function of any input.
    return torch.Generator(CUDA).manual_seed(torch.seed() % 2**31)


def normal(draw: torch.Generator, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, generator=draw, device=CUDA).to(dtype)


def relative(seen: Tensor, wanted: Tensor) -> float:
    return float((seen.double() - wanted.double()).norm() / wanted.double().norm())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("kv_heads", "group", "head_dim"), [(8, 4, 128), (4, 2, 64), (2, 2, 32)])
def test_the_fused_write_is_rotation_norm_and_scatter(
    draw: torch.Generator, dtype: torch.dtype, kv_heads: int, group: int, head_dim: int
) -> None:
    from kit.kernels.qkv_write import write_qkv

    rows, tokens, num_slots = 2, 77, 400
    qkv = normal(draw, rows, tokens, kv_heads, group + 2, head_dim, dtype=dtype)
    angles = (100 * normal(draw, tokens, head_dim // 2, dtype=torch.float32)).repeat(1, 2)
    rotary = Rotary(angles.cos(), angles.sin())
    norm = QKNorm(normal(draw, head_dim, dtype=dtype), normal(draw, head_dim, dtype=dtype), 1e-5)
    slots = torch.randperm(num_slots, generator=draw, device=CUDA)[: rows * tokens]
    keys = torch.full((num_slots, kv_heads, head_dim), POISON, device=CUDA, dtype=dtype)
    values = torch.full_like(keys, POISON)
    q = write_qkv(
        qkv,
        rotary.cos,
        rotary.sin,
        norm.query_weight,
        norm.key_weight,
        norm.eps,
        slots,
        keys,
        values,
    )
    wanted = prepare_qkv(qkv, rotary, norm)
    limit = 1e-6 if dtype == torch.float32 else 2e-3
    assert relative(q, wanted[0]) < limit
    assert relative(keys[slots], wanted[1].flatten(0, 1)) < limit
    assert torch.equal(values[slots], wanted[2].flatten(0, 1))
    others = torch.ones(num_slots, dtype=torch.bool, device=CUDA)
    others[slots] = False
    assert (keys[others] == keys.new_tensor(POISON)).all()
    assert (values[others] == values.new_tensor(POISON)).all()


@pytest.mark.parametrize("dim", [4096, 256, 96])
def test_rms_norm(draw: torch.Generator, dim: int) -> None:
    from kit.kernels.norm import rms_norm

    x, weight = 30 * normal(draw, 3, 50, dim), normal(draw, dim)
    assert relative(rms_norm(x, weight, 1e-5), plain_rms_norm(x, weight, 1e-5)) < 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("silu", [False, True])
@pytest.mark.parametrize("shape", [(1, 128, 4, 256, 256), (2, 1024, 64, 64), (3, 96, 7, 5)])
def test_group_norm(
    draw: torch.Generator, shape: tuple[int, ...], silu: bool, dtype: torch.dtype
) -> None:
    from kit.kernels.group_norm import group_norm

    # Means far from zero: sums of squares alone would lose the variance.
    x = normal(draw, *shape, dtype=dtype) + 20
    weight, bias = (normal(draw, shape[1], dtype=dtype) for _ in range(2))
    wanted = F.group_norm(x.double(), 32, weight.double(), bias.double(), 1e-6)
    seen = group_norm(x, 32, weight, bias, 1e-6, silu=silu)
    limit = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 5e-3}[dtype]
    assert relative(seen, F.silu(wanted) if silu else wanted) < limit


@pytest.mark.parametrize("heights", [(40, 24), (5, 59), (16, 16, 16, 16)])
def test_group_norm_of_strips_is_that_of_the_whole(
    draw: torch.Generator, heights: tuple[int, ...]
) -> None:
    """Each strip normalised by the moments of all, as ranks do."""
    from kit.kernels.group_norm import group_norm

    x = normal(draw, 1, 128, 2, 64, 48) + torch.linspace(10, 20, 64, device=CUDA)[:, None]
    x = x.half()
    weight, bias = (normal(draw, 128, dtype=torch.float16) for _ in range(2))
    strips = x.split(heights, dim=-2)
    moments: list[Tensor] = []

    def keep(own: Tensor) -> Tensor:
        moments.append(own)
        return own.repeat(len(heights), 1, 1)

    def norm(strip: Tensor, gather: Callable[[Tensor], Tensor]) -> Tensor:
        return group_norm(
            strip, 32, weight, bias, 1e-6, silu=True, num_ranks=len(heights), gather=gather
        )

    for strip in strips:
        norm(strip, keep)
    seen = torch.cat([norm(strip, lambda _: torch.cat(moments)) for strip in strips], dim=-2)
    wanted = F.group_norm(x.double(), 32, weight.double(), bias.double(), 1e-6)
    assert relative(seen, F.silu(wanted)) < 1e-3


@pytest.mark.parametrize(
    ("hidden", "num_experts", "top_k"), [(4096, 64, 8), (256, 8, 2), (96, 8, 2)]
)
def test_routing_is_that_of_float32(
    draw: torch.Generator, hidden: int, num_experts: int, top_k: int
) -> None:
    from kit.kernels.routing import route

    router = Router(hidden, num_experts, top_k).to(CUDA)
    tokens = normal(draw, 3001, hidden)
    weights, indices = route(tokens, router.wg.weight, top_k)
    logits = tokens.double() @ router.wg.weight.double().T
    odds, wanted = logits.softmax(-1).topk(top_k + 1)
    # Two experts that are as good as equal may change places; their weights are equal then.
    clear = (odds[:, :-1] - odds[:, 1:]).min(-1).values > 1e-6
    assert clear.float().mean() > 0.98
    assert torch.equal(indices[clear].long(), wanted[clear, :top_k])
    kept = odds[:, :top_k]
    assert (weights - kept / kept.sum(-1, keepdim=True)).abs().max() < 1e-5


def test_pairs_are_sorted_by_expert_in_token_order(draw: torch.Generator) -> None:
    from kit.kernels.routing import place

    indices = torch.rand(5003, 7, generator=draw, device=CUDA).argsort(-1)[:, :3].int()
    places, sources, ends = place(indices, 9)  # experts 7 and 8 get nothing
    pairs = indices.flatten().long()
    order = pairs.argsort(stable=True)
    assert torch.equal(places.flatten().long()[order], torch.arange(len(pairs), device=CUDA))
    assert torch.equal(sources.long(), order // 3)
    assert torch.equal(ends.long(), pairs.bincount(minlength=9).cumsum(0))


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
@torch.inference_mode()
def test_terms_of_ranks_add_up_to_the_expert_layer(draw: torch.Generator, num_ranks: int) -> None:
    from kit.kernels.experts import experts
    from kit.kernels.routing import route

    hidden, width, num_experts = 1024, 3072, 64
    up = normal(draw, num_experts, 2 * width, hidden) * hidden**-0.5
    down = normal(draw, num_experts, hidden, width) * width**-0.5
    router = torch.randn(num_experts, hidden, generator=draw, device=CUDA) * hidden**-0.5
    tokens = normal(draw, 1500, hidden)
    shared = torch.zeros_like(tokens)
    weights, indices = route(tokens, router, 8)
    whole = experts(tokens, weights, indices, up, down, shared)
    few, part = num_experts // num_ranks, width // num_ranks
    placed, sliced = (torch.zeros_like(tokens, dtype=torch.float32) for _ in range(2))
    for rank in range(num_ranks):
        own = slice(rank * few, (rank + 1) * few)
        placed += experts(tokens, weights, indices, up[own], down[own], shared, first=rank * few)
        columns = slice(rank * part, (rank + 1) * part)
        halves = [half[:, columns] for half in up.chunk(2, dim=1)]
        sliced += experts(
            tokens,
            weights,
            indices,
            torch.cat(halves, dim=1),
            down[:, :, columns].contiguous(),
            shared,
        )
    assert relative(placed, whole) < 1e-2
    assert relative(sliced, whole) < 1e-2


@pytest.mark.parametrize(
    ("hidden", "width", "num_experts", "top_k"), [(4096, 3072, 64, 8), (256, 64, 8, 2)]
)
@torch.inference_mode()
def test_the_expert_layer_is_that_of_the_loop(
    draw: torch.Generator, hidden: int, width: int, num_experts: int, top_k: int
) -> None:
    with CUDA:
        layer = MoE(hidden, width, num_experts, top_k, num_shared=1)
    for parameter in layer.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=draw, device=CUDA))
        parameter.mul_(parameter.shape[-1] ** -0.5)
    layer.to(torch.bfloat16).gate.float()
    x = normal(draw, 2, 700, hidden)
    loop = layer(x)
    use_fused_kernels(layer, CUDA, torch.bfloat16)
    assert layer.fused
    assert relative(layer(x), loop) < 1e-2
    use_fused_kernels(layer, CUDA, torch.float32)
    assert not layer.fused
