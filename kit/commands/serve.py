"""`kit serve`: what the command line says becomes a server."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from kit.checkpoint.shipped import DEFAULT_CHECKPOINT_NOTE
from kit.commands.numbers import integer, number
from kit.commands.output import Say
from kit.config.deploy import DeployConfig
from kit.errors import ConfigError, flag_error
from kit.server.listen import open_listener
from kit.server.settings import ServerSettings
from kit.telemetry.log import configure_logging

API_KEY_VARIABLE = "KIT_API_KEY"

DEFAULT_MODEL_NAME = "hunyuan_image3_tiny"
"""Public id of the shipped checkpoint."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that concern the server and not the deployment."""
    group = parser.add_argument_group("server")
    group.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    group.add_argument("--port", type=integer, default=8091, help="0 takes a free one (8091)")
    group.add_argument(
        "--served-model-name",
        action="append",
        metavar="NAME",
        help="public id of the model; may be repeated, the first one is shown (MODEL as typed)",
    )
    group.add_argument(
        "--api-key",
        metavar="KEY",
        help=f"clients must send it as a bearer token; or set {API_KEY_VARIABLE}, which other "
        "users of this machine cannot see",
    )
    group.add_argument(
        "--root-path", default="", metavar="PATH", help="where a reverse proxy shows the server"
    )
    group.add_argument(
        "--max-body-bytes",
        type=integer,
        default=ServerSettings.max_body_bytes,
        metavar="BYTES",
        help="largest body of a request (%(default)s)",
    )
    group.add_argument(
        "--request-timeout-s",
        type=number,
        metavar="SECONDS",
        help="time limit of requests that name none, queue included (none)",
    )
    group.add_argument(
        "--stall-limit-s",
        type=number,
        default=ServerSettings.stall_limit_s,
        metavar="SECONDS",
        help="/ready says no after so long without a step while one is due (%(default)s)",
    )
    group.add_argument(
        "--shutdown-grace-s",
        type=number,
        default=30.0,
        metavar="SECONDS",
        help="what the running request gets after a signal (%(default)s)",
    )


def serve(args: argparse.Namespace, model: Path, config: DeployConfig, *, note: Say) -> int:
    """Serve until a signal comes; `note` gets what an operator should read once."""
    settings = read_settings(args, os.environ.get(API_KEY_VARIABLE))
    grace_s = _seconds("--shutdown-grace-s", args.shutdown_grace_s, least=0.0)
    listener = open_listener(args.host, args.port)
    configure_logging()
    if args.model is None:
        note(f"note: {DEFAULT_CHECKPOINT_NOTE}")
    if args.omni or args.trust_remote_code:
        note("note: --omni and --trust-remote-code are not needed here")

    # Torch is imported from here on: a port in use is refused before.
    from kit.server.run import serve as serve_until_stopped

    return serve_until_stopped(model, config, settings, listener, shutdown_grace_s=grace_s)


def read_settings(args: argparse.Namespace, environment_key: str | None) -> ServerSettings:
    """Return the server's settings; raises ConfigError naming the flag."""
    # Not above: every other command would wait for numpy and the tokenizers, too.
    from kit.engine.preprocess import MAX_TIMEOUT_S

    names = args.served_model_name or [args.model or DEFAULT_MODEL_NAME]
    if not all(name.strip() for name in names):
        raise flag_error("--served-model-name", "is blank", names, "give a name or leave it out")
    if args.max_body_bytes < 1:
        raise flag_error(
            "--max-body-bytes", "is no size", args.max_body_bytes, "give at least 1 byte"
        )
    timeout_s = args.request_timeout_s
    if timeout_s is not None:
        _seconds("--request-timeout-s", timeout_s, most=MAX_TIMEOUT_S)
    return ServerSettings(
        name=names[0],
        aliases=tuple(names[1:]),
        api_key=_api_key(args.api_key, environment_key),
        max_body_bytes=args.max_body_bytes,
        default_timeout_s=timeout_s,
        root_path=_root_path(args.root_path),
        stall_limit_s=_seconds("--stall-limit-s", args.stall_limit_s),
    )


def _api_key(flag: str | None, variable: str | None) -> str | None:
    # A compose file passes a variable that nobody set on as an empty one.
    key, field = (flag, "--api-key") if flag is not None else (variable or None, API_KEY_VARIABLE)
    if key is not None and (not key or not all("!" <= letter <= "~" for letter in key)):
        # The value stays out of the message: it may be a key with one wrong letter.
        raise ConfigError(
            field,
            "must be printable ASCII letters without spaces, at least one",
            value="***",
            remedy="choose another key",
        )
    return key


def _root_path(path: str) -> str:
    if path and (not path.startswith("/") or path.endswith("/") or "//" in path):
        raise flag_error(
            "--root-path", "is no path", path, "write it as /images, without a / behind"
        )
    return path


def _seconds(
    flag: str, value: float, *, least: float = 0.001, most: float = sys.float_info.max
) -> float:
    # NaN is in no range.
    if not least <= value <= most:
        limit = f" and at most {most:g}" if most < sys.float_info.max else ""
        remedy = f"give at least {least:g}{limit} seconds"
        raise flag_error(flag, "is no such time", value, remedy)
    return value
