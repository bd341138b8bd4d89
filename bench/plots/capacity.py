"""Plans of deployments on cards, as charts and tables: bytes of a rank, requests at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.plots.charts import draw_bars, draw_parts
from bench.plots.drawing import (
    COLOURS,
    PALE,
    Drawing,
    Number,
    new_figure,
    put_legend,
    put_title,
)
from bench.statistics import Estimate
from kit.api import Plan, plan_deployment
from kit.errors import ConfigError
from kit.modelspec.tensors import Part
from kit.plan.plan import PUBLISHED
from kit.plan.size import SizePlan

_GIB, _MIB = 2**30, 2**20

_NAMED: Mapping[str, Part] = {"experts": "experts", "VAE decoder": "vae_decoder"}
"""Weights that the chart names; the others are summed up."""


@dataclass(frozen=True)
class Answer:
    """What planning said of a deployment on a card: a plan, or why there is none."""

    name: str
    plan: Plan | None
    refusal: str = ""


def plan_or_refusal(
    name: str,
    deployment: str,
    card: str,
    size: str,
    prompt_tokens: int,
    stage: Mapping[str, object] | None = None,
) -> Answer:
    """Plan the published 80B model; a deployment that cannot hold it is an answer as well.

    stage: settings laid over the deployment's.
    """
    try:
        plan = plan_deployment(
            PUBLISHED,
            deployment,
            stage_overrides={"0": dict(stage)} if stage else None,
            sizes=[size],
            prompt_tokens=prompt_tokens,
            card=card,
        )
    except ConfigError as error:
        return Answer(name, None, str(error))
    return Answer(name, plan)


def rank_parts(plan: Plan, size: SizePlan) -> dict[str, float]:
    """Return what a rank holds at the peak of a request, in GiB, part by part."""
    named = {title: plan.weights.get(part, 0) for title, part in _NAMED.items()}
    held = plan.pool_bytes or size.kv_bytes
    parts = {
        **named,
        "other weights": plan.weight_bytes - sum(named.values()),
        "page pool, or keys and values": held,
        "working memory": size.activations.peak,
    }
    return {title: num_bytes / _GIB for title, num_bytes in parts.items()}


def draw_ranks(title: str, answers: Sequence[Answer]) -> Drawing:
    """Draw what one rank of each plan holds at its peak, against what may be taken."""
    planned = [(one, one.plan) for one in answers if one.plan is not None]
    return draw_parts(
        title,
        {one.name: rank_parts(plan, plan.sizes[0]) for one, plan in planned},
        unit="one rank / GiB",
        limits={one.name: plan.allowed_bytes / _GIB for one, plan in planned},
        notes={one.name: _note(plan) for one, plan in planned},
    )


def draw_capacity(
    title: str,
    deployment: str,
    card: str,
    size: str,
    pools_gib: Sequence[float],
    prompts: Sequence[int],
) -> Drawing:
    """Draw how many requests hold their keys and values at once, by pool and prompt length."""
    figure, (ax,) = new_figure(3.2)
    numbers: dict[str, Number] = {}
    for prompt, colour, marker in zip(prompts, COLOURS, "os^DvP", strict=False):
        label = f"prompt of {prompt} tokens"
        points = []
        for gib in pools_gib:
            pool = {"kv_cache_memory_bytes": int(gib * _GIB)}
            answer = plan_or_refusal(label, deployment, card, size, prompt, pool)
            if answer.plan is not None:
                points.append((gib, answer.plan.sizes[0].num_requests))
        ax.plot(
            [gib for gib, _ in points],
            [num for _, num in points],
            color=colour,
            marker=marker,
            markersize=4,
            linewidth=1,
            label=label,
        )
        numbers |= {f"{label}, pool of {gib:g} GiB": float(num) for gib, num in points}
    ax.set_xlabel("page pool of one rank / GiB", fontsize=8)
    ax.set_ylabel(f"requests of {size} at once", fontsize=8)
    ax.set_ylim(bottom=0)
    ax.grid(color=PALE)
    put_title(ax, title)
    put_legend(figure, len(prompts))
    return Drawing(title, figure, numbers)


def draw_kv_bytes(
    title: str,
    deployments: Mapping[str, tuple[str, Mapping[str, object]]],
    card: str,
    size: str,
    prompts: Sequence[int],
) -> Drawing:
    """Draw what a request's keys and values take on one rank, by deployment and prompt length.

    deployments: file and settings laid over it, by name.
    """
    found: dict[str, dict[str, Estimate]] = {}
    for name, (deployment, stage) in deployments.items():
        answers = {
            str(prompt): plan_or_refusal(name, deployment, card, size, prompt, stage).plan
            for prompt in prompts
        }
        found[name] = {
            prompt: Estimate(plan.sizes[0].kv_bytes / _MIB, None, None, 1)
            for prompt, plan in answers.items()
            if plan is not None
        }
    return draw_bars(title, found, unit="one request on one rank / MiB", groups="prompt tokens")


def _note(plan: Plan) -> str:
    size = plan.sizes[0]
    if size.refusal is not None:
        return f"{size.size} does not fit"
    return f"{size.num_requests} x {size.size} at once"
