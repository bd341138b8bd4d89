"""The deploy files that docs/configuration.md shows load as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kit.config.load import load_config

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.splitlines()[0])
def test_a_shown_file_loads_with_pages(block: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(block)
    stage = load_config(str(tmp_path / "mine.yaml")).stage
    assert stage.diffusion_kv_mode == "paged_scheduler"


def test_the_overlay_sets_what_it_names_on_the_platform_it_names(tmp_path: Path) -> None:
    [overlay] = [block for block in BLOCKS if "base_config" in block]
    (tmp_path / "mine.yaml").write_text(overlay)
    on = {
        platform: load_config(str(tmp_path / "mine.yaml"), platform=platform).stage
        for platform in ("cpu", "cuda")
    }
    assert {stage.max_num_seqs for stage in on.values()} == {2}
    assert {stage.diffusion_kv_page_size for stage in on.values()} == {16}
    assert on["cuda"].devices == "4,5,6,7"
    assert on["cpu"].devices != on["cuda"].devices
