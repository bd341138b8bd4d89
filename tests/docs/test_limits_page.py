"""docs/limits.md against the code's numbers, and the refusal that the recipe shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kit.attention.ascend import limits
from kit.attention.capabilities import resolve_page_size
from kit.attention.cuda.build import FLASH_3_TILES
from kit.checkpoint.preset import SQUARE, TINY
from kit.checkpoint.shipped import DEFAULT_CHECKPOINT
from kit.config.deploy import StageConfig
from kit.engine import images, preprocess, reference_files, replay
from kit.modelspec.config import (
    PUBLISHED_CONFIG,
    SUPPORTED_ARCHITECTURES,
    load_config_file,
    load_model_config,
)
from kit.modelspec.footprint import longest_row, most_rows
from kit.plan.plan import PUBLISHED, plan_deployment
from kit.server import body, fields, protocol
from kit.server.settings import ServerSettings
from kit.tokenizer.buckets import EXTRA_SIZES_HW, NUM_BASE_BUCKETS
from kit.tokenizer.references import MAX_REFERENCES

DOCS = Path(__file__).parents[2] / "docs"
RECIPE = DOCS / "recipes" / "hunyuan_image3_instruct.md"
MIB, GIB = 1 << 20, 1 << 30
SETTINGS = ServerSettings("name")
SHIPPED_SPEC = load_model_config(DEFAULT_CHECKPOINT)
SQUARE_TARGET = SHIPPED_SPEC.num_target_tokens(*SQUARE)
PUBLISHED_SPEC = load_config_file(PUBLISHED_CONFIG)


def card_pages(head_dim: int, capability: tuple[int, int]) -> int:
    return resolve_page_size(
        "FLASH_ATTN",
        "cuda",
        head_dim=head_dim,
        requested=None,
        compute_capability=capability,
        is_planned=True,
    )


LIMITS = {
    "pictures of one call, `n`": f"{fields.MAX_IMAGES}",
    "prompt": f"{fields.MAX_PROMPT_CHARS} characters, and the row must fit the model",
    "system prompt, `cot_text`": f"{fields.MAX_TEXT_CHARS} characters each, and the row must fit "
    "the model",
    "tokens of a row": f"{longest_row(PUBLISHED_SPEC)} for the published shape, "
    f"{longest_row(SHIPPED_SPEC)} for hunyuan_image3_tiny",
    "prefix that hunyuan_image3_tiny was trained with": f"at most "
    f"{TINY.shape.sequence_slots - SQUARE_TARGET} tokens, {TINY.shape.edit_slots - SQUARE_TARGET} "
    "with a reference image",
    "image sizes": f"{NUM_BASE_BUCKETS}, or {NUM_BASE_BUCKETS + len(EXTRA_SIZES_HW)} where the "
    "vocabulary has the ratio tokens",
    "rows of a request": f"{most_rows(PUBLISHED_SPEC)}, 1 for distilled models",
    "denoising steps": f"1 to {preprocess.MAX_STEPS}",
    "guidance": f"0 to {preprocess.MAX_GUIDANCE:g}",
    "flow shift": f"{preprocess.MIN_FLOW_SHIFT} to {preprocess.MAX_FLOW_SHIFT:g}",
    "seed": f"0 to 2^{(preprocess.MAX_SEED + 1).bit_length() - 1} - 1",
    "previews, `partial_images`": f"{preprocess.MAX_PARTIAL_IMAGES}",
    "`timeout_s`": f"{preprocess.MAX_TIMEOUT_S:.0f} s",
    "messages of a chat, parts of a message": f"{protocol.MAX_MESSAGES}, {protocol.MAX_PARTS}",
    "reference images, longer side to shorter": f"{MAX_REFERENCES}, {reference_files.MAX_ASPECT}",
    "replay record in a picture": f"{replay.MAX_RECORD_BYTES // MIB} MiB in png and webp, "
    f"{images._MAX_JPEG_RECORD_BYTES} bytes in jpeg",
    "multipart body": f"{SETTINGS.max_body_bytes // MIB} MiB",
    "any other body": f"{SETTINGS.max_json_bytes // MIB} MiB",
    "depth of JSON": f"{body.MAX_JSON_DEPTH}",
    "image file, its pixels": f"{SETTINGS.max_image_bytes // MIB} MiB, {SETTINGS.max_image_pixels}",
    "files, fields of a form": f"{SETTINGS.max_form_files}, {SETTINGS.max_form_fields}",
    "waiting requests": f"{StageConfig().max_queued_requests}",
    "streams of `/v1/kv`": f"{SETTINGS.max_event_streams}",
    "results of jobs": f"{SETTINGS.max_finished_jobs}, {SETTINGS.max_job_bytes // MIB} MiB, "
    f"{SETTINGS.job_ttl_s:.0f} s",
    "time of a request": f"{SETTINGS.default_timeout_s}".lower(),
    "time without a step until `/ready` says no": f"{SETTINGS.stall_limit_s:.0f} s",
    "page size on Hopper cards": f"multiples of {card_pages(128, (9, 0))} tokens at head size "
    f"128, {card_pages(64, (9, 0))} at 64",
    "page size on other NVIDIA cards": f"multiples of {card_pages(128, (8, 0))} tokens",
    "page size on Ascend NPUs": f"{limits.PAGE_SIZE} tokens",
    "head sizes on Ascend NPUs": ", ".join(map(str, limits.HEAD_SIZES)),
    "query tokens of one attention call on Ascend NPUs": f"{limits.MAX_QUERIES}",
    "head sizes of FlashAttention 3": ", ".join(map(str, FLASH_3_TILES)),
    "architectures": ", ".join(SUPPORTED_ARCHITECTURES),
}
# No number in the code, or one that other tests hold.
BY_HAND = {
    "running requests",
    "API keys",
    "ranks of a worker group",
    "devices",
    "dtypes",
    "page size on the CPU",
    "accuracy of `kit plan`",
}


def rows() -> dict[str, str]:
    found = re.findall(r"^\| (.+?) \| (.+?) \|", (DOCS / "limits.md").read_text(), re.MULTILINE)
    return {name: value for name, value in found if name not in {"what", "---"}}


def test_every_row_is_compared_or_named_as_one_without_a_number() -> None:
    assert set(rows()) == set(LIMITS) | BY_HAND


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_is_the_codes(name: str) -> None:
    assert rows()[name] == LIMITS[name]


def test_the_recipe_shows_the_refusal_that_a_start_gives() -> None:
    refused = plan_deployment(PUBLISHED, "hunyuan_image3_tp4", card="H200")
    assert f"```text\n{refused.start_refusal}\n```" in RECIPE.read_text()


def plan_table() -> str:
    """The table of the recipe, by the plan."""
    lines = [
        "| deploy file | weights | pool | keys and values | denoise | decode | peak | at once |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for stem in ("tp4", "tp2_sp2", "tp2_cfg2", "cuda", "offload"):
        name = f"hunyuan_image3_{stem}"
        plan = plan_deployment(PUBLISHED, name, card="H200", sizes=["1024x1024"])
        [size] = plan.sizes
        numbers = (
            plan.weight_bytes,
            plan.pool_bytes,
            size.kv_bytes,
            size.activations.denoise,
            size.activations.decode,
            size.peak_bytes,
        )
        cells = " | ".join(f"{number / GIB:.2f} GiB" for number in numbers)
        lines.append(f"| `{name}` | {cells} | {size.num_requests} |")
    return "\n".join(lines)


def test_the_table_of_the_recipe_is_the_plans() -> None:
    table = plan_table()
    assert table in RECIPE.read_text(), f"put this there:\n{table}"
