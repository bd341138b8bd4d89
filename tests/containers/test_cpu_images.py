"""The images of Dockerfile.cpu: their size, what is in them, what is not, and who runs them."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from container_engine import ROOT, Engine, commit

from bench.harness.load import load_names
from bench.registry import Registry

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]

MAX_BYTES = {"server": 1.2e9, "full": 1.6e9}
VERSION = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)

ANSWERS_503 = """
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self): self.send_response(200 if self.path == "/health" else 503); self.end_headers()
HTTPServer(("", 8091), Handler).serve_forever()
"""


def in_image(engine: Engine, image: str, *command: str, flags: tuple[str, ...] = ()) -> str:
    """Run a program in a fresh container as strict as compose's; returns what it printed."""
    strict = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--network", "none")
    return engine.docker(
        *("run", "--rm", *strict, *flags, "--entrypoint", command[0], image, *command[1:])
    )


@pytest.mark.parametrize("target", MAX_BYTES)
def test_size(
    target: str, engine: Engine, images: dict[str, str], report: dict[str, float]
) -> None:
    size = engine.inspect(images[target])["Size"]
    report[f"{target}_bytes"] = size
    assert size <= MAX_BYTES[target]


@pytest.mark.parametrize("target", MAX_BYTES)
def test_labels_name_version_and_commit(
    target: str, engine: Engine, images: dict[str, str]
) -> None:
    labels = engine.inspect(images[target])["Config"]["Labels"]
    assert VERSION is not None
    assert labels["org.opencontainers.image.version"] == VERSION[1]
    assert labels["org.opencontainers.image.revision"] == commit()


@pytest.mark.parametrize("target", MAX_BYTES)
def test_runs_as_nobody_in_particular(target: str, engine: Engine, images: dict[str, str]) -> None:
    assert in_image(engine, images[target], "id", "-u").strip() == "1000"
    writable = in_image(
        engine, images[target], "find", "/opt", "/app", "-writable", "-not", "-path", "/app/out"
    )
    # The root file system is read-only here; without that, too, nothing installed is theirs.
    assert writable.split() == []
    owners = in_image(engine, images[target], "find", "/opt", "/app", "-not", "-user", "0")
    assert owners.split() == ["/app/out"]


def test_another_user_without_a_name_draws(engine: Engine, images: dict[str, str]) -> None:
    draw = ("kit", "generate", "a red vase", "--steps", "1", "-o", "/tmp/vase.png")
    shown = in_image(engine, images["server"], *draw, flags=("--user", "4321:4321"))
    assert shown.startswith("wrote /tmp/vase.png: 256x256")


def test_no_build_tools_and_no_bytecode(engine: Engine, images: dict[str, str]) -> None:
    tools = "for tool in cc gcc g++ make cmake git ninja protoc; do command -v $tool || true; done"
    assert in_image(engine, images["full"], "sh", "-c", tools) == ""
    listed = in_image(engine, images["full"], "find", "/opt/venv", "/app", "-name", "*.pyc")
    assert listed == ""
    code = "from importlib.metadata import distributions as d; print(*(p.name for p in d()))"
    names = set(in_image(engine, images["full"], "/opt/venv/bin/python", "-c", code).split())
    assert {"torch", "hunyuan-paged-kit", "gradio", "jupyterlab"} <= names
    assert not names & {"pip", "setuptools", "hatchling", "mypy", "ruff"}


def test_the_server_image_lacks_the_page(engine: Engine, images: dict[str, str]) -> None:
    code = (
        "import importlib.util as u; print(u.find_spec('torch') is not None, u.find_spec('gradio'))"
    )
    assert in_image(engine, images["server"], "python", "-c", code).split() == ["True", "None"]


def test_holds_checkpoint_configs_notebooks_and_bench(
    engine: Engine, images: dict[str, str]
) -> None:
    listed = in_image(engine, images["server"], "find", "configs", "notebooks", "-type", "f")
    tracked = [
        path.relative_to(ROOT).as_posix()
        for folder in ("configs", "notebooks")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    assert set(listed.split()) == set(tracked)
    known = in_image(engine, images["server"], "python", "-m", "bench", "list")
    names = [line.split()[0] for line in known.splitlines()]
    assert names == [*Registry().names(), *load_names()]
    shown = in_image(engine, images["server"], "kit", "generate", "a vase", "--dry-run")
    assert "device cpu" in shown


def test_health_is_what_ready_says(engine: Engine, images: dict[str, str]) -> None:
    quick = ("--health-interval", "1s", "--health-retries", "2", "--health-start-period", "1s")
    name = "kit-test-health"
    engine.docker("rm", "--force", name)
    engine.docker(
        *("run", "--detach", "--name", name, *quick, "--entrypoint", "python"),
        *(images["server"], "-c", ANSWERS_503),
    )
    try:
        engine.wait_for(name, "unhealthy", 60)
    finally:
        engine.docker("rm", "--force", name)


def test_a_build_without_an_index_of_torch_says_what_to_set(engine: Engine, wheels: Path) -> None:
    start_s = time.monotonic()
    shown = engine.docker(
        *("build", "--network", "none", "--build-context", f"wheels={wheels}"),
        *("--build-arg", f"BASE_IMAGE={engine.base_image('Dockerfile.cpu')}"),
        *("--file", str(ROOT / "Dockerfile.cpu"), str(ROOT)),
        check=False,
    )
    assert "error: TORCH_INDEX is not set" in shown
    assert time.monotonic() - start_s < 60
