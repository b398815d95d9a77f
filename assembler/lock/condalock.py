"""conda-lock.yml: the lock in the format of CEP-37 (version 1), the source of truth.

conda-lock's own models write it, so that conda-lock renders and installs it. What they have no word
for stands in ``metadata.custom_metadata`` under keys that begin with ``assembler.``: one line a
package or base package, so that a changed line is a changed package.

Reading uses no model of conda-lock's: it is strict, says one sentence for each way a file can be
wrong, and takes milliseconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote, unquote

import yaml
from pydantic import ValidationError

from assembler.channel.location import FILE_SAFE, KNOWN_SUBDIRS, split_file
from assembler.digest import canonical_json
from assembler.errors import LockError
from assembler.lock.model import FORMAT_VERSION, LOCAL_CHANNEL, Lock, LockedPackage, split_spec
from assembler.lock.request import ENVIRONMENT, content_hashes, yaml_text
from assembler.sources.pins import Pin

FILE: Final = "conda-lock.yml"
SCHEMA_VERSION = 1
PREFIX = "assembler."
LARGEST = 64 << 20  # bytes; a lock of a thousand packages is below one percent of this
RELOCK = "run `assembler lock` to write it anew"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MD5 = re.compile(r"[0-9a-f]{32}")

HEADER = """\
# The exact packages of a stack. Made by `assembler lock`; do not edit.
# Install with:        assembler install -p PREFIX
# or with conda-lock:  ATOM_CHANNEL=/path/to/channel conda-lock install -p PREFIX conda-lock.yml
"""


class NewerLockError(LockError):
    """The lock was written by a newer assembler."""


# -- writing ---------------------------------------------------------------------------------------


def lock_url(package: LockedPackage) -> str:
    """Return the package's address as locks spell it: below ``$ATOM_CHANNEL`` or elsewhere."""
    return package.url or f"{LOCAL_CHANNEL}/{quote(package.path, safe=FILE_SAFE)}"


def _dependencies(package: LockedPackage) -> dict[str, str]:
    return dict(sorted(split_spec(spec) for spec in package.depends))


def _facts(package: LockedPackage, input_key: str | None) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "build_number": package.build_number,
        "size": package.size,
        "license": package.license or None,
        "timestamp": package.timestamp,
        "noarch": package.noarch,
        "site_packages": package.site_packages,
        "constrains": list(package.constrains) or None,
        "input_key": input_key,
    }
    # conda-lock keeps one specification a name; the list itself only where that loses something.
    if list(package.depends) != _join(_dependencies(package)):
        facts["depends"] = list(package.depends)
    return {key: value for key, value in facts.items() if value is not None}


def _join(dependencies: Mapping[str, str]) -> list[str]:
    return [f"{name} {rest}".rstrip() for name, rest in dependencies.items()]


def _line(data: object) -> str:
    return canonical_json(data).decode()


def custom_metadata(lock: Lock) -> dict[str, str]:
    """Return what conda-lock's format has no word for, one line each, sorted."""
    words = {
        "format": str(lock.format_version),
        "profile": lock.profile,
        "digest": lock.digest,
        "specs": _line(list(lock.specs)),
        "gfx-targets": _line(list(lock.gfx_targets)),
        "suite": lock.suite,
        "base-names": _line(list(lock.base_names)),
    }
    words |= {f"virtual.{name}": value for name, value in lock.virtual_packages.items()}
    for pin in lock.base:
        words[f"base.{pin.name}"] = _line(pin.model_dump(exclude_defaults=True))
    for package in lock.packages:
        facts = _facts(package, lock.input_keys.get(package.name))
        words[f"package.{package.name}"] = _line(facts)
    return {f"{PREFIX}{key}": words[key] for key in sorted(words)}


def lock_bytes(lock: Lock) -> bytes:
    """Return conda-lock.yml, the same bytes for the same lock."""
    from conda_lock.lockfile.v1.models import HashModel, LockedDependency, Lockfile, LockMeta

    packages = [
        LockedDependency(
            name=package.name,
            version=package.version,
            build=package.build,
            manager="conda",
            platform=lock.platform,
            dependencies=_dependencies(package),
            url=lock_url(package),
            hash=HashModel(md5=package.md5, sha256=package.sha256),
            category="main",
            optional=False,
        )
        for package in lock.packages
    ]
    metadata = LockMeta(
        content_hash=content_hashes(lock),
        channels=list(lock.channels),
        platforms=[lock.platform],
        sources=[ENVIRONMENT],
        custom_metadata=custom_metadata(lock),
    )
    document = Lockfile(package=packages, metadata=metadata).dict_for_output()
    return (HEADER + yaml_text(document)).encode()


# -- reading ---------------------------------------------------------------------------------------


def parse(data: bytes, where: str) -> Lock:
    """Return the lock of a conda-lock.yml's bytes; ``where`` is how messages call the file.

    Raises LockError for anything `assembler lock` did not write that way, and its subclass
    NewerLockError for the file of a newer assembler.
    """
    document = _document(data, where)
    if document.get("version") != SCHEMA_VERSION:
        raise LockError(
            f"{where} is a lock of version {document.get('version')!r}, not {SCHEMA_VERSION}",
            remedy=RELOCK,
        )
    try:
        metadata = _mapping(document["metadata"])
        words = {
            key.removeprefix(PREFIX): value
            for key, value in _mapping(metadata.get("custom_metadata") or {}).items()
            if key.startswith(PREFIX)
        }
    except (KeyError, TypeError):
        raise LockError(f"{where} has no metadata", remedy=RELOCK) from None
    if "format" not in words:
        raise LockError(f"{where} was not written by `assembler lock`", remedy=RELOCK)
    _check_format(words["format"], where)
    try:
        lock = _lock(document, metadata, words, where)
    except KeyError as error:
        raise LockError(f"{where} lacks {error.args[0]}", remedy=RELOCK) from None
    except (TypeError, ValueError, AttributeError, ValidationError) as error:
        reason = str(error).splitlines()[0]
        raise LockError(f"{where} is malformed ({reason})", remedy=RELOCK) from None
    if lock.digest != words.get("digest"):
        raise LockError(f"{where} was edited after it was written", remedy=RELOCK)
    return lock


def _document(data: bytes, where: str) -> dict[str, Any]:
    for wrong, what, remedy in (
        (not data.strip(), "is empty", RELOCK),
        (len(data) > LARGEST, "is far too large for a lock", RELOCK),
        (data.startswith(b"\xef\xbb\xbf"), "begins with a byte order mark", "save it without"),
        (b"\r" in data, "has Windows line ends", "check it out again with core.autocrlf=false"),
    ):
        if wrong:
            raise LockError(f"{where} {what}", remedy=remedy)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        document = yaml.load(data.decode(), Loader=loader)  # noqa: S506 - both are safe loaders
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise LockError(f"{where} is not valid YAML ({reason})", remedy=RELOCK) from None
    if not isinstance(document, dict):
        raise LockError(f"{where} is not a lock", remedy=RELOCK)
    return document


def _check_format(word: object, where: str) -> None:
    try:
        number = int(str(word))
    except ValueError:
        raise LockError(f"{where} has the format {word!r}", remedy=RELOCK) from None
    if number > FORMAT_VERSION:
        raise NewerLockError(
            f"{where} has format {number}, and this assembler reads up to {FORMAT_VERSION}",
            remedy="update the assembler, or run `assembler lock` to write it in the older format",
        )


def _mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{type(value).__name__} where a mapping belongs")
    return {str(key): item for key, item in value.items()}


def _words(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise TypeError("a list of words belongs there")
    return tuple(value)


def _lock(
    document: Mapping[str, Any], metadata: Mapping[str, Any], words: Mapping[str, str], where: str
) -> Lock:
    platforms = _words(metadata["platforms"])
    if len(platforms) != 1 or platforms[0] not in KNOWN_SUBDIRS - {"noarch"}:
        raise LockError(
            f"{where} is for {', '.join(platforms) or 'no platform'}",
            remedy="use the lock of a platform that the project builds for (linux-64)",
        )
    entries = document.get("package")
    if not isinstance(entries, list):
        raise LockError(f"{where} has no packages", remedy=RELOCK)
    packages, keys = [], {}
    for position, entry in enumerate(entries, 1):
        package, key = _package(_mapping(entry), words, platforms[0], f"{where}, entry {position}")
        packages.append(package)
        if key is not None:
            keys[package.name] = key
    return Lock(
        profile=words["profile"],
        platform=platforms[0],
        specs=_words(json.loads(words["specs"])),
        channels=tuple(str(_mapping(channel)["url"]) for channel in metadata.get("channels") or ()),
        packages=tuple(packages),
        base=_part(words, "base.", lambda line: Pin.model_validate(json.loads(line))),
        virtual_packages=dict(
            _part(words, "virtual.", None),
        ),
        gfx_targets=_words(json.loads(words["gfx-targets"])),
        input_keys=keys,
        suite=words["suite"],
        base_names=_words(json.loads(words["base-names"])),
        format_version=int(words["format"]),
    )


def _part(
    words: Mapping[str, str], prefix: str, read: Callable[[str], Any] | None
) -> tuple[Any, ...]:
    return tuple(
        read(value) if read else (key.removeprefix(prefix), value)
        for key, value in words.items()
        if key.startswith(prefix)
    )


def _package(
    entry: Mapping[str, Any], words: Mapping[str, str], platform: str, where: str
) -> tuple[LockedPackage, str | None]:
    name, hashes = str(entry["name"]), _mapping(entry["hash"])
    where = f"{where} ({name})"
    for kind, pattern in (("sha256", _SHA256), ("md5", _MD5)):
        if not pattern.fullmatch(str(hashes.get(kind) or "")):
            raise LockError(f"{where} has no {kind}", remedy=RELOCK)
    if entry.get("manager") != "conda":
        raise LockError(f"{where} is not a conda package", remedy=RELOCK)
    if entry["platform"] != platform:
        raise LockError(f"{where} is for {entry['platform']}, not {platform}", remedy=RELOCK)
    url = str(entry["url"])
    subdir, _, file = unquote(url.split("#")[0]).rpartition("/")
    subdir = subdir.rpartition("/")[2]
    local = url == f"{LOCAL_CHANNEL}/{quote(f'{subdir}/{file}', safe=FILE_SAFE)}"
    if not (local or url.startswith(("https://", "http://"))) or subdir not in KNOWN_SUBDIRS:
        raise LockError(
            f"{where} is at {url}, which is neither below {LOCAL_CHANNEL} nor a web address",
            remedy=RELOCK,
        )
    described = (name, str(entry["version"]), str(entry["build"]))
    if (split_file(file) or ())[:3] != described:
        raise LockError(f"{where} is called {'-'.join(described)} but is {file}", remedy=RELOCK)
    # The digest does not cover what only conda-lock reads.
    if entry.get("category") != "main" or entry.get("optional") is not False:
        raise LockError(f"{where} is not one of the packages always installed", remedy=RELOCK)
    facts = _mapping(json.loads(words[f"package.{name}"]))
    depends = facts.get("depends", _join(_mapping(entry.get("dependencies") or {})))
    package = LockedPackage(
        name=name,
        version=described[1],
        build=described[2],
        build_number=int(facts["build_number"]),
        subdir=subdir,
        file=file,
        path=f"{subdir}/{file}",
        sha256=hashes["sha256"],
        md5=hashes["md5"],
        size=int(facts["size"]),
        depends=_words(depends),
        license=str(facts.get("license", "")),
        constrains=_words(facts.get("constrains", [])),
        timestamp=facts.get("timestamp"),
        noarch=facts.get("noarch"),
        site_packages=facts.get("site_packages"),
        url=None if local else url,
    )
    return package, facts.get("input_key")
