"""What the driver says of NVIDIA cards, and what a machine without one answers."""

from __future__ import annotations

import pytest

from kit.errors import UnsupportedError
from kit.platforms.cpu import CpuPlatform
from kit.platforms.cuda import CudaPlatform, choose_visible, parse_gpus
from kit.platforms.detect import open_platform, platform_name

LISTING = """\
0, GPU-aaa1, NVIDIA H200, 9.0, 143771, 143000
1, GPU-bbb2, NVIDIA A100-SXM4-80GB, 8.0, 81920, 12
2, GPU-ccc3, NVIDIA H200, 9.0, [N/A], 143000
No devices were found
"""


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")


def test_the_listing_of_the_driver_is_read() -> None:
    first, second = parse_gpus(LISTING)
    assert (first.index, first.name, first.compute_capability) == (0, "NVIDIA H200", (9, 0))
    assert first.total_bytes == 143771 << 20
    assert (second.compute_capability, second.free_bytes) == ((8, 0), 12 << 20)


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, ["GPU-aaa1", "GPU-bbb2"]),
        ("1,0", ["GPU-bbb2", "GPU-aaa1"]),
        ("GPU-b", ["GPU-bbb2"]),
        ("0,7,1", ["GPU-aaa1"]),
        ("GPU", []),
        ("", []),
        ("-1", []),
    ],
)
def test_the_visible_cards_are_those_that_cuda_shows(visible: str | None, names: list[str]) -> None:
    assert [gpu.uuid for gpu in choose_visible(parse_gpus(LISTING), visible)] == names


@pytest.mark.usefixtures("no_driver")
def test_a_machine_without_a_driver_is_a_cpu() -> None:
    assert platform_name() == "cpu"
    assert isinstance(open_platform(()), CpuPlatform)


@pytest.mark.usefixtures("no_driver")
def test_a_card_that_is_not_there_is_refused_with_what_there_is() -> None:
    with pytest.raises(UnsupportedError, match=r"no accelerator 3.*sees: none.*set devices: cpu"):
        CudaPlatform(3)
