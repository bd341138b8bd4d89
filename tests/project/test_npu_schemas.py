"""Tier B's tool: schemas in a wheel's library against those that the tests emulate."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from npu_emulation import SCHEMAS

TOOL = Path(__file__).parents[2] / "tools" / "npu_schemas.py"


CHANGES = {
    "float scale=1.0": "float scale=2.0",
    "Tensor slot_mapping": "Tensor slot_indices",
    "int dim=-1) -> Tensor": "int dim=-1) -> Tensor[]",
}


@pytest.mark.parametrize("changes", [{}, CHANGES], ids=["the same", "three that differ"])
def test_a_schema_that_differs_is_named(tmp_path: Path, changes: dict[str, str]) -> None:
    library = "\0".join(("code", *SCHEMAS, "more code"))
    for old, new in changes.items():
        assert old in library
        library = library.replace(old, new)
    wheel = tmp_path / "torch_npu.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("torch_npu/lib/libtorch_npu.so", library)
    done = subprocess.run(
        [sys.executable, TOOL, wheel], capture_output=True, text=True, check=False
    )
    assert done.returncode == bool(changes)
    assert done.stdout.count("not in torch_npu.whl: npu_") == len(changes)
    assert f"{len(SCHEMAS) - len(changes)} of {len(SCHEMAS)} emulated schemas" in done.stdout
