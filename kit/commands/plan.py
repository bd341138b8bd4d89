"""`kit plan`: the memory and the capacity of a deployment, before anything is loaded."""

from __future__ import annotations

import argparse
import json
from contextlib import suppress

from kit.commands.deployment import FLAGS, model_folder
from kit.commands.numbers import integer
from kit.commands.output import Say
from kit.config.paths import packaged_names
from kit.errors import ConfigError, KitError
from kit.plan.device import CARDS
from kit.plan.plan import PUBLISHED, Plan, plan_deployment
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
        type=integer,
        metavar="N",
        help="tokens of a row before the image's: system text, prompt, template (default: "
        f"{DEFAULT_PROMPT_TOKENS}, or what a row has room for)",
    )
    parser.add_argument(
        "--references",
        type=integer,
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
        type=integer,
        metavar="BYTES",
        help="of each Hopper card, or of the host where devices is cpu; 85899345920 is 80 GiB",
    )
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")


def plan(args: argparse.Namespace, say: Say) -> int:
    """Print a plan; returns 2 if a size does not fit.

    Where the base does not fit the named card, the packaged deploy files that do are named.
    """
    try:
        planned = _plan(args, args.deploy_config)
    except ConfigError as error:
        if hint := _fitting_files(args):
            remedy = f"{error.remedy}, or {hint}" if error.remedy else hint
            raise ConfigError(
                error.field, error.reason, value=error.value, source=error.source, remedy=remedy
            ) from error
        raise
    if args.json:
        say(json.dumps(planned.as_json(), indent=2))
    else:
        say(describe_plan(planned).rstrip())
        if not planned.fits and (hint := _fitting_files(args)):
            say(hint)
    return 0 if planned.fits else EXIT_DOES_NOT_FIT


def _plan(args: argparse.Namespace, deploy_config: str | None) -> Plan:
    return plan_deployment(
        args.model if args.model == PUBLISHED else model_folder(args.model, "MODEL"),
        deploy_config,
        stage_overrides=args.stage_overrides,
        flags={name: getattr(args, name) for name in FLAGS},
        sizes=args.size,
        prompt_tokens=args.prompt_tokens,
        references=args.references,
        card=args.card,
        memory_bytes=args.memory,
    )


def _fitting_files(args: argparse.Namespace) -> str:
    """Say with which packaged deploy files all sizes fit the named card; empty with none to say."""
    if args.card is None or args.deploy_config is not None:
        return ""
    fitting = []
    for name in packaged_names("deploy"):
        with suppress(KitError):
            if _plan(args, name).fits:
                fitting.append(name)
    if not fitting:
        return ""
    return f"take a packaged deploy file that fits: --deploy-config {' or '.join(fitting)}"
