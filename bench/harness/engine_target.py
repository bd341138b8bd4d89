"""An engine of this process as a target."""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import psutil
from safetensors import safe_open

from bench.harness.jobs import Job
from bench.harness.target import Answer, Evidence, Outcome, TargetInfo, pixels_sha256
from bench.records import ConfigValue
from kit.api import GenerationRequest, GenerationResult, ImageEngine, RequestHandle, SamplingParams
from kit.config.deploy import DeployConfig
from kit.config.digest import setting_values
from kit.errors import DeadlineError, KitError, OverloadedError, RequestError
from kit.modelspec.files import CheckpointFiles

_OUTCOMES: Mapping[type[KitError], Outcome] = {
    RequestError: "refused",
    OverloadedError: "overloaded",
    DeadlineError: "timed_out",
}


class EngineTarget:
    """A started engine; its caller closes it."""

    def __init__(self, engine: ImageEngine) -> None:
        self.engine = engine

    def describe(self) -> TargetInfo:
        """As in Target."""
        info, config = self.engine.info, self.engine.config
        files = CheckpointFiles.open(self.engine.model_path)
        return TargetInfo(
            label=f"{config.stage.diffusion_kv_mode}, {info.backend}",
            config=config_values(config),
            parameters={
                "checkpoint": self.engine.model_path.name,
                "checkpoint_sha256": files.fingerprint(contents=True),
                "device": info.device,
                "dtype": info.dtype,
                "kernel": f"{info.kernel} {info.kernel_version}",
            },
        )

    def ask(self, job: Job) -> Answer:
        """As in Target."""
        handles: list[RequestHandle] = []
        try:
            handles.extend(self.engine.submit(_request(job, at)) for at in range(job.n))
            results = [handle.future.result() for handle in handles]
        except KitError as error:
            for handle in handles:
                self.engine.cancel(handle.request_id)
            return Answer(_outcome(error), time.perf_counter(), message=str(error))
        done = time.perf_counter()
        right = all(r.image.shape == (job.height, job.width, 3) for r in results)
        outcome: Outcome = "ok" if right else "wrong_size"
        return Answer(outcome, done, pixels_sha256([r.image for r in results]), _columns(results))

    def evidence(self, job: Job) -> Evidence:
        """Return the latents after every step, and the pixels, of the job's first picture."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "trace.safetensors")
            request = dataclasses.replace(_request(job, 0), trace_path=str(path))
            found: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]] = {}
            found["pixels"] = self.engine.generate(request).image
            with safe_open(path, framework="np") as trace:
                for step in range(1, job.steps + 1):
                    found[f"latents of step {step}"] = trace.get_tensor(f"step{step}.latents_out")
        return found

    def facts(self) -> Mapping[str, float]:
        """As in Target: memory is the device's, on the CPU that of this process."""
        status = self.engine.status()
        facts: dict[str, float] = {"memory_held_bytes": self._memory_held_bytes()}
        if status.page_bytes:
            facts["pages_used"] = status.pages.used
            facts["pages_used_peak"] = status.pages.peak
            facts["pool_pages"] = status.pages.total
            facts["page_bytes"] = status.page_bytes
        return facts

    def _memory_held_bytes(self) -> int:
        if self.engine.info.device.startswith("cuda"):
            import torch

            return torch.cuda.memory_allocated(self.engine.info.device)
        return int(psutil.Process().memory_info().rss)


def config_values(config: DeployConfig) -> dict[str, ConfigValue]:
    """Return every setting of a deployment with the one who set it."""
    return {
        name: ConfigValue(value, config.provenance[name])
        for name, value in setting_values(config).items()
    }


def _request(job: Job, at: int) -> GenerationRequest:
    return GenerationRequest(
        job.prompt,
        SamplingParams(
            height=job.height,
            width=job.width,
            num_inference_steps=job.steps,
            guidance_scale=job.guidance,
            seed=job.seed + at,
        ),
        timeout_s=job.timeout_s,
    )


def _columns(results: list[GenerationResult]) -> dict[str, float]:
    """Return what a row shows of the pictures of one request, as a server's answer does for all."""
    metrics = [result.metrics for result in results]
    columns = {
        "queue_s": metrics[0].queue_time_s,
        "first_step_s": metrics[0].first_step_time_s,
        "decode_s": sum(m.decode_time_s for m in metrics),
        "engine_s": max(m.total_time_s for m in metrics),
        "pages": max(m.num_pages for m in metrics),
        "kv_bytes": max(m.kv_bytes for m in metrics),
        "memory_peak_bytes": max(m.peak_memory_bytes for m in metrics),
    }
    if later := [step for m in metrics for step in m.step_times_s[1:]]:
        columns["later_step_s"] = statistics.median(later)
    return columns


def _outcome(error: KitError) -> Outcome:
    return next((name for kind, name in _OUTCOMES.items() if isinstance(error, kind)), "failed")
