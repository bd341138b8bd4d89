"""The `kit` command: generate, serve, config, doctor. The only module of the kit that prints."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit.checkpoint.shipped import DEFAULT_CHECKPOINT, DEFAULT_CHECKPOINT_NOTE
from kit.errors import ConfigError, InvalidRequestError, KitError

if TYPE_CHECKING:
    from kit.config.deploy import DeployConfig
    from kit.request import GenerationRequest, StepEvent

# Torch and everything that imports it is imported inside the commands: a wrong configuration is
# refused before that cost is paid.


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code (2: the caller must change something)."""
    args = build_parser().parse_args(argv)
    try:
        return int(args.run(args))
    except KitError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def build_parser() -> argparse.ArgumentParser:
    """The whole command line; a test parses every command of the documentation with it."""
    parser = argparse.ArgumentParser(
        prog="kit", description="HunyuanImage-3.0 with a Scheduler-managed paged KV cache"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_generate(commands)
    _add_serve(commands)
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
    group.add_argument("--gpu-memory-utilization", type=float, metavar="FRACTION")
    group.add_argument("--kv-cache-memory-bytes", type=int, metavar="BYTES")
    group.add_argument("--max-num-seqs", type=int, metavar="N")


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", type=Path, metavar="DIR", help="checkpoint folder (default: the shipped one)"
    )


def _add_dry_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dry-run", action="store_true", help="print the resolved deployment and stop"
    )


def _add_generate(commands: Any) -> None:
    parser = commands.add_parser("generate", help="turn a prompt into a PNG")
    parser.set_defaults(run=_generate)
    parser.add_argument("prompt")
    parser.add_argument("-o", "--output", type=Path, default=Path("image.png"), metavar="FILE")
    _add_model(parser)
    group = parser.add_argument_group("request")
    group.add_argument("--size", metavar="WIDTHxHEIGHT|auto")
    group.add_argument("--height", type=int)
    group.add_argument("--width", type=int)
    group.add_argument("--steps", type=int, dest="num_inference_steps")
    group.add_argument("--guidance", type=float, dest="guidance_scale")
    group.add_argument("--seed", type=int)
    group.add_argument("--flow-shift", type=float)
    group.add_argument("--template", choices=("pretrain", "instruct"))
    group.add_argument("--system-prompt", metavar="TEXT")
    group.add_argument("--cot", dest="cot_text", metavar="TEXT")
    group.add_argument(
        "--trace", type=Path, metavar="FILE", help="write every step's tensors (safetensors)"
    )
    _add_deployment(parser)
    _add_dry_run(parser)


def _add_serve(commands: Any) -> None:
    parser = commands.add_parser("serve", help="serve the OpenAI-compatible API")
    parser.set_defaults(run=_serve)
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="checkpoint folder (default: the shipped one)"
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8091)
    parser.add_argument("--omni", action="store_true", help="accepted; not needed")
    parser.add_argument("--trust-remote-code", action="store_true", help="accepted; not needed")
    _add_deployment(parser)
    _add_dry_run(parser)


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


def _resolve(args: argparse.Namespace, model: Path) -> DeployConfig:
    from kit.config.runnable import check_runnable
    from kit.modelspec.deployment import load_config

    flags = {
        name: getattr(args, name)
        for name in ("dtype", "gpu_memory_utilization", "kv_cache_memory_bytes", "max_num_seqs")
    }
    config = load_config(
        model, args.deploy_config, stage_overrides=args.stage_overrides, flags=flags
    )
    if not getattr(args, "dry_run", True):
        check_runnable(config)
    return config


def _generate(args: argparse.Namespace) -> int:
    model = args.model or DEFAULT_CHECKPOINT
    config = _resolve(args, model)
    request = _request(args)
    if args.dry_run:
        return _print_config(config)
    _check_writable("--output", args.output)
    if args.trace:
        _check_writable("--trace", args.trace)

    from tqdm import tqdm

    from kit.engine.engine import ImageEngine
    from kit.engine.png import encode_png
    from kit.telemetry.log import configure_logging

    configure_logging()
    if args.model is None:
        print(f"note: {DEFAULT_CHECKPOINT_NOTE}", file=sys.stderr)
    engine = ImageEngine(model, config)
    with tqdm(unit="step", file=sys.stderr, delay=0.5) as bar:

        def on_step(event: StepEvent) -> None:
            bar.total = event.num_steps
            bar.update()

        try:
            result = engine.generate(request, on_step)
        finally:
            engine.close()
    args.output.write_bytes(encode_png(result.image))
    for warning in result.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    sampling, metrics = result.sampling, result.metrics
    print(
        f"wrote {args.output}: {sampling.width}x{sampling.height}, seed {sampling.seed}, "
        f"{sampling.num_inference_steps} steps, guidance {sampling.guidance_scale:g}, "
        f"{metrics.total_time_s:.2f} s (decode {metrics.decode_time_s:.2f} s)"
    )
    return 0


def _request(args: argparse.Namespace) -> GenerationRequest:
    from kit.request import GenerationRequest, SamplingParams
    from kit.tokenizer.buckets import parse_size

    height, width = args.height, args.width
    if args.size is not None:
        if height is not None or width is not None:
            raise InvalidRequestError(
                f"--size {args.size} and --height/--width say the same thing twice; give one",
                param="size",
            )
        if args.size != "auto":
            width, height = parse_size(args.size)
    sampling = SamplingParams(
        height=height,
        width=width,
        num_inference_steps=args.num_inference_steps,
        guidance_scale=args.guidance_scale,
        seed=args.seed,
        flow_shift=args.flow_shift,
    )
    return GenerationRequest(
        prompt=args.prompt,
        sampling=sampling,
        system_prompt=args.system_prompt,
        cot_text=args.cot_text,
        template=args.template,
        trace_path=str(args.trace) if args.trace else None,
    )


def _serve(args: argparse.Namespace) -> int:
    model = DEFAULT_CHECKPOINT if args.model is None else Path(args.model)
    if not model.is_dir():
        raise ConfigError(
            "MODEL",
            "no such folder",
            value=args.model,
            source="the command line",
            remedy="download the checkpoint and give its folder",
        )
    config = _resolve(args, model)
    if args.dry_run:
        return _print_config(config)

    from kit.server.run import serve
    from kit.telemetry.log import configure_logging

    configure_logging()
    if args.model is None:
        print(f"note: {DEFAULT_CHECKPOINT_NOTE}", file=sys.stderr)
    if args.omni or args.trust_remote_code:
        print("note: --omni and --trust-remote-code are not needed here", file=sys.stderr)
    name = "hunyuan_image3_golden" if args.model is None else args.model
    return serve(model, config, name=name, host=args.host, port=args.port)


def _config(args: argparse.Namespace) -> int:
    return _print_config(_resolve(args, args.model or DEFAULT_CHECKPOINT))


def _print_config(config: DeployConfig) -> int:
    from kit.config.show import describe

    print(describe(config), end="")
    return 0


def _doctor(args: argparse.Namespace) -> int:
    from kit.doctor.report import run_doctor

    if args.output:
        _check_writable("--output", args.output)
    report = run_doctor(args.model or DEFAULT_CHECKPOINT)
    print(report.as_text())
    if args.output:
        args.output.write_text(report.as_json())
        print(f"wrote {args.output}")
    return 0 if report.healthy else 1


def _check_writable(flag: str, path: Path) -> None:
    """Refuse an output that could not be written before the work is done."""
    if path.is_dir() or not path.parent.is_dir():
        what = "is a folder" if path.is_dir() else f"has no folder {path.parent}"
        raise ConfigError(
            flag, what, value=str(path), source="the command line", remedy="name a file"
        )


if __name__ == "__main__":
    sys.exit(main())
