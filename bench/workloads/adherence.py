"""Whether pictures show what held-out captions name, guided and not, paged and dense."""

from __future__ import annotations

import sys

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from bench.adherence import Task, as_findings, shares, tasks, verdict_columns
from bench.judge import Judge
from bench.judge_training import SHIPPED_NET
from bench.records import EqualityCheck, Measurement, Record, Row
from bench.registry import Context
from bench.shape_classifier import load_shape_net
from kit.api import GenerationRequest, GenerationResult, ImageEngine, SamplingParams, load_config
from kit.checkpoint.render import render
from kit.checkpoint.shipped import DEFAULT_CHECKPOINT
from kit.modelspec.files import CheckpointFiles

NUM_STEPS = 20
GUIDANCE = 3.0
SEED = 2026
PAGED_DEPLOYMENT = "hunyuan_image3_paged.yaml"


def run(context: Context) -> Record:
    """Draw `context.repeats` rounds of 24 captions in both modes and judge every picture."""
    judge = Judge(load_shape_net(SHIPPED_NET))
    dense_rows: list[Row] = []
    paged_rows: list[Row] = []
    num_different = 0
    with (
        ImageEngine(DEFAULT_CHECKPOINT, load_config(DEFAULT_CHECKPOINT)) as dense,
        ImageEngine(DEFAULT_CHECKPOINT, load_config(DEFAULT_CHECKPOINT, PAGED_DEPLOYMENT)) as paged,
    ):
        planned = tasks(context.repeats, SEED)
        # No bar where nobody looks at one.
        for task in tqdm(planned, file=sys.stderr, disable=None):
            pictures = [_draw(engine, task) for engine in (dense, paged)]
            num_different += pictures[0].image.tobytes() != pictures[1].image.tobytes()
            for rows, picture in zip((dense_rows, paged_rows), pictures, strict=True):
                rows.append(_row(judge, task, picture))
    return context.record(
        parameters={
            "checkpoint": DEFAULT_CHECKPOINT.name,
            "checkpoint_sha256": CheckpointFiles.open(DEFAULT_CHECKPOINT).fingerprint(
                contents=True
            ),
            "num_rounds": context.repeats,
            "num_captions": sum(task.guided for task in planned),
            "num_inference_steps": NUM_STEPS,
            "guidance_scale": GUIDANCE,
            "seed": SEED,
            "paged_deployment": PAGED_DEPLOYMENT,
        },
        equality=EqualityCheck(
            compared="pictures that differ in any byte between paged and dense",
            limit=0,
            seen=num_different,
            equal=num_different == 0,
        ),
        baseline=Measurement("dense_legacy, one row a picture", tuple(dense_rows)),
        candidate=Measurement("paged_scheduler, one row a picture", tuple(paged_rows)),
        ratios={"total": ("candidate.total_s", "baseline.total_s")},
        findings=as_findings(shares(paged_rows)),
    )


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
