"""Whether pictures show what held-out captions name, guided and not, paged and dense.

Of a checkpoint that takes reference images also whether they are edited as they should be.
"""

from __future__ import annotations

import io
import multiprocessing
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from tqdm import tqdm

from bench.adherence import (
    ASPECTS,
    EditTask,
    Task,
    as_findings,
    edit_columns,
    edit_tasks,
    shares,
    tasks,
    verdict_columns,
)
from bench.edit_judge import judge_edit
from bench.judge import Judge
from bench.judge_training import SHIPPED_NET
from bench.records import EqualityCheck, Measurement, Record, Row, pair_ratios
from bench.registry import Context
from bench.shape_classifier import load_shape_net
from kit.api import GenerationRequest, GenerationResult, ImageEngine, SamplingParams, load_config
from kit.checkpoint.render import render
from kit.checkpoint.shipped import DEFAULT_CHECKPOINT
from kit.engine.preprocess import Preprocessor
from kit.modelspec.files import CheckpointFiles
from kit.telemetry.environment import num_usable_cpus

NUM_STEPS = 20
GUIDANCE = 3.0
SEED = 2026
PAGED_DEPLOYMENT = "hunyuan_image3_paged.yaml"
_TASKS_OF_A_PROCESS = 8


class Drawn(NamedTuple):
    """What a task gave in both modes."""

    dense: Row
    paged: Row
    equal: bool
    """Whether the pictures agree in every byte."""


def run(context: Context) -> Record:
    """Draw `context.repeats` rounds of 24 captions in both modes and judge every picture.

    A checkpoint that takes reference images is given 8 edits a round, too; else the record says why
    it is not.
    """
    captions = tasks(context.repeats, SEED)
    refusal = Preprocessor(DEFAULT_CHECKPOINT, load_config(DEFAULT_CHECKPOINT)).reference_refusal
    edits = edit_tasks(context.repeats, SEED) if refusal is None else []
    planned: list[Task | EditTask] = [*captions, *edits]
    starts = range(0, len(planned), _TASKS_OF_A_PROCESS)
    parts = [planned[start : start + _TASKS_OF_A_PROCESS] for start in starts]
    drawn: list[Drawn] = []
    num_workers = num_usable_cpus()
    # Spawned, since a fork would copy the locks of threads.
    spawn = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(num_workers, mp_context=spawn) as workers,
        # No bar where nobody looks at one.
        tqdm(total=len(planned), file=sys.stderr, disable=None) as bar,
    ):
        for some in workers.map(partial(draw_all, DEFAULT_CHECKPOINT), parts):
            drawn += some
            bar.update(len(some))
    num_different = sum(not one.equal for one in drawn)
    dense_rows, paged_rows = [one.dense for one in drawn], [one.paged for one in drawn]
    return context.record(
        parameters={
            "checkpoint": DEFAULT_CHECKPOINT.name,
            "checkpoint_sha256": CheckpointFiles.open(DEFAULT_CHECKPOINT).fingerprint(
                contents=True
            ),
            "num_rounds": context.repeats,
            "num_captions": sum(task.guided for task in captions),
            "num_edits": len(edits),
            "no_edits_because": refusal,
            "num_processes": num_workers,
            "num_inference_steps": NUM_STEPS,
            "guidance_scale": GUIDANCE,
            "seed": SEED,
            "paged_deployment": PAGED_DEPLOYMENT,
        },
        equality=EqualityCheck.of(
            compared="pictures that differ in any byte between paged and dense",
            limit=0,
            seen=num_different,
        ),
        baseline=Measurement("dense_legacy, one row a picture", tuple(dense_rows)),
        candidate=Measurement("paged_scheduler, one row a picture", tuple(paged_rows)),
        ratios=pair_ratios(("total_s",)),
        findings=as_findings(shares(paged_rows)),
    )


def draw_all(checkpoint: Path, some: Sequence[Task | EditTask]) -> list[Drawn]:
    """Draw tasks with a checkpoint in both modes, and judge them; on one thread from now on."""
    # Two would wait for one another where other programs want the cores.
    torch.set_num_threads(1)
    judge = Judge(load_shape_net(SHIPPED_NET))
    with (
        ImageEngine(checkpoint, load_config(checkpoint)) as dense,
        ImageEngine(checkpoint, load_config(checkpoint, PAGED_DEPLOYMENT)) as paged,
    ):
        drawn = []
        for task in some:
            if isinstance(task, EditTask):
                first, second = (edit_picture(engine, task) for engine in (dense, paged))
                rows = (_edit_row(judge, task, first), _edit_row(judge, task, second))
            else:
                first, second = (_draw(engine, task) for engine in (dense, paged))
                rows = (_row(judge, task, first), _row(judge, task, second))
            drawn.append(Drawn(*rows, first.image.tobytes() == second.image.tobytes()))
        return drawn


def _draw(engine: ImageEngine, task: Task) -> GenerationResult:
    scene = task.caption.scene
    sampling = SamplingParams(
        height=scene.height,
        width=scene.width,
        num_inference_steps=NUM_STEPS,
        guidance_scale=GUIDANCE if task.guided else 1.0,
        seed=task.seed,
    )
    return engine.generate(GenerationRequest(task.caption.text, sampling))


def edit_picture(engine: ImageEngine, task: EditTask) -> GenerationResult:
    """Edit a task's source, given as a PNG file."""
    file = io.BytesIO()
    Image.fromarray(render(task.edit.edit.source)).save(file, "PNG")
    source = engine.preprocessor.read_image(file, "image")
    sampling = SamplingParams(
        num_inference_steps=NUM_STEPS, guidance_scale=GUIDANCE, seed=task.seed
    )
    return engine.generate(GenerationRequest(task.edit.text, sampling, images=(source,)))


def _edit_row(judge: Judge, task: EditTask, picture: GenerationResult) -> Row:
    edit = task.edit.edit
    source, target = render(edit.source), render(edit.target)
    return {
        "family": f"edit: {edit.kind}",
        "caption": task.edit.text,
        "size": f"{edit.source.width}x{edit.source.height}",
        "seed": task.seed,
        "guided": True,
        **dict.fromkeys(ASPECTS),
        **edit_columns(judge_edit(judge, picture.image, source, edit)),
        "render_edited": judge_edit(judge, target, source, edit).right,
        "source_edited": judge_edit(judge, source, source, edit).changed,
        "total_s": picture.metrics.total_time_s,
    }


def _row(judge: Judge, task: Task, picture: GenerationResult) -> Row:
    """`depicted`: object, colour and background, as far as they are named, are right."""
    caption = task.caption
    verdict = judge.judge(picture.image, caption.facts)
    drawn: npt.NDArray[np.uint8] = render(caption.scene)
    named = (verdict.object, verdict.colour, verdict.background)
    return {
        "family": caption.family,
        "caption": caption.text,
        "size": f"{caption.scene.width}x{caption.scene.height}",
        "seed": task.seed,
        "guided": task.guided,
        **verdict_columns(verdict),
        "depicted": all(one is not False for one in named),
        "render_right": judge.judge(drawn, caption.facts).right,
        "other_right": judge.judge(picture.image, task.other.facts).right,
        "total_s": picture.metrics.total_time_s,
    }
