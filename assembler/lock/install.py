"""An environment from a lock alone: checked before, made beside, put in place whole."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import json
import os
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assembler.channel.scan import file_state, read_stamps
from assembler.digest import sha256_file
from assembler.errors import ChannelError, ConfigError, LockError, NoSpaceError, VerifyError
from assembler.lock.model import Lock, LockedPackage, split_spec
from assembler.lock.pixi import repodata_record
from assembler.progress import Progress, Task

META = "conda-meta"
# Where the installer puts the losers of files that two packages own.
CLOBBERS = "__clobbers__"
HASHERS = 4  # threads
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


@dataclass(frozen=True, order=True)
class Flaw:
    """Something in an environment that is not as its lock says; ``path`` is relative to it."""

    path: str
    what: str

    def __str__(self) -> str:
        """Return one line for people."""
        return f"{self.path}: {self.what}"


# -- packages --------------------------------------------------------------------------------------


def check_packages(
    lock: Lock,
    channel: Path,
    *,
    trust_stamps: bool = False,
    seen: Callable[[int], None] | None = None,
) -> tuple[tuple[LockedPackage, str], ...]:
    """Return the locked packages that the channel lacks or has otherwise, each with what is wrong.

    Every file is hashed; with ``trust_stamps`` only those that changed since the channel was last
    published. Packages that come from elsewhere count when they are not in the channel either.
    ``seen`` is told the size of each.
    """
    stamps = read_stamps(channel) if trust_stamps else {}

    def look(package: LockedPackage) -> str | None:
        path = channel / package.path
        try:
            state = file_state(path)
            if not path.is_file() or path.is_symlink():
                return "is not a regular file"
            stamp = stamps.get(package.path)
            if stamp is not None and stamp.state == state:
                found = str(stamp.entry.get("sha256"))
            else:
                found = sha256_file(path)
        except FileNotFoundError:
            return "is not there"
        except OSError as error:
            return f"cannot be read ({error.strerror})"
        if found != package.sha256:
            return f"has sha256 {found}, the lock says {package.sha256}"
        return None

    wrong = []
    with ThreadPoolExecutor(HASHERS) as pool:
        for package, what in zip(lock.packages, pool.map(look, lock.packages), strict=True):
            if what is not None:
                wrong.append((package, what))
            if seen is not None:
                seen(package.size)
    return tuple(wrong)


def demand_packages(lock: Lock, channel: Path, progress: Progress) -> None:
    """Hash every locked package; ChannelError when one is absent or not the locked one.

    Packages that come from elsewhere may be absent.
    """
    total = sum(package.size for package in lock.packages)
    with progress.task("checking packages", total, in_bytes=True) as task:
        wrong = [
            (package, what)
            for package, what in check_packages(lock, channel, seen=task.advance)
            if package.url is None or what != "is not there"
        ]
    if wrong:
        package, what = wrong[0]
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise ChannelError(
            f"{channel / package.path} {what}{more}",
            remedy="bring the channel that belongs to the lock, or run `assembler lock` to lock "
            "what this one has",
        )


# -- the prefix ------------------------------------------------------------------------------------


def _check_prefix(prefix: Path) -> None:
    if prefix.is_dir() and any(prefix.iterdir()) and not (prefix / META).is_dir():
        raise ConfigError(
            f"{prefix} has files and is not a conda environment",
            remedy="name a new or empty folder, or an environment to replace",
        )
    if prefix.exists() and not prefix.is_dir():
        raise ConfigError(f"{prefix} is a file", remedy="name a folder")
    ground = next(folder for folder in prefix.parents if folder.exists())
    if not ground.is_dir() or not os.access(ground, os.W_OK):
        raise ConfigError(f"{ground} cannot be written", remedy="name a folder where you may write")


def _check_platform(lock: Lock) -> None:
    from rattler import Subdir

    here = str(Subdir.current())
    if lock.platform != here:
        raise LockError(
            f"the lock is for {lock.platform} and this machine is {here}",
            remedy="install it on a machine of that platform",
        )


def _swap(new: Path, prefix: Path) -> None:
    """Put ``new`` in the place of ``prefix``; what was there is then at ``new``."""
    if not prefix.exists():
        new.rename(prefix)
        return
    libc = ctypes.CDLL(None, use_errno=True)
    exchange = getattr(libc, "renameat2", None)
    if exchange is not None:
        arguments = (_AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(prefix), _RENAME_EXCHANGE)
        if exchange(*arguments) == 0:
            return
        code = ctypes.get_errno()
        if code not in (errno.EINVAL, errno.ENOSYS):
            raise OSError(code, os.strerror(code), str(prefix))
    # A file system without exchange: the prefix is absent between two renames.
    old = new.with_name(f"{new.name}.old")
    prefix.rename(old)
    new.rename(prefix)
    old.rename(new)


def _leftovers(prefix: Path) -> Sequence[Path]:
    """Return what installations into the same prefix left when they were killed."""
    found = []
    for path in prefix.parent.glob(f".{_escape(prefix.name)}.assembler-*"):
        process = path.name.rsplit("-", 2)[1]
        if process.isdigit() and not Path(f"/proc/{process}").exists():
            found.append(path)
    return found


def _escape(name: str) -> str:
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)


def _finish_records(prefix: Path, specs: Sequence[str]) -> None:
    """Say in conda-meta what was asked for, and nothing of the package cache, which goes away."""
    asked = {split_spec(spec)[0]: spec for spec in specs}
    for path in (prefix / META).glob("*.json"):
        record = json.loads(path.read_bytes())
        record.pop("extracted_package_dir", None)
        record.pop("package_tarball_full_path", None)
        if isinstance(record.get("link"), dict):
            record["link"]["source"] = ""
        if record.get("name") in asked:
            record["requested_specs"] = [asked[record["name"]]]
        path.write_text(json.dumps(record, indent=2, ensure_ascii=False), encoding="utf-8")
    (prefix / META / "history").touch()


def _reporter(task: Task) -> Any:
    from rattler.install.installer import InstallerReporter

    class Reporter(InstallerReporter):
        def on_transaction_operation_complete(self, operation: int) -> None:
            task.advance()

    return Reporter()  # type: ignore[abstract]  # its methods are all optional


async def _link(lock: Lock, channel: Path, stage: Path, prefix: Path, task: Task) -> None:
    from rattler import Subdir
    from rattler import install as rattler_install

    await rattler_install(
        [repodata_record(package, channel) for package in lock.packages],
        target_prefix=stage / "prefix",
        alternative_target_prefix=prefix,
        cache_dir=stage / "cache",
        installed_packages=[],
        platform=Subdir(lock.platform),
        execute_link_scripts=False,
        reporter=_reporter(task),
    )


def install(
    lock: Lock, channel: Path, prefix: Path, progress: Progress, *, verify: bool = False
) -> None:
    """Make ``prefix`` the environment of a lock; an environment that is there is replaced whole.

    Every package is hashed against the lock first. The environment is made beside the prefix, with
    the prefix's path in its files, from a private package cache, and then put in place by one
    rename; with ``verify`` only after ``verify_prefix`` found nothing. Link scripts do not run.
    Packages that are not in the channel are downloaded; a closed lock needs no network.

    Raises ConfigError for a folder that is not an environment, ChannelError for a package that is
    absent or not the locked one, LockError for another platform's lock, VerifyError, NoSpaceError.
    """
    from rattler.exceptions import InstallerError, IoError, LinkError, TransactionError

    prefix = Path(os.path.realpath(prefix))
    _check_platform(lock)
    _check_prefix(prefix)
    demand_packages(lock, channel, progress)
    prefix.parent.mkdir(parents=True, exist_ok=True)
    for left in _leftovers(prefix):
        shutil.rmtree(left, ignore_errors=True)
    mark = f".{prefix.name}.assembler-{os.getpid()}-{secrets.token_hex(4)}"
    stage = prefix.parent / mark
    try:
        stage.mkdir()
        with progress.task("linking packages", len(lock.packages)) as task:
            asyncio.run(_link(lock, channel, stage, prefix, task))
        made = stage / "prefix"
        _finish_records(made, lock.specs)
        if verify:
            flaws = verify_prefix(lock, made, progress)
            if flaws:
                raise VerifyError(
                    f"the environment is not as the lock says: {flaws[0]}"
                    + (f" (and {len(flaws) - 1} more)" if len(flaws) > 1 else ""),
                    remedy="rebuild the package that the file belongs to",
                )
        _swap(made, prefix)
    except (InstallerError, IoError, LinkError, TransactionError) as error:
        reason = " ".join(str(error).split())
        if "No space left" in reason or "os error 28" in reason:
            raise NoSpaceError(
                f"the disk is full beside {prefix}", remedy="free some room and run it again"
            ) from None
        raise ChannelError(
            f"the environment could not be made ({reason})", remedy="run `assembler channel check`"
        ) from None
    finally:
        with suppress(FileNotFoundError):
            shutil.rmtree(stage)


# -- checking --------------------------------------------------------------------------------------


def verify_prefix(lock: Lock, prefix: Path, progress: Progress) -> tuple[Flaw, ...]:
    """Compare an environment file by file with what was installed from the lock.

    Checks that the packages are the locked ones, that each of their files is there, of its kind
    and of its hash (that of the installed form where a prefix was put in), that no placeholder is
    left, and that no two packages own one file with different content.
    """
    meta = prefix / META
    wanted = {f"{p.name}-{p.version}-{p.build}.json": p for p in lock.packages}
    present = {path.name for path in meta.glob("*.json")}
    flaws = [Flaw(f"{META}/{name}", "is not in the lock") for name in present - wanted.keys()]
    flaws += [Flaw(f"{META}/{name}", "is missing") for name in wanted.keys() - present]
    jobs: list[dict[str, Any]] = []
    for name in sorted(present & wanted.keys()):
        try:
            record = json.loads((meta / name).read_bytes())
            if record["sha256"] != wanted[name].sha256:
                flaws.append(Flaw(f"{META}/{name}", "is of a package with another sha256"))
            jobs += record["paths_data"]["paths"]
        except (ValueError, KeyError, TypeError) as error:
            flaws.append(Flaw(f"{META}/{name}", f"is malformed ({error!r})"))
    known = {str(job.get("_path")): job for job in jobs}
    with progress.task("checking files", len(jobs)) as task, ThreadPoolExecutor(HASHERS) as pool:
        results = pool.map(lambda job: _flaw(prefix, job, known), jobs)
        for entry, what in zip(jobs, results, strict=True):
            task.advance()
            if what is not None:
                flaws.append(Flaw(str(entry.get("original_path") or entry.get("_path")), what))
    return tuple(sorted(flaws))


def _flaw(prefix: Path, entry: dict[str, Any], known: Mapping[str, Any]) -> str | None:
    path = prefix / str(entry["_path"])
    winner = known.get(str(entry.get("original_path")))
    if winner is not None and winner.get("sha256") != entry.get("sha256"):
        package = entry["_path"].removeprefix(f"{CLOBBERS}/").split("/")[0]
        return f"is one package's and {package}'s"
    kind = entry.get("path_type")
    if not os.path.lexists(path):
        return "is missing"
    if kind == "directory":
        return None if path.is_dir() else "is not a folder"
    if kind == "softlink":
        if not path.is_symlink():
            return "is not a symbolic link"
        return None if _leads_right(prefix, path, entry, known) else "leads to another file"
    if not path.is_file() or path.is_symlink():
        return "is not a regular file"
    expected = entry.get("sha256_in_prefix") or entry.get("sha256")
    if expected and sha256_file(path) != expected:
        return "has other content than was installed"
    placeholder = entry.get("prefix_placeholder")
    if placeholder and os.fsencode(str(placeholder)) in path.read_bytes():
        return "has the placeholder of its prefix left"
    return None


def _leads_right(prefix: Path, path: Path, entry: dict[str, Any], known: Mapping[str, Any]) -> bool:
    """Tell whether a link leads to a file of the environment or to the content it had.

    Files of the environment are checked themselves, and a link's own hash may be that of its
    target before a prefix was put in.
    """
    if not path.is_file() or not entry.get("sha256"):
        return True
    target = os.path.relpath(os.path.realpath(path), os.path.realpath(prefix))
    return target in known or sha256_file(path) == str(entry["sha256"])
