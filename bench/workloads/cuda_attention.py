"""The attention read of a later step on a card, at the published head shape: pages against rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module

import torch
from torch import Tensor

from bench.cuda_model import MODES, NUM_ROWS, open_kv, published_config
from bench.cuda_timing import Replay, matmul_flops, relative_error, seconds, the_card, warm_up
from bench.records import EqualityCheck, Measurement, Record
from bench.registry import Context
from kit.attention.oracle import attend as oracle_attend
from kit.attention.oracle import layout_mask
from kit.attention.plan import plan_step
from kit.attention.rotary import QKNorm, Rotary, prepare_qkv
from kit.config.deploy import KVMode
from kit.model.rope import rotary_tables
from kit.modelspec.config import ModelConfig
from kit.modelspec.footprint import num_pages
from kit.tokenizer.layout import Layout, positions_yx

PREFIX_LENGTHS = (100, 1000, 6000)
GRIDS = ((64, 64), (128, 128))
PAGE_SIZE = 176
REPLAYS = 20
ERROR_LIMIT = 5e-3


@torch.inference_mode()
def run(context: Context) -> Record:
    """Compare outputs bit by bit and with a float32 oracle, then time replayed reads in turn."""
    ceiling = matmul_flops(the_card())
    config = published_config(1)
    rows: dict[str, list[dict[str, float]]] = {
        side: [{} for _ in range(context.repeats)] for side in MODES
    }
    findings: dict[str, float] = {}
    difference, worst = 0.0, 0.0
    for grid in GRIDS:
        for prefix_len in PREFIX_LENGTHS:
            layout = Layout(prefix_len, config.num_special, grid, tail_len=1)
            name = f"{prefix_len}_{grid[0] * grid[1]}"
            case = Case(config, layout)
            outputs = {side: case.outputs(mode) for side, mode in MODES.items()}
            for step in ("first", "later"):
                a, b = (outputs[side][step].float() for side in MODES)
                difference = max(difference, float((a - b).abs().max()))
            for span, error in case.errors(outputs["candidate"]):
                findings[f"error_{name}_{span}"] = error
                worst = max(worst, error)
            for fault, error in case.planted(outputs["candidate"]["later"]):
                findings[f"planted_{name}_{fault}"] = error
                assert error > ERROR_LIMIT, f"{fault} goes unseen"
            findings[f"page_waste_{name}"] = 1 - layout.kv_len / (
                num_pages(layout.kv_len, PAGE_SIZE) * PAGE_SIZE
            )
            reads = {side: Replay(case.read(mode)) for side, mode in MODES.items()}
            cut = Replay(case.cut_read())
            warm_up(ceiling)
            for repeat in range(context.repeats):
                for side, read in reads.items():
                    rows[side][repeat][f"read_{name}_s"] = seconds(read, REPLAYS)
                rows["baseline"][repeat][f"cut_{name}_s"] = seconds(cut, REPLAYS)
            del outputs, reads, cut, case, a, b
    names = [f"{p}_{h * w}" for h, w in GRIDS for p in PREFIX_LENGTHS]
    findings["worst_error"] = worst
    return context.record(
        parameters={
            "num_rows": NUM_ROWS,
            "query_heads": config.num_attention_heads,
            "kv_heads": config.num_key_value_heads,
            "head_dim": config.attention_head_dim,
            "prefix_lengths": list(PREFIX_LENGTHS),
            "grids": [list(grid) for grid in GRIDS],
            "page_size": PAGE_SIZE,
            "page_tables": "shuffled",
            "dtype": "bfloat16",
            "replays": REPLAYS,
            "error_limit": ERROR_LIMIT,
            "errors": "||out - oracle|| / ||oracle||, oracle in float32 under the model's mask",
            "cut": "flash_attn_func on keys and values cut to their lengths",
            "order": "baseline, candidate, cut, alternating",
        },
        equality=EqualityCheck.of(
            compared="first and later step, paged against contiguous, largest absolute difference; "
            "1 is added if an error against the oracle is above its limit",
            limit=0,
            seen=difference + (not worst <= ERROR_LIMIT),
        ),
        baseline=Measurement("dense_legacy, FLASH_ATTN, replayed", tuple(rows["baseline"])),
        candidate=Measurement("paged_scheduler, FLASH_ATTN, replayed", tuple(rows["candidate"])),
        paired=True,
        ratios={
            f"{part}_{name}": (f"candidate.read_{name}_s", f"baseline.{part}_{name}_s")
            for name in names
            for part in ("read", "cut")
        },
        findings=findings,
    )


@dataclass(frozen=True)
class Case:
    """Random queries, keys and values of one layer; those of the target change in later steps."""

    config: ModelConfig
    layout: Layout

    def _qkv(self, step: str) -> Tensor:
        """Return bfloat16 [B, S, K, G+2, D]; the prefix is the same in both steps."""
        K, D = self.config.num_key_value_heads, self.config.attention_head_dim
        group = self.config.num_attention_heads // K
        shape = (NUM_ROWS, self.layout.kv_len, K, group + 2, D)
        draw = torch.Generator("cuda").manual_seed(3)
        qkv = torch.randn(shape, generator=draw, device="cuda").to(torch.bfloat16)
        if step == "later":
            target = qkv[:, self.layout.prefix_len :]
            target.copy_(torch.randn(target.shape, generator=draw, device="cuda"))
        return qkv

    def _norm(self) -> QKNorm:
        ones = torch.ones(self.config.attention_head_dim, device="cuda", dtype=torch.bfloat16)
        return QKNorm(ones, ones, self.config.rms_norm_eps)

    def _rotary(self, start: int = 0) -> Rotary:
        positions = positions_yx(self.layout)[start : self.layout.kv_len]
        head_dim, theta = self.config.attention_head_dim, self.config.rope_theta
        return rotary_tables(positions, head_dim, theta, torch.device("cuda"))

    def outputs(self, mode: KVMode) -> dict[str, Tensor]:
        """Write and read both steps; returns the outputs [B, T, H, D] by step."""
        kv, _ = open_kv(self.config, mode, self.layout, PAGE_SIZE)
        seen = {}
        for step in ("first", "later"):
            plan = plan_step(self.layout, first=step == "first")
            view, qkv = kv.step(plan), self._qkv(step)[:, plan.start :].contiguous()
            q = view.write(0, qkv, self._rotary(plan.start), self._norm())
            seen[step] = view.attend(0, q)
        return seen

    def read(self, mode: KVMode) -> Callable[[], Tensor]:
        """Return the read of a later step whose keys are written."""
        kv, _ = open_kv(self.config, mode, self.layout, PAGE_SIZE)
        for step in ("first", "later"):
            plan = plan_step(self.layout, first=step == "first")
            view, qkv = kv.step(plan), self._qkv(step)[:, plan.start :].contiguous()
            q = view.write(0, qkv, self._rotary(plan.start), self._norm())
        return lambda: view.attend(0, q)

    def cut_read(self) -> Callable[[], Tensor]:
        """Return the same two calls on keys and values that are cut to what each reads."""
        flash = import_module("flash_attn_interface").flash_attn_func
        q, k, v = prepare_qkv(self._qkv("later"), self._rotary(), self._norm())
        start, image = self.layout.prefix_len, self.layout.image_span.start
        special = q[:, start:image].contiguous()
        if special.shape[1] == 1:
            special = torch.cat((special, special), dim=1)
        image_q = q[:, image:].contiguous()
        short = k[:, :image].contiguous(), v[:, :image].contiguous()
        whole = k.contiguous(), v.contiguous()

        def attend() -> Tensor:
            first = flash(special, *short, causal=True, num_splits=1)
            second = flash(image_q, *whole, causal=False, num_splits=1)
            return torch.cat((first[:, start - image :], second), dim=1)

        return attend

    def errors(self, outputs: dict[str, Tensor]) -> Iterator[tuple[str, float]]:
        """Yield the relative error of each span of both steps against the oracle."""
        mask = layout_mask(self.layout).cuda()
        start, image = self.layout.prefix_len, self.layout.image_span.start
        for step, first in (("first", 0), ("later", start)):
            q, k, v = prepare_qkv(self._qkv(step), self._rotary(), self._norm())
            wanted = oracle_attend(q[:, first:], k, v, mask[first:])
            spans = {"special": slice(start, image), "image": slice(image, None)}
            if step == "first":
                spans["prefix"] = slice(0, start)
            for name, span in spans.items():
                at = slice(span.start - first, None if span.stop is None else span.stop - first)
                yield f"{step}_{name}", relative_error(outputs[step][:, at], wanted[:, at])

    def planted(self, later: Tensor) -> Iterator[tuple[str, float]]:
        """Yield the errors of right outputs against rules with one fault each."""
        q, k, v = prepare_qkv(self._qkv("later"), self._rotary(), self._norm())
        start, image = self.layout.prefix_len, self.layout.image_span.start
        special = torch.ones(image - start, self.layout.kv_len, dtype=torch.bool, device="cuda")
        wanted = oracle_attend(q[:, start:image], k, v, special)
        yield "specials_see_the_image", relative_error(later[:, : image - start], wanted)
        rows = torch.ones(1, self.layout.kv_len, dtype=torch.bool, device="cuda")
        rows[:, start] = False
        wanted = oracle_attend(q[:, image:], k, v, rows)
        yield "images_miss_the_timestep", relative_error(later[:, image - start :], wanted)
