"""One request on an engine of its own, with a bar on the terminal."""

from __future__ import annotations

import sys
from pathlib import Path

from tqdm import tqdm

from kit.config.deploy import DeployConfig
from kit.engine.engine import ImageEngine
from kit.request import GenerationRequest, GenerationResult, StepEvent
from kit.telemetry.log import configure_logging

_BAR = "{l_bar}{bar}| step {n_fmt} of {total_fmt}"


def run_with_progress(
    model: Path, config: DeployConfig, request: GenerationRequest
) -> GenerationResult:
    """Start an engine, run the request, stop the engine; errors as in ImageEngine."""
    configure_logging()
    engine = ImageEngine(model, config)
    # No rate and no time: the bar is up while the model loads and the image is decoded, too.
    with tqdm(file=sys.stderr, delay=0.5, bar_format=_BAR) as bar:

        def on_step(event: StepEvent) -> None:
            bar.total = event.num_steps
            bar.update()

        try:
            return engine.generate(request, on_step)
        finally:
            engine.close()
