"""Which packages: py-rattler's solver against the channels, nothing detected from this machine."""

from __future__ import annotations

import asyncio
import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from assembler.channel.index import read_records
from assembler.channel.location import INDEX, REQUIRED_SUBDIRS, channel_url
from assembler.channel.records import Record
from assembler.errors import ConfigError, SolveError
from assembler.lock.model import LockedPackage, gfx_targets_of
from assembler.lock.pixi import repodata_record
from assembler.stack import Profile
from assembler.targets import check_targets

if TYPE_CHECKING:
    from rattler import GenericVirtualPackage, RepoDataRecord

SELECTOR = "atom-device"
TIMEOUT = timedelta(minutes=5)
_MISSING = re.compile(
    r"([A-Za-z0-9_.-]+)[^,;\n]*?, (?:for which|which) no candidates were found|"
    r"No candidates were found for ([A-Za-z0-9_.-]+)"
)
_VIRTUAL = re.compile(r"__[a-z0-9_]+")


def choose_root(records: Collection[Record], profile: Profile) -> str:
    """Return the package the lock is made for: the root, or the other one while it is not built."""
    names = {record.name for record in records}
    return profile.root if profile.root in names else profile.root_without_source


def gfx_specs(records: Collection[Record], gfx: Sequence[str]) -> tuple[str, ...]:
    """Return the specification that selects GPU targets: none for all of the channel's.

    The selector has a build for all targets and one for each. ConfigError for an unknown target,
    SolveError for one the channel was not built for, or for a choice that is neither one nor all.
    """
    wanted = check_targets(gfx)
    if not wanted:
        return ()
    built = gfx_targets_of(record.name for record in records)
    for target in wanted:
        if target not in built:
            raise SolveError(
                f"the channel has no device packages for {target}",
                remedy=f"choose among {', '.join(built)}, or build the channel for it"
                if built
                else "build the stack's device packages first",
            )
    if set(wanted) == set(built):
        return ()
    if len(wanted) > 1:
        raise ConfigError(
            f"{SELECTOR} has builds for one target or for all, not for {' and '.join(wanted)}",
            remedy=f"give one of {', '.join(built)}, or no --gfx for all",
        )
    return (f"{SELECTOR} * {wanted[0]}*",)


def virtual_packages(assumed: Mapping[str, str]) -> list[GenericVirtualPackage]:
    """Return the solver's form of ``{"__glibc": "2.36", "__archspec": "1 x86_64"}``."""
    from rattler import GenericVirtualPackage, PackageName, Version
    from rattler.exceptions import InvalidPackageNameError, InvalidVersionError
    from rattler.package import BuildString

    result = []
    for name, value in sorted(assumed.items()):
        version, _, build = value.partition(" ")
        try:
            package = GenericVirtualPackage(
                PackageName(name), Version(version), BuildString.new_unchecked(build or "0")
            )
        except (InvalidPackageNameError, InvalidVersionError, ValueError) as error:
            raise ConfigError(
                f"the virtual package {name} = {value!r} is malformed ({error})",
                remedy="correct it in stack.toml",
            ) from None
        result.append(package)
    return result


def solve(
    channel: Path,
    profile: Profile,
    *,
    specs: Sequence[str] | None = None,
    gfx: Sequence[str] = (),
    locked: Sequence[LockedPackage] = (),
    update: Collection[str] | None = None,
) -> tuple[LockedPackage, ...]:
    """Return the packages that satisfy a request, sorted by name.

    ``specs`` default to the profile's root; ``gfx`` adds the selection of GPU targets. The local
    channel comes first, then the profile's, in strict priority: a package that the local channel
    has comes from there. Virtual packages are the profile's. With ``update``, packages of
    ``locked`` that are not named in it stay as they are where the request allows that.

    Raises SolveError, which says what stands in the way.
    """
    records = read_records(channel)
    if not records:
        raise SolveError(f"the channel {channel} is empty", remedy="run `assembler build` first")
    if specs is None:
        specs = (choose_root(records, profile),)
    request = (*specs, *gfx_specs(records, gfx))
    kept = _kept(channel, records, locked, update)
    chosen = asyncio.run(_ask(channel, profile, request, kept, records))
    by_path = {record.path: record for record in records}
    packages = [_locked(solved, channel, by_path) for solved in chosen]
    return tuple(sorted(packages, key=lambda package: package.name))


def _kept(
    channel: Path,
    records: Collection[Record],
    locked: Sequence[LockedPackage],
    update: Collection[str] | None,
) -> list[RepoDataRecord]:
    if update is None:
        return []
    known = {package.name for package in locked} | {record.name for record in records}
    for name in update:
        if name not in known:
            near = difflib.get_close_matches(name, sorted(known), n=1)
            raise ConfigError(
                f"--update names {name!r}, which neither the lock nor the channel has",
                remedy=f"did you mean {near[0]}?" if near else "name a package of the lock",
            )
    here = {(record.path, record.sha256) for record in records}
    return [
        repodata_record(package, channel)
        for package in locked
        if package.name not in update
        and (package.url is not None or (package.path, package.sha256) in here)
    ]


async def _ask(
    channel: Path,
    profile: Profile,
    request: Sequence[str],
    kept: list[RepoDataRecord],
    records: Collection[Record],
) -> list[RepoDataRecord]:
    from rattler import Channel, SparseRepoData
    from rattler import solve as rattler_solve
    from rattler.exceptions import (
        GatewayError,
        InvalidChannelError,
        InvalidMatchSpecError,
        SolverError,
    )
    from rattler.repo_data.multi_source import MultiSource

    local = Channel(channel_url(channel))
    subdirs = (profile.platform, "noarch")
    indexes = [
        SparseRepoData(local, subdir, str(channel / subdir / INDEX))
        for subdir in dict.fromkeys((*subdirs, *REQUIRED_SUBDIRS))
        if subdir in subdirs and (channel / subdir / INDEX).exists()
    ]
    try:
        return await rattler_solve(
            # One group: strict priority must not play noarch against the platform.
            sources=[MultiSource("local", indexes), *map(Channel, profile.channels)],
            specs=list(request),
            platforms=list(subdirs),  # type: ignore[arg-type]
            locked_packages=kept,
            virtual_packages=virtual_packages(profile.virtual_packages),
            timeout=TIMEOUT,
            channel_relations="disabled",
        )
    except SolverError as error:
        raise explain(str(error), request, profile, records) from None
    except InvalidMatchSpecError as error:
        raise ConfigError(
            f"{' '.join(request)} is not a request ({error})", remedy="correct stack.toml"
        ) from None
    except (GatewayError, InvalidChannelError) as error:
        reason = " ".join(str(error).split())
        raise SolveError(
            f"a channel of the profile cannot be read ({reason})",
            remedy="check the network and the profile's channels in stack.toml, or mirror what you "
            "need with `assembler mirror` where there is a network",
        ) from None
    finally:
        for index in indexes:
            index.close()


def explain(
    message: str, request: Sequence[str], profile: Profile, records: Collection[Record]
) -> SolveError:
    """Turn the solver's message into what people can act on.

    Names what is missing with its nearest neighbour in the channel, or its versions there, and the
    value assumed of a virtual package that was in the way.
    """
    text = message.strip().removeprefix("Cannot solve the request because of:").strip(" \n.")
    names = sorted({record.name for record in records})
    remedies: list[str] = []
    for match in _MISSING.finditer(text):
        name = (match[1] or match[2]).lower()
        if name.startswith("__"):
            continue
        versions = sorted({record.version for record in records if record.name == name})
        if versions:
            remedies.append(f"the channel has {name} {', '.join(versions)}")
        else:
            near = difflib.get_close_matches(name, names, n=1)
            guess = f" (did you mean {near[0]}?)" if near else ""
            remedies.append(f"build {name}{guess} into the channel with `assembler build`")
    for name in sorted(set(_VIRTUAL.findall(text))):
        value = profile.virtual_packages.get(name)
        where = f"stack.toml's profile {profile.name} assumes"
        remedies.append(f"{where} {name} {value}" if value else f"{where} no {name}")
    if not remedies:
        remedies.append("loosen one of the conflicting requirements or rebuild what carries it")
    return SolveError(
        f"no set of packages satisfies {', '.join(request)}: {text}",
        remedy=", and ".join(dict.fromkeys(remedies)),
    )


def _locked(solved: RepoDataRecord, channel: Path, records: Mapping[str, Record]) -> LockedPackage:
    path = f"{solved.subdir}/{solved.file_name}"
    site_packages = solved.python_site_packages_path
    if solved.url.startswith(f"{channel_url(channel)}/"):
        return LockedPackage.from_record(records[path], site_packages=site_packages)
    if solved.sha256 is None or solved.md5 is None or solved.size is None:
        raise SolveError(
            f"{solved.url} has no SHA-256, MD5 or size in its channel's index",
            remedy="take the package from a channel that states them",
        )
    if urlsplit(solved.url).scheme not in ("https", "http"):
        raise SolveError(
            f"{solved.url} is neither in the local channel nor on the web",
            remedy="copy that channel's packages into the local channel",
        )
    timestamp = solved.timestamp
    noarch = solved.noarch
    return LockedPackage(
        name=solved.name.normalized,
        version=str(solved.version),
        build=str(solved.build),
        build_number=solved.build_number,
        subdir=solved.subdir,
        file=solved.file_name,
        path=path,
        sha256=solved.sha256.hex(),
        md5=solved.md5.hex(),
        size=solved.size,
        depends=tuple(solved.depends),
        license=solved.license or "",
        constrains=tuple(solved.constrains),
        timestamp=round(timestamp.timestamp() * 1000) if timestamp else None,
        noarch="python" if noarch.python else "generic" if noarch.generic else None,
        site_packages=site_packages,
        url=solved.url,
    )
