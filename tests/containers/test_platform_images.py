"""Dockerfile.cuda and Dockerfile.ascend on a stand-in base, as far as that shows without a card.

It shows that every step builds from the locked wheels without a network, that what must be inside
is inside, that the image runs as compose runs it, and that a card that is not there is named. It
shows neither the real base images nor a kernel on a device.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from container_engine import ROOT, Engine, download_wheels

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]

CUDA, CUDA_BASE = "kit-test:cuda", "kit-test:cuda-base"
ASCEND = "kit-test:ascend"

MAX_ADDED_BYTES = {"cuda": 1.0e9, "ascend": 1.4e9}
"""FlashAttention 3 has 0.3 GB; torch, which CANN's base lacks, 0.6 GB."""

# The real base image brings torch in the Python of the system.
CUDA_BASE_FILE = """
ARG BASE_IMAGE
FROM hunyuan-paged-kit:test-cpu AS kit
FROM ${BASE_IMAGE}
RUN --mount=type=bind,from=kit,target=/kit \\
    cp -r /kit/opt/venv/lib/python3*/site-packages/torch* \\
      "$(python3 -c 'import site; print(site.getsitepackages()[0])')"
"""


@pytest.fixture(scope="module")
def cuda(
    engine: Engine, images: dict[str, str], wheels: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    del images  # torch comes from the CPU one
    download_wheels("fa3")
    folder = tmp_path_factory.mktemp("base")
    (folder / "Dockerfile").write_text(CUDA_BASE_FILE)
    base = engine.base_image("Dockerfile.cpu")
    engine.docker(
        *("build", "--quiet", "--build-arg", f"BASE_IMAGE={base}", "--tag", CUDA_BASE, str(folder))
    )
    engine.build("Dockerfile.cuda", CUDA, wheels, BASE_IMAGE=CUDA_BASE)
    yield CUDA
    engine.docker("rmi", CUDA, CUDA_BASE)


@pytest.fixture(scope="module")
def ascend(engine: Engine, wheels: Path) -> Iterator[str]:
    download_wheels("npu")
    engine.build(
        *("Dockerfile.ascend", ASCEND, wheels),
        BASE_IMAGE=engine.base_image("Dockerfile.cpu"),
        TORCH_LOCK="containers/torch-cpu.txt",
    )
    yield ASCEND
    engine.docker("rmi", ASCEND)


def in_image(engine: Engine, image: str, *command: str, flags: tuple[str, ...] = ()) -> str:
    strict = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--network", "none")
    return engine.docker(
        *("run", "--rm", *strict, *flags, "--entrypoint", "kit-env", image, *command), check=False
    )


def locations(engine: Engine, image: str, *modules: str) -> dict[str, str]:
    code = f"""
        import importlib.util as u
        for name in {modules}:
            spec = u.find_spec(name)
            print(name, spec.origin if spec else "none")
    """
    shown = in_image(engine, image, "python", "-c", textwrap.dedent(code))
    return dict(line.split() for line in shown.splitlines())


def test_cuda_image_on_a_stand_in_uses_the_base_images_torch_and_brings_fa3(
    engine: Engine, cuda: str
) -> None:
    found = locations(engine, cuda, "torch", "flash_attn_interface", "kit", "gradio")
    assert not found["torch"].startswith("/opt/venv/")
    for name in ("flash_attn_interface", "kit", "gradio"):
        assert found[name].startswith("/opt/venv/"), name


def test_cuda_image_on_a_stand_in_names_the_card_that_is_not_there(
    engine: Engine, cuda: str
) -> None:
    command = ("kit", "generate", "a vase", "--output", "/tmp/vase.png")
    shown = in_image(engine, cuda, *command, "--stage-overrides", '{"0": {"devices": "0"}}')
    assert "error: " in shown
    assert "NVIDIA cards that this process sees: none" in shown


def test_another_fa3_is_a_build_argument(engine: Engine, cuda: str, wheels: Path) -> None:
    del cuda  # its layers are reused up to this one
    with pytest.raises(AssertionError, match="no-such-build-of-fa3"):
        engine.build(
            *("Dockerfile.cuda", "kit-test:never", wheels),
            BASE_IMAGE=CUDA_BASE,
            FA3="no-such-build-of-fa3==1.0",
        )


def test_ascend_image_on_a_stand_in_holds_torch_npu(engine: Engine, ascend: str) -> None:
    found = locations(engine, ascend, "torch", "torch_npu", "kit", "gradio")
    assert {path.split("/")[2] for path in found.values()} == {"venv"}


def test_ascend_image_on_a_stand_in_runs_in_canns_environment(
    engine: Engine, ascend: str, tmp_path: Path
) -> None:
    script = tmp_path / "set_env.sh"
    script.write_text("export ASCEND_HOME_PATH=/from/the/script\n")
    place = "/usr/local/Ascend/ascend-toolkit/set_env.sh"
    shown = in_image(
        engine, ascend, "env", flags=("--volume", f"{script}:{place}:ro", "--env", "A=b")
    )
    assert {"ASCEND_HOME_PATH=/from/the/script", "A=b"} <= set(shown.split())


@pytest.mark.parametrize("platform", ["cuda", "ascend"])
def test_image_on_a_stand_in_adds_few_bytes_to_its_base(
    platform: str, engine: Engine, request: pytest.FixtureRequest, report: dict[str, float]
) -> None:
    image = request.getfixturevalue(platform)
    base = CUDA_BASE if platform == "cuda" else engine.base_image("Dockerfile.cpu")
    added = engine.inspect(image)["Size"] - engine.inspect(base)["Size"]
    report[f"{platform}_added_bytes"] = added
    assert added <= MAX_ADDED_BYTES[platform]


@pytest.mark.parametrize("platform", ["cuda", "ascend"])
def test_image_on_a_stand_in_serves_as_compose_runs_it(
    platform: str, engine: Engine, request: pytest.FixtureRequest
) -> None:
    image = request.getfixturevalue(platform)
    name = f"kit-test-{platform}"
    engine.docker("rm", "--force", name)
    # torch_npu is loaded with torch, and cannot be without CANN.
    engine.docker(
        *("run", "--detach", "--name", name, "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL"),
        *("--env", "TORCH_DEVICE_BACKEND_AUTOLOAD=0", image),
    )
    try:
        engine.wait_for(name, "healthy", 120)
        assert engine.docker("exec", name, "id", "-u").strip() == "1000"
    finally:
        engine.docker("rm", "--force", name)


def test_the_bases_that_users_get_are_pinned() -> None:
    for platform in ("cpu", "cuda", "ascend"):
        [line] = [
            line
            for line in (ROOT / f"Dockerfile.{platform}").read_text().splitlines()
            if line.startswith("ARG BASE_IMAGE=")
        ]
        _, tag = line.removeprefix("ARG BASE_IMAGE=").split(":", 1)
        assert tag.split("@")[0] != "latest"
