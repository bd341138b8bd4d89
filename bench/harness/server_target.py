"""Any server with OpenAI's images endpoint as a target."""

from __future__ import annotations

import base64
import statistics
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import httpx2
import numpy as np
import numpy.typing as npt
from pydantic import JsonValue

from bench.harness.jobs import Job
from bench.harness.target import Answer, Evidence, Outcome, TargetInfo, pixels_sha256
from bench.pixels import decode
from bench.records import ConfigValue
from kit.errors import ConfigError, KitError

_PATH = "/v1/images/generations"
_PROBE_S = 10.0
_MAX_CONNECTIONS = 1024

_OUTCOMES: Mapping[int, Outcome] = {
    408: "timed_out",
    429: "overloaded",
    503: "overloaded",
    504: "timed_out",
}

_TOLD = {
    "queue_s": ("metrics", "queue_time_s", 1.0),
    "first_step_s": ("metrics", "first_step_time_s", 1.0),
    "decode_s": ("metrics", "decode_time_s", 1.0),
    "encode_s": ("metrics", "encode_time_s", 1.0),
    "engine_s": ("metrics", "total_time_s", 1.0),
    "pages": ("metrics", "num_pages", 1.0),
    "kv_bytes": ("metrics", "kv_bytes", 1.0),
    "memory_peak_bytes": ("metrics", "peak_memory_bytes", 1.0),
}
"""Column: where this kit's answers tell it, and the factor to the column's unit."""

_TOLD_BY_SGLANG = {
    "engine_s": (None, "inference_time_s", 1.0),
    "memory_peak_bytes": (None, "peak_memory_mb", float(1 << 20)),
}


class TargetError(KitError):
    """A server does not answer as one with OpenAI's images endpoint."""


class ServerTarget:
    """A server by its URL; its caller closes it."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        """Raises ConfigError for what is no URL of a server."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise ConfigError(
                "--target",
                "is neither `engine` nor the URL of a server",
                value=url,
                remedy="write it as http://localhost:8091; a key is read from KIT_API_KEY",
            )
        self.url = url.rstrip("/").removesuffix("/v1")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # trust_env: a proxy of the environment would be measured with the server.
        self._http = httpx2.Client(
            base_url=self.url,
            headers=headers,
            timeout=_PROBE_S,
            trust_env=False,
            limits=httpx2.Limits(max_connections=_MAX_CONNECTIONS, max_keepalive_connections=64),
        )

    def close(self) -> None:
        self._http.close()

    def describe(self) -> TargetInfo:
        """As in Target: a server of this kit tells its deployment, another its model's name.

        Raises TargetError when nothing answers.
        """
        info = self._get("/v1/server/info")
        if info is None:
            models = (self._get("/v1/models") or {}).get("data") or [{}]
            name = str(models[0].get("id", "unknown"))
            return TargetInfo(f"server, model {name}", {}, {"server": "other", "model": name})
        told: dict[str, JsonValue] = {
            "server": "hunyuan-paged-kit",
            "versions": info["versions"],
            "checkpoint": info["name"],
            "checkpoint_fingerprint": info["model"]["fingerprint"],
            "device": info["device"],
            "dtype": info["dtype"],
            "kernel": f"{info['kv']['kernel']} {info['kv']['kernel_version']}",
        }
        config = {
            name: ConfigValue(setting["value"], setting["source"])
            for name, setting in info["deployment"].items()
        }
        return TargetInfo(f"server, {info['kv']['mode']}, {info['kv']['backend']}", config, told)

    def ask(self, job: Job) -> Answer:
        """As in Target."""
        try:
            response = self._http.post(_PATH, json=_body(job), timeout=job.timeout_s)
        except httpx2.TimeoutException:
            limit = f"no answer within timeout_s, {job.timeout_s:g} s"
            return Answer("timed_out", time.perf_counter(), message=limit)
        except httpx2.HTTPError as error:
            message = f"{type(error).__name__}: {error}"
            return Answer("failed", time.perf_counter(), message=message)
        done = time.perf_counter()
        if response.status_code != 200:
            other: Outcome = "refused" if 400 <= response.status_code < 500 else "failed"
            outcome = _OUTCOMES.get(response.status_code, other)
            message = f"HTTP {response.status_code}: {response.text[:200]}"
            return Answer(outcome, done, message=message)
        try:
            content = response.json()
            pictures = _pictures(content)
        # Whatever a foreign server sends: it is the answer that is wrong, not the client.
        except Exception as error:
            message = f"HTTP 200 without pictures that can be decoded: {type(error).__name__}"
            return Answer("no_picture", done, message=message)
        if len(pictures) != job.n:
            message = f"{len(pictures)} pictures instead of {job.n}"
            return Answer("no_picture", done, message=message)
        for picture in pictures:
            height, width, _ = picture.shape
            if (height, width) != (job.height, job.width):
                message = f"{width}x{height} instead of {job.size}"
                return Answer("wrong_size", done, message=message)
        return Answer("ok", done, pixels_sha256(pictures), _columns(content))

    def evidence(self, job: Job) -> Evidence:
        """Return the pixels of the job's first picture; raises TargetError when there is none."""
        body = _body(replace(job, n=1))
        try:
            response = self._http.post(_PATH, json=body, timeout=job.timeout_s)
            response.raise_for_status()
            return {"pixels": _pictures(response.json())[0]}
        except Exception as error:  # as above
            raise TargetError(f"{self.url} gives no picture to compare: {error}") from error

    def facts(self) -> Mapping[str, float]:
        """As in Target: pages, of a paged server of this kit."""
        view = self._get("/v1/kv")
        if view is None or not view["page_bytes"]:
            return {}
        pages = view["pages"]
        return {
            "pages_used": pages["used"],
            "pages_used_peak": pages["peak"],
            "pool_pages": pages["total"],
            "page_bytes": view["page_bytes"],
        }

    def _get(self, path: str) -> Any:
        """Return the JSON of a GET, None where the server has no such path."""
        try:
            response = self._http.get(path)
            if response.status_code in (404, 405):
                return None
            response.raise_for_status()
            return response.json()
        except (httpx2.HTTPError, ValueError) as error:
            raise TargetError(f"{self.url}{path} does not answer: {error}") from error


def _body(job: Job) -> dict[str, Any]:
    """The fields that this kit, vLLM-Omni and SGLang name alike."""
    return {
        "prompt": job.prompt,
        "n": job.n,
        "size": job.size,
        "response_format": "b64_json",
        "num_inference_steps": job.steps,
        "guidance_scale": job.guidance,
        "seed": job.seed,
    }


def _pictures(content: Any) -> list[npt.NDArray[np.uint8]]:
    """Decode every picture of an answer to uint8 [height, width, 3]."""
    files = (base64.b64decode(item["b64_json"], validate=True) for item in content["data"])
    return [decode(file) for file in files]


def _columns(content: dict[str, Any]) -> dict[str, float]:
    columns: dict[str, float] = {}
    for names in (_TOLD_BY_SGLANG, _TOLD):
        for column, (group, name, factor) in names.items():
            place = content if group is None else content.get(group)
            value = place.get(name) if isinstance(place, dict) else None
            if isinstance(value, int | float):
                columns[column] = value * factor
    metrics = content.get("metrics")
    steps = metrics.get("step_times_s") if isinstance(metrics, dict) else None
    if isinstance(steps, list) and len(steps) > 1:
        # Steps of several pictures stand one after the other: a median is that of later ones.
        columns["later_step_s"] = statistics.median(steps[1:])
    return columns
