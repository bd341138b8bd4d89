from __future__ import annotations

from pathlib import Path

import pytest

from kit.config.load import load_config
from kit.config.runnable import check_runnable
from kit.errors import UnsupportedError


def test_the_tiny_deployments_run() -> None:
    check_runnable(load_config(model_overlay="tiny"))
    check_runnable(load_config("hunyuan_image3_paged", model_overlay="tiny"))
    check_runnable(
        load_config(
            model_overlay="tiny",
            stage_overrides={
                "0": {
                    "devices": "0",
                    "enable_expert_parallel": True,
                    "diffusion_attention_backend": "TORCH_SDPA",
                    "max_num_seqs": 2,
                    "vae_use_slicing": True,
                }
            },
        )
    )


@pytest.mark.parametrize(
    ("settings", "field", "value", "remedy"),
    [
        (
            {"tensor_parallel_size": 2, "devices": "0,1", "enable_layerwise_offload": True},
            "enable_layerwise_offload",
            True,
            "set it to false",
        ),
        # The overlay runs on the CPU.
        ({"enable_cpu_offload": True}, "enable_cpu_offload", True, "set it to false"),
        ({"enable_layerwise_offload": True}, "enable_layerwise_offload", True, "set it to false"),
        (
            {"enable_distributed_layerwise_offload": True},
            "enable_distributed_layerwise_offload",
            True,
            "set it to false",
        ),
    ],
)
def test_legal_settings_that_this_build_lacks(
    settings: dict[str, object], field: str, value: object, remedy: str
) -> None:
    config = load_config(model_overlay="tiny", stage_overrides={"0": settings})
    with pytest.raises(UnsupportedError) as caught:
        check_runnable(config)
    message = str(caught.value)
    assert message.startswith(f"stages[0].{field}: ")
    assert f"(got {value!r}, set by --stage-overrides)" in message
    assert remedy in message
    assert caught.value.exit_code == 2


def test_the_omni_file_is_legal(omni_file: Path) -> None:
    check_runnable(load_config(omni_file))


@pytest.mark.parametrize(
    "settings",
    [
        {"tensor_parallel_size": 2},
        {"ulysses_degree": 2},
        {"sequence_parallel_size": 2},
        {"cfg_parallel_size": 2},
        {"data_parallel_size": 2},
    ],
)
def test_several_ranks_run(settings: dict[str, object]) -> None:
    check_runnable(load_config(model_overlay="tiny", stage_overrides={"0": settings}))
