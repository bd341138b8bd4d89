"""`python -m kit.checkpoint.train`: trains a small checkpoint of the official format.

The stages run in this order, each on what the one before left in the state folder:

    tokenizer   learns the vocabulary from captions
    vae         trains the autoencoder for --budget-seconds
    dit         trains the denoiser for --budget-seconds
    edit        teaches it to edit a reference image, for --budget-seconds; may be left out
    export      writes the checkpoint folder

    restore     instead of the first two: takes over an exported checkpoint, which dit trains on,
                or edit

vae, dit and edit end after --piece-seconds of training and save; the same command goes on from
there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from kit.checkpoint.preset import PRESETS
from kit.errors import ConfigError, KitError
from kit.telemetry.environment import num_usable_cpus
from kit.telemetry.log import configure_logging, get_logger

STAGES = ("tokenizer", "vae", "dit", "edit", "export", "restore")

logger = get_logger("train")


def main(arguments: Sequence[str]) -> int:
    """Run one stage; returns the exit code: 0 done, 3 the budget is not used up yet."""
    configure_logging()
    options = build_parser().parse_args(arguments)
    try:
        return _run(options, arguments)
    except KitError as error:
        logger.error("%s", error)
        return error.exit_code


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m kit.checkpoint.train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--state", type=Path, required=True, metavar="DIR", help="the run's folder")
    parser.add_argument("--preset", choices=tuple(PRESETS), default="tiny")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", help="default: cuda if there is one, else cpu")
    parser.add_argument(
        "--budget-seconds", type=_seconds, metavar="S", help="of vae, dit, edit: training in all"
    )
    parser.add_argument(
        "--piece-seconds", type=_seconds, metavar="S", help="training in this process; default: all"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="of export: the checkpoint folder")
    parser.add_argument(
        "--record", type=Path, metavar="FILE", help="of export: the training record to write"
    )
    parser.add_argument(
        "--checkpoint", type=Path, metavar="DIR", help="of restore: the checkpoint folder"
    )
    return parser


def _run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    # Torch is imported here: every worker process imports this module, and needs no torch.
    import torch

    from kit.checkpoint.exchange import export, restore
    from kit.checkpoint.loop import Budget
    from kit.checkpoint.run import Run
    from kit.checkpoint.stages import train_dit, train_edit, train_vae, train_vocabulary
    from kit.checkpoint.state import StateFolder

    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    run = Run(
        preset=PRESETS[options.preset],
        state=StateFolder(options.state),
        seed=options.seed,
        device=torch.device(device),
        num_workers=num_usable_cpus(),
        command=_portable(arguments),
    )
    if options.stage == "tokenizer":
        train_vocabulary(run)
        return 0
    if options.stage == "restore":
        if options.checkpoint is None:
            raise ConfigError("--checkpoint", "restore needs the folder to read", value=None)
        restore(run, options.checkpoint)
        return 0
    if options.stage == "export":
        if options.out is None:
            raise ConfigError("--out", "export needs the folder to write", value=None)
        export(run, options.out, options.record)
        return 0
    if options.budget_seconds is None:
        raise ConfigError("--budget-seconds", f"the stage {options.stage} needs it", value=None)
    budget = Budget(options.budget_seconds, options.piece_seconds or options.budget_seconds)
    train = {"vae": train_vae, "dit": train_dit, "edit": train_edit}[options.stage]
    return 0 if train(run, budget) else 3


def _portable(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the command as a record shows it: paths are cut to their last part."""
    shown = (Path(word).name if "/" in word else word for word in arguments)
    return ("python", "-m", "kit.checkpoint.train", *shown)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, got {text!r}")
    return value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
