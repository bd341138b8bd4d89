from __future__ import annotations

import pytest

from kit.config.paths import configs_folder, packaged_file, packaged_names


def test_configs_folder_holds_both_kinds() -> None:
    assert (configs_folder() / "deploy").is_dir()
    assert (configs_folder() / "model").is_dir()


@pytest.mark.parametrize("name", ["hunyuan_image3_dit", "hunyuan_image3_dit.yaml"])
def test_packaged_file_by_bare_name(name: str) -> None:
    path = packaged_file("deploy", name)
    assert path == configs_folder() / "deploy" / "hunyuan_image3_dit.yaml"


@pytest.mark.parametrize(
    "name", ["nothing", "", "..", "../model/tiny", "deploy/hunyuan_image3_dit"]
)
def test_other_names_find_nothing(name: str) -> None:
    assert packaged_file("deploy", name) is None


def test_packaged_names_find_themselves() -> None:
    names = packaged_names("deploy")
    assert {"hunyuan_image3_dit", "hunyuan_image3_paged"} < set(names)
    assert names == sorted(names)
    assert packaged_names("model") == ["tiny"]
    for kind in ("deploy", "model"):
        assert all(packaged_file(kind, name) for name in packaged_names(kind))
