"""Compares the schemas that the tests emulate with those in the library of a torch-npu wheel.

python tools/npu_schemas.py torch_npu-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl

The wheel is read as a file, never installed: without CANN it keeps torch from importing.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from npu_emulation import SCHEMAS

_LIBRARY = "torch_npu/lib/libtorch_npu.so"


def missing_schemas(wheel: Path) -> list[str]:
    """Return the emulated schemas that the wheel's library does not hold, word for word."""
    with zipfile.ZipFile(wheel) as archive:
        library = archive.read(_LIBRARY)
    # Strings in a library end with a zero byte: a schema that goes on is another one.
    return [schema for schema in SCHEMAS if f"{schema}\0".encode() not in library]


def main(arguments: list[str]) -> int:
    """Print what is missing in the named wheel; exit 1 if anything is."""
    (wheel,) = map(Path, arguments)
    missing = missing_schemas(wheel)
    for schema in missing:
        print(f"not in {wheel.name}: {schema}")
    print(f"{len(SCHEMAS) - len(missing)} of {len(SCHEMAS)} emulated schemas are in {wheel.name}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
