"""Write the hash-checked requirements of the container images, in the versions of constraints.txt.

usage: lock_images.py UV    (UV: the path of the program uv; `make lock` calls this)

Each file in containers/ is complete, so the images install it without resolving anything. Hashes
of every platform's wheels are in it. torch and what it brings for its device are not: see
containers/torch-*.txt, which are written by hand.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "containers"

FA3 = "tokenspeed-fa3==3.0.0.post20260810"
NPU = "torch-npu==2.11.0"
"""Belongs to the torch of containers/torch-ascend.txt."""

# setuptools: torch names it for building extensions, which an image never does.
LEFT_OUT = re.compile(r"(torch|triton|setuptools)==|(nvidia|cuda)-")


def main(arguments: list[str]) -> int:
    """Write every file; return the exit code."""
    if len(arguments) != 1:
        print("usage: lock_images.py UV", file=sys.stderr)
        return 2
    uv = arguments[0]
    server = compiled(uv, "pyproject.toml")
    full = compiled(uv, "pyproject.toml", "--extra", "demo", "--extra", "notebooks")
    write("server.txt", "the kit on a torch that is there", server)
    write("full.txt", "what the page and the notebooks add to server.txt", minus(full, server))
    write("build.txt", "what builds the kit's wheel", compiled(uv, "-", given="hatchling"))
    write(
        "fa3.txt", "FlashAttention 3 of the CUDA image", compiled(uv, "-", "--no-deps", given=FA3)
    )
    write("npu.txt", "torch-npu of the Ascend image", compiled(uv, "-", "--no-deps", given=NPU))
    return 0


def compiled(uv: str, source: str, *flags: str, given: str | None = None) -> list[str]:
    """Return the locked requirements of a source, each with its hashes, on any Linux or Python."""
    any_machine = ("--universal", "--python-version", "3.11", "--constraint", "constraints.txt")
    plain = ("--quiet", "--no-header", "--no-annotate", "--no-config", "--generate-hashes")
    done = subprocess.run(
        [uv, "pip", "compile", source, *flags, *any_machine, *plain],
        cwd=ROOT,
        input=given,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    locked = re.split(r"\n(?=\S)", done.stdout.strip())
    return [requirement for requirement in locked if not LEFT_OUT.match(requirement)]


def minus(requirements: list[str], known: list[str]) -> list[str]:
    """Return the requirements that are not in `known`."""
    return [requirement for requirement in requirements if requirement not in known]


def write(name: str, what: str, requirements: list[str]) -> None:
    head = f"# {what[0].upper()}{what[1:]}. `make lock` writes this file.\n"
    (FOLDER / name).write_text(head + "\n".join(requirements) + "\n")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
