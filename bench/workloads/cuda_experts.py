"""The expert layer of the published width on a card: the kit's kernels against torch operations."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
from torch import Tensor

from bench.cuda_baselines import KnownSizesLoop, grouped_layer
from bench.cuda_model import published_config, random_model
from bench.cuda_timing import Replay, matmul_flops, relative_error, seconds, the_card, warm_up
from bench.records import EqualityCheck, Measurement, Record
from bench.registry import Context
from kit.model.moe import MoE

NUM_TOKENS = 4097
REPLAYS = 10
ERROR_LIMIT = 1e-2
"""Of bfloat16 results that were rounded at other places."""


@torch.inference_mode()
def run(context: Context) -> Record:
    """Compare one layer's outputs on two rows of a 1024x1024 image, then time them in turn."""
    device = the_card()
    config = published_config(1)
    layer = random_model(config, device).model.layers[0].mlp
    assert isinstance(layer, MoE)
    x = torch.randn(2, NUM_TOKENS, config.hidden_size, device=device).to(torch.bfloat16)
    loop = KnownSizesLoop(layer)
    runs: dict[str, Callable[[], Tensor]] = {
        "kit": Replay(lambda: layer(x)),
        "grouped": Replay(lambda: grouped_layer(layer, x)),
        "loop": lambda: loop.forward(x),
    }
    wanted = loop.forward(x)
    error = max(relative_error(run(), wanted) for run in runs.values())
    ceiling = matmul_flops(device)
    warm_up(ceiling)
    rows: dict[str, list[dict[str, float]]] = {"baseline": [], "candidate": []}
    for _ in range(context.repeats):
        seen = {name: seconds(run, REPLAYS) for name, run in runs.items()}
        flops = ceiling()
        rows["candidate"].append({"layer_s": seen["kit"], "matmul_flops": flops})
        rows["baseline"].append(
            {"grouped_s": seen["grouped"], "loop_s": seen["loop"], "matmul_flops": flops}
        )
    width = config.moe_intermediate_size[0]
    experts = config.moe_topk[0] + config.num_shared_expert[0]
    operations = 2 * 2 * NUM_TOKENS * 3 * config.hidden_size * width * experts
    rates = [operations / row["layer_s"] for row in rows["candidate"]]
    shares = [
        rate / row["matmul_flops"] for rate, row in zip(rates, rows["candidate"], strict=True)
    ]
    return context.record(
        parameters={
            "tokens": 2 * NUM_TOKENS,
            "hidden_size": config.hidden_size,
            "expert_width": width,
            "num_experts": config.num_experts[0],
            "top_k": config.moe_topk[0],
            "shared_experts": config.num_shared_expert[0],
            "operations": operations,
            "counted": "routed and shared experts; the time holds the routing as well",
            "dtype": "bfloat16",
            "replays": REPLAYS,
            "grouped": "torch._grouped_mm between torch operations, replayed",
            "loop": "over experts, the tokens of each known beforehand, eager",
            "order": "kit, grouped, loop, matmul, alternating",
        },
        equality=EqualityCheck.of(
            compared="outputs against the loop over experts, largest relative error",
            limit=ERROR_LIMIT,
            seen=error,
        ),
        baseline=Measurement("torch operations", tuple(rows["baseline"])),
        candidate=Measurement("the kit's kernels, replayed", tuple(rows["candidate"])),
        paired=True,
        ratios={
            f"layer_over_{name}": ("candidate.layer_s", f"baseline.{name}_s")
            for name in ("grouped", "loop")
        },
        findings={
            "share_of_matmul_ceiling": statistics.median(shares),
            "flops": statistics.median(rates),
        },
    )
