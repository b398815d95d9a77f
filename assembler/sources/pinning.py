"""What ``assembler pin`` does: names and versions → files and hashes, written into pin files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement

from assembler.digest import sha256_file
from assembler.errors import ConfigError, SourceUnavailableError
from assembler.progress import Progress
from assembler.sources import pypi, transfer, trees, wheels
from assembler.sources.bring import Bringer
from assembler.sources.changes import Change, recipe_change, wheel_change
from assembler.sources.conda_names import normal
from assembler.sources.entries import TARGETS_FILE, Entry, entries_of
from assembler.sources.fetch import target_of
from assembler.sources.pins import Pin, read_wheels
from assembler.sources.repin import replace_pins, write_targets
from assembler.sources.store import Store, mismatch
from assembler.stack import Profile
from assembler.workspace import Workspace

# Never dependencies of this stack: they come with builds of torch for other GPUs.
FOREIGN = ("nvidia-", "cuda-")


class Pinner:
    """Resolves pins of one profile; nothing is written before everything is known."""

    def __init__(self, workspace: Workspace, profile: Profile, progress: Progress) -> None:
        self._workspace = workspace
        self._profile = profile
        self._progress = progress
        self._store = Store(workspace.store)
        self._target = target_of(profile)
        self._bringer = Bringer(self._store, self._target, progress)

    def _entries(self) -> Iterator[Entry]:
        for entry in entries_of(self._workspace, self._profile):
            if not isinstance(entry.data, dict) or not entry.name:
                raise ConfigError(f"{entry.path}: an entry has no name", remedy="give it one")
            yield entry

    def recipes(self, requests: Sequence[str] = (), *, pre: bool = False) -> tuple[Change, ...]:
        """Pin the recipes' artefacts: the requested ones anew, or all at the versions they have.

        A request is a requirement (``triton``, ``triton==3.8.0``); one without a version asks for
        the newest. Debian packages take the mirror's newest version in any case. Raises
        HashMismatchError when a file of the pinned name now has other bytes.
        """
        asked = dict(self._requests(requests))
        entries = [one for one in self._entries() if not asked or normal(one.name) in asked]
        unknown = set(asked) - {normal(one.name) for one in entries}
        if unknown:
            raise ConfigError(
                f"no recipe of profile {self._profile.name!r} has a pin {sorted(unknown)[0]!r}",
                remedy="name a pin of its sources.toml files",
            )
        new: dict[str, Pin] = {}
        new |= self._pypi([one for one in entries if one.kind == "pypi"], asked, pre=pre)
        new |= self._debian([one for one in entries if one.kind == "debian"])
        for one in entries:
            if one.kind == "url":
                new[one.key] = self._url(one)
            elif one.kind == "git":
                new[one.key] = self._git(one)
        for one in entries:
            if one.key in new:
                _refuse_other_bytes(one.data, new[one.key])
        changes = []
        for path in dict.fromkeys(one.path for one in entries):
            here = [one for one in entries if one.path == path and one.key in new]
            table = self._profile.pin_table
            if path.name == TARGETS_FILE:
                write_targets(path, table, [new[one.key] for one in here])
            else:
                replace_pins(path, table, {one.name: new[one.key] for one in here})
            changes += [recipe_change(path, one, new[one.key]) for one in here]
        return tuple(changes)

    def _requests(self, requests: Sequence[str]) -> Iterator[tuple[str, Requirement]]:
        for request in requests:
            try:
                requirement = Requirement(request)
            except InvalidRequirement:
                raise ConfigError(
                    f"{request!r} is no requirement", remedy="write NAME or NAME==VERSION"
                ) from None
            yield normal(requirement.name), requirement

    def _pypi(
        self, entries: Sequence[Entry], asked: Mapping[str, Requirement], *, pre: bool
    ) -> dict[str, Pin]:
        if not entries:
            return {}
        pins: dict[str, Pin] = {}
        for index in dict.fromkeys(one.data.get("index") for one in entries):
            group = [one for one in entries if one.data.get("index") == index]
            pins |= self._from_index(group, self._index(index, group[0]), asked, pre=pre)
        return pins

    def _index(self, name: object, entry: Entry) -> str | None:
        """Return the address of one of the profile's indexes; None for the user's own."""
        if name is None:
            return None
        address = self._profile.indexes.get(str(name))
        if address is None:
            raise ConfigError(
                f"{entry.path}: {entry.name} names the index {name!r}, which the profile has not",
                remedy=f"add it to [profile.{self._profile.pin_table}.indexes] in stack.toml",
            )
        return address

    def _from_index(
        self,
        entries: Sequence[Entry],
        index: str | None,
        asked: Mapping[str, Requirement],
        *,
        pre: bool,
    ) -> dict[str, Pin]:
        lines = {}
        for one in entries:
            request, version = asked.get(normal(one.name)), one.data.get("version")
            lines[one.name] = str(request) if request else one.name
            if request is None and version:
                lines[one.name] = f"{one.name}=={version}"
        resolution = pypi.resolve(list(lines.values()), self._target, pre=pre, index=index)
        found = {normal(one.name): one for one in resolution.found}
        files = self._files(resolution.found, index)
        pins = {}
        for one in entries:
            hit = found.get(normal(one.name))
            if hit is None and normal(one.name) not in asked and _whole(one):
                pins[one.key] = _complete(one, {})  # it is had from its URL, as it is
                continue
            if hit is None:
                where = f"index {index}" if index else pypi.places(pypi.settings())
                if resolution.unreachable:
                    raise SourceUnavailableError(
                        f"{where} could not be reached for {lines[one.name]}",
                        remedy="run it on a machine that reaches it",
                    )
                raise SourceUnavailableError(
                    f"{lines[one.name]} has no wheel for CPython {self._target.python} in {where}",
                    remedy="check the version, and pip's configuration if it has other places",
                )
            file, sha256, size = files[hit.name]
            url = one.data.get("url") if hit.version == one.data.get("version") else None
            # Where the profile's own index has it; the user's pip knows nothing of that index.
            url = hit.url.partition("#")[0] if index else url
            pins[one.key] = _complete(
                one,
                {
                    "kind": "pypi",
                    "version": hit.version,
                    "file": file,
                    "sha256": sha256,
                    "size": size,
                    "url": url,
                },
            )
        return pins

    def _files(
        self, found: Sequence[pypi.Found], index: str | None = None
    ) -> dict[str, tuple[str, str, int]]:
        """Have these wheels in the store; return file name, SHA-256 and size by distribution."""
        known = {
            one.name: Pin(
                kind="pypi",
                name=one.name,
                version=one.version,
                file=unquote(urlsplit(one.url).path.rpartition("/")[2]),
                sha256=one.sha256,
                url=one.url.partition("#")[0] if index else None,
            )
            for one in found
            if one.sha256
        }
        self._bringer.bring([pin for pin in known.values() if not self._store.has(pin.sha256)])
        files = {}
        for one in found:
            if one.name in known:
                file, sha256 = known[one.name].file, known[one.name].sha256
            else:
                file, sha256 = self._hash(one, index)
            files[one.name] = (file, sha256, self._store.size(sha256))
        return files

    def _hash(self, found: pypi.Found, index: str | None) -> tuple[str, str]:
        """Get a wheel whose index tells no hash; return its file name and SHA-256."""
        with tempfile.TemporaryDirectory(prefix="assembler-pin-") as scratch:
            wanted = f"{found.name}=={found.version}"
            path = pypi.download(wanted, self._target, Path(scratch), index=index)
            if path is None:
                raise SourceUnavailableError(
                    f"{wanted} could not be downloaded", remedy="check pip's configuration"
                )
            sha256 = sha256_file(path)
            self._store.add(path, sha256)
            return path.name, sha256

    def _debian(self, entries: Sequence[Entry]) -> dict[str, Pin]:
        pins: dict[str, Pin] = {}
        groups: dict[tuple[str, str], list[Entry]] = {}
        for one in entries:
            key = (str(one.data.get("suite", "")), str(one.data.get("architecture", "")))
            if not all(key):
                raise ConfigError(
                    f"{one.path}: {one.name} has no suite or no architecture",
                    remedy='add suite = "bookworm" and architecture = "amd64"',
                )
            groups.setdefault(key, []).append(one)
        for (suite, architecture), group in groups.items():
            archive = self._bringer.archive(suite, architecture)
            resolved = archive.resolve(one.name for one in group)
            for one, pin in zip(group, resolved, strict=True):
                pins[one.key] = pin.model_copy(update={"why": one.data.get("why", "")})
            archive.download(
                [one for one in resolved if not self._store.has(one.sha256)], self._store
            )
        return pins

    def _url(self, entry: Entry) -> Pin:
        url = str(entry.data.get("url", ""))
        if not url:
            raise ConfigError(f"{entry.path}: {entry.name} has no url", remedy="add it")
        network = transfer.settings(pypi.settings())
        with tempfile.TemporaryDirectory(prefix="assembler-pin-") as scratch:
            path = Path(scratch) / "file"
            transfer.to_file(network, url, path, name=entry.name)
            sha256 = sha256_file(path)
            self._store.add(path, sha256, name=entry.name)
        file = entry.data.get("file") or unquote(urlsplit(url).path.rpartition("/")[2])
        return _complete(entry, {"file": file, "sha256": sha256, "size": self._store.size(sha256)})

    def _git(self, entry: Entry) -> Pin:
        url, commit = entry.data.get("url"), entry.data.get("commit")
        if not url or not commit:
            raise ConfigError(
                f"{entry.path}: {entry.name} has no url or no commit", remedy="add them"
            )
        named = tuple(entry.data.get("submodules", ()))
        sha256, size = trees.commit_tar(self._store, entry.name, str(url), str(commit), named)
        file = f"{entry.name}-{commit}.tar"
        return _complete(entry, {"file": file, "sha256": sha256, "size": size})

    def wheels(self, *, upgrade: bool = False) -> tuple[Change, ...]:
        """Resolve the profile's ``.in`` file into its wheel list and write it.

        Versions that are in the list stay unless ``upgrade`` is given; the recipes' own wheels are
        taken at their pinned versions and never appear in it.
        """
        if self._profile.wheels is None:
            raise ConfigError(
                f"profile {self._profile.name!r} has no wheel list",
                remedy="name one in stack.toml (wheels = …)",
            )
        path = self._workspace.root / self._profile.wheels
        requirements = wheels.read_requirements(path.with_suffix(".in"))
        old = {one.name: one for one in read_wheels(path)} if path.exists() else {}
        own, folders = self._own_wheels()
        keep = [] if upgrade else [f"{one.name}=={one.version}" for one in old.values()]
        found = wheels.solve(requirements, own, self._target, folders=folders, keep=keep)
        wheels.refuse(found, {normal(name) for name in self._own_names()}, FOREIGN)
        files = self._files(found)
        new = {}
        for one in found:
            wheel = wheels.wheel_of(one, *files[one.name])
            if wheel.name in old:
                _refuse_other_bytes(old[wheel.name].model_dump(), wheel)
            new[wheel.name] = wheel
        beside = path.with_name(f".{path.name}.new")
        beside.write_text(wheels.render(new.values(), self._profile.name), encoding="utf-8")
        beside.replace(path)
        return tuple(
            wheel_change(path, name, old.get(name), new.get(name)) for name in sorted({*old, *new})
        )

    def _own_names(self) -> list[str]:
        return [one.name for one in self._entries() if one.kind == "pypi"]

    def _own_wheels(self) -> tuple[list[str], list[Path]]:
        """Return the recipes' own wheels as exact requirements, and folders that hold them."""
        pins = [
            (one.recipe, Pin.model_validate(one.data))
            for one in self._entries()
            if one.kind == "pypi"
        ]
        self._bringer.bring([pin for _, pin in pins if not self._store.has(pin.sha256)])
        top = self._workspace.build / "pin" / self._profile.name
        folders = []
        for recipe, pin in pins:
            self._store.link(pin.sha256, top / recipe / pin.file)
            folders.append(top / recipe)
        return [f"{pin.name}=={pin.version}" for _, pin in pins], folders


def _whole(entry: Entry) -> bool:
    """Tell whether an entry lacks nothing, and says where to go when pip finds none."""
    return all(entry.data.get(key) for key in ("version", "file", "sha256", "url"))


def _complete(entry: Entry, values: Mapping[str, object]) -> Pin:
    try:
        return Pin.model_validate({**entry.data, **values})
    except ValueError as error:
        raise ConfigError(
            f"{entry.path}: {entry.name}: {str(error).splitlines()[-1].strip()}",
            remedy="correct it",
        ) from None


def _refuse_other_bytes(old: Mapping[str, Any], new: Pin) -> None:
    if old.get("sha256") and old.get("file") == new.file and old["sha256"] != new.sha256:
        raise mismatch(f"{new.file}, as the index has it now,", str(old["sha256"]), new.sha256)
