"""Debian packages of any suite through the machine's own apt: its mirror, proxies and keys.

apt runs with private state folders, so no root is needed and nothing of the machine changes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from assembler.errors import MissingToolError, SourceUnavailableError
from assembler.sources.apt_sources import AptSource, for_suite, read_machine
from assembler.sources.pins import Pin
from assembler.sources.store import Store

# Hooks of the machine's configuration speak of the machine's packages (docker-clean, appstream, …).
_CONFIGURATION = """\
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Post-Invoke;
#clear Dir::Ignore-Files-Silently;
"""


@dataclass(frozen=True)
class Moved:
    """A pinned Debian package that the mirror no longer serves, and what replaced it."""

    name: str
    old: str
    new: str


@dataclass(frozen=True)
class Package:
    """One version of a Debian package as the archive describes it."""

    name: str
    version: str
    architecture: str
    file: str
    sha256: str
    size: int
    depends: str

    def pin(self, suite: str, *, architecture: str, why: str = "") -> Pin:
        """Return the pin of this very file."""
        return Pin(
            kind="debian",
            name=self.name,
            version=self.version,
            file=self.file,
            sha256=self.sha256,
            size=self.size,
            suite=suite,
            architecture=architecture,
            why=why,
        )


def version_key(version: str) -> object:
    """Return a key that sorts Debian versions as dpkg does."""
    from debian.debian_support import NativeVersion

    return NativeVersion(version)


def upstream_version(version: str) -> str:
    """Return a Debian version without epoch and revision: ``1:3.11.2-6+deb12u9`` → ``3.11.2``."""
    without_epoch = version.rpartition(":")[2]
    return without_epoch.rpartition("-")[0] or without_epoch


class DebianArchive:
    """One suite's packages for one architecture; ``folder`` keeps apt's private state."""

    def __init__(
        self,
        suite: str,
        architecture: str,
        folder: Path,
        *,
        sources: Sequence[AptSource] | None = None,
    ) -> None:
        self.suite = suite
        self.architecture = architecture
        self._folder = folder.absolute()
        self._sources = sources
        self._packages: dict[str, tuple[Package, ...]] = {}
        self._updated = False

    def _command(self, program: str) -> list[str]:
        if not shutil.which(program):
            raise MissingToolError(
                f"{program} is not on this machine, and Debian packages are fetched with it",
                remedy="run it on Debian or in a Debian container",
            )
        folder = self._folder
        options = {
            "Dir::State": folder / "state",
            "Dir::State::status": "/dev/null",
            "Dir::Cache": folder / "cache",
            "Dir::Etc::sourcelist": "/dev/null",
            "Dir::Etc::sourceparts": folder / "sources",
            "Dir::Etc::preferences": "/dev/null",
            "Dir::Etc::preferencesparts": "/dev/null",
            "APT::Architecture": self.architecture,
            "APT::Architectures": self.architecture,
            "Acquire::Languages": "none",
            "Acquire::Retries": "3",
        }
        if os.geteuid() == 0:
            options["APT::Sandbox::User"] = "root"  # the store need not be open to _apt
        command = [program, "-q", "-c", str(folder / "apt.conf")]
        for key, value in options.items():
            command += ["-o", f"{key}={value}"]
        return command

    def _run(
        self, program: str, *arguments: str, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._command(program), *arguments],
            env=dict(os.environ, LC_ALL="C.UTF-8"),
            cwd=cwd or self._folder,
            text=True,
            errors="replace",
            capture_output=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def _prepare(self) -> None:
        sources = for_suite(self._sources or read_machine(), self.suite)
        for name in ("state/lists/partial", "cache/archives/partial", "sources"):
            (self._folder / name).mkdir(parents=True, exist_ok=True)
        (self._folder / "apt.conf").write_text(_CONFIGURATION, encoding="utf-8")
        text = "\n".join(source.stanza() for source in sources)
        (self._folder / "sources" / "debian.sources").write_text(text, encoding="utf-8")

    def update(self) -> None:
        """Get the suite's package lists; SourceUnavailableError when the mirror gives none."""
        if self._updated:
            return
        from filelock import FileLock  # takes as long as all else that this module imports

        self._command("apt-get")
        self._folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self._folder / "lock"):
            self._prepare()
            result = self._run(
                "apt-get", "update", "-o", "APT::Update::Error-Mode=any", "--error-on=any"
            )
        if result.returncode:
            raise SourceUnavailableError(
                f"apt could not read Debian {self.suite} at this machine's mirror "
                f"({_last_words(result.stderr)})",
                remedy="check the network and the machine's apt sources and proxies, or use "
                "`--offline` with a filled store",
            )
        self._updated = True
        self._packages.clear()

    def packages(self, names: Iterable[str]) -> dict[str, tuple[Package, ...]]:
        """Return every served version of these packages, newest first; unknown ones have none."""
        self.update()
        names = tuple(dict.fromkeys(names))
        asked = [name for name in names if name not in self._packages]
        if asked:
            result = self._run("apt-cache", "show", *asked)
            found: dict[str, list[Package]] = {name: [] for name in asked}
            for package in _parse_packages(result.stdout):
                if package.name in found and package not in found[package.name]:
                    found[package.name].append(package)
            for name, versions in found.items():
                versions.sort(key=lambda one: version_key(one.version), reverse=True)  # type: ignore[arg-type,return-value]
                self._packages[name] = tuple(versions)
        return {name: self._packages[name] for name in names}

    def resolve(self, names: Iterable[str]) -> tuple[Pin, ...]:
        """Return pins of the newest versions the mirror serves, in the given order."""
        pins = []
        for name, versions in self.packages(names).items():
            if not versions:
                raise SourceUnavailableError(
                    f"Debian {self.suite} has no package {name!r} for {self.architecture}",
                    remedy="correct the name",
                )
            pins.append(versions[0].pin(self.suite, architecture=self.architecture))
        return tuple(pins)

    def unmet(self, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Return, by package, the Depends that nothing in ``names`` satisfies by name.

        For information: alternatives count when any of them is listed, versions are not compared,
        and virtual packages are not looked up.
        """
        found = self.packages(names)
        missing = {}
        for name, versions in found.items():
            wanted = relations(versions[0].depends) if versions else ()
            unmet = tuple(
                " | ".join(group) for group in wanted if not any(one in found for one in group)
            )
            if unmet:
                missing[name] = unmet
        return missing

    def served(self, pins: Iterable[Pin]) -> dict[Pin, bool]:
        """Tell for each pin whether the mirror still lists exactly this version and hash."""
        pins = tuple(pins)
        found = self.packages(pin.name for pin in pins)
        return {
            pin: any(
                (one.version, one.sha256) == (pin.version, pin.sha256) for one in found[pin.name]
            )
            for pin in pins
        }

    def download(self, pins: Sequence[Pin], store: Store) -> None:
        """Bring these pins' files into the store, in one call of apt; all must be served."""
        if not pins:
            return
        self.update()
        with store.scratch("apt") as folder:
            wanted = [f"{pin.name}={pin.version}" for pin in pins]
            result = self._run("apt-get", "download", *wanted, cwd=folder)
            files = {path.name.partition("_")[0]: path for path in folder.glob("*.deb")}
            for pin in pins:
                if pin.name in files:
                    store.add(files[pin.name], pin.sha256, name=pin.file, move=True)
            for pin in pins:
                if pin.name not in files:
                    raise SourceUnavailableError(
                        f"apt could not download {pin.label} ({_last_words(result.stderr)})",
                        remedy="check the network and the machine's apt sources and run it again",
                    )


_RELATION = re.compile(r"^\s*([a-z0-9][a-z0-9+.-]*)")


def relations(depends: str) -> tuple[tuple[str, ...], ...]:
    """Return a Depends field as groups of alternative package names."""
    return tuple(
        names
        for group in depends.split(",")
        if (names := tuple(m[1] for one in group.split("|") if (m := _RELATION.match(one))))
    )


def _parse_packages(text: str) -> Iterable[Package]:
    from debian.deb822 import Packages

    for stanza in Packages.iter_paragraphs(text.splitlines(keepends=True), use_apt_pkg=False):
        fields: Mapping[str, str] = stanza
        if "SHA256" not in fields or "Filename" not in fields:
            continue
        before, depends = fields.get("Pre-Depends", ""), fields.get("Depends", "")
        yield Package(
            name=fields["Package"],
            version=fields["Version"],
            architecture=fields["Architecture"],
            file=fields["Filename"].rpartition("/")[2],
            sha256=fields["SHA256"],
            size=int(fields["Size"]),
            depends=", ".join(part for part in (before, depends) if part),
        )


def _last_words(stderr: str) -> str:
    """Return apt's first error in one line, without the mirror's address."""
    lines = [line[2:].strip() for line in stderr.splitlines() if line.startswith("E:")]
    words = lines[0] if lines else stderr.strip().rpartition("\n")[2] or "it said nothing"
    return re.sub(r"\b[a-z+]+:/\S+", "the mirror", words)
