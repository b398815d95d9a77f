"""Pins → files in the store: one question to pip, one to apt, and downloads side by side."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from urllib.parse import unquote, urlsplit

from assembler.errors import AssemblerError, NoSpaceError, SourceUnavailableError
from assembler.progress import Progress, Task
from assembler.sources import pypi, transfer
from assembler.sources.conda_names import normal
from assembler.sources.debian import DebianArchive, Moved
from assembler.sources.pins import Pin
from assembler.sources.store import Store, mismatch
from assembler.sources.transfer import Network, TransferError, free_bytes


@dataclass
class Brought:
    """What came of it: pins that moved (old → new, Debian only), and what they are called."""

    replaced: dict[Pin, Pin] = field(default_factory=dict)

    @property
    def moved(self) -> tuple[Moved, ...]:
        """The moves in words."""
        return tuple(
            Moved(old.name, old.version, new.version) for old, new in self.replaced.items()
        )


class _StoppedError(Exception):
    """Another file failed, or the user interrupted."""


class Bringer:
    """Gets missing files; one object serves one command.

    ``target`` is the python that wheels are chosen for. With ``locked`` a Debian package that has
    moved is an error, else its newest version is taken instead.
    """

    def __init__(
        self,
        store: Store,
        target: pypi.Target,
        progress: Progress,
        *,
        jobs: int = 8,
        locked: bool = False,
    ) -> None:
        self._store = store
        self._target = target
        self._progress = progress
        self._jobs = max(1, jobs)
        self._locked = locked
        self._stop = threading.Event()
        self._archives: dict[tuple[str, str], DebianArchive] = {}

    @cached_property
    def _network(self) -> Network:
        return transfer.settings(pypi.settings())

    def archive(self, suite: str, architecture: str) -> DebianArchive:
        """Return the archive of a suite, the same one at each call."""
        key = (suite, architecture)
        if key not in self._archives:
            folder = self._store.root / "apt" / f"{suite}-{architecture}"
            self._archives[key] = DebianArchive(suite, architecture, folder)
        return self._archives[key]

    def bring(self, pins: Sequence[Pin]) -> Brought:
        """Get every one of these pins' files into the store, or raise what kept the first out.

        What arrived before a failure stays, also the beginnings of large files.
        """
        result = Brought()
        if not pins:
            return result
        room = free_bytes(self._store.root)
        wanted = sum(pin.size or 0 for pin in pins)
        if wanted > room:
            raise NoSpaceError(
                f"{len(pins)} files of {wanted / 1e6:.0f} MB are to be fetched and the disk has "
                f"room for {room / 1e6:.0f} MB",
                remedy="free some room, or put the store elsewhere with ASSEMBLER_STORE",
            )
        words = f"fetching {len(pins)} file{'s' if len(pins) > 1 else ''}"
        with (
            self._progress.task(words, total=wanted or None, in_bytes=True) as task,
            ThreadPoolExecutor(self._jobs, thread_name_prefix="fetch") as pool,
        ):
            try:
                self._all(pins, result, pool, task)
            except BaseException:
                self._stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return result

    def _all(
        self, pins: Sequence[Pin], result: Brought, pool: ThreadPoolExecutor, task: Task
    ) -> None:
        kinds: dict[str, list[Pin]] = {}
        for pin in pins:
            kinds.setdefault(pin.kind, []).append(pin)
        jobs: list[Future[None]] = []
        groups: dict[tuple[str, str], list[Pin]] = {}
        for pin in kinds.pop("debian", []):
            assert pin.suite
            assert pin.architecture
            groups.setdefault((pin.suite, pin.architecture), []).append(pin)
        for (suite, architecture), group in groups.items():
            archive = self.archive(suite, architecture)
            jobs.append(pool.submit(self._debian, archive, group, result, task))
        if "url" in kinds or "pypi" in kinds:
            _ = self._network
        jobs += [pool.submit(self._url, pin, task) for pin in kinds.pop("url", [])]
        jobs += [pool.submit(self._git, pin, task) for pin in kinds.pop("git", [])]
        if wheels := kinds.pop("pypi", []):
            jobs += [pool.submit(work) for work in self._wheels(wheels, task)]
        assert not kinds
        done, _ = wait(jobs, return_when=FIRST_EXCEPTION)
        errors = [error for job in done if (error := job.exception())]
        # A sentence for the user outweighs whatever else went wrong in its wake.
        errors.sort(key=lambda error: not isinstance(error, AssemblerError))
        if errors:
            raise errors[0]

    def _advance(self, task: Task) -> Callable[[float], None]:
        def advance(amount: float) -> None:
            if self._stop.is_set():
                raise _StoppedError
            task.advance(amount)

        return advance

    def _get(self, pin: Pin, url: str, task: Task) -> None:
        advance = self._advance(task)
        transfer.download(
            self._store, self._network, url, pin.sha256, name=pin.file, advance=advance
        )
        self._progress.detail(f"fetched {pin.file}")

    def _url(self, pin: Pin, task: Task) -> None:
        assert pin.url
        self._get(pin, pin.url, task)

    def _git(self, pin: Pin, task: Task) -> None:
        from assembler.sources.trees import fetch_pinned

        fetch_pinned(pin, self._store)
        task.advance(pin.size or 0)

    def _debian(
        self, archive: DebianArchive, pins: Sequence[Pin], result: Brought, task: Task
    ) -> None:
        served = archive.served(pins)
        wanted = [pin for pin in pins if served[pin]]
        gone = [pin for pin in pins if not served[pin]]
        if gone and self._locked:
            raise SourceUnavailableError(
                f"the mirror no longer serves {', '.join(pin.label for pin in gone)}",
                remedy="run it without `--locked` to take the newest versions and re-pin them",
            )
        for old, new in zip(gone, archive.resolve(pin.name for pin in gone), strict=True):
            new = new.model_copy(update={"why": old.why})
            result.replaced[old] = new
            wanted.append(new)
        archive.download([pin for pin in wanted if not self._store.has(pin.sha256)], self._store)
        task.advance(sum(pin.size or 0 for pin in pins))

    def _wheels(self, pins: Sequence[Pin], task: Task) -> Iterable[Callable[[], None]]:
        """Yield the work of getting each wheel, after asking pip once where they all are."""
        resolution = pypi.resolve([f"{pin.name}=={pin.version}" for pin in pins], self._target)
        found = {normal(one.name): one for one in resolution.found}
        nowhere = [pin for pin in pins if normal(pin.name) not in found and not pin.url]
        if nowhere:
            some = ", ".join(pin.label for pin in nowhere[:3]) + (
                f" and {len(nowhere) - 3} more" if len(nowhere) > 3 else ""
            )
            kinds = pypi.places(pypi.settings())
            raise SourceUnavailableError(
                f"{kinds} could not be reached for {some}"
                if resolution.unreachable
                else f"{some} is not to be had for CPython {self._target.python} from {kinds}",
                remedy="check the proxy and the places that `pip config list` shows, or use "
                "`--offline` with a filled store",
            )
        for pin in pins:
            yield self._wheel(pin, found.get(normal(pin.name)), task)

    def _wheel(self, pin: Pin, found: pypi.Found | None, task: Task) -> Callable[[], None]:
        def work() -> None:
            trouble: AssemblerError | None = None
            if found:
                trouble = self._from_index(pin, found, task)
                if trouble is None:
                    return
            if pin.url:
                self._get(pin, pin.url, task)
            elif trouble:
                raise trouble

        return work

    def _from_index(self, pin: Pin, found: pypi.Found, task: Task) -> AssemblerError | None:
        """Get a wheel where pip found it; return what is wrong when another place may help."""
        file = unquote(urlsplit(found.url).path.rpartition("/")[2])
        if file != pin.file:
            return SourceUnavailableError(
                f"pip chose {file} where {pin.file} is pinned",
                remedy="re-pin it with `assembler pin`, or remove the other file from the index",
            )
        if found.sha256 and found.sha256 != pin.sha256:
            return mismatch(pin.file, pin.sha256, found.sha256)
        try:
            self._get(pin, found.url, task)
        except TransferError as error:
            with tempfile.TemporaryDirectory(prefix="assembler-wheel-") as scratch:
                wanted = f"{pin.name}=={pin.version}"
                path = pypi.download(wanted, self._target, Path(scratch))
                if path is None:
                    return error
                self._store.add(path, pin.sha256, name=pin.file)
        return None
