"""What the gates forbid, allow and expect: TOML files, one a profile, over one common file.

``policies/common.toml`` holds what is true of every clean image; ``policies/<profile>.toml`` adds
budgets, floors and exceptions. An exception names a finding, a subject pattern and the reason why
a stranger should accept it. Schema: ``schemas/policy.schema.json``, made from these models.
"""

from __future__ import annotations

import fnmatch
import functools
import re
import tomllib
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from assembler.errors import ConfigError
from assembler.targets import check_targets
from assembler.verify.findings import Finding, Severity

Word = Annotated[str, Field(min_length=1)]
Reason = Annotated[str, Field(min_length=20)]


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Denied(_Data):
    """A class of files that has no place in a clean image."""

    id: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")]
    what: Word = Field(description="what such a file is, in the singular")
    names: tuple[str, ...] = Field(
        default=(), description="shell patterns for the last component of a path"
    )
    paths: tuple[str, ...] = Field(
        default=(), description="shell patterns for the whole path; * also matches /"
    )
    except_paths: tuple[str, ...] = Field(
        default=(), description="shell patterns for whole paths that are no such files"
    )
    executable: bool = Field(
        default=False, description="only files that somebody may execute, or links to such"
    )
    elf: bool = Field(default=False, description="only ELF programs, not scripts")
    folders: bool = Field(default=False, description="the patterns name folders, not files")
    remedy: Word
    severity: Severity = Severity.ERROR


class Allowed(_Data):
    """A finding that is accepted, with the reason."""

    id: Word = Field(description="pattern for the finding's id, e.g. no-compilation/*")
    subject: Word = Field(description="pattern for the finding's subject")
    reason: Reason


class Size(_Data):
    """Budgets in bytes; a pattern without a budget is not checked."""

    image_unpacked: int | None = Field(default=None, gt=0)
    image_compressed: int | None = Field(default=None, gt=0)
    layer_compressed_warning: int = 5_000_000_000
    layer_compressed: int = 10_000_000_000
    layers: int = Field(default=100, description="most layers an image may have")
    package_unpacked: dict[str, int] = Field(
        default={}, description="package name pattern -> bytes; the first that matches counts"
    )


class Shadowing(_Data):
    """SONAMEs whose second copy is an error, not a warning."""

    strict: tuple[str, ...] = ()


class Kernels(_Data):
    """What GPU packages must hold."""

    floors: dict[str, int] = Field(
        default={}, description="package name pattern -> smallest number of code objects"
    )
    host_packages: tuple[str, ...] = Field(
        default=(), description="patterns of packages that may hold code for every target or none"
    )


class Policy(_Data):
    """Everything that gates are told from outside."""

    denied: tuple[Denied, ...] = ()
    allow: tuple[Allowed, ...] = ()
    size: Size = Size()
    kernels: Kernels = Kernels()
    shadowing: Shadowing = Shadowing()
    host_paths: tuple[str, ...] = Field(
        default=(), description="texts that betray the machine an image was made on"
    )
    glibc: str | None = Field(
        default=None,
        description="newest glibc that a package may ask for; filled in from the profile's base",
    )
    targets: tuple[str, ...] = Field(
        default=(),
        description="gfx targets; filled in from recipes/variants.yaml by the command",
    )

    def excuse(self, finding: Finding) -> Finding:
        """Return the finding, marked with the first exception that covers it."""
        if finding.allowed is not None:
            return finding
        for exception in self.allow:
            if fnmatch.fnmatchcase(finding.id, exception.id) and fnmatch.fnmatchcase(
                finding.subject, exception.subject
            ):
                return finding.model_copy(update={"allowed": exception.reason})
        return finding


def _load(text: str, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} is not valid TOML ({error})", remedy="correct it") from None


def _join(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Lay one policy over another: lists are joined, tables merged, single values replaced."""
    joined = dict(below)
    for key, value in above.items():
        old = joined.get(key)
        if isinstance(old, list) and isinstance(value, list):
            joined[key] = old + value
        elif isinstance(old, dict) and isinstance(value, dict):
            joined[key] = _join(old, value)
        else:
            joined[key] = value
    return joined


def read_policy(
    profile: str,
    *,
    extra: Path | None = None,
    targets: tuple[str, ...] = (),
    glibc: str | None = None,
    host_paths: tuple[str, ...] = (),
) -> Policy:
    """Return the common policy with the profile's and then the user's file laid over it.

    A profile without a file of its own has the common policy. ConfigError names the faulty key.
    """
    folder = resources.files("assembler.verify") / "policies"
    data = _load((folder / "common.toml").read_text(encoding="utf-8"), "common.toml")
    own = folder / f"{profile}.toml"
    if own.is_file():
        data = _join(data, _load(own.read_text(encoding="utf-8"), f"policies/{profile}.toml"))
    if extra is not None:
        try:
            data = _join(data, _load(extra.read_text(encoding="utf-8"), str(extra)))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"the policy {extra} cannot be read ({error})", remedy="name a readable TOML file"
            ) from None
    given = {"targets": targets, "glibc": glibc, "host_paths": list(host_paths)}
    try:
        return Policy.model_validate(_join(data, given))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(
            f"the policy of {profile}: {where}: {first['msg']}",
            remedy="correct it (assembler/verify/schemas/policy.schema.json describes every key)",
        ) from None


def matches(text: str, patterns: tuple[str, ...]) -> bool:
    """Whether a text fits one of the shell patterns; ``*`` also matches ``/``."""
    return bool(patterns) and _compiled(patterns).match(text) is not None


@functools.cache
def _compiled(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(fnmatch.translate, patterns)))


def read_targets(root: Path, variants: tuple[str, ...]) -> tuple[str, ...]:
    """Return ``gfx_target`` of the variant files, checked; empty when none of them has it."""
    found: list[str] = []
    for name in variants:
        try:
            data = yaml.safe_load((root / name).read_text(encoding="utf-8")) or {}
        except FileNotFoundError:
            continue
        except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
            raise ConfigError(f"{name} cannot be read ({error})", remedy="correct it") from None
        found += data.get("gfx_target", []) if isinstance(data, dict) else []
    return check_targets(str(target) for target in found)
