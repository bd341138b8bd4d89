"""The write of keys and values on a card: one fused kernel against torch operations."""

from __future__ import annotations

import statistics

import torch
from torch import Tensor

from bench.cuda_model import NUM_ROWS, open_kv, published_config
from bench.cuda_timing import Replay, copy_bytes, relative_error, seconds, the_card
from bench.records import EqualityCheck, Measurement, Record
from bench.registry import Context
from kit.attention.plan import plan_step
from kit.attention.rotary import QKNorm, prepare_qkv
from kit.config.deploy import KVMode
from kit.model.rope import rotary_tables
from kit.tokenizer.layout import Layout, positions_yx

PREFIX_LEN, GRID, PAGE_SIZE = 1000, (64, 64), 176
REPLAYS = 50
ERROR_LIMIT = 2e-3
"""Of bfloat16 results whose sums were taken in another order."""

MODES: tuple[KVMode, ...] = ("dense_legacy", "paged_scheduler")


@torch.inference_mode()
def run(context: Context) -> Record:
    """Compare the rotated queries, then time the writes of one layer in turn."""
    device = the_card()
    config = published_config(1)
    layout = Layout(PREFIX_LEN, config.num_special, GRID, tail_len=1)
    plan = plan_step(layout, first=False)
    K, D = config.num_key_value_heads, config.attention_head_dim
    qkv = torch.randn(
        NUM_ROWS, plan.num_tokens, K, config.num_attention_heads // K + 2, D, device=device
    ).to(torch.bfloat16)
    positions = positions_yx(layout)[plan.start : plan.end]
    rotary = rotary_tables(positions, D, config.rope_theta, device)
    weight = torch.rand(D, device=device).to(torch.bfloat16)
    norm = QKNorm(weight, weight, config.rms_norm_eps)
    views = {mode: open_kv(config, mode, layout, PAGE_SIZE)[0].step(plan) for mode in MODES}
    rows = qkv.new_zeros(2, NUM_ROWS, layout.kv_len, K, D)

    def plain() -> Tensor:
        q, k, v = prepare_qkv(qkv, rotary, norm)
        rows[0, :, plan.start :] = k
        rows[1, :, plan.start :] = v
        return q

    writes = {
        mode: Replay(lambda view=view: view.write(0, qkv, rotary, norm))  # type: ignore[misc]
        for mode, view in views.items()
    }
    unfused = Replay(plain)
    wanted = unfused()
    error = max(relative_error(write(), wanted) for write in writes.values())
    ceiling = copy_bytes(device)
    ceiling()
    measured: dict[str, list[dict[str, float]]] = {"baseline": [], "candidate": []}
    moved = 2 * qkv.nbytes  # each number is read once and written once
    for _ in range(context.repeats):
        row = {f"{mode}_s": seconds(write, REPLAYS) for mode, write in writes.items()}
        measured["baseline"].append({"write_s": seconds(unfused, REPLAYS)})
        measured["candidate"].append(row | {"copy_bytes_per_s": ceiling()})
    shares = [
        moved / row["paged_scheduler_s"] / row["copy_bytes_per_s"] for row in measured["candidate"]
    ]
    return context.record(
        parameters={
            "num_rows": NUM_ROWS,
            "prefix_len": PREFIX_LEN,
            "grid": list(GRID),
            "page_size": PAGE_SIZE,
            "query_heads": config.num_attention_heads,
            "kv_heads": K,
            "head_dim": D,
            "dtype": "bfloat16",
            "bytes_moved": moved,
            "replays": REPLAYS,
            "order": "dense, paged, plain, copy, alternating",
        },
        equality=EqualityCheck.of(
            compared="rotated and normalised queries, largest relative error",
            limit=ERROR_LIMIT,
            seen=error,
        ),
        baseline=Measurement("torch operations into rows, replayed", tuple(measured["baseline"])),
        candidate=Measurement("one fused kernel, replayed", tuple(measured["candidate"])),
        paired=True,
        ratios={mode: (f"candidate.{mode}_s", "baseline.write_s") for mode in MODES},
        findings={"share_of_copy_ceiling": statistics.median(shares)},
    )
