"""What is predicted for a card against recorded peaks, by the numbers of the record alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kit.modelspec.config import PUBLISHED_CONFIG, ModelConfig, load_config_file
from kit.modelspec.footprint import activation_bytes, kv_token_bytes, row_bytes, weight_bytes

RECORD = Path(__file__).parents[2] / "bench" / "results" / "cuda_memory.json"
LIMIT = 0.1


def published(num_layers: int) -> ModelConfig:
    """The published shape with fewer layers, as many as the record's card held."""
    spec = load_config_file(PUBLISHED_CONFIG)
    fields = ("num_experts", "moe_topk", "num_shared_expert", "moe_intermediate_size")
    fewer = {name: getattr(spec, name)[:num_layers] for name in fields}
    return replace(spec, num_hidden_layers=num_layers, **fewer)


@pytest.mark.skipif(not RECORD.exists(), reason="no record of a card is here")
def test_predictions_are_within_a_tenth_of_recorded_peaks() -> None:
    record = json.loads(RECORD.read_text())
    given = record["parameters"]
    spec = published(given["num_layers"])
    weights = weight_bytes(spec, 2, vae_dtype_bytes=2)
    seen = record["candidate"]["rows"]
    assert len(seen) >= len(given["grids"])
    for index, row in enumerate(seen):
        h, w = given["grids"][index % len(given["grids"])]
        assert row["image_tokens"] == h * w
        tokens = given["prefix_len"] + spec.num_special + h * w
        pool = given["num_rows"] * row_bytes(tokens, kv_token_bytes(spec, 2), given["page_size"])
        working = activation_bytes(
            spec,
            height=h * spec.vae_downsample_factor,
            width=w * spec.vae_downsample_factor,
            prefix_len=given["prefix_len"],
            num_rows=given["num_rows"],
            dtype_bytes=2,
            fused=True,
            vae_dtype_bytes=2,
        )
        for column, predicted in (
            ("weights_bytes", weights),
            ("denoise_bytes", weights + pool + working.denoise),
            ("decode_bytes", weights + pool + working.decode),
            ("peak_bytes", weights + pool + working.peak),
        ):
            assert row[column] == pytest.approx(predicted, rel=LIMIT), (column, h, w)


def test_the_decoder_at_1024_is_what_an_h200_showed() -> None:
    """Between 7 and 8 GiB in float16, beside weights: seen before the workload had a record."""
    decode = activation_bytes(
        published(32),
        height=1024,
        width=1024,
        prefix_len=100,
        num_rows=2,
        dtype_bytes=2,
        fused=True,
        vae_dtype_bytes=2,
    ).decode
    assert 7 * 2**30 <= decode <= 8 * 2**30
