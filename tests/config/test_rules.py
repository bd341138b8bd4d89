from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kit.config.load import load_config
from kit.errors import ConfigError

PAGED = {"diffusion_kv_mode": "paged_scheduler", "diffusion_kv_max_rows_per_request": 2}
CPU = {"devices": "cpu", "parallel_config": {"tensor_parallel_size": 1}}
DENSE_WAY_OUT = (
    "select diffusion_kv_mode: dense_legacy (paged_scheduler is set by --stage-overrides)"
)


@pytest.mark.parametrize(
    ("settings", "field", "value", "reason", "remedy"),
    [
        (
            {"step_execution": True},
            "step_execution",
            True,
            "paged_scheduler runs whole requests only",
            f"set it to false for request mode, or {DENSE_WAY_OUT}",
        ),
        *(
            (
                {"diffusion_attention_backend": name},
                "diffusion_attention_backend",
                name,
                "FLASH_ATTN only",
                f"select FLASH_ATTN, or {DENSE_WAY_OUT}",
            )
            for name in ("TORCH_SDPA", "CUDNN_ATTN")
        ),
        (
            {"ring_degree": 2},
            "parallel_config.ring_degree",
            2,
            "paged_scheduler has no Ring sequence parallelism",
            "set ring_degree to 1 and use strict Ulysses",
        ),
        (
            {"parallel_config": {"allgather_degree": 2}},
            "parallel_config.allgather_degree",
            2,
            "paged_scheduler has no AllGather-KV sequence parallelism",
            "set allgather_degree to 1 and use strict Ulysses",
        ),
        *(
            (
                {name: True},
                name,
                True,
                "paged_scheduler is untested with offload",
                f"set it to false, or {DENSE_WAY_OUT}",
            )
            for name in (
                "enable_cpu_offload",
                "enable_layerwise_offload",
                "enable_distributed_layerwise_offload",
            )
        ),
        (
            {"cfg_parallel_size": 2, "diffusion_kv_max_rows_per_request": 1},
            "diffusion_kv_max_rows_per_request",
            1,
            "cfg_parallel_size 2 runs two CFG rows per request",
            "set it to at least 2, or cfg_parallel_size to 1 (set by --stage-overrides)",
        ),
    ],
)
def test_what_paged_excludes(
    settings: dict[str, object], field: str, value: object, reason: str, remedy: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(stage_overrides={"0": PAGED | settings}, model_overlay="tiny")
    error = caught.value
    assert (error.field, error.value) == (f"stages[0].{field}", value)
    assert reason in error.reason
    assert f"(got {value!r}, set by --stage-overrides)" in str(error)
    assert remedy in error.remedy


@pytest.mark.parametrize("rows", [{}, {"diffusion_kv_max_rows_per_request": None}])
def test_paged_requires_rows(write: Callable[..., Path], rows: dict[str, None]) -> None:
    path = write(f"stages: [{{stage_id: 0, diffusion_kv_mode: paged_scheduler}}]  # {rows}")
    with pytest.raises(ConfigError) as caught:
        load_config(path, stage_overrides={"0": rows})
    message = str(caught.value)
    assert "paged_scheduler requires diffusion_kv_max_rows_per_request" in message
    assert "(got None, set by default)" in message
    assert "set it to 2 for guidance" in message
    assert f"paged_scheduler is set by {path}" in message


@pytest.mark.parametrize(
    ("settings", "field", "value", "reason", "remedy"),
    [
        (
            {"ring_degree": 2},
            "parallel_config.ring_degree",
            2,
            "this kit does not do Ring",
            "set ring_degree to 1",
        ),
        (
            {"allgather_degree": 2},
            "parallel_config.allgather_degree",
            2,
            "this kit does not do AllGather-KV",
            "set allgather_degree to 1",
        ),
        (
            {"pipeline_parallel_size": 2},
            "parallel_config.pipeline_parallel_size",
            2,
            "known vLLM-Omni field; this kit does not split the layers",
            "set pipeline_parallel_size to 1",
        ),
        (
            {"vae_patch_parallel_size": 4, "ulysses_degree": 3, "tensor_parallel_size": 2},
            "parallel_config.vae_patch_parallel_size",
            4,
            "must divide 6, the ranks that share a request (tensor x sequence x cfg)",
            "use one of 1, 2, 3, 6",
        ),
        (
            {"vae_patch_parallel_size": 2, "data_parallel_size": 2},
            "parallel_config.vae_patch_parallel_size",
            2,
            "must divide 1, the ranks",
            "use one of 1",
        ),
        (
            {"vae_patch_parallel_size": 2, "ulysses_degree": 2, "vae_use_tiling": True},
            "parallel_config.vae_patch_parallel_size",
            2,
            "vae_use_tiling (set by --stage-overrides) decodes tiles one by one",
            "set vae_use_tiling to false, or vae_patch_parallel_size to 1",
        ),
        (
            {"step_execution": True, "max_num_seqs": 2, "enforce_eager": False, "devices": "0"},
            "step_execution",
            True,
            "graphs keep those of all requests in one place (enforce_eager is set by",
            "set enforce_eager to true, max_num_seqs to 1, or this to false",
        ),
        (
            {"sequence_parallel_size": 4, "ulysses_degree": 2},
            "parallel_config.sequence_parallel_size",
            4,
            "which is 2 (ulysses_degree is set by --stage-overrides)",
            "set it to 2, or ulysses_degree to 4",
        ),
        (
            {"diffusion_attention_backend": "CUDNN_ATTN"},
            "diffusion_attention_backend",
            "CUDNN_ATTN",
            "needs CUDA, and devices is cpu (set by model overlay tiny.yaml)",
            "select FLASH_ATTN or TORCH_SDPA",
        ),
        (
            {"devices": "0,0", "tensor_parallel_size": 2},
            "devices",
            "0,0",
            "names an accelerator twice",
            "its own id",
        ),
        (
            {"devices": "0,1"},
            "devices",
            "0,1",
            "number of ids is 2, number of ranks is 1: tensor 1 (set by model overlay tiny.yaml)",
            "name 1 in devices, or change parallel_config to match",
        ),
        (
            {"devices": "0", "cfg_parallel_size": 2, "sequence_parallel_size": 2},
            "devices",
            "0",
            "tensor 1 (set by model overlay tiny.yaml) x sequence 2 x cfg 2 x data 1",
            "name 4 in devices",
        ),
        (
            {"default_sampling_params": {"height": 512}},
            "default_sampling_params.height",
            512,
            "needs height and width",
            "set width too, or remove height",
        ),
        (
            {"default_sampling_params": {"width": 512}},
            "default_sampling_params.width",
            512,
            "needs width and height",
            "set height too, or remove width",
        ),
        (
            {"enable_prefix_caching": True},
            "enable_prefix_caching",
            True,
            "dense_legacy has no pages that could be shared",
            "set it to false, or select diffusion_kv_mode: paged_scheduler",
        ),
        (
            {"prefix_caching_levels": ["rows"]},
            "prefix_caching_levels",
            ("rows",),
            "no effect without enable_prefix_caching, which is false (set by default)",
            "set enable_prefix_caching to true, or remove it",
        ),
    ],
)
def test_what_dense_refuses(
    settings: dict[str, object], field: str, value: object, reason: str, remedy: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(stage_overrides={"0": settings}, model_overlay="tiny")
    error = caught.value
    assert (error.field, error.value) == (f"stages[0].{field}", value)
    assert reason in error.reason
    assert f"(got {value!r}, set by --stage-overrides)" in str(error)
    assert remedy in error.remedy


@pytest.mark.parametrize(
    ("levels", "reason", "remedy"),
    [
        ([], "names nobody who shares", "to share nothing set enable_prefix_caching to false"),
        (["rows", "rows"], "names a level twice", "each once"),
        (["rows", "row"], "not known", "use 'rows', 'images' or 'requests'"),
        ([True], "not known", "use 'rows', 'images' or 'requests'"),
        ("rows", "must be a list", "write a list such as [rows, images]"),
    ],
)
def test_levels_that_cannot_be(levels: object, reason: str, remedy: str) -> None:
    stage = {**PAGED, "enable_prefix_caching": True, "prefix_caching_levels": levels}
    with pytest.raises(ConfigError) as caught:
        load_config(stage_overrides={"0": stage}, model_overlay="tiny")
    assert caught.value.field == "stages[0].prefix_caching_levels"
    assert reason in caught.value.reason
    assert remedy in caught.value.remedy


def test_all_levels_share_unless_some_are_named() -> None:
    def shared(**stage: object) -> set[str]:
        return {*load_config(stage_overrides={"0": {**PAGED, **stage}}).stage.shared_levels}

    assert shared() == set()
    assert shared(enable_prefix_caching=True) == {"rows", "images", "requests"}
    assert shared(enable_prefix_caching=True, prefix_caching_levels=["images"]) == {"images"}


def test_a_refusal_names_the_layer_that_set_the_value(write: Callable[..., Path]) -> None:
    path = write("stages: [{stage_id: 0, step_execution: true}]", "steps.yaml")
    with pytest.raises(ConfigError) as caught:
        load_config(path, stage_overrides={"0": PAGED})
    assert f"(got True, set by {path})" in str(caught.value)
    assert "paged_scheduler is set by --stage-overrides" in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        PAGED | {"tensor_parallel_size": 2, "devices": "0,1"},
        PAGED | {"sequence_parallel_size": 2, "devices": "0,1", "tensor_parallel_size": 1},
        PAGED | {"cfg_parallel_size": 2, "tensor_parallel_size": 2},
        PAGED | CPU | {"diffusion_kv_max_rows_per_request": 1},
        PAGED | CPU | {"enable_prefix_caching": True, "prefix_caching_levels": ["rows"]},
        CPU | {"step_execution": True},
        CPU | {"enable_layerwise_offload": True},
        CPU | {"diffusion_attention_backend": "TORCH_SDPA"},
        {"devices": "cpu"},
        {"devices": "0", "tensor_parallel_size": 1, "diffusion_attention_backend": "CUDNN_ATTN"},
    ],
)
def test_what_is_legal_resolves(settings: dict[str, object]) -> None:
    assert load_config(stage_overrides={"0": settings}).warnings == ()


def test_several_requests_that_do_not_take_turns_are_warned_about() -> None:
    (warning,) = load_config(stage_overrides={"0": PAGED | {"max_num_seqs": 2}}).warnings
    assert warning == (
        "stages[0].max_num_seqs (got 2, set by --stage-overrides): requests still run one at a "
        "time; the next one's pages are reserved while one runs"
    )
    (warning,) = load_config(stage_overrides={"0": {"max_num_seqs": 2}}).warnings
    assert "run one at a time in dense_legacy without step_execution" in warning
    turns = {"max_num_seqs": 2, "step_execution": True}
    assert load_config(stage_overrides={"0": turns}).warnings == ()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (PAGED | {"cfg_parallel_size": 2, "tensor_parallel_size": 2}, "a rank of its own"),
        (PAGED | CPU | {"diffusion_kv_max_rows_per_request": 1}, "raise it to 2"),
    ],
)
def test_rows_that_can_share_nothing_are_warned_about(
    settings: dict[str, object], reason: str
) -> None:
    settings = settings | {"enable_prefix_caching": True}

    def warnings(levels: list[str] | None) -> tuple[str, ...]:
        overrides = {"0": settings | {"prefix_caching_levels": levels}}
        return load_config(stage_overrides=overrides).warnings

    (warning,) = warnings(["rows"])
    assert warning.startswith("stages[0].prefix_caching_levels (got ('rows',), set by")
    assert "shares nothing" in warning
    assert reason in warning
    assert warnings(None) == warnings(["rows", "images"]) == warnings(["requests"]) == ()


@pytest.mark.parametrize(
    "name",
    ["diffusion_kv_max_rows_per_request", "kv_cache_memory_bytes", "diffusion_kv_page_size"],
)
def test_dense_warns_about_page_settings(name: str) -> None:
    (warning,) = load_config(stage_overrides={"0": {name: 2}}).warnings
    assert warning.startswith(f"stages[0].{name} (got 2, set by --stage-overrides): has no effect")
    assert "dense_legacy" in warning
    assert load_config(stage_overrides={"0": PAGED | {name: 2}}).warnings == ()


def test_dense_names_the_packaged_file_whose_settings_it_ignores() -> None:
    config = load_config(
        "hunyuan_image3_paged", stage_overrides={"0": {"diffusion_kv_mode": "dense_legacy"}}
    )
    assert len(config.warnings) == 2
    assert all("packaged hunyuan_image3_paged.yaml" in warning for warning in config.warnings)


def test_graph_capture_is_warned_about() -> None:
    eager = {"enforce_eager": False}
    assert load_config(stage_overrides={"0": eager}).warnings == ()
    on_cpu = load_config(stage_overrides={"0": eager}, model_overlay="tiny")
    (warning,) = on_cpu.warnings
    assert "stages[0].enforce_eager (got False, set by --stage-overrides)" in warning
    assert "a CPU has no graphs" in warning
