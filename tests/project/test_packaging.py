"""pyproject.toml and constraints.txt agree, and torch comes from neither an extra nor the lock."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]

NOT_LOCKED = {"torch", "flash-attn", "torch-npu"}
"""Chosen by the machine: builds of torch, kernels for one accelerator."""


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    content: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return content


@pytest.fixture(scope="module")
def direct(project: dict[str, Any]) -> dict[str, Requirement]:
    """Every requirement that pyproject.toml states, by canonical name."""
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    requirements = [Requirement(line) for lines in lists for line in lines]
    return {canonicalize_name(requirement.name): requirement for requirement in requirements}


@pytest.fixture(scope="module")
def locked_lines() -> list[str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


@pytest.fixture(scope="module")
def locked(locked_lines: list[str]) -> dict[str, Version]:
    pairs = (line.split("==") for line in locked_lines)
    return {canonicalize_name(name): Version(version) for name, version in pairs}


def test_name_and_command(project: dict[str, Any]) -> None:
    assert project["name"] == "hunyuan-paged-kit"
    assert project["scripts"] == {"kit": "kit.cli:main"}
    assert project["license"] == "Apache-2.0"


def test_extras_are_these_and_none_brings_torch(project: dict[str, Any]) -> None:
    extras = project["optional-dependencies"]
    assert set(extras) == {"cuda", "ascend", "demo", "notebooks", "ray", "test"}
    names = {
        extra: {canonicalize_name(Requirement(line).name) for line in lines}
        for extra, lines in extras.items()
    }
    assert not [extra for extra, packages in names.items() if "torch" in packages]
    assert names["cuda"] == {"flash-attn"}
    assert names["ascend"] == {"torch-npu"}
    assert "gradio" in names["demo"]


def test_supported_pythons_are_those_the_makefile_admits(project: dict[str, Any]) -> None:
    admitted = re.search(
        r"\((\d+), (\d+)\) <= sys\.version_info\[:2\] <= \((\d+), (\d+)\)",
        (ROOT / "Makefile").read_text(),
    )
    assert admitted is not None
    low_major, low_minor, high_major, high_minor = map(int, admitted.groups())
    assert project["requires-python"] == (
        f">={low_major}.{low_minor},<{high_major}.{high_minor + 1}"
    )


def test_default_torch_is_in_the_supported_range(direct: dict[str, Requirement]) -> None:
    default = re.search(
        r"^TORCH .*,torch==([\d.]+)\)$", (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    assert default is not None
    assert direct["torch"].specifier.contains(default[1])


def test_lock_pins_exact_versions_in_order(locked_lines: list[str]) -> None:
    assert [line for line in locked_lines if not re.fullmatch(r"[\w.-]+==[\w.!+]+", line)] == []
    assert [line for line in locked_lines if "+" in line] == [], "a local version is one machine's"
    names = [line.split("==")[0].upper() for line in locked_lines]
    assert names == sorted(names)
    assert len(set(map(canonicalize_name, names))) == len(names)


def test_lock_leaves_torch_and_its_companions_to_the_user(locked: dict[str, Version]) -> None:
    assert not [name for name in locked if re.match(r"torch(-npu)?$|triton|nvidia-|cuda-", name)]


def test_lock_satisfies_every_direct_dependency(
    direct: dict[str, Requirement], locked: dict[str, Version]
) -> None:
    assert direct.keys() - locked.keys() == NOT_LOCKED
    outside = {
        name: f"{requirement} is locked at {locked[name]}"
        for name, requirement in direct.items()
        if name in locked and not requirement.specifier.contains(locked[name])
    }
    assert not outside
