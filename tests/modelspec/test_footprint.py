"""Bytes by hand-computed numbers, and by what really gets allocated."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.errors import ConfigError
from kit.kv.geometry import KVGeometry
from kit.modelspec.config import (
    PUBLISHED_CONFIG,
    ModelConfig,
    load_model_config,
    parse_model_config,
)
from kit.modelspec.files import CheckpointFiles
from kit.modelspec.footprint import (
    Split,
    activation_bytes,
    automatic_pool_pages,
    kv_token_bytes,
    longest_row,
    num_pages,
    page_bytes,
    pool_bytes,
    resident_weights,
    row_bytes,
    waiting_bytes,
    weight_bytes,
    weight_bytes_by_part,
)
from kit.modelspec.tensors import LAYER_PARTS, REFERENCE_PARTS, expected_tensors

KIB, MIB, GIB = 2**10, 2**20, 2**30
BF16, F32 = 2, 4


@pytest.fixture(scope="module")
def official() -> ModelConfig:
    """The released base model's dimensions."""
    raw = json.loads(PUBLISHED_CONFIG.read_text())
    return parse_model_config(raw)


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> ModelConfig:
    return load_model_config(checkpoint)


def test_kv_bytes_of_the_official_model(official: ModelConfig) -> None:
    token_bytes = kv_token_bytes(official, BF16)
    assert token_bytes == 128 * KIB
    assert page_bytes(token_bytes, 16) == 2 * MIB
    assert page_bytes(token_bytes, 176) == 22 * MIB
    assert row_bytes(4096, token_bytes, 1) == 512 * MIB
    # 4097 tokens take 24 pages of 176, of which the last one holds 49.
    assert row_bytes(4097, token_bytes, 176) == 24 * 22 * MIB
    assert longest_row(official) == 22800


def test_tensor_parallel_ranks_share_the_kv_heads(official: ModelConfig) -> None:
    whole = kv_token_bytes(official, BF16)
    assert [kv_token_bytes(official, BF16, Split(tensor=n)) for n in (1, 2, 4, 8)] == [
        whole,
        whole // 2,
        whole // 4,
        whole // 8,
    ]


@pytest.mark.parametrize("ranks", [3, 16])
def test_ranks_that_do_not_divide_the_kv_heads(official: ModelConfig, ranks: int) -> None:
    with pytest.raises(ConfigError, match="does not divide the model's 8 kv heads") as caught:
        kv_token_bytes(official, BF16, Split(tensor=ranks))
    assert caught.value.field == "tensor_parallel_size"
    assert caught.value.value == ranks
    assert "1, 2, 4, 8" in caught.value.remedy


def test_half_a_gibibyte_holds_two_rows_on_four_ranks_only(official: ModelConfig) -> None:
    """The documented example budget, for a 1024x1024 request of about 4,600 tokens."""
    budget = 512 * MIB
    needed = {
        ranks: 2 * row_bytes(4600, kv_token_bytes(official, BF16, Split(tensor=ranks)), 176)
        for ranks in (1, 2, 4)
    }
    assert needed[1] > budget
    assert needed[2] > budget
    assert needed[4] <= budget


@given(st.integers(0, 100_000), st.integers(1, 2048))
def test_pages_hold_the_row_and_waste_less_than_one(tokens: int, page_size: int) -> None:
    pages = num_pages(tokens, page_size)
    assert 0 <= pages * page_size - tokens < page_size


def test_geometry_agrees_with_the_model(official: ModelConfig) -> None:
    geometry = KVGeometry(
        num_layers=32, num_kv_heads=8, head_dim=128, dtype_bytes=BF16, page_size=176
    )
    assert geometry.token_bytes == kv_token_bytes(official, BF16)
    assert geometry.page_bytes == 22 * MIB
    assert [geometry.num_pages(n) for n in (1, 176, 177)] == [1, 1, 2]


def pool(
    model: ModelConfig,
    *,
    max_num_seqs: int = 1,
    max_rows: int = 2,
    allowed_bytes: int = 1 << 50,
    page_size: int = 176,
) -> int:
    bytes_per_page = page_bytes(kv_token_bytes(model, BF16), page_size)
    pages = automatic_pool_pages(
        model,
        max_num_seqs=max_num_seqs,
        max_rows=max_rows,
        allowed_bytes=allowed_bytes,
        bytes_per_page=bytes_per_page,
        page_size=page_size,
    )
    return pool_bytes(pages, bytes_per_page)


def test_automatic_pool_holds_the_longest_rows_in_whole_pages(official: ModelConfig) -> None:
    # 22,800 tokens take 130 pages of 176.
    assert pool(official) == 2 * 130 * 22 * MIB
    assert pool(official, max_num_seqs=3, max_rows=1) == 3 * 130 * 22 * MIB


def test_automatic_pool_is_capped_by_what_is_allowed(official: ModelConfig) -> None:
    # 1.5 GiB are 69.8 pages.
    assert pool(official, allowed_bytes=3 * GIB // 2) == 69 * 22 * MIB


@pytest.mark.parametrize("allowed_bytes", [-5, 0, 22 * MIB - 1])
def test_automatic_pool_without_room_for_a_page_is_empty(
    official: ModelConfig, allowed_bytes: int
) -> None:
    assert pool(official, allowed_bytes=allowed_bytes) == 0


@given(
    max_num_seqs=st.integers(1, 8),
    max_rows=st.integers(1, 4),
    allowed_bytes=st.integers(0, 1 << 42),
    page_size=st.integers(1, 30_000),
)
def test_automatic_pool_never_exceeds_either_bound(
    max_num_seqs: int, max_rows: int, allowed_bytes: int, page_size: int
) -> None:
    raw = json.loads(PUBLISHED_CONFIG.read_text())
    model = parse_model_config(raw)
    got = pool(
        model,
        max_num_seqs=max_num_seqs,
        max_rows=max_rows,
        allowed_bytes=allowed_bytes,
        page_size=page_size,
    )
    page = page_bytes(kv_token_bytes(model, BF16), page_size)
    wanted = max_num_seqs * max_rows * num_pages(22800, page_size) * page
    assert got % page == 0
    assert got <= wanted
    assert got <= allowed_bytes
    # It is as large as the bounds let it be.
    assert got == wanted or got + page > allowed_bytes


def test_weights_of_the_golden_checkpoint_against_its_files(
    checkpoint: Path, model: ModelConfig
) -> None:
    """The files store bfloat16 with a float32 router, VAE included."""
    files, specs = CheckpointFiles.open(checkpoint), expected_tensors(model)
    stored = sum(
        entry.num_bytes
        for name, entry in files.tensors.items()
        if name in specs and specs[name].needed_for_t2i
    )
    assert weight_bytes(model, BF16, vae_dtype_bytes=BF16) == stored
    reading = sum(
        entry.num_bytes
        for name, entry in files.tensors.items()
        if name in specs and specs[name].part in REFERENCE_PARTS
    )
    assert reading > 0
    with_it = weight_bytes(model, BF16, vae_dtype_bytes=BF16, references=True)
    assert with_it == stored + reading


def test_weights_of_the_official_model(official: ModelConfig) -> None:
    parts = weight_bytes_by_part(official, BF16)
    router = 32 * 64 * 4096
    layers = 79_868_207_104
    assert sum(parts[part] for part in LAYER_PARTS) == (layers - router) * BF16 + router * F32
    assert parts["vae_decoder"] == 871_332_483 * F32
    assert not {"vae_encoder", "text_head"} & set(parts)
    assert weight_bytes(official, BF16) == sum(parts.values())


def test_weights_that_read_references_of_the_official_model(official: ModelConfig) -> None:
    parts = weight_bytes_by_part(official, BF16, references=True)
    assert parts["vae_encoder"] == 389_342_464 * F32
    assert parts["vision"] == (427_888_064 + 21_504_000 - 15_238_352) * BF16  # no pooling head
    rest = {part: num for part, num in parts.items() if part not in REFERENCE_PARTS}
    assert rest == weight_bytes_by_part(official, BF16)


def denoise(model: ModelConfig, num_rows: int, prefix_len: int) -> int:
    """Estimate a 1024x1024 request in bfloat16: 64 x 64 image tokens."""
    return activation_bytes(
        model,
        height=1024,
        width=1024,
        prefix_len=prefix_len,
        num_rows=num_rows,
        dtype_bytes=BF16,
    ).denoise


def test_denoise_estimate_by_hand_where_attention_dominates(official: ModelConfig) -> None:
    """Two rows of 1 special, 99 prefix and 4096 image tokens."""
    small_experts = replace(official, moe_intermediate_size=(1024,) * 32)
    T, H = 2 * (1 + 99 + 4096), 4096
    attention = T * (6144 + 2 * 4096) * BF16 + T * (3 * 4096 + 134 * 32) * F32
    assert denoise(small_experts, 2, 99) == 4 * T * H * BF16 + attention


def test_denoise_estimate_by_hand_where_experts_dominate(official: ModelConfig) -> None:
    wide = replace(official, moe_intermediate_size=(20_000,) * 31 + (30_000,))
    T, H = 1 + 99 + 4096, 4096
    experts = T * (2 * 64 + 3 * H) * F32 + T * (3 * H + 4 * 30_000) * BF16
    assert denoise(wide, 1, 99) == 4 * T * H * BF16 + experts


def test_distilled_rows_have_two_tokens_more(official: ModelConfig) -> None:
    distilled = replace(official, cfg_distilled=True, use_meanflow=True)
    assert denoise(distilled, 1, 97) == denoise(official, 1, 99)


def test_decoder_estimate_takes_the_largest_level(model: ModelConfig) -> None:
    """Golden shape: equal widths, so the last upsampling is the largest: 4 frames of 256x320."""
    estimate = activation_bytes(
        model, height=256, width=320, prefix_len=20, num_rows=2, dtype_bytes=F32
    )
    assert estimate.decode == 7.25 * (32 * 4 * 256 * 320) * F32
    assert estimate.peak == estimate.decode > estimate.denoise


def test_decoder_estimate_of_the_official_model(official: ModelConfig) -> None:
    """128 channels, 4 frames of 1024x1024 are 1 GiB in bfloat16."""
    decode = activation_bytes(
        official,
        height=1024,
        width=1024,
        prefix_len=99,
        num_rows=2,
        dtype_bytes=BF16,
        vae_dtype_bytes=BF16,
    ).decode
    assert decode == 7.25 * GIB


def test_encoder_estimate_of_the_official_model(official: ModelConfig) -> None:
    """128 channels, 4 frames of 1024x1024; two blocks a level; no tiles."""
    working = activation_bytes(
        official,
        height=512,
        width=512,
        prefix_len=99,
        num_rows=2,
        dtype_bytes=BF16,
        vae_dtype_bytes=BF16,
        vae_tiling=True,
        reference_hw=(1024, 1024),
    )
    assert working.encode == working.peak == 7.25 * GIB


def test_streamed_layers_leave_two_on_the_card(official: ModelConfig) -> None:
    weights = weight_bytes_by_part(official, 2, vae_dtype_bytes=2)
    resident = resident_weights(official, weights, stream_layers=True, vae_waits=False)
    layers = sum(weights[part] for part in LAYER_PARTS)
    # 2,495,881,472 parameters a layer (facts of the published checkpoint), routers in float32.
    assert layers == 32 * (2 * 2_495_881_472 + 2 * 64 * 4096)
    assert sum(weights.values()) - sum(resident.values()) == layers - layers // 16
    assert waiting_bytes(weights, stream_layers=True, vae_waits=False) == layers


def test_a_decoder_that_waits_is_not_on_the_card(official: ModelConfig) -> None:
    weights = weight_bytes_by_part(official, 2, vae_dtype_bytes=2)
    resident = resident_weights(official, weights, stream_layers=False, vae_waits=True)
    assert weights.keys() - resident.keys() == {"vae_decoder"}
    waiting = waiting_bytes(weights, stream_layers=False, vae_waits=True)
    assert waiting == weights["vae_decoder"] > 0
    weights = weight_bytes_by_part(official, 2, vae_dtype_bytes=2, references=True)
    resident = resident_weights(official, weights, stream_layers=False, vae_waits=True)
    assert weights.keys() - resident.keys() == {"vae_decoder", *REFERENCE_PARTS}
    waiting = waiting_bytes(weights, stream_layers=False, vae_waits=True)
    assert waiting == sum(weights[part] for part in ("vae_decoder", *REFERENCE_PARTS))
