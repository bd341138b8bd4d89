"""What runs work to its records."""

from __future__ import annotations

import torch
from record_samples import ENVIRONMENT
from torch import Tensor

from bench.records import Failure, Record
from bench.registry import Context
from bench.runner import run_all


def test_random_inputs_are_the_same_in_every_run() -> None:
    drawn: list[Tensor] = []

    def work(context: Context) -> Record:
        drawn.append(torch.rand(3))
        return context.without_result(Failure("Drawn", "no result"), refused=False)

    context = Context("random", ("python",), ENVIRONMENT, 1)
    for _ in range(2):
        list(run_all(context, work))
    assert torch.equal(*drawn)
