"""Every case of the official implementation, from prompt and reference images to pixels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from golden_cases import CASE_NAMES, REFERENCE_CASE_NAMES, case_images, load_case
from golden_check import check_trace
from safetensors.torch import load_file

from kit.doctor.golden import case_request

DENSE: list[dict[str, Any]] = [
    {"mode": "dense_legacy", "backend": "FLASH_ATTN"},
    {"mode": "dense_legacy", "backend": "TORCH_SDPA"},
]
# The last page size is longer than every sequence of the cases.
PAGED: list[dict[str, Any]] = [
    {"mode": "paged_scheduler", "page_size": size} for size in (1, 16, 128, 176, 1024)
]


def single_requests(inputs: dict[str, Any]) -> list[dict[str, Any]]:
    """Cut a batch case into the requests it holds; the kit runs each alone."""
    if isinstance(inputs["prompt"], str):
        return [inputs]
    return [
        inputs | {"prompt": prompt, "seed": seed}
        for prompt, seed in zip(inputs["prompt"], inputs["seed"], strict=True)
    ]


def name_of(deployment: dict[str, Any]) -> str:
    return "-".join(map(str, deployment.values()))


# The short tier runs every case in one deployment of each kind, and one case in all of them.
SHORT = [*DENSE, {"mode": "paged_scheduler", "page_size": 16}]
IN_ALL = "t2i_instruct_cot_portrait"
CASES = [
    pytest.param(
        name,
        deployment,
        id=f"{name}-{name_of(deployment)}",
        marks=[] if deployment in SHORT or name == IN_ALL else [pytest.mark.long],
    )
    for deployment in (*DENSE, *PAGED)
    for name in (*CASE_NAMES, *REFERENCE_CASE_NAMES)
]


@pytest.mark.parametrize(("name", "deployment"), CASES)
def test_case_from_prompt_to_pixels(
    name: str, deployment: dict[str, Any], get_engine: Any, tmp_path: Path
) -> None:
    case = load_case(name)
    wanted = load_file(case.tensors_path)
    engine = get_engine(case.inputs["checkpoint"], **deployment)
    requests = single_requests(case.inputs)
    for index, inputs in enumerate(requests):
        trace_path = tmp_path / f"{index}.safetensors"
        request = replace(case_request(inputs, trace_path=trace_path), images=case_images(inputs))
        result = engine.generate(request)
        seen = load_file(trace_path)
        check_trace(seen, wanted, index, len(requests))
        if "image_u8" in wanted:
            pixels = torch.from_numpy(result.image).int()
            assert (pixels - wanted["image_u8"][index].int()).abs().max() <= 1
