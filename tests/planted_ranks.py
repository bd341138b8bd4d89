"""Faults of ranks that workloads over ranks must not hide, planted into their requests."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch

from bench.rank_model import Requests, Setting
from bench.rank_requests import RankResult, measure_rank
from kit.config.deploy import KVMode
from kit.parallel.group import Mesh
from kit.pipeline.denoise import DenoiseLoop

LOST_S = 0.2
"""By which a step over pages is longer."""

OFF_BY = 2.0**-10


class SlowPages(Requests):
    """Every step over pages is LOST_S longer."""

    def loop(self, mode: KVMode, num_steps: int) -> DenoiseLoop:
        loop = super().loop(mode, num_steps)
        if mode == "paged_scheduler":
            _after_step(loop, lambda: time.sleep(LOST_S))
        return loop


class OtherLatents(Requests):
    """One number of the latents of the second counted request is another one on the last rank."""

    num_requests = 0

    def loop(self, mode: KVMode, num_steps: int) -> DenoiseLoop:
        loop = super().loop(mode, num_steps)
        self.num_requests += 1
        group = self.model.shard.tensor
        # The first two warm up.
        if self.num_requests == 4 and group.rank == group.size - 1:

            def change() -> None:
                if loop.finished:
                    loop.latents[0, 0, 0, 0] += OFF_BY

            _after_step(loop, change)
        return loop


def other_latents(mesh: Mesh, device: torch.device, setting: Setting, repeats: int) -> RankResult:
    return measure_rank(mesh, device, setting, repeats, OtherLatents)


def other_weights(mesh: Mesh, device: torch.device, setting: Setting, repeats: int) -> RankResult:
    """Both modes draw another picture than other topologies do, and the same one."""
    result = measure_rank(mesh, device, setting, repeats)
    return replace(result, latents=result.latents + OFF_BY) if mesh.topology.size > 1 else result


def breaks_on_two(mesh: Mesh, device: torch.device, setting: Setting, repeats: int) -> RankResult:
    if mesh.topology.size == 2:
        raise RuntimeError("planted")
    return measure_rank(mesh, device, setting, repeats)


def _after_step(loop: DenoiseLoop, do: Callable[[], None]) -> None:
    step = loop.step

    def longer() -> int:
        tokens = step()
        do()
        return tokens

    loop.step = longer  # type: ignore[method-assign]
