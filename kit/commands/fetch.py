"""`kit fetch`: a checkpoint from the hub to this machine."""

from __future__ import annotations

import argparse

from kit.commands.output import Say
from kit.errors import ConfigError
from kit.hub.client import HubClient
from kit.hub.fetch import fetch as fetch_model
from kit.hub.names import ModelId, parse_model_id


def fetch(args: argparse.Namespace, *, say: Say) -> int:
    """Fetch the model that a command line names; `say` gets a line about each thing done."""
    model = _model_id(args.model, args.revision)
    folder = fetch_model(model, to=args.to, client=HubClient(), say=say)
    by_id = f"kit serve {model.name}, or " if args.to is None else ""
    say(f"ready, without the network: {by_id}kit serve {folder}")
    return 0


def _model_id(text: str, revision: str | None) -> ModelId:
    model = parse_model_id(text)
    if model is None:
        raise ConfigError(
            "MODEL",
            "is no name of a model on a hub",
            value=text,
            source="the command line",
            remedy="write owner/name, or owner/name@revision",
        )
    if revision is None:
        return model
    if model.revision not in (None, revision):
        raise ConfigError(
            "--revision",
            f"MODEL names the revision {model.revision!r}",
            value=revision,
            source="the command line",
            remedy="give one of them",
        )
    return ModelId(model.name, revision)
