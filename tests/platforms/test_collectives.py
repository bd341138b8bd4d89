"""What torch.distributed is asked for on each platform; the library itself is not started."""

from __future__ import annotations

from pathlib import Path

import npu_machine
import pytest
import torch.distributed as dist

from kit.platforms.cuda import CudaPlatform
from kit.platforms.detect import open_platform


def test_each_platform_names_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_platform(()).collective_backend == dist.Backend.GLOO
    assert CudaPlatform.collective_backend == dist.Backend.NCCL
    npu_machine.install(tmp_path, monkeypatch)
    # Not in dist.Backend: torch-npu registers it when it is imported on a machine with CANN.
    assert open_platform((0,)).collective_backend == "hccl"
