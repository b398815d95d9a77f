"""ROCm 10.0: split wheels, pinned from an index that the test serves, then built."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest

from assembler.channel.index import check, read_records
from assembler.sources.pins import Unpinned, read_pins
from assembler.workspace import Workspace
from tests.conftest import run_assembler
from tests.integration.rocm.conftest import Project, repin
from tests.integration.rocm.standins import Artefact, Code, both, rocm10, rocm_sdist, wheel
from tests.integration.rocm.test_rocm_channel import digests, processors
from tests.integration.sources.conftest_sources import Server, pip_environment, server

__all__ = ["pip_environment", "server"]

pytestmark = pytest.mark.slow
TARGETS = ("gfx942", "gfx950")
NEWER = ("--profile", "rocm", "--variant", "rocm=10.0")


def serve(server: Server, artefacts: Iterable[Artefact]) -> None:
    """Serve wheels as a simple index, without hashes for some: indexes differ in that."""
    pages: dict[str, str] = {}
    for number, one in enumerate(artefacts):
        place = "/rocm/" if one.file.endswith(".tar.gz") else "/files/"
        url = server.put(f"{place}{one.file}", one.data).replace("+", "%2B")
        fragment = f"#sha256={one.sha256}" if number % 2 else ""
        link = f'<a href="{url}{fragment}">{one.file}</a>'
        pages[one.name] = pages.get(one.name, "<!DOCTYPE html><html><body>") + link
    for name, page in pages.items():
        server.put(f"/simple/{name}/", page.encode(), content_type="text/html")


@pytest.fixture
def project(
    make_project: Project, code: Code, server: Server, pip_environment: object, tmp_path: Path
) -> Workspace:
    """The project, with the profile's index and ROCm's source distribution at the test's server."""
    workspace = make_project(tmp_path / "project")
    repin(workspace, both(code))
    stack = workspace.root / "stack.toml"
    text = stack.read_text()
    amd = "https://stable.repo.amd.com/rocm/whl-next/"
    assert amd in text
    stack.write_text(text.replace(amd, f"{server.url}/simple/"))
    pins = workspace.recipes / "rocm" / "rocm-sdk" / "sources.toml"
    pins.write_text(pins.read_text().replace(f"{amd}rocm/", f"{server.url}/rocm/"))
    serve(server, [*rocm10(code, TARGETS), rocm_sdist()])
    return workspace


def pin(workspace: Workspace, *names: str) -> str:
    """Run ``assembler pin`` on the 10.0 row and return its words."""
    done = run_assembler("pin", *NEWER, *names, cwd=workspace.root)
    assert done.returncode == 0, done.stderr
    return done.stdout


WHEELS = ("torch", "torchvision", "torchaudio", "triton", "rocm", "rocm-sdk-core",
          "rocm-sdk-libraries")  # fmt: skip
DEVICES = ("amd-torch-device", "amd-torchvision-device", "rocm-sdk-device")


def pin_all(workspace: Workspace, targets: tuple[str, ...] = TARGETS) -> str:
    """Pin what the row takes from AMD's index."""
    devices = [f"{name}-{target}" for name in DEVICES for target in targets]
    return pin(workspace, *(f"{name}" for name in (*WHEELS, *devices)))


def test_building_unpinned_is_refused_with_the_remedy(project: Workspace) -> None:
    done = run_assembler("build", *NEWER, cwd=project.root)
    assert done.returncode == 3
    assert "unpinned" in done.stderr
    assert "assembler pin" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not list(project.channel.glob("*/*.conda"))


def test_pins_are_written_and_the_split_stack_is_built(project: Workspace, code: Code) -> None:
    artefacts = {one.file: one for one in [*rocm10(code, TARGETS), rocm_sdist()]}
    words = pin_all(project)
    assert "13 pins changed" in words
    assert "rocm/pytorch/sources.toml: torch 2.11.0+rocm10.0.0 (sha256 none →" in words

    profile = project.stack().select("rocm").with_variants({"rocm": "10.0"})
    pins = [one for group in read_pins(project, profile).values() for one in group]
    assert not [one for one in pins if isinstance(one, Unpinned)]
    written = {one.file: one for one in pins if one.file in artefacts}
    assert set(written) == set(artefacts)
    for file, one in written.items():
        assert (one.sha256, one.size) == (artefacts[file].sha256, len(artefacts[file].data))
    targets = tomllib.loads((project.recipes / "rocm/pytorch/targets.toml").read_text())
    assert [one["name"] for one in targets["rocm"]] == [
        "amd-torch-device-gfx942", "amd-torch-device-gfx950"
    ]  # fmt: skip
    assert "gfx942" not in (project.recipes / "rocm/pytorch/sources.toml").read_text()
    assert "0 pins changed" in pin_all(project)

    done = run_assembler("build", *NEWER, "-j", "2", cwd=project.root)
    assert done.returncode == 0, done.stderr
    records = {one.name: one for one in read_records(project.channel)}
    assert check(project.channel) == ()
    for name in ("pytorch", "rocm-sdk-core", "rocm-sdk-libraries", "torchvision"):
        assert processors(project.channel / records[name].path) == {}
    for target in TARGETS:
        assert processors(
            project.channel / records[f"pytorch-device-{target}"].path
        ) == {target: 1}  # fmt: skip
        # the kpack and the Tensile library
        assert processors(
            project.channel / records[f"rocm-sdk-device-{target}"].path
        ) == {target: 2}  # fmt: skip
        selector = next(
            one
            for one in read_records(project.channel)
            if one.name == "atom-device" and one.build.startswith(target)
        )
        assert f"rocm-sdk-device-{target}" in selector.depends
    compiler = "lib/python3.12/site-packages/_rocm_sdk_core/lib/llvm/bin/clang"
    assert compiler not in digests(project.channel / records["rocm-sdk-core"].path)
    assert compiler in digests(project.channel / records["rocm-sdk-compiler"].path)
    tested = run_assembler("test", *NEWER, "--json", "-j", "2", cwd=project.root)
    assert tested.returncode == 0, tested.stderr
    report = json.loads(tested.stdout)
    trials = {Path(one["path"]).name.rsplit("-", 2)[0]: one for one in report["packages"]}
    for target in TARGETS:
        for name in ("rocm-sdk-device", "torchvision-device", "amd-aiter-device"):
            assert trials[f"{name}-{target}"]["outcome"] == "passed", name
        assert trials[f"pytorch-device-{target}"]["not_run"] == 1
    for name in ("rocm-sdk", "rocm-sdk-core", "rocm-sdk-compiler", "pytorch", "atom-stack"):
        assert trials[name]["passed"] == trials[name]["tests"] > 0, name
    solved = run_assembler("lock", *NEWER, cwd=project.root)
    assert solved.returncode == 0, solved.stderr
    assert (project.locks / "rocm-10.0" / "conda-lock.yml").is_file()


def test_other_bytes_under_a_pinned_name_are_refused_with_both_hashes(
    project: Workspace, server: Server, code: Code
) -> None:
    old = next(one for one in rocm10(code, TARGETS) if one.name == "torchaudio")
    pin(project, "torchaudio")
    file = project.recipes / "rocm/torchaudio/sources.toml"
    before = file.read_text()
    new = wheel(
        "torchaudio", "2.11.0", "cp312-cp312-linux_x86_64", {"torchaudio/__init__.py": "# other\n"}
    )
    assert new.file == old.file
    serve(server, [new])
    done = run_assembler("pin", *NEWER, "torchaudio", cwd=project.root)
    assert done.returncode == 4
    assert old.sha256 in done.stderr
    assert new.sha256 in done.stderr
    assert file.read_text() == before


def test_the_users_own_index_is_not_asked_for_amds_names(
    project: Workspace, server: Server, pip_environment: object, code: Code
) -> None:
    """PyPI has placeholders of these names; a version that only looks right must not come in."""
    # A build number makes pip prefer it wherever it sees both.
    fake = wheel("rocm-sdk-core", "10.0.0", "1-py3-none-linux_x86_64", {"placeholder.py": ""})
    url = server.put(f"/other/{fake.file}", fake.data)
    server.put("/users/rocm-sdk-core/", f'<a href="{url}">{fake.file}</a>'.encode(),
               content_type="text/html")  # fmt: skip
    assert callable(pip_environment)
    pip_environment(index_url=f"{server.url}/users/", extra_index_url=f"{server.url}/users/")
    pin(project, "rocm-sdk-core")
    text = (project.recipes / "rocm/rocm-sdk/sources.toml").read_text()
    real = next(one for one in rocm10(code, TARGETS) if one.name == "rocm-sdk-core")
    assert real.sha256 in text
    assert fake.sha256 not in text
