"""An image made and looked at beside its place, which takes the place only when it is accepted.

The candidate shares the blobs of the image that is there by hard links, so it costs what is new in
it. Accepting brings the new blobs, then replaces the index in one rename: at every moment the place
holds the former image or the new one, whole.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from assembler.channel.guard import exclusive
from assembler.errors import BusyError, ImageError
from assembler.image.cache import scratch_file
from assembler.image.layout import INDEX_FILE, MARK, VERSION, Layout, check_place
from assembler.image.request import ImageResult
from assembler.image.stamps import Stamps
from assembler.progress import Progress

# What file systems without hard links, or with too many of one file, say.
_NO_LINK = (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV)


class Candidate:
    """A layout that may take the place of another; only with that place's guard held."""

    def __init__(self, place: Path, cache: Path) -> None:
        self.place = place.absolute()
        self.path = candidate_path(self.place)
        self._cache = cache
        self._former = Layout(self.place, Stamps.of(self.place, cache))

    def prepare(self) -> None:
        """Make the candidate a second layout with the blobs and the index of what is there.

        ImageError when something else is there.
        """
        check_place(self.place)
        discard(self.place)
        entries = self._former.entries()
        if not entries:
            return
        former, stamps = self._former, self._former.stamps
        layout = Layout(self.path, Stamps.of(self.path, self._cache))
        assert stamps is not None
        assert layout.stamps is not None
        layout.blobs.mkdir(parents=True)
        for digest in dict.fromkeys(former.reachable(entries)):
            blob = former.blob(digest)
            if blob.is_file() and stamps.is_whole(blob):
                link(blob, layout.blob(digest))
                # A link changes the time of the last change of both names' inode.
                stamps.note(blob)
                layout.stamps.note(layout.blob(digest))
        stamps.save()
        layout.stamps.save()
        (self.path / MARK).write_bytes(VERSION)
        shutil.copyfile(former.path / INDEX_FILE, self.path / INDEX_FILE)

    def accept(self) -> None:
        """Put the candidate's image in its place.

        ImageError when a blob of it is not what was looked at; the place is then as it was.
        """
        new = Layout(self.path, Stamps.of(self.path, self._cache))
        digests = tuple(dict.fromkeys(new.reachable()))
        assert new.stamps is not None
        for digest in digests:
            if not new.blob(digest).is_file() or not new.stamps.is_whole(new.blob(digest)):
                raise ImageError(
                    f"the blob {digest[:19]} of the new image changed while it was verified",
                    remedy="run the command again, and find out what wrote to its folder",
                )
        if self.place.is_dir() and any(self.place.iterdir()):
            self._replace(new, digests)
        else:
            self.path.rename(_real(self.place))
        discard(self.place)
        stamps = Stamps.of(self.place, self._cache)
        for digest in digests:
            stamps.note(Layout(self.place).blob(digest))
        stamps.save(only=frozenset(digests))

    def _replace(self, new: Layout, digests: tuple[str, ...]) -> None:
        former = self._former
        former.blobs.mkdir(parents=True, exist_ok=True)
        for digest in digests:
            source, target = new.blob(digest), former.blob(digest)
            if not (target.exists() and source.samefile(target)):
                source.replace(target)
        former.publish(new.entries())
        former.sweep()

    def keep(self) -> Path:
        """Put a candidate that failed where it can be looked into, and return that place."""
        kept = failed_path(self.place)
        if kept.exists():
            shutil.rmtree(kept)
        self.path.rename(kept)
        return kept


def candidate_path(place: Path) -> Path:
    """Return where the candidate for a place lies: on its file system, out of sight."""
    place = _real(place)
    return place.with_name(f".{place.name}.state") / "candidate" / place.name


def failed_path(place: Path) -> Path:
    """Return where an image lies that failed and was kept."""
    place = _real(place)
    return place.with_name(f"{place.name}.failed")


def _real(place: Path) -> Path:
    """Return the folder that a place stands for, which may be a link to another disk."""
    return Path(os.path.realpath(place))


def discard(place: Path) -> None:
    """Remove a place's candidate."""
    shutil.rmtree(candidate_path(place).parent, ignore_errors=True)


def sweep(place: Path, progress: Progress) -> None:
    """Remove the candidate that a killed run left, unless some run is at it now."""
    if candidate_path(place.absolute()).parent.exists():
        try:
            with exclusive(place.absolute(), progress, timeout=0):
                discard(place.absolute())
        except BusyError:
            return


def link(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it where there are no hard links."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        with scratch_file(target.parent) as (stream, path):
            with source.open("rb") as content:
                shutil.copyfileobj(content, stream)
            stream.flush()
            path.replace(target)


Make = Callable[[Path], ImageResult]


@contextmanager
def beside(
    place: Path, cache: Path, progress: Progress, make: Make, *, keep_failed: bool = False
) -> Iterator[ImageResult]:
    """Make an image beside its place; it takes the place when the block ends well.

    ``make`` assembles into the layout that it is given. The block gets its result, whose layout is
    the candidate's, and looks at it. When the block raises, the place is as it was; with
    ``keep_failed`` the candidate then lies at `failed_path`.
    """
    place = place.absolute()
    with exclusive(place, progress):
        candidate = Candidate(place, cache)
        candidate.prepare()
        try:
            result = make(candidate.path)
            try:
                yield result
            except Exception:
                if keep_failed:
                    candidate.keep()
                raise
            candidate.accept()
        finally:
            discard(place)


def in_place(result: ImageResult, place: Path) -> ImageResult:
    """Return a candidate's result once it has taken its place."""
    return replace(result, layout=place)
