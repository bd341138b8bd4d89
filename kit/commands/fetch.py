"""`kit fetch`: a checkpoint from the hub to this machine."""

from __future__ import annotations

import argparse

from kit.commands.output import Say
from kit.errors import flag_error
from kit.hub.endpoint import check_endpoint
from kit.hub.names import ModelId, parse_model_id


def fetch(args: argparse.Namespace, *, say: Say) -> int:
    """Fetch the model that a command line names; `say` gets a line about each thing done."""
    model = _model_id(args.model, args.revision)
    check_endpoint()
    # Not above: they import huggingface_hub, which reads HF_ENDPOINT.
    from kit.hub.client import HubClient
    from kit.hub.fetch import fetch as fetch_model

    folder = fetch_model(model, to=args.to, client=HubClient(), say=say)
    by_id = f"kit serve {model.name}, or " if args.to is None else ""
    say(f"ready, without the network: {by_id}kit serve {folder}")
    return 0


def _model_id(text: str, revision: str | None) -> ModelId:
    model = parse_model_id(text)
    if model is None:
        raise flag_error(
            "MODEL",
            "is no name of a model on a hub",
            text,
            "write owner/name, or owner/name@revision",
        )
    if revision is None:
        return model
    if model.revision not in (None, revision):
        raise flag_error(
            "--revision",
            f"MODEL names the revision {model.revision!r}",
            revision,
            "give one of them",
        )
    if parse_model_id(f"{model.name}@{revision}") is None:
        raise flag_error(
            "--revision", "is no revision", revision, "give a branch, a tag or a commit"
        )
    return ModelId(model.name, revision)
