"""The hash of a deployment follows its values and nothing else."""

from __future__ import annotations

from pathlib import Path

from kit.config.deploy import leaf_fields
from kit.config.digest import setting_values, settings_hash
from kit.config.load import load_config


def digest(stage: dict[str, object], **flags: object) -> str:
    return settings_hash(setting_values(load_config(stage_overrides={"0": stage}, flags=flags)))


def test_every_setting_is_a_plain_value() -> None:
    assert list(setting_values(load_config())) == [name for name, _ in leaf_fields()]


def test_who_set_a_value_changes_nothing(tmp_path: Path) -> None:
    overlay = tmp_path / "overlay.yaml"
    overlay.write_text(
        '{"pipeline": "hunyuan_image3_dit", "stages": [{"stage_id": 0, "max_num_seqs": 3}]}'
    )
    by_file = settings_hash(setting_values(load_config(overlay)))
    assert by_file == digest({"max_num_seqs": 3}) == digest({}, max_num_seqs=3)


def test_every_value_counts() -> None:
    seen = {
        digest({}),
        digest({"max_num_seqs": 2}),
        digest({"default_sampling_params": {"guidance_scale": 1.0}}),
        digest({"diffusion_attention_backend": "TORCH_SDPA"}),
        digest({}, dtype="float32"),
    }
    assert len(seen) == 5


def test_true_and_1_are_not_the_same() -> None:
    assert settings_hash({"a": True}) != settings_hash({"a": 1})
    assert settings_hash({"a": None}) != settings_hash({})
    assert settings_hash({"a": 1, "b": 2}) == settings_hash({"b": 2, "a": 1})
