"""The `kit` command line. The only module of the kit that prints."""

from __future__ import annotations

import argparse
import atexit
import gc
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from kit.commands.demo import add_flags as add_demo_flags
from kit.commands.demo import demo
from kit.commands.deployment import model_folder, resolve, show
from kit.commands.foreign_flags import explain
from kit.commands.numbers import integer, number
from kit.commands.output import check_writable
from kit.commands.plan import add_flags as add_plan_flags
from kit.commands.plan import plan
from kit.commands.serve import add_flags as add_serve_flags
from kit.commands.serve import serve
from kit.errors import KitError

if TYPE_CHECKING:
    from kit.config.deploy import DeployConfig

# Torch and everything that imports it is imported inside the commands: a wrong configuration is
# refused before that cost is paid.


class _Parser(argparse.ArgumentParser):
    """Says of a flag that vLLM-Omni has where its setting belongs."""

    def error(self, message: str) -> NoReturn:
        unknown = message.removeprefix("unrecognized arguments: ")
        if unknown != message:
            flags = [word for word in unknown.split() if word.startswith("--")]
            notes = [note for flag in flags if (note := explain(flag)) is not None]
            message = "\n".join([message, *notes])
        super().error(message)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code (2: the caller must change something)."""
    args = build_parser().parse_args(argv)
    try:
        code = int(args.run(args))
        print(end="", flush=True)
        return code
    except KitError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Who read the output left, as `head` does; Python would complain again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:  # a disk that is full, a file that went away
        print(f"error: {error}", file=sys.stderr)
        return 1


def build_parser() -> argparse.ArgumentParser:
    """The whole command line; a test parses every command of the documentation with it."""
    parser = _Parser(
        prog="kit", description="HunyuanImage-3.0 with a Scheduler-managed paged KV cache"
    )
    parser.add_argument(
        "--version", action="version", version=f"kit {version('hunyuan-paged-kit')}"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_generate(commands)
    _add_replay(commands)
    _add_serve(commands)
    _add_demo(commands)
    _add_fetch(commands)
    _add_plan(commands)
    _add_config(commands)
    _add_doctor(commands)
    return parser


def _add_deployment(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("deployment")
    group.add_argument(
        "--deploy-config", metavar="FILE", help="deploy YAML, or the bare name of a packaged one"
    )
    group.add_argument(
        "--stage-overrides", metavar="JSON", help='e.g. \'{"0": {"max_num_seqs": 1}}\''
    )
    group.add_argument("--dtype", choices=("auto", "float32", "bfloat16"))
    group.add_argument("--gpu-memory-utilization", type=number, metavar="FRACTION")
    group.add_argument("--kv-cache-memory-bytes", type=integer, metavar="BYTES")
    group.add_argument("--max-num-seqs", type=integer, metavar="N")


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="checkpoint folder, or the hub id of a fetched one (default: the shipped one)",
    )


def _add_image(parser: Any, help: str) -> None:
    parser.add_argument(
        "--image", type=Path, action="append", default=[], metavar="FILE", help=help
    )


def _add_dry_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dry-run", action="store_true", help="print the resolved deployment and stop"
    )


def _add_generate(commands: Any) -> None:
    parser = commands.add_parser("generate", help="turn a prompt into a picture")
    parser.set_defaults(run=_generate)
    parser.add_argument("prompt")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("image.png"),
        metavar="FILE",
        help=".png, .jpg or .webp (default: image.png)",
    )
    parser.add_argument(
        "--quality", type=integer, metavar="0-100", help="of jpg and webp (default: 95)"
    )
    _add_model(parser)
    group = parser.add_argument_group("request")
    _add_image(group, "reference image; give it again for a second and a third")
    group.add_argument("--size", metavar="WIDTHxHEIGHT|auto")
    group.add_argument("--height", type=integer)
    group.add_argument("--width", type=integer)
    group.add_argument("--steps", type=integer, dest="num_inference_steps")
    group.add_argument("--guidance", type=number, dest="guidance_scale")
    group.add_argument("--seed", type=integer)
    group.add_argument(
        "--reference-seed",
        type=integer,
        help="of the latents of reference images (default: --seed)",
    )
    group.add_argument("--flow-shift", type=number)
    group.add_argument("--template", choices=("pretrain", "instruct"))
    group.add_argument("--system-prompt", metavar="TEXT")
    group.add_argument("--cot", dest="cot_text", metavar="TEXT")
    group.add_argument(
        "--trace", type=Path, metavar="FILE", help="write every step's tensors (safetensors)"
    )
    _add_deployment(parser)
    _add_dry_run(parser)


def _add_replay(commands: Any) -> None:
    parser = commands.add_parser(
        "replay",
        help="make a picture again from its own record and compare",
        description="Exit code 0: identical. 1: different. 2: it could not be replayed.",
    )
    parser.set_defaults(run=_replay)
    parser.add_argument("picture", type=Path, metavar="FILE", help="a file that the kit wrote")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the new picture")
    _add_image(parser, "reference image that the picture was made from, in the order of the record")
    _add_model(parser)
    _add_deployment(parser)


def _add_fetch(commands: Any) -> None:
    parser = commands.add_parser("fetch", help="download a checkpoint and check every byte")
    parser.set_defaults(run=_fetch)
    parser.add_argument("model", metavar="MODEL", help="owner/name on the hub")
    parser.add_argument("--revision", metavar="REV", help="branch, tag or commit (default: main)")
    parser.add_argument(
        "--to", type=Path, metavar="DIR", help="a new folder (default: the kit's store)"
    )


def _add_serve(commands: Any) -> None:
    parser = commands.add_parser("serve", help="serve the OpenAI-compatible API")
    parser.set_defaults(run=_serve)
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="checkpoint folder, or the hub id of a fetched one (default: the shipped one)",
    )
    add_serve_flags(parser)
    parser.add_argument("--omni", action="store_true", help="accepted; not needed")
    parser.add_argument("--trust-remote-code", action="store_true", help="accepted; not needed")
    _add_deployment(parser)
    _add_dry_run(parser)


def _add_demo(commands: Any) -> None:
    parser = commands.add_parser("demo", help="show a page in the browser that draws and compares")
    parser.set_defaults(run=_demo)
    add_demo_flags(parser)


def _add_plan(commands: Any) -> None:
    parser = commands.add_parser(
        "plan",
        help="memory and capacity of a deployment, with nothing loaded",
        description="Exit code 0: every size fits. 2: one does not, or the deployment cannot.",
    )
    parser.set_defaults(run=_plan)
    add_plan_flags(parser)
    _add_deployment(parser)


def _add_config(commands: Any) -> None:
    parser = commands.add_parser("config", help="print the resolved deployment with sources")
    parser.set_defaults(run=_config)
    _add_model(parser)
    _add_deployment(parser)


def _add_doctor(commands: Any) -> None:
    parser = commands.add_parser("doctor", help="check a checkpoint and this machine")
    parser.set_defaults(run=_doctor)
    _add_model(parser)
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write the report as JSON"
    )


def _generate(args: argparse.Namespace) -> int:
    from kit.commands.generate import generate, read_request
    from kit.engine.preprocess import Preprocessor

    model = model_folder(args.model)
    config = resolve(args, model)
    request = read_request(args, model, config)
    # At the end nothing needs to be collected: looking through torch takes half a second.
    atexit.register(gc.freeze)
    if args.dry_run:
        Preprocessor(model, config).prepare(request)
        return _print_config(model, config)
    return generate(args, model, config, request, say=print, note=_note)


def _replay(args: argparse.Namespace) -> int:
    from kit.commands.replay import EXIT_ERROR, replay

    try:
        return replay(args, say=print)
    except KitError as error:
        _note(f"error: {error}")
        return EXIT_ERROR


def _fetch(args: argparse.Namespace) -> int:
    from kit.commands.fetch import fetch

    return fetch(args, say=lambda line: print(line, flush=True))


def _serve(args: argparse.Namespace) -> int:
    model = model_folder(args.model, "MODEL")
    config = resolve(args, model)
    if args.dry_run:
        return _print_config(model, config)

    return serve(args, model, config, note=_note)


def _demo(args: argparse.Namespace) -> int:
    return demo(args, say=lambda line: print(line, flush=True), note=_note)


def _plan(args: argparse.Namespace) -> int:
    return plan(args, say=print)


def _config(args: argparse.Namespace) -> int:
    model = model_folder(args.model)
    return _print_config(model, resolve(args, model))


def _print_config(model: Path, config: DeployConfig) -> int:
    print(show(model, config), end="")
    return 0


def _doctor(args: argparse.Namespace) -> int:
    from kit.doctor.report import run_doctor

    if args.output:
        check_writable("--output", args.output)
    report = run_doctor(model_folder(args.model))
    print(report.as_text())
    if args.output:
        args.output.write_text(report.as_json())
        print(f"wrote {args.output}")
    return 0 if report.healthy else 1


def _note(line: str) -> None:
    # In one piece: threads write here, and print lets others in before the newline it adds.
    print(f"{line}\n", end="", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
