"""`kit replay`: make a picture again from the record that it carries, and compare."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from kit.checkpoint.shipped import DEFAULT_CHECKPOINT
from kit.commands.deployment import model_folder, resolve
from kit.commands.images import read_images
from kit.commands.output import Say, check_writable
from kit.config.deploy import DeployConfig
from kit.config.runnable import check_runnable
from kit.engine.images import RecordedPicture, encode_image, output_format, read_picture
from kit.engine.references import pixel_hash
from kit.engine.rerun import (
    Difference,
    check_num_images,
    compare_pixels,
    differences,
    to_request,
    to_stage_settings,
)
from kit.errors import ConfigError, RecordError, UnsupportedError
from kit.modelspec.files import CheckpointFiles
from kit.modelspec.fingerprint import fingerprint_model
from kit.request import GenerationResult, RecordedModel, ReplayRecord

EXIT_IDENTICAL, EXIT_DIFFERENT, EXIT_ERROR = 0, 1, 2


def replay(args: argparse.Namespace, *, say: Say) -> int:
    """Replay the picture that a command line names; returns one of the exit codes above."""
    if args.output:
        check_writable("--output", args.output)
        output_format("--output", args.output)
    picture = read_picture(args.picture)
    record = picture.record
    model = _find_model(args.model, record.model)
    config = _deployment(args, model, record)
    check_num_images(record, len(args.image))
    again = to_request(record, read_images(args.image, model, config))

    from kit.commands.progress import run_with_progress

    request = record.request
    say(
        f"{args.picture}: {record.image.width}x{record.image.height}, seed "
        f"{request.sampling.seed}, {request.sampling.num_inference_steps} steps, "
        f"{_shown(record.deployment.kv_mode)}, {_shown(record.deployment.kernel)}"
    )
    result = run_with_progress(model, config, again)
    if args.output:
        encoded = encode_image(
            result.image, output_format("--output", args.output), record=result.replay
        )
        args.output.write_bytes(encoded.data)
        say(f"wrote {args.output}")
    is_identical, lines = _verdict(picture, result)
    for line in (*lines, *_table(differences(record, result.replay))):
        say(line)
    return EXIT_IDENTICAL if is_identical else EXIT_DIFFERENT


def _find_model(name: str | None, recorded: RecordedModel) -> Path:
    """The named checkpoint, else the shipped one if the record is of it."""
    if name is not None:
        return model_folder(name)
    shipped = fingerprint_model(CheckpointFiles.open(DEFAULT_CHECKPOINT))
    if shipped != recorded.fingerprint:
        raise RecordError(
            f"the picture was made with a checkpoint {recorded.version!r:.100}, fingerprint "
            f"{recorded.fingerprint:.64}; the shipped one is another ({shipped}). Name the "
            f"checkpoint with --model"
        )
    return DEFAULT_CHECKPOINT


def _deployment(args: argparse.Namespace, model: Path, record: ReplayRecord) -> DeployConfig:
    """What the command line says, else what the record says."""
    if args.deploy_config is not None or args.stage_overrides is not None:
        return resolve(args, model)
    try:
        config = resolve(
            args, model, stage=to_stage_settings(record), dtype=record.deployment.dtype
        )
        check_runnable(config)
    except (ConfigError, UnsupportedError) as error:
        raise RecordError(
            f"the recorded deployment cannot be built here: {error}. Name another one with "
            f"--deploy-config or --stage-overrides"
        ) from error
    return config


def _verdict(picture: RecordedPicture, result: GenerationResult) -> tuple[bool, list[str]]:
    """Whether the picture was made again, and how to say so.

    The hash in the record is of the pixels before they were encoded, so a jpeg can be judged too.
    """
    recorded, image_format = picture.record.image, picture.image_format
    is_lossless = image_format == "png"
    is_intact = not is_lossless or pixel_hash(picture.pixels) == recorded.sha256
    is_same_again = result.replay.image.sha256 == recorded.sha256
    if is_same_again and is_intact:
        what = "the file's pixels" if is_lossless else f"the pixels that {image_format} was given"
        size = f"{recorded.width}x{recorded.height}"
        return True, [f"identical to {what}: {size}, sha256 {recorded.sha256}"]
    lines = []
    if not is_intact:
        again = " and come out again" if is_same_again else ""
        lines.append(
            f"note: the file was changed: its record is of other pixels, which have the sha256 "
            f"{recorded.sha256}{again}"
        )
    if picture.pixels.shape != result.image.shape:
        height, width, _ = result.image.shape
        return False, [*lines, f"different: the picture made now is {width}x{height}"]
    apart = compare_pixels(picture.pixels, result.image)
    losses = "" if is_lossless else f", the losses of {image_format} included"
    lines.append(
        f"different: PSNR {apart.psnr_db:.2f} dB, max difference {apart.max_difference} of 255, "
        f"{apart.num_different} of {apart.num_pixels} pixels differ{losses}"
    )
    caching = picture.record.deployment.settings.get("stage.enable_prefix_caching")
    if caching and not is_same_again:
        lines.append(
            "note: it was made with enable_prefix_caching; how much of its prefix was found then "
            "is not recorded, and decides how the first step rounds"
        )
    return False, lines


def _table(found: Sequence[Difference]) -> Iterator[str]:
    rows = [(row.name, _shown(row.recorded), _shown(row.now)) for row in found if row.is_material]
    if rows:
        rows.insert(0, ("fact", "recorded", "now"))
        widths = [max(len(row[column]) for row in rows) for column in range(2)]
        for name, recorded, now in rows:
            yield f"{name:<{widths[0]}}  {recorded:<{widths[1]}}  {now}"
    else:
        yield "no recorded fact that could change the picture differs now"
    others = [row.name.removeprefix("deployment.settings.") for row in found if not row.is_material]
    if others:
        yield f"settings that change no pixel and differ: {', '.join(others)}"


def _shown(value: object) -> str:
    """A value of a record on its line: it may hold any character and be long."""
    text = "-" if value is None else str(value)
    return "".join(char if char.isprintable() else "?" for char in text[:70])
