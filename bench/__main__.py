"""`python -m bench`: measure, compare, report, verify; train the network that judges pictures."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench import agreement
from bench.environment import capture
from bench.harness.compare import compare
from bench.harness.load import Load, find_load, load_from_json, load_names, read_load
from bench.harness.measure import measure
from bench.harness.targets import ENGINE, open_target
from bench.lines import lines_of, lines_of_checks
from bench.records import Record, load, make_room, save
from bench.registry import Context, Registry, Workload
from bench.report import report
from bench.runner import run_all
from bench.verify import options_of, recorded_command
from kit.errors import ConfigError, KitError, flag_error
from kit.numerals import read_number
from kit.telemetry.environment import num_usable_cpus

_EXIT_CODES = {"ok": 0, "failed": 1, "refused": 2}
_RESULTS = Path(__file__).parent / "results"
_DEFAULT_REPEATS = 3


def main(arguments: Sequence[str], registry: Registry) -> int:
    """Run the command line `python -m bench ARGUMENTS`; returns the exit code."""
    options = build_parser().parse_args(arguments)
    command = recorded_command(arguments)
    try:
        if options.command == "list":
            return _list(registry)
        if options.command == "train-judge":
            return _train_judge(options, command)
        if options.command == "report":
            return _report(options)
        if options.command == "verify":
            return _verify(options, registry)
        if options.command == "compare" and len(options.what) == 2:
            return _compare_records(options)
        return max(_EXIT_CODES[made.status] for made in _measure(options, command, registry))
    except KitError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="name every workload and load, and what each shows")
    run_parser = commands.add_parser("run", help="run a workload or a load and write its record")
    run_parser.add_argument(
        "name", metavar="NAME|FILE.yaml", help="what `list` names, or a load of your own"
    )
    run_parser.add_argument(
        "--repeats",
        type=_positive,
        help=f"of a workload: how often each side is measured (default {_DEFAULT_REPEATS})",
    )
    run_parser.add_argument(
        "--only",
        action="append",
        metavar="PART",
        help="of a workload of several parts: run this one; may be repeated",
    )
    _add_target(run_parser)
    compare_parser = commands.add_parser(
        "compare", help="compare two deployments or servers on a load, or two records"
    )
    compare_parser.add_argument(
        "what", nargs="+", metavar="LOAD | RECORD RECORD", help="a load, or two records"
    )
    compare_parser.add_argument(
        "--pairs", type=_positive, help="requests asked of both sides (default: as the load says)"
    )
    _add_target(compare_parser)
    report_parser = commands.add_parser("report", help="print records as Markdown tables")
    report_parser.add_argument(
        "records", nargs="*", type=Path, metavar="RECORD", help="default: those that ship"
    )
    verify_parser = commands.add_parser(
        "verify",
        help="run a record's command again, here, and say what agrees",
        description="Exit code 0: everything that can be told agrees. 1: something differs.",
    )
    verify_parser.add_argument("record", type=Path, metavar="RECORD")
    verify_parser.add_argument("--out", type=Path, metavar="FILE", help="the new record's file")
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


def _add_target(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("of a load", "`compare` takes one of the first two twice")
    group.add_argument(
        "--target",
        action="append",
        metavar="engine|URL",
        help="the engine, in this process (default), or an OpenAI-compatible images server; "
        "a key is read from KIT_API_KEY",
    )
    group.add_argument(
        "--deploy-config", action="append", metavar="FILE", help="of the engine, as in `kit serve`"
    )
    group.add_argument("--model", metavar="MODEL", help="of the engine (default: the shipped one)")
    parser.add_argument(
        "--out",
        type=Path,
        help="the record's file; default: out/bench/NAME-TIME.json. The name of a part is added",
    )


def _positive(text: str) -> int:
    number = read_number(text)
    if not isinstance(number, int) or number < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1, got {text!r}")
    return number


def _list(registry: Registry) -> int:
    for name in registry.names():
        print(f"{name:20} {registry.describe(name)}")
    for name in load_names():
        path = find_load(name)
        assert path is not None, "it was just listed"
        print(f"{name:20} load: {read_load(path).about}")
    return 0


def _measure(
    options: argparse.Namespace,
    command: tuple[str, ...],
    registry: Registry,
    of: Record | None = None,
) -> list[Record]:
    """Run what `run` or `compare` names and write its records; `of` is a record to run again."""
    name, work = _work(options, registry, of)
    environment = capture()
    time = environment.system.timestamp.replace("-", "").replace(":", "")
    path = options.out or Path("out", "bench", f"{name}-{time}.json")
    make_room(path)
    repeats = getattr(options, "repeats", None) or _DEFAULT_REPEATS
    only = tuple(getattr(options, "only", None) or ())
    made = []
    for record in run_all(Context(name, command, environment, repeats, only), work):
        part = record.name.removeprefix(name)
        path_of_it = path.with_stem(path.stem + part)
        save(record, path_of_it)
        for line in lines_of(record, path_of_it):
            print(line)
        if record.error is not None:
            print(f"error: {record.error.kind}: {record.error.message}", file=sys.stderr)
        made.append(record)
    return made


def _work(
    options: argparse.Namespace, registry: Registry, of: Record | None
) -> tuple[str, Workload]:
    """Return the name of what is to run, and what runs it; raises ConfigError."""
    name = options.name if options.command == "run" else options.what[0]
    if options.command == "run" and name in registry.names():
        for flag in ("target", "deploy_config", "model"):
            if getattr(options, flag) is not None:
                raise _flag_error(flag, "is for a load; a workload chooses its own", options)
        if options.only is not None:
            registry.check_parts(name, options.only)
        return name, lambda context: registry.load(name)(context)
    asked = _load_of(name, registry, of)
    name = Path(name).stem
    if options.command == "run":
        for flag in ("repeats", "only"):
            if getattr(options, flag) is not None:
                raise _flag_error(flag, "is for a workload; a load says it itself", options)
        (side,) = _sides(options, 1)
        return name, lambda context: _run_load(context, asked, side, options.model)
    if options.pairs is not None:
        asked = replace(asked, requests=options.pairs)
    sides = _sides(options, 2)
    return name, lambda context: _compare_targets(context, asked, sides, options.model)


def _load_of(name: str, registry: Registry, of: Record | None) -> Load:
    if of is not None:
        return load_from_json(of.parameters.get("load"), "the record")
    path = find_load(name)
    if path is None:
        registry.check_name(name, load_names())
        raise ConfigError(
            "load",
            "that is a workload",
            value=name,
            remedy=f"take one of {', '.join(load_names())}",
        )
    return read_load(path)


def _sides(options: argparse.Namespace, num: int) -> list[tuple[str, str | None]]:
    """Return the target and the deployment of each side; raises ConfigError unless `num` are named.

    One target stands for both sides when two deployments are named.
    """
    targets, deployments = options.target or [ENGINE], options.deploy_config or [None]
    named = max(len(targets), len(deployments))
    fits = named == num and {len(targets), len(deployments)} <= {1, num}
    if not fits:
        raise flag_error(
            "--target, --deploy-config",
            f"must name {'two sides' if num == 2 else 'one side'}",
            f"{len(options.target or [])} targets, {len(options.deploy_config or [])} deployments",
            "give --target or --deploy-config once for `run` and twice for `compare`",
        )
    return [(targets[at % len(targets)], deployments[at % len(deployments)]) for at in range(num)]


def _run_load(
    context: Context, asked: Load, side: tuple[str, str | None], model: str | None
) -> Record:
    with open_target(*side, model) as target:
        return measure(context, asked, target, {"target": side[0]})


def _compare_targets(
    context: Context, asked: Load, sides: list[tuple[str, str | None]], model: str | None
) -> Record:
    baseline, candidate = (partial(open_target, *side, model) for side in sides)
    return compare(context, asked, baseline, candidate)


def _compare_records(options: argparse.Namespace) -> int:
    for flag in ("target", "deploy_config", "model", "pairs", "out"):
        if getattr(options, flag) is not None:
            raise _flag_error(flag, "is for a load; two records are only read", options)
    first, second = (load(Path(path)) for path in options.what)
    print(f"{options.what[0]} and {options.what[1]}:")
    _print_checks(first, second)
    print("  taken at different times: only `compare LOAD` measures in turn and gives a verdict")
    return 0


def _verify(options: argparse.Namespace, registry: Registry) -> int:
    old = load(options.record)
    again = options_of(old, build_parser().parse_args)
    again.out = options.out
    has_load = again.command == "compare" or again.name not in registry.names()
    made = _measure(again, old.command, registry, of=old if has_load else None)
    new = next((record for record in made if record.name == old.name), made[-1])
    print(f"{options.record} and the run above:")
    checks = _print_checks(old, new)
    return 1 if any(one.agrees is False for one in checks) else 0


def _print_checks(first: Record, second: Record) -> list[agreement.Check]:
    checks = agreement.check(first, second)
    for line in lines_of_checks(checks):
        print(line)
    for line in agreement.environment_differences(first, second):
        print(f"  other {line}")
    return checks


def _report(options: argparse.Namespace) -> int:
    paths = options.records or shipped_records()
    print(report({path.stem: load(path) for path in paths}), end="")
    return 0


def shipped_records() -> list[Path]:
    """Return the records that ship; records of trainings are of another form."""
    return [path for path in sorted(_RESULTS.glob("*.json")) if "training" not in path.stem]


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
        num_workers=num_usable_cpus(),
    )
    share = share_right(content["held_out"])
    print(f"right about {share:.2%} of drawn held-out pictures; record in {options.record}")
    return 0 if share >= MIN_RIGHT else 1


def _flag_error(flag: str, reason: str, options: argparse.Namespace) -> ConfigError:
    name = f"--{flag.replace('_', '-')}"
    return flag_error(name, reason, getattr(options, flag), "leave it out")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Registry()))
