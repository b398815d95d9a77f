"""Measurements on what `assembler clean-image --profile cpu` made.

python -m benchmarks                    the image engine's table, then every other benchmark
python -m benchmarks image [OPTION…]    the image engine's table; --help says what it wants
python -m benchmarks NAME…              lock_check, gfx_reader, verify_image
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from benchmarks import image

HERE = Path(__file__).parent
NAMES = ("lock_check", "gfx_reader", "verify_image")


def main(words: list[str]) -> int:
    """Run what is chosen; 1 when the stack is not there."""
    if words[:1] == ["image"]:
        return image.main(words[1:])
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"image, {', '.join(NAMES)} [all]")
    options = parser.parse_args(words)
    if unknown := sorted({*options.names} - {"image", *NAMES}):
        parser.error(f"there is no benchmark {unknown[0]!r}; there are image, {', '.join(NAMES)}")
    wheel = next((HERE.parent / "build/sources/cpu/amd-aiter").glob("*.whl"), None)
    if wheel is None:
        print("make the stack first: ./run assembler clean-image --profile cpu", file=sys.stderr)
        return 1
    for name in options.names or ("image", *NAMES):
        print(f"\n== {name}", flush=True)
        if name == "image":
            if code := image.main([]):
                return code
            continue
        extra = ["--wheel", str(wheel)] if name == "gfx_reader" else []
        script = HERE / f"{name}.py"
        subprocess.run([sys.executable, str(script), *extra], cwd=HERE.parent, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
