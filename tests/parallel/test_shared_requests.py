"""Several ranks run one request: what comes out is what one rank computes.

Real processes on gloo, float32. Each topology starts once and runs all of its cases.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from attention_cases import sharing
from golden_cases import case_images, load_case
from ranks import Processes, processes
from reuse_cases import num_common_tokens
from torch import Tensor

from kit.attention.registry import create_backend
from kit.checkpoint.shipped import DEFAULT_CHECKPOINT
from kit.config.deploy import DeployConfig
from kit.doctor.golden import case_request
from kit.engine.preprocess import Preprocessor
from kit.kv.geometry import KVGeometry
from kit.kv.manager import KVCacheManager
from kit.messages import RunRequest
from kit.model.loader import load_reference_encoder, load_transformer
from kit.model.moe import Router
from kit.model.shard import Shard
from kit.model.transformer import HunyuanImage3
from kit.modelspec.config import load_model_config
from kit.parallel.group import Mesh, single_mesh
from kit.parallel.topology import Topology
from kit.pipeline.denoise import DenoiseLoop
from kit.pipeline.references import TokenBlock, encode_references
from kit.pipeline.rows import share_rows

PAGE_SIZE, NUM_PAGES = 16, 96
LIMIT = 1e-4
MODES = ("paged_scheduler", "dense_legacy")
# No number of ranks divides their targets of 257 and 241 tokens.
CASES = ("t2i_pretrain_square", "t2i_instruct_landscape", "t2i_pretrain_square_nocfg")
FOUR_CASES = ("t2i_pretrain_square", "t2i_pretrain_square_nocfg")


@dataclass(frozen=True)
class Ran:
    """What one rank saw of one request."""

    latents: Tensor
    choices: list[Tensor]
    """Experts [rows, tokens, k] of the rank's own rows and tokens, of every layer and step."""

    written: int
    """Tokens of each row that have a key."""

    again: Tensor | None = None
    """Latents of the same request over half of the prefix pages that it wrote, and with its rows'
    common tokens computed once; None in dense_legacy."""


def run_cases(
    mesh: Mesh, checkpoint: Path, cases: tuple[str, ...], whole_experts: bool = False
) -> dict[tuple[str, str], Ran]:
    """Run two steps of each case in both modes."""
    config = load_model_config(checkpoint)
    shard = Shard.of(mesh, whole_experts=whole_experts)
    device = torch.device("cpu")
    model = load_transformer(checkpoint, config, device=device, dtype=torch.float32, shard=shard)
    return {
        (case, mode): _run_case(mesh, model, checkpoint, case, mode)
        for case in cases
        for mode in MODES
    }


@torch.inference_mode()
def _run_case(mesh: Mesh, model: HunyuanImage3, checkpoint: Path, case: str, mode: Any) -> Ran:
    inputs = load_case(case).inputs
    request = replace(case_request(inputs), images=case_images(inputs))
    sampling = replace(request.sampling, num_inference_steps=2)
    prepared = Preprocessor(checkpoint, DeployConfig()).prepare(replace(request, sampling=sampling))
    layout = prepared.rows.layout
    num_rows = share_rows(prepared.rows.num_rows, mesh.cfg).num_own
    geometry = KVGeometry(3, 2, 32, 4, PAGE_SIZE)  # its bytes are not asked for
    paged = mode == "paged_scheduler"
    manager = KVCacheManager(geometry, NUM_PAGES, 2)
    allocation = manager.reserve("r", num_rows, layout.kv_len) if paged else None
    backend = create_backend(
        device=model.device,
        kv_mode=mode,
        name="FLASH_ATTN",
        model=model.config,
        dtype=torch.float32,
        page_size=PAGE_SIZE if paged else None,
        num_pages=NUM_PAGES if paged else 0,
        head_ranks=model.shard.head_ranks,
    )
    choices: list[Tensor] = []
    hooks = [
        module.register_forward_hook(lambda _m, _i, out: choices.append(out[1]))
        for module in model.modules()
        if isinstance(module, Router)
    ]
    run = RunRequest(
        "r", prepared.rows, prepared.sampling, allocation, None, references=request.images
    )
    references: tuple[TokenBlock, ...] = ()
    encoder = None
    if request.images:
        encoder = load_reference_encoder(
            checkpoint,
            model.config,
            device=model.device,
            dtype=torch.float32,
            vae_dtype=torch.float32,
        )
        references = encode_references(model, encoder, run, None)
    kv: Any = backend.open(layout, num_rows, allocation)
    loop = DenoiseLoop(model, kv, run, None, cfg=mesh.cfg, references=references)
    while not loop.finished:
        loop.step()
    for hook in hooks:
        hook.remove()
    keys = kv.store.keys[0]
    written = int((keys.flatten(2) != 0).any(-1).sum()) // num_rows
    ran = Ran(
        loop.latents,
        [chosen.unflatten(0, (num_rows, -1)) for chosen in choices],
        written,
    )
    if allocation is None:
        return ran
    shared = num_common_tokens(prepared.rows) if num_rows > 1 else 0
    cached = layout.prefix_len // PAGE_SIZE // 2 * PAGE_SIZE
    reused = sharing(allocation, cached=cached, shared=shared)
    run = replace(run, allocation=reused)
    blocks = encode_references(model, encoder, run, None) if encoder else ()
    loop = DenoiseLoop(
        model, backend.open(layout, num_rows, reused), run, None, cfg=mesh.cfg, references=blocks
    )
    once = max(0, shared - cached) if shared // PAGE_SIZE > cached // PAGE_SIZE else 0
    own = num_rows * (layout.kv_len - cached) - once * (num_rows - 1)
    assert loop.step() == own * (prepared.rows.num_rows // num_rows)
    while not loop.finished:
        loop.step()
    return replace(ran, again=loop.latents)


def check(
    ranks: list[dict[tuple[str, str], Ran]],
    alone: dict[tuple[str, str], Ran],
    topology: Topology,
) -> None:
    """Every rank ends with one rank's latents, and chose one rank's experts."""
    for key, wanted in alone.items():
        for rank, results in enumerate(ranks):
            seen, place = results[key], topology.place(rank)
            assert (seen.latents - wanted.latents).abs().max() < LIMIT, (key, rank)
            if seen.again is not None:
                assert (seen.again - wanted.latents).abs().max() < LIMIT, (key, rank)
            assert seen.latents.equal(ranks[0][key].latents), "ranks drift apart"
            assert seen.written == wanted.written, "pads have no slot"
            rows = slice(None)
            if topology.cfg > 1 and len(wanted.choices[0]) > 1:
                rows = slice(place.cfg, place.cfg + 1)
            for mine, whole in zip(seen.choices, wanted.choices, strict=True):
                t = -(-whole.shape[1] // topology.ulysses)
                own = whole[rows, place.ulysses * t : (place.ulysses + 1) * t]
                assert mine.shape[1] == t
                assert mine[:, : own.shape[1]].equal(own), (key, rank)


@pytest.fixture(scope="module")
def alone(checkpoint: Path) -> dict[tuple[str, str], Ran]:
    return run_cases(single_mesh(), checkpoint, CASES)


@pytest.mark.parametrize(
    ("topology", "whole_experts"),
    [
        (Topology(tensor=2), False),
        (Topology(tensor=2), True),
        (Topology(ulysses=2), False),
        (Topology(cfg=2), False),
    ],
    ids=["TP2", "EP2", "SP2", "CFG2"],
)
def test_two_ranks_compute_what_one_does(
    topology: Topology,
    whole_experts: bool,
    two: Processes,
    alone: dict[tuple[str, str], Ran],
    tmp_path: Path,
    checkpoint: Path,
) -> None:
    check(two.run(topology, tmp_path, run_cases, checkpoint, CASES, whole_experts), alone, topology)


@pytest.mark.long
@pytest.mark.parametrize(
    "topology",
    [Topology(tensor=2), Topology(ulysses=2), Topology(cfg=2)],
    ids=["TP2", "SP2", "CFG2"],
)
def test_two_ranks_read_references_as_one_does(
    topology: Topology, two: Processes, tmp_path: Path, checkpoint: Path
) -> None:
    cases = ("ti2i_ref1_landscape",)
    ranks = two.run(topology, tmp_path, run_cases, checkpoint, cases, False)
    check(ranks, run_cases(single_mesh(), checkpoint, cases), topology)


@pytest.mark.long
@pytest.mark.parametrize(
    ("topology", "whole_experts"),
    [
        (Topology(tensor=2, cfg=2), False),
        (Topology(tensor=2, ulysses=2), False),
        (Topology(tensor=2, ulysses=2), True),
        (Topology(ulysses=2, cfg=2), False),
        (Topology(tensor=4), False),
        (Topology(tensor=4), True),
        (Topology(ulysses=4), False),
    ],
    ids=["TP2+CFG2", "TP2+SP2", "EP2+SP2", "SP2+CFG2", "TP4", "EP4", "SP4"],
)
def test_four_ranks_compute_what_one_does(
    topology: Topology,
    whole_experts: bool,
    four: Processes,
    alone_on_four_heads: dict[tuple[str, str], Ran],
    tmp_path: Path,
) -> None:
    ranks = four.run(topology, tmp_path, run_cases, DEFAULT_CHECKPOINT, FOUR_CASES, whole_experts)
    check(ranks, alone_on_four_heads, topology)


@pytest.fixture(scope="module")
def four() -> Iterator[Processes]:
    with processes(4) as started:
        yield started


@pytest.fixture(scope="module")
def alone_on_four_heads() -> dict[tuple[str, str], Ran]:
    """The shipped checkpoint has 4 kv heads, the golden one 2."""
    return run_cases(single_mesh(), DEFAULT_CHECKPOINT, FOUR_CASES)
