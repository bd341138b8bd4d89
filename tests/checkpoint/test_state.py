"""What a run leaves behind comes back as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kit.checkpoint.state import StateFolder, split_by_bytes
from kit.errors import ConfigError


def test_tensors_and_note_come_back(tmp_path: Path) -> None:
    state = StateFolder(tmp_path / "new" / "state")
    tensors = {"a": torch.randn(3, 4), "b": torch.randn(5).bfloat16()}
    assert not state.has("dit")
    state.save("dit", tensors, {"step": 7})
    assert state.has("dit")
    loaded, note = state.load("dit", made_by="dit")
    assert note == {"step": 7}
    assert set(loaded) == {"a", "b"}
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)


def test_a_later_save_replaces_all_files(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    big = {str(at): torch.zeros(3 << 20) for at in range(3)}  # 12 MiB each
    state.save("dit", big, {})
    assert len(list(tmp_path.glob("dit-*.safetensors"))) == 3
    state.save("dit", {"x": torch.ones(2)}, {})
    assert len(list(tmp_path.glob("dit-*.safetensors"))) == 1
    assert set(state.load("dit", made_by="dit")[0]) == {"x"}


def test_what_never_ran_is_an_error_that_names_the_stage(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no finished autoencoder.*run the stage vae first"):
        StateFolder(tmp_path).load("autoencoder", made_by="vae")


def test_groups_stay_below_the_limit_in_order() -> None:
    tensors = {str(at): torch.zeros(num) for at, num in enumerate((4, 4, 9, 1, 1))}
    groups = [list(group) for group in split_by_bytes(tensors, limit=32)]
    assert groups == [["0", "1"], ["2"], ["3", "4"]]
