"""The targets that a command line names, opened and closed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from bench.harness.target import Target
from kit.checkpoint.shipped import DEFAULT_CHECKPOINT
from kit.commands.serve import API_KEY_VARIABLE
from kit.errors import flag_error
from kit.hub.copies import find_model
from kit.modelspec.deployment import load_config

ENGINE = "engine"


@contextmanager
def open_target(name: str, deploy_config: str | None, model: str | None) -> Iterator[Target]:
    """Open `engine`, in this process, or a server by its URL.

    Raises ConfigError when a server is to get a deployment or a checkpoint: it has its own.
    """
    if name != ENGINE:
        for flag, value in (("--deploy-config", deploy_config), ("--model", model)):
            if value is not None:
                raise flag_error(
                    flag,
                    "is for the engine of this process; a server has its own",
                    value,
                    f"leave it out, or measure --target {ENGINE}",
                )
        from bench.harness.server_target import ServerTarget

        with closing(ServerTarget(name, os.environ.get(API_KEY_VARIABLE) or None)) as server:
            yield server
        return
    # Torch comes with these; a client of a server needs none.
    from bench.harness.engine_target import EngineTarget
    from kit.engine.engine import ImageEngine

    folder: Path = DEFAULT_CHECKPOINT if model is None else find_model(model, "--model")
    with ImageEngine(folder, load_config(folder, deploy_config)) as engine:
        yield EngineTarget(engine)
