"""Which token slots of a page pool each step of a request really changes, seen in the tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from bench.plots.drawing import (
    BLUE,
    ORANGE,
    PALE,
    Drawing,
    Number,
    new_figure,
    put_legend,
    put_title,
)
from kit.attention.paged import PagedKV
from kit.config.deploy import DeployConfig
from kit.engine.preprocess import Preprocessor
from kit.engine.startup import plan_worker
from kit.kv.allocation import KVAllocation
from kit.kv.store import PagedStore
from kit.messages import RunRequest
from kit.request import GenerationRequest, StepEvent
from kit.tokenizer.layout import Layout
from kit.worker.runner import ModelRunner


@dataclass(frozen=True)
class Changes:
    """What the steps of one request changed in its own slots."""

    layout: Layout
    allocation: KVAllocation
    changed: npt.NDArray[np.bool_]
    """[steps, rows, slots of a row]: whether any key or value of any layer has other bits."""

    elsewhere: int
    """Changes in slots of other pages, over all steps."""

    image: npt.NDArray[np.uint8]


def watch_slots(
    model: Path, config: DeployConfig, request: GenerationRequest, held_before: Sequence[int]
) -> Changes:
    """Run a request on a worker of its own and compare the whole pool before and after each step.

    held_before: pages of requests that came earlier; every second one has left, so pages that are
    free are not neighbours. Raises as a start and a request do.
    """
    preprocessor = Preprocessor(model, config)
    prepared = preprocessor.prepare(request)
    plan = plan_worker(preprocessor, config)
    assert plan.kv is not None, "the deployment keeps keys and values in pages"
    layout = prepared.rows.layout
    earlier = [
        plan.kv.reserve(f"earlier {at}", 1, pages * plan.kv.geometry.page_size)
        for at, pages in enumerate(held_before)
    ]
    for held in filter(None, earlier[::2]):
        plan.kv.release(held)
    allocation = plan.kv.reserve("watched", prepared.rows.num_rows, layout.kv_len)
    assert allocation is not None, "the pool holds the request beside the earlier ones"
    runner = ModelRunner(plan.worker)
    assert isinstance(runner.backend, PagedKV), "a paged deployment has a paged backend"
    store = runner.backend.store
    seen = [_bits(store)]

    def on_step(_: StepEvent) -> None:
        seen.append(_bits(store))

    run = RunRequest("watched", prepared.rows, prepared.sampling, allocation, trace_path=None)
    result = runner.run(run, on_step, lambda: False)
    steps = np.stack([(a != b).any(axis=1) for a, b in pairwise(seen)])
    own = _own_slots(allocation)
    return Changes(
        layout=layout,
        allocation=allocation,
        changed=steps[:, own],
        elsewhere=int(steps.sum() - steps[:, own].sum()),
        image=result.image,
    )


def draw_changes(title: str, seen: Changes) -> Drawing:
    """Draw the first row: a line a step, a column a slot in token order, pages and their ids."""
    changed = seen.changed[:, 0]
    steps, slots = changed.shape
    prefix, end = seen.layout.prefix_len, seen.layout.kv_len
    figure, (ax,) = new_figure(0.9 + 0.28 * steps)
    for step in range(steps):
        for start, stop, colour, hatch in ((0, prefix, ORANGE, "////"), (prefix, end, BLUE, "")):
            for a, b in _runs(changed[step, start:stop]):
                ax.barh(
                    step + 1,
                    b - a,
                    0.8,
                    left=start + a,
                    color=colour,
                    hatch=hatch,
                    edgecolor="white",
                    linewidth=0,
                )
    size = seen.allocation.page_size
    for border in range(size, slots, size):
        ax.axvline(border, color="black", linewidth=0.4)
    for at, page in enumerate(seen.allocation.page_tables[0]):
        ax.text((at + 0.5) * size, 0.35, str(page), ha="center", va="bottom", fontsize=6)
    ax.axvspan(end, slots, color=PALE)
    # For the legend only.
    ax.bar(0, 0, color=ORANGE, hatch="////", edgecolor="white", label="prefix slots changed")
    ax.bar(0, 0, color=BLUE, label="target slots changed")
    ax.bar(0, 0, color=PALE, label="slots behind the row's end")
    ax.set_xlim(0, slots)
    ax.set_ylim(steps + 0.6, -0.4)
    ax.set_yticks(range(1, steps + 1))
    ax.set_xlabel(f"slot of row 1, pages of {size}; page ids on top", fontsize=8)
    ax.set_ylabel("step", fontsize=8)
    put_title(ax, title)
    put_legend(figure, 3)
    numbers: dict[str, Number] = {}
    for step in range(steps):
        numbers[f"step {step + 1}, prefix slots changed"] = float(changed[step, :prefix].sum())
        numbers[f"step {step + 1}, target slots changed"] = float(changed[step, prefix:end].sum())
        numbers[f"step {step + 1}, slots behind the end changed"] = float(changed[step, end:].sum())
    return Drawing(title, figure, numbers)


def _bits(store: PagedStore) -> npt.NDArray[np.uint8]:
    """Return a copy of all keys and values as bytes, [slots of the pool, bytes]."""
    slots = store.num_pages * store.page_size
    flat = [
        tensor.reshape(slots, -1).contiguous().view(torch.uint8)
        for tensor in (*store.keys, *store.values)
    ]
    return torch.cat(flat, dim=1).numpy()


def _own_slots(allocation: KVAllocation) -> npt.NDArray[np.int64]:
    """Return the pool's slot of every slot of a row, int64 [rows, slots of a row]."""
    tables = np.array(allocation.page_tables)
    offsets = np.arange(allocation.page_size)
    slots: npt.NDArray[np.int64] = tables[:, :, None] * allocation.page_size + offsets
    return slots.reshape(len(tables), -1)


def _runs(marks: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the half-open intervals of marks."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], marks, [False]]).astype(np.int8)))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]
