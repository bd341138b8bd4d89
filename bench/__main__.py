"""`python -m bench`: list workloads, run one, train the network that judges pictures."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.environment import capture
from bench.records import Record, make_room, median_of, save
from bench.registry import Context, Registry
from bench.runner import run
from kit.errors import KitError

_EXIT_CODES = {"ok": 0, "failed": 1, "refused": 2}


def main(arguments: Sequence[str], registry: Registry) -> int:
    """Run the command line `python -m bench ARGUMENTS`; returns the exit code."""
    options = build_parser().parse_args(arguments)
    try:
        if options.command == "list":
            return _list(registry)
        if options.command == "train-judge":
            return _train_judge(options, ("python", "-m", "bench", *arguments))
        return _run(options, ("python", "-m", "bench", *arguments), registry)
    except KitError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="name every workload and what it shows")
    run_parser = commands.add_parser("run", help="run one workload and write its record")
    run_parser.add_argument("name", metavar="NAME", help="a workload that `list` names")
    run_parser.add_argument(
        "--out", type=Path, help="the record's file; default: out/bench/NAME-TIME.json"
    )
    run_parser.add_argument(
        "--repeats",
        type=_num_repeats,
        default=3,
        help="how often each side is measured (default 3)",
    )
    train_parser = commands.add_parser(
        "train-judge", help="train the network that judges pictures, on drawn ones only"
    )
    train_parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="the weights (safetensors)"
    )
    train_parser.add_argument(
        "--record", type=Path, required=True, metavar="FILE", help="the training's record (json)"
    )
    return parser


def _num_repeats(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1, got {text!r}")
    return int(text)


def _list(registry: Registry) -> int:
    for name in registry.names():
        print(f"{name:20} {registry.describe(name)}")
    return 0


def _run(options: argparse.Namespace, command: tuple[str, ...], registry: Registry) -> int:
    registry.check_name(options.name)
    environment = capture()
    time = environment.system.timestamp.replace("-", "").replace(":", "")
    path = options.out or Path("out", "bench", f"{options.name}-{time}.json")
    make_room(path)
    record = run(Context(options.name, command, environment, options.repeats), registry)
    save(record, path)
    _report(record, path)
    return _EXIT_CODES[record.status]


def _train_judge(options: argparse.Namespace, command: tuple[str, ...]) -> int:
    # Torch is imported here: `list` and the processes that draw need none.
    from bench.judge_training import MIN_RIGHT, Settings, share_right, train_judge

    for path in (options.out, options.record):
        make_room(path)
    content = train_judge(
        Settings(),
        options.out,
        options.record,
        command=command,
        environment=capture(),
        num_workers=len(os.sched_getaffinity(0)),
    )
    share = share_right(content["held_out"])
    print(f"right about {share:.2%} of drawn held-out pictures; record in {options.record}")
    return 0 if share >= MIN_RIGHT else 1


def _report(record: Record, path: Path) -> None:
    print(f"{record.name}: {record.status}, record in {path}")
    if record.equality is not None:
        check = record.equality
        print(f"  equality: {check.compared}: {check.seen:g} (limit {check.limit:g})")
    if record.baseline is not None and record.candidate is not None:
        print(f"  candidate: {record.candidate.name}; baseline: {record.baseline.name}")
        print("  candidate / baseline, below 1 the candidate costs less:")
    for name, ratio in record.summary.items():
        above, below = (
            median_of(record, column) for column in (ratio.numerator, ratio.denominator)
        )
        print(
            f"    {name}: {ratio.median:.4f} by medians ({above:.3g} / {below:.3g} s), "
            f"{ratio.best:.4f} by lowest"
        )
    for name, value in record.findings.items():
        print(f"    {name}: {value:.4g}")
    if record.error is not None:
        print(f"error: {record.error.kind}: {record.error.message}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Registry()))
