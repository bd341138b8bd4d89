"""What a record asks for again, and what two records have in common."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from replay_records import noise, sample_record

from kit.config.deploy import leaf_fields
from kit.config.digest import setting_values
from kit.config.load import load_config
from kit.engine.references import pixel_hash
from kit.engine.replay import record_from_json, record_to_dict, record_to_json
from kit.engine.rerun import compare_pixels, differences, to_request, to_stage_settings
from kit.errors import RecordError
from kit.request import (
    GenerationRequest,
    RecordedImage,
    ReferenceImage,
    ReplayRecord,
    SamplingParams,
)

IMAGE = noise()
PAGED: dict[str, Any] = {
    "diffusion_kv_mode": "paged_scheduler",
    "diffusion_kv_max_rows_per_request": 2,
    "kv_cache_memory_bytes": 1 << 20,
    "max_num_seqs": 3,
    "default_sampling_params": {"seed": 7},
}


def test_the_request_leaves_nothing_to_a_default() -> None:
    record = sample_record(IMAGE)
    request = to_request(record)
    assert request.prompt == record.request.prompt
    assert request.cot_text == record.request.cot_text
    assert request.template == "instruct"
    for field in fields(SamplingParams):
        assert getattr(request.sampling, field.name) is not None
    assert request.trace_path is None
    assert request.reference_seed is None, "there are no references"
    left = {"prompt", "sampling", "system_prompt", "cot_text", "template"}
    for field in fields(GenerationRequest):
        if field.name not in left:
            assert getattr(request, field.name) == field.default, "it changes no pixel"


def with_images(*images: RecordedImage, seed: int = 5) -> ReplayRecord:
    record = sample_record(IMAGE)
    sampling = replace(record.request.sampling, reference_seed=seed)
    return replace(record, request=replace(record.request, images=images, sampling=sampling))


def reference(seed: int) -> ReferenceImage:
    pixels = noise(seed=seed)
    height, width, _ = pixels.shape
    source = RecordedImage(height, width, pixel_hash(pixels))
    return ReferenceImage(source, pixels, pixels)


def test_a_replay_takes_the_recorded_images_in_their_order() -> None:
    one, other = reference(1), reference(2)
    record = with_images(one.source, other.source)
    assert to_request(record, (one, other)).images == (one, other)
    assert to_request(record, (one, other)).reference_seed == 5
    for wrong, words in (
        ((other, one), "reference image 1 is 80x48 with the sha256"),
        ((one, one), "reference image 2 is 80x48 with the sha256"),
        ((one,), "was made from 2 reference images, got 1; give each in this order: 1. 80x48"),
        ((), "was made from 2 reference images, got 0"),
        ((one, other, one), "was made from 2 reference images, got 3"),
    ):
        with pytest.raises(RecordError) as caught:
            to_request(record, wrong)
        assert words in str(caught.value)
    assert one.source.sha256 in str(caught.value)
    with pytest.raises(RecordError, match="was made without reference images, got 1"):
        to_request(sample_record(IMAGE), (one,))


def test_a_record_with_images_survives_its_json_and_one_of_the_first_format_has_none() -> None:
    record = with_images(reference(1).source)
    assert record_from_json(record_to_json(record)) == record
    assert json.loads(record_to_json(record)) == record_to_dict(record)
    old = json.loads(record_to_json(sample_record(IMAGE)))
    del old["record"]["request"]["images"]
    assert record_from_json(json.dumps(old | {"format": "kit.replay/1"})) == sample_record(IMAGE)


def test_a_record_of_the_second_format_drew_its_images_with_the_pictures_seed() -> None:
    record = with_images(reference(1).source)
    old = json.loads(record_to_json(record))
    del old["record"]["request"]["sampling"]["reference_seed"]
    read = record_from_json(json.dumps(old | {"format": "kit.replay/2"}))
    own = record.request.sampling.seed
    assert read == with_images(reference(1).source, seed=own)
    assert to_request(read, (reference(1),)).reference_seed == own


def test_another_image_is_a_difference_by_name() -> None:
    found = differences(with_images(reference(1).source), with_images(reference(2).source))
    assert [(row.name, row.is_material) for row in found] == [("request.images[0].sha256", True)]


def test_another_reference_seed_is_a_difference_by_name() -> None:
    source = reference(1).source
    [found] = differences(with_images(source), with_images(source, seed=6))
    assert (found.name, found.recorded, found.now) == ("request.sampling.reference_seed", 5, 6)
    assert found.is_material


def test_the_recorded_deployment_is_taken_but_for_what_the_machine_had() -> None:
    record = sample_record(IMAGE, **PAGED)
    deployment = replace(record.deployment, kv_mode="paged_scheduler", page_size=32)
    config = load_config(
        stage_overrides={"0": to_stage_settings(replace(record, deployment=deployment))}
    )
    stage = config.stage
    assert stage.diffusion_kv_mode == "paged_scheduler"
    assert stage.diffusion_kv_page_size == 32, "what the automatic choice was there"
    assert stage.diffusion_kv_max_rows_per_request == 2
    ours = load_config().stage
    assert stage.kv_cache_memory_bytes == ours.kv_cache_memory_bytes
    assert stage.max_num_seqs == ours.max_num_seqs
    assert stage.default_sampling_params == ours.default_sampling_params


def test_a_recorded_list_is_a_list_again() -> None:
    caching: dict[str, Any] = {
        "enable_prefix_caching": True,
        "prefix_caching_levels": ["rows", "images"],
    }
    record = sample_record(IMAGE, **PAGED, **caching)
    assert record.deployment.settings["stage.prefix_caching_levels"] == "rows,images"
    deployment = replace(record.deployment, kv_mode="paged_scheduler", page_size=32)
    config = load_config(
        stage_overrides={"0": to_stage_settings(replace(record, deployment=deployment))}
    )
    assert config.stage.prefix_caching_levels == ("rows", "images")


def test_every_setting_is_taken_or_is_the_machines() -> None:
    """A new setting counts as one that may change a picture until somebody says otherwise."""
    settings = to_stage_settings(sample_record(IMAGE))
    parallel = settings.pop("parallel_config")
    assert isinstance(parallel, dict)
    taken = {f"stage.{name}" for name in settings}
    taken |= {f"stage.parallel_config.{name}" for name in parallel}
    left = {name for name, _ in leaf_fields()} - taken
    assert {name for name in left if "default_sampling" not in name} == {
        "pipeline",
        "dtype",  # a flag of its own
        "stage.stage_id",
        "stage.devices",
        "stage.max_num_seqs",
        "stage.max_queued_requests",
        "stage.gpu_memory_utilization",
        "stage.kv_cache_memory_bytes",
        "stage.distributed_executor_backend",
        "stage.execute_model_timeout_s",
        "stage.allow_unvalidated_topology",
        "stage.parallel_config.data_parallel_size",
    }


def test_equal_records_differ_in_nothing() -> None:
    assert differences(sample_record(IMAGE), sample_record(IMAGE)) == []
    assert differences(sample_record(IMAGE), sample_record(noise(seed=1))) == [], "pixels apart"


def test_differing_facts_are_named_with_both_values() -> None:
    record = sample_record(IMAGE)
    other = replace(
        record,
        model=replace(record.model, fingerprint="0" * 64),
        deployment=replace(record.deployment, kernel="x", page_size=16),
        platform=replace(record.platform, num_threads=8, versions={"triton": "3"}),
    )
    found = {row.name: (row.recorded, row.now) for row in differences(record, other)}
    assert found == {
        "model.fingerprint": ("f" * 64, "0" * 64),
        "deployment.kernel": ("torch_sdpa", "x"),
        "deployment.page_size": (None, 16),
        "platform.num_threads": (2, 8),
        "platform.versions.torch": ("2.13", None),
        "platform.versions.triton": (None, "3"),
    }
    assert all(row.is_material for row in differences(record, other))


def test_settings_about_the_machine_are_told_apart() -> None:
    other = sample_record(
        IMAGE, **PAGED, diffusion_attention_backend="FLASH_ATTN", vae_use_slicing=True
    )
    material: set[str] = set()
    others: set[str] = set()
    for row in differences(sample_record(IMAGE), other):
        name = row.name.removeprefix("deployment.settings.stage.")
        (material if row.is_material else others).add(name)
    assert material == {"vae_use_slicing"}, "mode and page size stand as they ran"
    assert others == {
        "diffusion_kv_max_rows_per_request",
        "kv_cache_memory_bytes",
        "max_num_seqs",
        "default_sampling_params.seed",
    }


def test_a_fact_that_is_none_differs_from_one_that_is_absent() -> None:
    record = sample_record(IMAGE)
    settings = setting_values(load_config())
    del settings["stage.default_sampling_params.seed"]
    other = replace(record, deployment=replace(record.deployment, settings=settings))
    assert [row.name for row in differences(record, other)] == [
        "deployment.settings.stage.default_sampling_params.seed"
    ]


def test_equal_pixels() -> None:
    same = compare_pixels(IMAGE, IMAGE.copy())
    assert (same.num_pixels, same.num_different, same.max_difference) == (48 * 80, 0, 0)
    assert same.psnr_db == math.inf


def test_pixels_against_numbers_worked_out_by_hand() -> None:
    black = np.zeros((2, 2, 3), np.uint8)
    other = black.copy()
    other[0, 0] = (255, 0, 0)
    other[1, 1] = (1, 2, 3)
    found = compare_pixels(black, other)
    assert (found.num_pixels, found.num_different, found.max_difference) == (4, 2, 255)
    mean_squared = (255**2 + 1 + 4 + 9) / 12
    assert found.psnr_db == pytest.approx(10 * math.log10(255**2 / mean_squared))
    assert compare_pixels(other, black) == found
