"""The denoising loop of one request, one step at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from kit.attention.base import Pass, RequestKV
from kit.attention.plan import StepPlan, plan_step
from kit.attention.rotary import Rotary
from kit.messages import RunRequest
from kit.model.rope import rotary_tables
from kit.model.timestep import sinusoid
from kit.model.transformer import HunyuanImage3
from kit.parallel.group import ALONE, RankGroup
from kit.pipeline.graphs import StepGraphs
from kit.pipeline.guidance import guidance_token_value
from kit.pipeline.noise import draw_noise, noise_generator
from kit.pipeline.references import TokenBlock
from kit.pipeline.rows import share_rows
from kit.pipeline.schedule import clean_estimate, flow_sigmas, flow_timesteps
from kit.pipeline.step import StepInputs, StepOutputs, denoise_step
from kit.pipeline.trace import Trace
from kit.tokenizer.layout import positions_yx


class DenoiseLoop:
    """Owns the latents of a request and advances them one step per call.

    The first step runs the whole sequence of each row, but for what its pages hold already, and
    writes every key and value once; tokens that rows have in common run in one of them. Later steps
    run the target only: <timestep> (<guidance>, <timestep_r>) and the image tokens; with `graphs`
    they are replayed. Latents stay float32 [1, C, h, w] between steps whatever dtype the model runs
    in, and are the same on every rank. Ranks of `cfg` share the rows: `kv` has room for this rank's
    own.
    """

    def __init__(
        self,
        model: HunyuanImage3,
        kv: RequestKV,
        run: RunRequest,
        trace: Trace | None,
        graphs: StepGraphs | None = None,
        cfg: RankGroup = ALONE,
        references: tuple[TokenBlock, ...] = (),
    ) -> None:
        self._model, self._trace, self._graphs = model, trace, graphs
        config, sampling, layout = model.config, run.sampling, run.rows.layout
        self._sampling = sampling
        self._rows = share_rows(run.rows.num_rows, cfg)
        device = model.device
        self._prefix_ids = torch.tensor(
            [ids[: layout.prefix_len] for ids in run.rows.token_ids[self._rows.own]], device=device
        )
        self._later = plan_step(layout, first=False)
        self._kv_later = kv.step(self._later)
        self._first_passes = kv.first_passes(plan_step(layout, first=True))
        positions = positions_yx(layout)

        def rotary(plan: StepPlan) -> Rotary:
            span = positions[plan.start : plan.end]
            return rotary_tables(span, config.attention_head_dim, config.rope_theta, device)

        self._rotary_later = rotary(self._later)
        self._rotary_first = [rotary(item.plan) for item in self._first_passes]
        sigmas = flow_sigmas(sampling.num_inference_steps, sampling.flow_shift)
        guidance = torch.tensor([guidance_token_value(sampling.guidance_scale)])
        # Once for all steps: no step copies from the host.
        self._sigmas = sigmas.to(device)
        self._scale = torch.tensor(sampling.guidance_scale, device=device)
        self._waves = sinusoid(sigmas * 1000.0).to(device)
        self._guidance_wave = sinusoid(guidance).to(device) if config.cfg_distilled else None
        start = self._first_passes[0].plan.start
        seen = any(span.end > start for span in layout.references)
        assert bool(references) == seen, "pictures for the spans that run"
        self._references = references
        channels = config.vae.latent_channels
        generator = noise_generator(sampling.seed, channels, layout)
        noise = draw_noise(generator, channels, layout.grid)
        self.latents: Tensor = noise.to(device=device, dtype=torch.float32)
        """Belongs to the loop's last step: a graph writes the next ones to the same place."""

        self._velocity = torch.zeros_like(self.latents)
        self.step_index = 0
        if trace is not None:
            trace.add_rows(run.rows)
            trace.add("noise_bf16", noise)
            trace.add("sigmas", sigmas)
            trace.add("timesteps", flow_timesteps(sigmas))

    @property
    def num_steps(self) -> int:
        return self._sampling.num_inference_steps

    @property
    def finished(self) -> bool:
        return self.step_index == self.num_steps

    @property
    def num_target_tokens(self) -> int:
        """Tokens of a row that a later step computes, on all ranks together."""
        return self._later.num_tokens

    def step(self) -> int:
        """Advance the latents by one step; returns key/value tokens written, all rows together.

        On all ranks together: one that shares rows or heads has written its part of them.
        """
        assert not self.finished, "the loop has run all its steps"
        inputs = self._inputs()
        if self._trace is not None:
            self._trace_inputs(self._trace, inputs)
        if self.step_index == 0:
            outputs, num_tokens = self._run_first(inputs)
        else:
            outputs, num_tokens = self._run_later(inputs)
        self.latents, self._velocity = outputs.latents, outputs.velocity
        self.step_index += 1
        if self._trace is not None:
            self._trace.add(f"step{self.step_index}.pred", outputs.prediction)
            self._trace.add(f"step{self.step_index}.pred_guided", outputs.velocity)
            self._trace.add(f"step{self.step_index}.latents_out", outputs.latents)
        return num_tokens * self._rows.ranks.size

    def clean_estimate(self) -> Tensor:
        """Return the clean latents that the last step pointed to, float32 [1, C, h, w].

        The latents themselves after the last step. With meanflow the velocity is a mean up to the
        next step, and this is its continuation to the end.
        """
        return clean_estimate(self.latents, self._velocity, self._sigmas[self.step_index])

    def _run_first(self, inputs: StepInputs) -> tuple[StepOutputs, int]:
        """Run the passes of the first step; returns key/value tokens written on this rank, too."""
        *common, last = zip(self._first_passes, self._rotary_first, strict=True)
        for item, rotary in common:
            self._model(self._embed_prefix(item), rotary, item.kv)
        item, rotary = last
        prefix = self._embed_prefix(item)
        outputs = denoise_step(self._model, item.kv, rotary, inputs, rows=self._rows, prefix=prefix)
        num_tokens = sum(item.plan.num_tokens * item.num_rows for item in self._first_passes)
        return outputs, num_tokens

    def _run_later(self, inputs: StepInputs) -> tuple[StepOutputs, int]:
        """Run or replay a later step; returns as `_run_first`."""
        num_tokens = self._later.num_tokens * self._rows.num_own
        kv, rotary = self._kv_later, self._rotary_later
        if self._graphs is not None:
            return self._graphs.run(kv, rotary, inputs, self._rows), num_tokens
        outputs = denoise_step(self._model, kv, rotary, inputs, rows=self._rows, prefix=None)
        return outputs, num_tokens

    def _embed_prefix(self, item: Pass) -> Tensor:
        """Embed what a pass runs of the prefix, [B, t, hidden]."""
        start, end = item.plan.start, item.plan.end
        embeds = self._model.embed_tokens(self._prefix_ids[: item.num_rows, start:end])
        for block in self._references:
            block.write(embeds, start)
        return embeds

    def _inputs(self) -> StepInputs:
        i, meanflow = self.step_index, self._model.config.use_meanflow
        return StepInputs(
            latents=self.latents,
            sigma=self._sigmas[i],
            next_sigma=self._sigmas[i + 1],
            guidance_scale=self._scale,
            timestep=self._waves[i : i + 1],
            guidance=self._guidance_wave,
            timestep_r=self._waves[i + 1 : i + 2] if meanflow else None,
        )

    def _trace_inputs(self, trace: Trace, inputs: StepInputs) -> None:
        """Add what goes into the step, its scalars as numbers; before a graph overwrites it."""
        config, name = self._model.config, f"step{self.step_index + 1}"
        trace.add(f"{name}.latents_in", inputs.latents)
        trace.add(f"{name}.timestep", inputs.sigma[None] * 1000.0)
        if config.use_meanflow:
            trace.add(f"{name}.timestep_r", inputs.next_sigma[None] * 1000.0)
        if config.cfg_distilled:
            value = guidance_token_value(self._sampling.guidance_scale)
            trace.add(f"{name}.guidance", torch.tensor([value]))
