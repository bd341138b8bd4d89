"""Times on a card by its own events, the card's ceilings, and calls replayed from graphs."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from kit.errors import UnsupportedError


def the_card() -> torch.device:
    """Return the first NVIDIA card; raises UnsupportedError where there is none."""
    if not torch.cuda.is_available():
        raise UnsupportedError("this workload needs an NVIDIA card; there is none here")
    return torch.device("cuda", 0)


def seconds(run: Callable[[], object], calls: int = 1) -> float:
    """Return the seconds that the card takes for one of `calls` calls in a row."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000 / calls


def seconds_on(device: torch.device, run: Callable[[], object], calls: int = 1) -> float:
    """Return what `seconds` does: by a card's events, elsewhere by the host's clock."""
    if device.type == "cuda":
        return seconds(run, calls)
    started = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - started) / calls


def matmul_flops(device: torch.device, side: int = 8192, repeats: int = 10) -> Callable[[], float]:
    """Return a measurement of the card's bfloat16 matrix products, in FLOP/s."""
    a, b = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    return lambda: 2 * side**3 / seconds(lambda: torch.matmul(a, b, out=out), repeats)


def warm_up(ceiling: Callable[[], float], calls: int = 6) -> None:
    """Bring the card to the clocks it keeps under load: a cool one runs 15 % faster at first."""
    for _ in range(calls):
        ceiling()


def copy_bytes(device: torch.device, num_bytes: int = 2**32) -> Callable[[], float]:
    """Return a measurement of the card's copies, in bytes read and written per second."""
    source = torch.randint(0, 256, (num_bytes,), device=device, dtype=torch.uint8)
    target = torch.empty_like(source)
    return lambda: 2 * num_bytes / seconds(lambda: target.copy_(source), 3)


class Replay:
    """A call that never waits for the host, captured in a graph; calling it replays the graph."""

    def __init__(self, run: Callable[[], Tensor]) -> None:
        self._run = run  # keeps the tensors alive whose addresses the graph holds
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):  # libraries load kernels and choose algorithms at first use
                run()
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        # As in StepGraphs: NCCL's watchdog asks the card for events from its own thread.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._out = run()

    def __call__(self) -> Tensor:
        """Return what the call returns; the next replay overwrites it."""
        self._graph.replay()
        return self._out


def relative_error(seen: Tensor, wanted: Tensor) -> float:
    """Return ||seen - wanted|| / ||wanted||; infinite if either is not finite."""
    error = float((seen.double() - wanted.double()).norm() / wanted.double().norm())
    return error if error == error else float("inf")
