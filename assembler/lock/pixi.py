"""pixi.lock: the lock as py-rattler writes it (version 7, which pixi reads since 0.68).

py-rattler writes and wants absolute paths. The file on disk has ``$ATOM_CHANNEL`` in their place;
``localized`` puts a channel's path back, and so does ``envsubst``.
"""

from __future__ import annotations

import json
import re
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import unquote, urlsplit

from assembler.channel.location import channel_url, package_url
from assembler.errors import LockError
from assembler.lock.model import CHANNEL_VARIABLE, LOCAL_CHANNEL, Lock, LockedPackage

if TYPE_CHECKING:
    from rattler import LockFile, RepoDataRecord

FILE: Final = "pixi.lock"
ENVIRONMENT = "default"
HEADER = """\
# The exact packages of a stack, for pixi 0.68 or newer. Made by `assembler lock`; do not edit.
# Put the channel's path in:  ATOM_CHANNEL=/path/to/channel envsubst < pixi.lock
"""
# A path that no channel has, replaced before anybody sees it. It must not begin with a dot:
# py-rattler would write a URL that it cannot read back.
_STAND_IN = Path("/ATOM-CHANNEL")
_PLACE = re.compile(
    rf"^(?P<key>\s*(?:- )?(?:conda|url|channel): )(?P<scheme>file://)?\${CHANNEL_VARIABLE}(?P<rest>.*)$",
    re.MULTILINE,
)


def repodata_record(package: LockedPackage, channel: Path) -> RepoDataRecord:
    """Return the package as py-rattler installs and locks it, in a channel at a given place."""
    from rattler import NoArchType, PackageRecord, RepoDataRecord
    from rattler.package import BuildString

    noarch: Literal["python", "generic"] | None = None
    if package.noarch is not None:
        noarch = "python" if package.noarch == "python" else "generic"
    record = PackageRecord(
        name=package.name,
        version=package.version,
        build=BuildString.new_unchecked(package.build),
        build_number=package.build_number,
        subdir=package.subdir,
        arch=None,
        platform=None,
        depends=list(package.depends),
        constrains=list(package.constrains),
        sha256=bytes.fromhex(package.sha256),
        md5=bytes.fromhex(package.md5),
        size=package.size,
        license=package.license or None,
        noarch=NoArchType(noarch),
        python_site_packages_path=package.site_packages,
    )
    if package.timestamp is not None:
        record.timestamp = datetime.fromtimestamp(package.timestamp / 1000, UTC)
    return RepoDataRecord(
        record,
        package.file,
        package.url or package_url(channel, package.path),
        package.url.rsplit("/", 2)[0] if package.url else channel_url(channel),
    )


def pixi_bytes(lock: Lock) -> bytes:
    """Return pixi.lock, the same bytes for the same lock."""
    from rattler import Channel, LockChannel, LockFile, LockPlatform

    platform = LockPlatform(lock.platform)
    file = LockFile([platform])
    stand_in = channel_url(_STAND_IN)
    file.set_channels(
        ENVIRONMENT,
        [
            LockChannel(stand_in if url == LOCAL_CHANNEL else Channel(url).base_url)
            for url in lock.channels
        ],
    )
    for package in lock.packages:
        file.add_conda_package(ENVIRONMENT, platform, repodata_record(package, _STAND_IN))
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / FILE
        file.to_path(path)
        text = path.read_text(encoding="utf-8")
    text = text.replace(stand_in, LOCAL_CHANNEL).replace(str(_STAND_IN), f"${CHANNEL_VARIABLE}")
    return (HEADER + text).encode()


def localized(data: bytes, channel: Path) -> bytes:
    """Return pixi.lock for a channel at a given place, as pixi and py-rattler read it."""
    absolute = channel_url(channel)

    def put(match: re.Match[str]) -> str:
        place = absolute if match["scheme"] else unquote(urlsplit(absolute).path)
        # JSON's strings are YAML's, whatever stands in them.
        return match["key"] + json.dumps(place + match["rest"], ensure_ascii=False)

    return _PLACE.sub(put, data.decode(errors="replace")).encode()


def read_pixi(path: Path, channel: Path) -> LockFile:
    """Return pixi.lock as py-rattler's LockFile for a channel at a given place."""
    from rattler import LockFile
    from rattler.exceptions import ParseCondaLockError

    with tempfile.TemporaryDirectory() as name:
        copy = Path(name) / FILE
        copy.write_bytes(localized(path.read_bytes(), channel))
        try:
            return LockFile.from_path(copy)
        except ParseCondaLockError as error:
            raise LockError(
                f"{path} cannot be read ({error})", remedy="run `assembler lock`"
            ) from None
