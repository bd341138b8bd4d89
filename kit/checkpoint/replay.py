"""Replays a training step's kernels on a GPU, which launches them faster than Python can."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_NUM_WARMUP_CALLS = 3

Step = Callable[[Tensor], dict[str, Tensor]]


@dataclass(frozen=True)
class _Recording:
    graph: torch.cuda.CUDAGraph
    input: Tensor
    outputs: dict[str, Tensor]


class Replayed:
    """A step that reads one tensor and changes weights in place; recorded once per shape.

    What it returns is overwritten by the next call. The step itself must not wait for the device
    or read anything that changes between calls but tensors. On the CPU it is simply called.
    """

    def __init__(self, step: Step) -> None:
        self._step = step
        self._recordings: dict[torch.Size, _Recording] = {}

    def __call__(self, x: Tensor) -> dict[str, Tensor]:
        if not x.is_cuda:
            return self._step(x)
        if x.shape not in self._recordings:
            return self._record(x)
        recording = self._recordings[x.shape]
        recording.input.copy_(x)
        recording.graph.replay()
        return recording.outputs

    def _record(self, x: Tensor) -> dict[str, Tensor]:
        """Run some real steps, so that kernels are chosen and buffers exist, then record one."""
        static = x.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_NUM_WARMUP_CALLS):
                outputs = self._step(static)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            recorded = self._step(static)
        self._recordings[x.shape] = _Recording(graph, static, recorded)
        return {name: value.clone() for name, value in outputs.items()}
