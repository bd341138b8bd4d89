"""A real `kit serve` process: its URL, its log, its end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self, TypeVar

from kit.errors import KitError

PAGED = ("--deploy-config", "hunyuan_image3_paged.yaml")

PATIENCE_S = 120
"""How long the server gets for what it must do; a busy machine may be slow."""

_Found = TypeVar("_Found")


class ServerProcessError(KitError):
    """The server has ended, or did not do in time what it must do."""


class ServerProcess:
    """Starts a server on a free port; leaving its context kills what is left of it."""

    def __init__(self, log: Path, *flags: str, env: Mapping[str, str] | None = None) -> None:
        self._log_path = log
        self._log = log.open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kit.cli", "serve", "--port", "0", *flags],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | dict(env or {}),
        )

    @property
    def log(self) -> str:
        """What the server has said so far."""
        return self._log_path.read_text()

    @property
    def url(self) -> str:
        """The server's URL; waits until it listens."""
        return self.wait_for(lambda: re.search(r"serving .* on (http://\S+)", self.log))[1]

    def wait_for(self, look: Callable[[], _Found | None]) -> _Found:
        """Return the first true result of `look`; raises ServerProcessError when none comes."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := look()):
            if self.process.poll() is not None:
                raise ServerProcessError(f"the server has ended:\n{self.log}")
            if time.monotonic() > deadline:
                raise ServerProcessError(f"nothing happened for {PATIENCE_S} s:\n{self.log}")
            time.sleep(0.02)
        return found

    def wait_until_ready(self) -> None:
        """Return when the weights are loaded."""
        self.wait_for(lambda: self.get("/ready")[0] == 200)

    def wait_until_idle(self) -> None:
        """Return when nothing waits or runs and every page is back."""
        self.wait_for(lambda: not any(self.load().values()))

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        """Return (status, body) of a GET."""
        return fetch(urllib.request.Request(self.url + path, headers=headers))

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, str]:
        """Return (status, body) of a POST of JSON."""
        headers = {"Content-Type": "application/json", **headers}
        return fetch(urllib.request.Request(self.url + path, json.dumps(body).encode(), headers))

    def metric(self, name: str) -> float:
        """Return one sample of /metrics by its name with its labels."""
        text = self.get("/metrics")[1]
        found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
        if found is None:
            raise ServerProcessError(f"/metrics shows no {name}")
        return float(found[1])

    def load(self) -> dict[str, float]:
        """What requests keep busy now: all 0 when the server is idle."""
        names = ("kit_queue_requests", "kit_running_requests", "kit_kv_pages_used")
        return {name: self.metric(name) for name in names} | {"holders": len(self.kv()["requests"])}

    def kv(self) -> Any:
        """The page pool as /v1/kv shows it."""
        return json.loads(self.get("/v1/kv")[1])

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE_S)
        self._log.close()


@contextmanager
def ready_server(*flags: str, env: Mapping[str, str] | None = None) -> Iterator[ServerProcess]:
    """Run a server whose weights are loaded; its log goes with it."""
    with TemporaryDirectory() as folder, ServerProcess(Path(folder, "log"), *flags, env=env) as one:
        one.wait_until_ready()
        yield one


def fetch(request: urllib.request.Request) -> tuple[int, str]:
    """Return (status, body) of a request, whatever the status."""
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def image_body(prompt: str = "a cat", **fields: Any) -> dict[str, Any]:
    """A body for /v1/images/generations: one step at 256x256 unless `fields` says otherwise."""
    return {"prompt": prompt, "size": "256x256", "num_inference_steps": 1, "seed": 1, **fields}
