"""A container engine, and this project's compose file on it, as tests use them."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "tools" / "container_engine.sh"
BUILD = ROOT / "build" / "containers"
LOCKS = ROOT / "containers"

MISSING = (
    "no container engine answers `docker info`: start Docker with its buildx and compose plugins, "
    "or, as root on a Debian machine that may be changed, run tools/container_engine.sh up"
)


@dataclass(frozen=True)
class Engine:
    """An engine that answers; `environment` is what its client needs."""

    environment: Mapping[str, str]
    is_ours: bool
    """Whether tools/container_engine.sh runs it, on a base image of its own."""

    def docker(self, *arguments: str, check: bool = True) -> str:
        """Run the client; returns its output, with its errors where it may fail."""
        return run("docker", *arguments, environment=self.environment, check=check)

    def inspect(self, name: str) -> Any:
        """What the engine says of a container or an image."""
        return json.loads(self.docker("inspect", name))[0]

    def base_image(self, dockerfile: str) -> str:
        """The base that a test builds a Dockerfile on: what BASE_IMAGE says, or its default."""
        given = (os.environ | self.environment).get("BASE_IMAGE")
        if given:
            return given
        [line] = re.findall(r"^ARG BASE_IMAGE=(.*)$", (ROOT / dockerfile).read_text(), re.MULTILINE)
        return str(line)

    def build(self, dockerfile: str, tag: str, wheels: Path, **arguments: str) -> None:
        """Build an image from wheels only, without a network."""
        flags = [f"--build-arg={name}={value}" for name, value in arguments.items()]
        self.docker(
            *("build", "--quiet", "--network", "none", "--build-context", f"wheels={wheels}"),
            *("--build-arg", "PIP_NO_INDEX=1", *flags),
            *("--file", str(ROOT / dockerfile), "--tag", tag, str(ROOT)),
        )

    def wait_for(self, container: str, health: str, limit_s: float) -> None:
        """Wait until a container's health is this."""
        end = time.monotonic() + limit_s
        while (seen := self.inspect(container)["State"]["Health"])["Status"] != health:
            assert time.monotonic() < end, f"{container} is not {health}: {seen}"
            time.sleep(0.5)


@contextmanager
def open_engine() -> Iterator[Engine]:
    """Find an engine; in CI start one if need be, elsewhere skip the test with what to do."""
    own = script_environment()
    if answers(own):
        run(str(SCRIPT), "up")  # its base image may be of another recipe
        yield Engine(own, is_ours=True)
    elif answers({}):
        yield Engine({}, is_ours=False)
    elif os.environ.get("CI"):
        run(str(SCRIPT), "up")
        yield Engine(own, is_ours=True)
        run(str(SCRIPT), "down")
    else:
        pytest.skip(MISSING)


def script_environment() -> dict[str, str]:
    """What tools/container_engine.sh tells a shell to export."""
    words = run(str(SCRIPT), "env").split()[1:]
    return dict(word.split("=", 1) for word in words)


def answers(environment: Mapping[str, str]) -> bool:
    if shutil.which("docker") is None:
        return False
    done = subprocess.run(
        ["docker", "info"], env=os.environ | environment, capture_output=True, check=False
    )
    return done.returncode == 0


def run(*command: str, environment: Mapping[str, str] | None = None, check: bool = True) -> str:
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | (environment or {}),
        capture_output=True,
        text=True,
        check=False,
    )
    if not check:
        return done.stdout + done.stderr
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}{done.stderr[-8000:]}"
    return done.stdout


def download_wheels(*locks: str) -> Path:
    """Fetch what lock files name, for Python 3.11 on this kind of machine; returns the folder."""
    folder = BUILD / "wheels"
    machine = platform.machine()
    tags = [f"manylinux_2_{minor}_{machine}" for minor in range(5, 37)]
    tags += [f"manylinux{name}_{machine}" for name in ("1", "2010", "2014")]
    index = os.environ.get("TORCH_INDEX")
    for lock in locks:
        # The earliest Python 3.11 that a base image may have; some locks depend on it.
        run(
            *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"),
            *("--only-binary=:all:", "--python-version=3.11.2", "--dest", str(folder)),
            *(f"--platform={tag}" for tag in tags),
            *(("--index-url", index) if index and lock.startswith("torch-") else ()),
            *("--requirement", str(LOCKS / f"{lock}.txt")),
        )
    return folder


@dataclass
class Compose:
    """The compose file under a project of its own, with ports that are free."""

    engine: Engine
    wheels: Path
    out: Path
    project: str = "kit-test"
    ports: dict[str, int] = field(
        default_factory=lambda: free_ports("PORT", "DENSE_PORT", "UI_PORT")
    )

    def __call__(self, *arguments: str, check: bool = True, **environment: str) -> str:
        """Run `docker compose` as a user with an .env of these values would."""
        user = f"{os.getuid()}:{os.getgid()}"
        if os.geteuid() == 0:  # then the folder is given to the user whom an image runs as
            user = "1000:1000"
            os.chown(environment.get("OUT", self.out), 1000, 1000)
        given = {
            "COMMIT": commit(),
            "KIT_TAG": "test",
            "OUT": str(self.out),
            "OUT_USER": user,
            "PIP_NO_INDEX": "1",
            "WHEELS": str(self.wheels),
        }
        given |= {name: str(port) for name, port in self.ports.items()}
        return run(
            *("docker", "compose", "--project-name", self.project, "--env-file", os.devnull),
            *arguments,
            environment=dict(self.engine.environment) | given | environment,
            check=check,
        )

    def url(self, port: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.ports[port]}"

    def container(self, service: str) -> str:
        return f"{self.project}-{service}-1"


def free_ports(*names: str) -> dict[str, int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in names]
    ports = {name: taken.getsockname()[1] for name, taken in zip(names, sockets, strict=True)}
    for taken in sockets:
        taken.close()
    return ports


def commit() -> str:
    """The commit of this checkout, as a build's label shows it."""
    return run("git", "rev-parse", "HEAD").strip()
