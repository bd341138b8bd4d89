"""`kit plan`: the memory and the capacity of a deployment, before anything is loaded."""

from __future__ import annotations

import argparse
import json

from kit.checkpoint.shipped import DEFAULT_CHECKPOINT
from kit.commands.deployment import FLAGS
from kit.commands.output import Say
from kit.hub.copies import find_model
from kit.plan.device import CARDS
from kit.plan.plan import PUBLISHED, plan_deployment
from kit.plan.size import DEFAULT_PROMPT_TOKENS
from kit.plan.text import describe_plan

EXIT_DOES_NOT_FIT = 2


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add what a plan takes beside the deployment."""
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help=f"checkpoint folder, config.json, hub id of a fetched checkpoint, or {PUBLISHED}: the "
        "published 80B shape (default: the shipped checkpoint)",
    )
    parser.add_argument(
        "--size",
        nargs="+",
        default=[],
        metavar="WIDTHxHEIGHT",
        help="image sizes (default: the model's square one)",
    )
    parser.add_argument(
        "--prompt-tokens",
        type=int,
        metavar="N",
        help="tokens of a row before the image's: system text, prompt, template (default: "
        f"{DEFAULT_PROMPT_TOKENS}, or what a row has room for)",
    )
    parser.add_argument(
        "--references",
        type=int,
        default=0,
        metavar="N",
        help="reference images of a request, each of the largest size (default: 0)",
    )
    device = parser.add_mutually_exclusive_group()
    device.add_argument(
        "--card",
        metavar="NAME",
        help=f"the accelerator of each rank: {', '.join(CARDS)} (default: this machine's)",
    )
    device.add_argument(
        "--memory",
        type=_bytes,
        metavar="BYTES",
        help="of each Hopper card, or of the host where devices is cpu",
    )
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")


def _bytes(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"give bytes as a whole number, 85899345920 for 80 GiB; got {text!r}"
        ) from None


def plan(args: argparse.Namespace, say: Say) -> int:
    """Print a plan; returns 2 if a size does not fit."""
    model = args.model
    if model is None:
        model = DEFAULT_CHECKPOINT
    elif model != PUBLISHED:
        model = find_model(model, "MODEL")
    planned = plan_deployment(
        model,
        args.deploy_config,
        stage_overrides=args.stage_overrides,
        flags={name: getattr(args, name) for name in FLAGS},
        sizes=args.size,
        prompt_tokens=args.prompt_tokens,
        references=args.references,
        card=args.card,
        memory_bytes=args.memory,
    )
    say(json.dumps(planned.as_json(), indent=2) if args.json else describe_plan(planned).rstrip())
    return 0 if planned.fits else EXIT_DOES_NOT_FIT
