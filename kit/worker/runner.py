"""One rank: owns the weights and the keys and values, runs requests whole or step by step."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from kit.attention.base import KVBackend, RequestKV
from kit.attention.registry import create_backend
from kit.errors import CancelledError, WorkerError
from kit.messages import IsCancelled, RunRequest, RunResult, Tick, WorkerConfig, WorkerInfo
from kit.model.fused import expert_layer
from kit.model.loader import load_reference_encoder, load_transformer, load_vae_decoder
from kit.model.offload import StreamedLayers, WaitingModule
from kit.model.reference_encoder import ReferenceEncoder
from kit.model.shard import Shard
from kit.model.vae_tiling import decode_tiled
from kit.modelspec.config import load_model_config
from kit.parallel.group import Mesh, join_mesh
from kit.pipeline.denoise import DenoiseLoop
from kit.pipeline.graphs import StepGraphs
from kit.pipeline.postprocess import to_pixels
from kit.pipeline.references import TokenBlock, encode_references
from kit.pipeline.rows import share_rows
from kit.pipeline.schedule import preview_steps
from kit.pipeline.trace import Trace
from kit.platforms.base import Platform
from kit.platforms.detect import open_platform
from kit.request import OnStep, StepEvent
from kit.telemetry.log import get_logger
from kit.worker.facts import describe_platform
from kit.worker.open_run import OpenRun

logger = get_logger("worker")


class ModelRunner:
    """Loads a checkpoint and turns RunRequests into images; `backend` owns the keys and values.

    One rank of a worker group: all of them get the same requests in the same order.
    """

    def __init__(self, config: WorkerConfig) -> None:
        """Meet the other ranks and load; CheckpointError, UnsupportedError or ConfigError."""
        started = time.perf_counter()
        folder = Path(config.model_path)
        _, _, ordinal = config.device.partition(":")
        # First: torch knows no device called npu before torch-npu is imported.
        self._platform: Platform = open_platform((int(ordinal),) if ordinal else ())
        device = torch.device(config.device)
        prepare_device(device)
        dtype = torch.float32 if config.dtype == "float32" else torch.bfloat16
        model_config = load_model_config(folder)
        self._mesh: Mesh = join_mesh(
            config.topology,
            config.rank,
            device,
            config.rendezvous,
            backend=self._platform.collective_backend,
        )
        shard = Shard.of(self._mesh, whole_experts=config.whole_experts)
        self.backend: KVBackend = create_backend(
            device=device,
            kv_mode=config.kv_mode,
            name=config.attention_backend,
            model=model_config,
            dtype=dtype,
            page_size=config.page_size,
            num_pages=config.num_pages,
            fixed_addresses=config.use_graphs,
            head_ranks=shard.head_ranks,
            row_ranks=config.topology.cfg,
        )
        bytes_read: list[int] = []
        reading = time.perf_counter()
        self._model = load_transformer(
            folder,
            model_config,
            device=device,
            dtype=dtype,
            on_bytes=bytes_read.append,
            stream_layers=config.stream_layers,
            shard=shard,
            show_progress=self._mesh.is_leader,
        )
        vae_dtype = torch.float16 if config.vae_dtype == "float16" else torch.float32
        self._vae = load_vae_decoder(
            folder,
            model_config,
            device=device,
            dtype=vae_dtype,
            on_bytes=bytes_read.append,
            waits=config.vae_waits,
            show_progress=self._mesh.is_leader,
        )
        self._encoder: ReferenceEncoder | None = None
        modules: list[nn.Module] = [self._model, self._vae]
        if config.takes_references:
            self._encoder = load_reference_encoder(
                folder,
                model_config,
                device=device,
                dtype=dtype,
                vae_dtype=vae_dtype,
                on_bytes=bytes_read.append,
                waits=config.vae_waits,
                show_progress=self._mesh.is_leader,
            )
            modules.append(self._encoder)
        self._platform.synchronize()
        reading = time.perf_counter() - reading
        self._tiling = config.vae_tiling
        self._vae_ranks = self._mesh.first(config.vae_ranks)
        self._waiting = {m: WaitingModule(m, device) for m in modules[1:] if config.vae_waits}
        self._graphs = StepGraphs(self._model) if config.use_graphs else None
        waiting = [tensor for module in self._waiting.values() for tensor in module.host_tensors]
        if isinstance(self._model.model.layers, StreamedLayers):
            waiting += self._model.model.layers.host_tensors
        parameters = [parameter for module in modules for parameter in module.parameters()]
        info = self.backend.info
        self.info = WorkerInfo(
            device=str(device),
            dtype=config.dtype,
            backend=info.name,
            kernel=info.kernel,
            kernel_version=info.version,
            page_size=info.page_size,
            pool_bytes=self.backend.pool_bytes,
            weight_bytes=_num_bytes(p for p in parameters if p.device == device),
            host_weight_bytes=_num_bytes(waiting),
            load_time_s=time.perf_counter() - started,
            platform=describe_platform(device),
            bytes_read=sum(bytes_read),
            read_time_s=reading,
            expert_layer=expert_layer(self._model),
        )
        self._open: dict[str, OpenRun] = {}
        self._paged_path_logged = False
        logger.info(
            "rank %d of %s: read %.1f MiB in %.2f s, %.0f MiB/s; weights %.1f MiB",
            config.rank,
            config.topology,
            self.info.bytes_read / 2**20,
            reading,
            self.info.bytes_read / 2**20 / reading,
            self.info.weight_bytes / 2**20,
        )

    def close(self) -> None:
        """Leave the group; a rank that is alone has nothing to leave."""
        self._graphs = None  # they hold the exchanges of the group
        self._mesh.close()

    def run(self, run: RunRequest, on_step: OnStep, is_cancelled: IsCancelled) -> RunResult:
        """Denoise and decode one request; errors as in `advance`.

        Looks at `is_cancelled` between steps: what one rank sees ends the request on all.
        """
        first: RunRequest | None = run
        try:
            while True:
                answer = self.advance(Tick(run.request_id, first, is_cancelled()))
                if isinstance(answer, RunResult):
                    return answer
                first = None
                on_step(answer)
        except BaseException:
            # Of the callers: a step that failed has cleaned up already.
            if (left := self._open.pop(run.request_id, None)) is not None:
                left.kv.scrub()
            raise

    @torch.inference_mode()
    def advance(self, tick: Tick) -> StepEvent | RunResult:
        """Make a request's next step, or after the last one its image, and be done with it.

        Raises CancelledError, WorkerError, KVCacheError: a request that does not end well has its
        keys and values scrubbed before this returns, so that its pages can be released.
        `run.allocation` is for this rank's rows. After any other exception the other ranks wait
        for this one, so its process must end.
        """
        kv: RequestKV | None = None
        try:
            if tick.run is not None:
                rows = share_rows(tick.run.rows.num_rows, self._mesh.cfg)
                kv = self.backend.open(tick.run.rows.layout, rows.num_own, tick.run.allocation)
                self._open[tick.request_id] = self._begin(tick.run, kv)
            now = self._open[tick.request_id]
            kv = now.kv
            answer = self._advance(now, tick.is_stopped)
        except BaseException as error:
            self._open.pop(tick.request_id, None)
            if kv is not None:
                kv.scrub()
            if isinstance(error, torch.OutOfMemoryError) and self._mesh.topology.size == 1:
                raise WorkerError(
                    f"request {tick.request_id}: {self.info.device} ran out of memory ({error}); "
                    "lower kv_cache_memory_bytes or gpu_memory_utilization, or ask for a smaller "
                    "image"
                ) from error
            raise
        if isinstance(answer, RunResult):
            del self._open[tick.request_id]
        return answer

    def _begin(self, run: RunRequest, kv: RequestKV) -> OpenRun:
        trace = Trace() if run.trace_path else None
        started = time.perf_counter()
        references = self._encode(run, trace)
        reference_time = time.perf_counter() - started
        loop = DenoiseLoop(self._model, kv, run, trace, self._graphs, self._mesh.cfg, references)
        previewed = preview_steps(loop.num_steps, run.num_partial_images)
        return OpenRun(run, kv, loop, trace, frozenset(previewed), reference_time)

    def _advance(self, now: OpenRun, is_stopped: bool) -> StepEvent | RunResult:
        run, loop = now.run, now.loop
        self._check_not_cancelled(run, loop, is_stopped)
        if loop.finished:
            return self._end(now)
        started = time.perf_counter()
        tokens = loop.step()
        self._platform.synchronize()
        now.step_times_s.append(time.perf_counter() - started)
        now.tokens_written.append(tokens)
        self._log_paged_path(now.kv)
        preview = None
        if loop.step_index in now.previewed:
            self._check_finite(run, loop)
            _, preview, seconds = self._decode(loop.clean_estimate())
            now.preview_time_s += seconds
        return StepEvent(
            run.request_id,
            loop.step_index,
            loop.num_steps,
            now.step_times_s[-1],
            tokens,
            preview,
        )

    def _end(self, now: OpenRun) -> RunResult:
        run, loop, trace = now.run, now.loop, now.trace
        self._check_finite(run, loop)
        decoded, pixels, decode_time = self._decode(loop.latents)
        if trace is not None and run.trace_path is not None and self._mesh.is_leader:
            trace.add("vae_decode_out", decoded[:, :, None].float())
            trace.add("image_u8", torch.from_numpy(pixels)[None])
            trace.save(Path(run.trace_path))
        return RunResult(
            request_id=run.request_id,
            image=pixels,
            step_times_s=tuple(now.step_times_s),
            tokens_written=tuple(now.tokens_written),
            reference_time_s=now.reference_time_s,
            preview_time_s=now.preview_time_s,
            decode_time_s=decode_time,
            kv_bytes=now.kv.num_bytes,
            peak_memory_bytes=self._platform.peak_memory_bytes(),
        )

    def _encode(self, run: RunRequest, trace: Trace | None) -> tuple[TokenBlock, ...]:
        if not run.references:
            return ()
        assert self._encoder is not None, "the engine refuses what the checkpoint cannot read"
        with self._on_card(self._encoder):
            encoded = encode_references(self._model, self._encoder, run, trace)
            self._platform.synchronize()
        return encoded

    def _on_card(self, module: nn.Module) -> AbstractContextManager[None]:
        waiting = self._waiting.get(module)
        return nullcontext() if waiting is None else waiting.on_card()

    def _decode(self, latents: Tensor) -> tuple[Tensor, npt.NDArray[np.uint8], float]:
        """Return the decoder's float [1, 3, H, W], its pixels, and the seconds both took.

        The first `vae_ranks` ranks decode together, for the leader: others return nothing of no
        size.
        """
        started = time.perf_counter()
        nothing = latents.new_empty(1, 3, 0, 0), np.empty((0, 0, 3), np.uint8), 0.0
        if self._vae_ranks is None:
            return nothing
        with self._on_card(self._vae):
            if self._tiling:
                decoded = decode_tiled(self._vae, latents)
            else:
                decoded = self._vae(latents, self._vae_ranks)
        if not self._mesh.is_leader:
            return nothing
        pixels = to_pixels(decoded)
        return decoded, pixels, time.perf_counter() - started

    def _check_not_cancelled(self, run: RunRequest, loop: DenoiseLoop, is_stopped: bool) -> None:
        if self._mesh.any(is_stopped):
            raise CancelledError(
                f"request {run.request_id} was cancelled after step {loop.step_index}"
            )

    def _check_finite(self, run: RunRequest, loop: DenoiseLoop) -> None:
        if self._mesh.any(not bool(torch.isfinite(loop.latents).all())):
            raise WorkerError(
                f"request {run.request_id} has non-finite latents after step {loop.step_index}; "
                "its keys and values were scrubbed. Check the checkpoint's weights or try dtype "
                "float32"
            )

    def _log_paged_path(self, kv: RequestKV) -> None:
        """Say once that pages were really read; the kernel's own count is the proof."""
        if not self._paged_path_logged and kv.num_paged_calls > 0:
            self._paged_path_logged = True
            info = self.info
            logger.info(
                "paged native path active: %s ran %d paged attention calls in the first step "
                "(backend %s, page size %s)",
                info.kernel,
                kv.num_paged_calls,
                info.backend,
                info.page_size,
            )


def prepare_device(device: torch.device) -> None:
    """Make float32 mean float32 on a card: torch lets convolutions round to 10 bits by default."""
    if device.type == "npu":
        npu = torch.get_device_module(device)
        npu.set_device(device)
        npu.conv.allow_hf32 = npu.matmul.allow_hf32 = False
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False


def _num_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
