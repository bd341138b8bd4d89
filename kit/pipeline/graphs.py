"""Later steps captured once per shape in CUDA graphs, and replayed by every request of that shape.

A graph holds addresses. So everything that differs between requests and steps lies in tensors of
its own that are overwritten before a replay: the step's inputs and the rotary tables here, page
tables, slots and lengths in the StepKV. Keys and values stay where the request's pages are; a
replay copies none of them.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kit.attention.base import StepKV
from kit.attention.rotary import Rotary
from kit.model.transformer import HunyuanImage3
from kit.pipeline.rows import RowShare
from kit.pipeline.step import StepInputs, StepOutputs, denoise_step
from kit.telemetry.log import get_logger

logger = get_logger("worker")


class StepGraphs:
    """The captured later steps of one worker; one request at a time may use them."""

    def __init__(self, model: HunyuanImage3) -> None:
        self._model = model
        self._captured: dict[object, _CapturedStep] = {}
        # Graphs never run at the same time, so all take their working memory from one pool.
        self._pool = torch.cuda.graph_pool_handle()

    def run(self, kv: StepKV, rotary: Rotary, inputs: StepInputs, rows: RowShare) -> StepOutputs:
        """Replay the step; captures it first if nobody ran its shape on these addresses before.

        The returned tensors are overwritten by the next replay of the same shape.
        """
        key = (kv.address_key, rows, inputs.latents.shape)
        captured = self._captured.get(key)
        if captured is None:
            started = time.perf_counter()
            captured = _CapturedStep(self._model, kv, rotary, inputs, rows, self._pool)
            self._captured[key] = captured
            h, w = inputs.latents.shape[-2:]
            logger.info(
                "captured a graph of a later step: latents %d x %d, %d rows, %.2f s; %d in all",
                h,
                w,
                rows.num_own,
                time.perf_counter() - started,
                len(self._captured),
            )
        return captured.replay(rotary, inputs)


class _CapturedStep:
    def __init__(
        self,
        model: HunyuanImage3,
        kv: StepKV,
        rotary: Rotary,
        inputs: StepInputs,
        rows: RowShare,
        pool: Any,
    ) -> None:
        self._kv = kv  # keeps the tensors alive whose addresses the graph holds
        self._rotary = Rotary(rotary.cos.clone(), rotary.sin.clone())
        self._inputs = replace(
            inputs,
            **{
                name: tensor.clone()
                for name, tensor in vars(inputs).items()
                if isinstance(tensor, Tensor)
            },
        )

        def step() -> StepOutputs:
            return denoise_step(model, kv, self._rotary, self._inputs, rows=rows, prefix=None)

        # Once outside of the graph: libraries load kernels and choose algorithms at first use.
        # It writes the keys and values that the replay writes again.
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        # Other threads of a rank ask the card for events while this one captures: NCCL's watchdog.
        with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
            self._outputs = step()

    def replay(self, rotary: Rotary, inputs: StepInputs) -> StepOutputs:
        self._rotary.cos.copy_(rotary.cos)
        self._rotary.sin.copy_(rotary.sin)
        for mine, given in zip(self._inputs.tensors(), inputs.tensors(), strict=True):
            mine.copy_(given)
        self._graph.replay()
        return self._outputs
