"""Every benchmark on what `assembler clean-image --profile cpu` made, one after another.

    python -m benchmarks [NAME…]

image_dockerfile.py needs buildah, runc and root, and is run by its own name only.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
NAMES = ("lock_check", "image_assembly", "gfx_reader", "verify_image")


def main() -> int:
    """Run the chosen scripts; 1 when the stack is not there."""
    about, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=about, epilog=rest.strip().splitlines()[-1]
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"which of {', '.join(NAMES)} [all]"
    )
    options = parser.parse_args()
    if unknown := sorted({*options.names} - {*NAMES}):
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(NAMES)}")
    wheel = next((HERE.parent / "build/sources/cpu/amd-aiter").glob("*.whl"), None)
    if wheel is None:
        print("make the stack first: ./run assembler clean-image --profile cpu", file=sys.stderr)
        return 1
    for name in options.names or NAMES:
        print(f"\n== {name}", flush=True)
        extra = ["--wheel", str(wheel)] if name == "gfx_reader" else []
        script = HERE / f"{name}.py"
        subprocess.run([sys.executable, str(script), *extra], cwd=HERE.parent, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
