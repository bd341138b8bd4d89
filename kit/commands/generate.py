"""`kit generate`: a prompt to a picture in a file."""

from __future__ import annotations

import argparse
from pathlib import Path

from kit.checkpoint.shipped import DEFAULT_CHECKPOINT_NOTE
from kit.commands.images import read_images
from kit.commands.output import Say, check_writable
from kit.config.deploy import DeployConfig
from kit.engine.images import ImageFormat, encode_image, output_format
from kit.errors import InvalidRequestError, flag_error
from kit.request import GenerationRequest, SamplingParams
from kit.tokenizer.buckets import parse_size


def generate(
    args: argparse.Namespace,
    model: Path,
    config: DeployConfig,
    request: GenerationRequest,
    *,
    say: Say,
    note: Say,
) -> int:
    """Run one request; `say` gets the result's line, `note` what is beside it."""
    check_writable("--output", args.output)
    image_format = output_format("--output", args.output)
    _check_quality(args.quality, image_format)
    if args.trace:
        check_writable("--trace", args.trace)

    from kit.commands.progress import run_with_progress

    if args.model is None:
        note(f"note: {DEFAULT_CHECKPOINT_NOTE}")
    result = run_with_progress(model, config, request)
    encoded = encode_image(result.image, image_format, quality=args.quality, record=result.replay)
    args.output.write_bytes(encoded.data)
    for warning in result.warnings:
        note(f"warning: {warning}")
    if not encoded.has_record:
        note(f"warning: the replay record is too long for {image_format}; png holds it")
    sampling, metrics = result.sampling, result.metrics
    say(
        f"wrote {args.output}: {sampling.width}x{sampling.height}, seed {sampling.seed}, "
        f"{sampling.num_inference_steps} steps, guidance {sampling.guidance_scale:g}, "
        f"{sum(metrics.step_times_s):.2f} s denoising (first step "
        f"{metrics.first_step_time_s:.2f} s), {metrics.decode_time_s:.2f} s decoding"
    )
    return 0


def _check_quality(quality: int | None, image_format: ImageFormat) -> None:
    if quality is None or (image_format != "png" and 0 <= quality <= 100):
        return
    is_png = image_format == "png"
    raise flag_error(
        "--quality",
        "png loses nothing, so it has no quality" if is_png else "is out of range",
        quality,
        "name a .jpg or .webp file with --output" if is_png else "give 0 to 100",
    )


def read_request(args: argparse.Namespace, model: Path, config: DeployConfig) -> GenerationRequest:
    """Return the request of a command line; raises InvalidRequestError naming the field."""
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
        images=read_images(args.image, model, config),
        reference_seed=args.reference_seed,
        trace_path=str(args.trace) if args.trace else None,
    )
