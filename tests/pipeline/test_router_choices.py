"""The experts that every token chose, against the reference, through the real caches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from golden_cases import load_case
from safetensors.torch import load_file

from kit.attention.registry import create_backend
from kit.config.deploy import DeployConfig
from kit.doctor.golden import case_request
from kit.engine.preprocess import Preprocessor
from kit.kv.geometry import KVGeometry
from kit.kv.manager import KVCacheManager
from kit.messages import RunRequest
from kit.model.loader import load_transformer
from kit.model.moe import Router
from kit.pipeline.denoise import DenoiseLoop


@pytest.mark.parametrize("mode", ["dense_legacy", "paged_scheduler"])
def test_router_choices_of_the_first_and_a_later_step(mode: Any, checkpoint: Path) -> None:
    case = load_case("t2i_pretrain_square")
    wanted = load_file(case.tensors_path)
    prepared = Preprocessor(checkpoint, DeployConfig()).prepare(case_request(case.inputs))
    layout, rows = prepared.rows.layout, prepared.rows.num_rows
    device = torch.device("cpu")
    config = Preprocessor(checkpoint, DeployConfig()).model
    allocation, page_size, num_pages = None, None, 0
    if mode == "paged_scheduler":
        page_size, num_pages = 16, 64
        geometry = KVGeometry(3, 2, 32, 4, page_size)
        allocation = KVCacheManager(geometry, num_pages, 2).reserve("r", rows, layout.kv_len)
    backend = create_backend(
        device=device,
        kv_mode=mode,
        name="FLASH_ATTN",
        model=config,
        dtype=torch.float32,
        page_size=page_size,
        num_pages=num_pages,
    )
    model = load_transformer(checkpoint, config, device=device, dtype=torch.float32)
    seen: list[torch.Tensor] = []
    for module in model.modules():
        if isinstance(module, Router):
            module.register_forward_hook(lambda _m, _i, out: seen.append(out[1]))
    run = RunRequest("r", prepared.rows, prepared.sampling, allocation, None)
    with torch.inference_mode():
        loop = DenoiseLoop(model, backend.open(layout, rows, allocation), run, None)
        for step in (1, 2):
            seen.clear()
            loop.step()
            for layer, indices in enumerate(seen):
                first_row = indices[: len(indices) // rows]
                recorded = wanted[f"trace.step{step}.layer{layer}.router_topk_index"].long()
                # The reference also runs the tail after the image, which nothing reads.
                assert torch.equal(first_row, recorded[: len(first_row)])
