"""The denoising loop of one request, one step at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from kit.attention.base import RequestKV
from kit.attention.plan import StepPlan, plan_step
from kit.attention.rotary import Rotary
from kit.messages import RunRequest
from kit.model.rope import rotary_tables
from kit.model.transformer import HunyuanImage3
from kit.pipeline.guidance import guidance_token_value, guide
from kit.pipeline.noise import draw_noise
from kit.pipeline.schedule import clean_estimate, euler_step, flow_sigmas, flow_timesteps
from kit.pipeline.trace import Trace
from kit.tokenizer.layout import positions_yx


class DenoiseLoop:
    """Owns the latents of a request and advances them one step per call.

    The first step runs the whole sequence of each row and writes every key and value once.
    Later steps run the target only: <timestep> (<guidance>, <timestep_r>) and the image tokens.
    Latents stay float32 [1, C, h, w] between steps whatever dtype the model runs in.
    """

    def __init__(
        self, model: HunyuanImage3, kv: RequestKV, run: RunRequest, trace: Trace | None
    ) -> None:
        self._model, self._trace = model, trace
        config, sampling, layout = model.config, run.sampling, run.rows.layout
        self._sampling, self._layout = sampling, layout
        self._num_rows = run.rows.num_rows
        device = model.device
        self._prefix_ids = torch.tensor(
            [ids[: layout.prefix_len] for ids in run.rows.token_ids], device=device
        )
        self._first, self._later = plan_step(layout, first=True), plan_step(layout, first=False)
        self._kv_first, self._kv_later = kv.step(self._first), kv.step(self._later)
        positions = positions_yx(layout)

        def rotary(plan: StepPlan) -> Rotary:
            span = positions[plan.start : plan.end]
            return rotary_tables(span, config.attention_head_dim, config.rope_theta, device)

        self._rotary_first, self._rotary_later = rotary(self._first), rotary(self._later)
        self._sigmas = flow_sigmas(sampling.num_inference_steps, sampling.flow_shift).to(device)
        self._timesteps = flow_timesteps(self._sigmas)
        noise = draw_noise(sampling.seed, config.vae.latent_channels, layout.grid)
        self.latents: Tensor = noise.to(device=device, dtype=torch.float32)
        self._velocity = torch.zeros_like(self.latents)
        self.step_index = 0
        if trace is not None:
            trace.add_rows(run.rows)
            trace.add("noise_bf16", noise)
            trace.add("sigmas", self._sigmas)
            trace.add("timesteps", self._timesteps)

    @property
    def num_steps(self) -> int:
        return self._sampling.num_inference_steps

    @property
    def finished(self) -> bool:
        return self.step_index == self.num_steps

    def step(self) -> int:
        """Advance the latents by one step; returns key/value tokens written, all rows together."""
        assert not self.finished, "the loop has run all its steps"
        i = self.step_index
        timestep = self._timesteps[i : i + 1]
        guidance, timestep_r = self._distilled_values(i)
        target = self._model.embed_target(self.latents, timestep, guidance, timestep_r)
        target = target.expand(self._num_rows, -1, -1)
        if i == 0:
            plan, kv, rotary = self._first, self._kv_first, self._rotary_first
            embeds = torch.cat((self._model.embed_tokens(self._prefix_ids), target), dim=1)
        else:
            plan, kv, rotary = self._later, self._kv_later, self._rotary_later
            embeds = target
        hidden = self._model(embeds, rotary, kv)
        image_hidden = hidden[:, -self._layout.num_image :]
        prediction = self._model.predict(image_hidden, timestep, self._layout.grid)
        velocity = guide(prediction, self._sampling.guidance_scale)
        latents_in = self.latents
        self.latents = euler_step(latents_in, velocity, self._sigmas[i], self._sigmas[i + 1])
        self._velocity = velocity
        self.step_index += 1
        if self._trace is not None:
            values = {"timestep": timestep, "timestep_r": timestep_r, "guidance": guidance}
            values |= {"latents_in": latents_in, "pred": prediction}
            values |= {"pred_guided": velocity, "latents_out": self.latents}
            for name, value in values.items():
                if value is not None:
                    self._trace.add(f"step{i + 1}.{name}", value)
        return plan.num_tokens * self._num_rows

    def clean_estimate(self) -> Tensor:
        """Return the clean latents that the last step pointed to, float32 [1, C, h, w].

        The latents themselves after the last step. With meanflow the velocity is a mean up to the
        next step, and this is its continuation to the end.
        """
        return clean_estimate(self.latents, self._velocity, self._sigmas[self.step_index])

    def _distilled_values(self, i: int) -> tuple[Tensor | None, Tensor | None]:
        """Values of the <guidance> and <timestep_r> tokens, float32 [1]; None without the token."""
        config = self._model.config
        guidance = timestep_r = None
        if config.cfg_distilled:
            value = guidance_token_value(self._sampling.guidance_scale)
            guidance = torch.full((1,), value, device=self.latents.device)
        if config.use_meanflow:
            timestep_r = self._sigmas[i + 1 : i + 2] * 1000.0
        return guidance, timestep_r
