"""``python -m benchmarks``: every benchmark on what `assembler clean-image --profile cpu` made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
SCRIPTS = ("lock_check.py", "image_assembly.py", "gfx_reader.py", "verify_image.py")


def main() -> int:
    """Run the scripts one after another; image_dockerfile.py needs buildah and is run by hand."""
    wheel = next((HERE.parent / "build/sources/cpu/amd-aiter").glob("*.whl"), None)
    if wheel is None:
        print("make the stack first: ./run assembler clean-image --profile cpu", file=sys.stderr)
        return 1
    for script in SCRIPTS:
        print(f"\n== {script}", flush=True)
        extra = ["--wheel", str(wheel)] if script == "gfx_reader.py" else []
        subprocess.run([sys.executable, str(HERE / script), *extra], cwd=HERE.parent, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
