"""The other forms that the kit is compared with on a card compute what it computes."""

from __future__ import annotations

import torch
from attention_cases import Case, expected, largest_error, make_case, run_step

from bench.cuda_baselines import (
    KnownSizesLoop,
    MaskedStaticCache,
    PlainClipConv3d,
    WaitingLoop,
)
from bench.cuda_model import layer_flops, published_config, whole_step
from bench.workloads.cuda_step_peers import masked_request
from kit.model.clip_conv import ClipConv3d
from kit.model.moe import MoE
from kit.tokenizer.layout import Layout


def random_layer() -> MoE:
    layer = MoE(hidden_size=32, width=24, num_experts=8, top_k=2, num_shared=1)
    draw = torch.Generator().manual_seed(1)
    for parameter in layer.parameters():
        parameter.data = torch.randn(parameter.shape, generator=draw) * parameter.shape[-1] ** -0.5
    return layer


@torch.inference_mode()
def test_both_loops_are_the_expert_layer() -> None:
    layer = random_layer()
    known, waiting = KnownSizesLoop(layer), WaitingLoop(layer)
    for seed in (2, 3):
        x = torch.randn(2, 50, 32, generator=torch.Generator().manual_seed(seed))
        known.sizes = None
        for _ in range(2):  # with the sizes to be found, and with known ones
            torch.testing.assert_close(known(x), layer(x))
        torch.testing.assert_close(waiting(x), layer(x))
    # What it knows are sizes, so another input goes wrong without a word: hence the clearing.
    other = torch.randn(2, 50, 32, generator=torch.Generator().manual_seed(4))
    assert not torch.allclose(known(other), layer(other))


def test_the_masked_cache_is_attention_by_definition() -> None:
    case: Case = make_case(Layout(prefix_len=20, num_special=2, grid=(4, 5), tail_len=1))
    request = masked_request(case.layout, case.shape, case.num_rows)
    outputs = run_step(request, case, first=True), run_step(request, case, first=False)
    assert isinstance(request.step(case.plans[1]), MaskedStaticCache)
    assert largest_error(outputs, expected(case)) < 1e-5


def test_the_plain_convolution_is_the_kits() -> None:
    conv = ClipConv3d(6, 4)
    torch.nn.init.normal_(conv.weight)
    torch.nn.init.normal_(conv.bias)
    x = torch.randn(1, 6, 4, 9, 7)
    plain = PlainClipConv3d(conv)
    torch.testing.assert_close(plain(x), conv(x), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(plain.last_frame(x), conv.last_frame(x), atol=1e-4, rtol=1e-4)


def test_operations_of_a_layer_by_hand() -> None:
    layout = Layout(1000, 1, (64, 64), tail_len=1)
    tokens, keys = 2 * 4097, 1000 + 4097
    weights = 4096 * (6144 + 4096 + 64) + 9 * 3 * 4096 * 3072
    attention = 2 * 2 * 4096 * keys * 4096
    assert layer_flops(published_config(1), layout) == 2 * (tokens * weights + attention)


def test_a_whole_step_has_its_fixed_part_once() -> None:
    assert whole_step(step_s=3.0, fixed_s=1.0, num_layers=8) == 9.0
