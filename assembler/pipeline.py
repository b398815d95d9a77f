"""From recipes to a verified image: each stage does what is not up to date, and only that.

This module stands above the rooms: it knows their order and nothing of how they work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from assembler import verify as verify_room
from assembler.build.builder import Builder
from assembler.build.keys import folder_digests
from assembler.build.result import BuildResult
from assembler.digest import digest_of
from assembler.errors import LockError, VerifyError
from assembler.image.assemble import assemble, is_present
from assembler.image.candidate import beside, failed_path, in_place, sweep
from assembler.image.request import DEFAULT_TAG, ImageResult, Request
from assembler.lock.check import Verdict, check_lock
from assembler.lock.files import read_lock
from assembler.lock.make import ALL_TARGETS, Locked, locked_gfx, update_lock, wants
from assembler.lock.model import Lock
from assembler.progress import Progress
from assembler.sources.fetch import FetchResult, fetch
from assembler.sources.given import Given
from assembler.sources.store import Store
from assembler.stack import Profile
from assembler.targets import check_targets
from assembler.verify.findings import Report
from assembler.verify.session import exit_code, request_for, verify
from assembler.workspace import Workspace

T = TypeVar("T")
MOST_REASONS = 5


@dataclass(frozen=True)
class Stage:
    """One stage of a run; ``seconds`` is wall time."""

    name: str
    seconds: float
    words: str
    up_to_date: bool


@dataclass
class Outcome:
    """What a run did, stage by stage; ``image`` is what it ended in."""

    stages: list[Stage] = field(default_factory=list)
    image: ImageResult | None = None
    gfx_targets: tuple[str, ...] = ()

    @property
    def up_to_date(self) -> bool:
        """Whether there was nothing to do."""
        return all(stage.up_to_date for stage in self.stages)

    @property
    def seconds(self) -> float:
        """Wall time of all stages."""
        return sum(stage.seconds for stage in self.stages)


@dataclass(frozen=True)
class Wishes:
    """How a run is to go: the options of ``assembler clean-image``."""

    locked: bool = False
    offline: bool = False
    jobs: int = 2
    gfx: tuple[str, ...] = ()
    given: Mapping[str, Given] = field(default_factory=dict)
    sandbox: str | None = None
    keep_failed: bool = False


class Pipeline:
    """Runs the stages of one profile in their order."""

    def __init__(
        self, workspace: Workspace, profile: Profile, progress: Progress, wishes: Wishes
    ) -> None:
        self._workspace = workspace
        self._profile = profile
        self._progress = progress
        self._wishes = wishes
        check_targets(target for target in wishes.gfx if target != ALL_TARGETS)
        self._store = Store(workspace.store)
        self.outcome = Outcome()

    def _stage(self, name: str, work: Callable[[], T], words: Callable[[T], tuple[str, bool]]) -> T:
        started = time.monotonic()
        result = work()
        text, up_to_date = words(result)
        stage = Stage(name, time.monotonic() - started, text, up_to_date)
        self.outcome.stages.append(stage)
        return result

    def build_channel(self) -> FetchResult:
        """Fetch and build: afterwards the channel has every package of the profile."""
        fetched = self._stage("fetch", self._fetch, _fetch_words)
        self._stage("build", self._build, _build_words)
        return fetched

    def finish(self) -> Outcome:
        """Lock, assemble and verify what ``build_channel`` built; the first error ends the run."""
        lock = self._stage("lock", self._lock, lambda pair: pair[1])[0]
        self.outcome.gfx_targets = lock.gfx_targets
        if locked_gfx(lock) and not self._wishes.gfx:
            self._progress.say(
                f"the lock asks for {' '.join(lock.gfx_targets)} alone; --gfx all takes them all"
            )
        with ExitStack() as stack:
            image = self._stage("image", lambda: self._image(lock, stack), _image_words)
            self._stage("verify", lambda: self._verify(image), lambda words: words)
        self.outcome.image = in_place(image, self._place)
        return self.outcome

    def _fetch(self) -> FetchResult:
        return fetch(
            self._workspace,
            self._profile,
            self._progress,
            locked=self._wishes.locked,
            offline=self._wishes.offline,
            given=self._wishes.given,
        )

    def _build(self) -> BuildResult:
        builder = Builder(self._workspace, self._profile, self._progress, jobs=self._wishes.jobs)
        return builder.run()

    def _lock(self) -> tuple[Lock, tuple[str, bool]]:
        """Return the lock: the one that is there while it is fresh, else a new one."""
        file = self._workspace.lock_file(self._profile)
        if self._fresh():
            lock = read_lock(file)
            return lock, (f"{len(lock.packages)} packages, fresh", True)
        made = self._relock()
        changes = len(made.difference.changes) if made.written else 0
        words = f"{len(made.lock.packages)} packages, {changes} changed"
        return made.lock, (words, not made.written)

    def _fresh(self) -> bool:
        """Say whether the lock is fresh; with ``locked`` raise LockError when it is not."""
        file = self._workspace.lock_file(self._profile)
        locked = self._wishes.locked
        if not file.exists():
            if locked:
                raise LockError(
                    f"there is no lock {file}", remedy="run it again without --locked to write it"
                )
            return False
        try:
            check = check_lock(self._workspace, self._profile)
        except LockError:
            if locked:
                raise
            return False  # writing the new lock says what was wrong with this one
        if check.verdict is not Verdict.FRESH:
            if locked:
                raise LockError(
                    f"the lock is not fresh: {check.reasons[0].where}: {check.reasons[0].what}",
                    remedy="run it again without --locked to write a new lock",
                )
            for reason in check.reasons[:MOST_REASONS]:
                self._progress.say(f"lock: {reason.where}: {reason.what}")
            return False
        lock = read_lock(file)
        if not wants(lock, self._wishes.gfx):
            if locked:
                raise LockError(
                    f"the lock is for {' '.join(lock.gfx_targets)}, not for "
                    f"{' '.join(self._wishes.gfx)}",
                    remedy="run it again without --locked to write a new lock",
                )
            return False
        # Base packages that are not in the store may have left the mirror: then they are re-pinned.
        return locked or all(self._store.has(pin.sha256) for pin in lock.base)

    def _relock(self) -> Locked:
        return update_lock(
            self._workspace, self._profile, self._progress, gfx=self._wishes.gfx or None
        )

    @property
    def _place(self) -> Path:
        return self._workspace.image_layout(self._profile)

    def _image(self, lock: Lock, stack: ExitStack) -> ImageResult:
        """Return the image at its place when it is the lock's; else one that was made beside it.

        That one takes the place when ``stack`` is left without an error.
        """
        cache = self._workspace.build / "cache"
        settings = self._profile.image
        tag = self._profile.flavour or DEFAULT_TAG

        def make(layout: Path) -> ImageResult:
            return assemble(
                lock, self._workspace.channel, settings, layout, self._store, cache,
                self._progress, tag=tag,
            )  # fmt: skip

        if is_present((Request(lock, tag),), settings, self._place, cache):
            sweep(self._place, self._progress)
            return make(self._place)
        keep = self._wishes.keep_failed
        candidate = beside(self._place, cache, self._progress, make, keep_failed=keep)
        return stack.enter_context(candidate)

    def _verify(self, image: ImageResult) -> tuple[str, bool]:
        """Run every gate unless this image passed these same gates before."""
        request = request_for(
            self._workspace, self._profile, paths=(image.layout,), sandbox=self._wishes.sandbox
        )
        key = digest_of(
            {
                "image": image.digest,
                "gates": folder_digests(Path(verify_room.__file__).parent),
                "policy": request.policy.model_dump(mode="json"),
                "smoke": [smoke.model_dump(mode="json") for smoke in request.smokes],
                "sandbox": self._wishes.sandbox,
            }
        )
        passed = request.scratch / f"{self._place.name}.passed"
        if passed.is_file() and passed.read_text(encoding="utf-8") == key:
            return "passed before", True
        report = verify(request, self._progress)
        if code := exit_code(report):
            raise self._failed(image, f"(`verify` would end with {code}): {_failures(report)}")
        passed.parent.mkdir(parents=True, exist_ok=True)
        passed.write_text(key, encoding="utf-8")
        return _report_words(report), False

    def _failed(self, image: ImageResult, words: str) -> VerifyError:
        """Return the error for an image that fails, and say where it lies."""
        if image.layout == self._place:
            return VerifyError(
                f"the image {self._place} fails {words}",
                remedy="see `assembler verify` for every finding",
            )
        there = "is as it was" if self._place.exists() else "was not made"
        saw = f"the new image fails {words}; {self._place} {there}"
        if self._wishes.keep_failed:
            kept = failed_path(self._place)
            return VerifyError(saw, remedy=f"see `assembler verify {kept}` for every finding")
        return VerifyError(saw, remedy="run it again with --keep-failed to look into that image")


def _failures(report: Report) -> str:
    failed = [
        f"{finding.id} {finding.subject}: {finding.what}"
        for subject in report.subjects
        for gate in subject.gates
        for finding in gate.findings
        if finding.fails
    ]
    more = f" and {len(failed) - 2} more" if len(failed) > 2 else ""
    return "; ".join(failed[:2]) + more


def _report_words(report: Report) -> str:
    gates = [gate for subject in report.subjects for gate in subject.gates]
    passed = sum(gate.verdict == "pass" for gate in gates)
    skipped = [gate.gate for gate in gates if gate.verdict == "skipped"]
    words = f"{passed} gates passed"
    return f"{words}, skipped: {', '.join(skipped)}" if skipped else words


def _fetch_words(result: FetchResult) -> tuple[str, bool]:
    if not result.fetched:
        return f"{result.cached} sources, all in the store", True
    size = result.fetched_size / 1e6
    return f"{len(result.fetched)} sources fetched ({size:.0f} MB), {result.cached} here", False


def _build_words(result: BuildResult) -> tuple[str, bool]:
    if not result.built and not result.removed:
        return f"{len(result.plan.packages)} packages, all up to date", True
    return f"{len(result.built)} of {len(result.plan.packages)} packages built", False


def _image_words(result: ImageResult) -> tuple[str, bool]:
    return f"{len(result.layers)} layers", result.up_to_date


def as_dict(outcome: Outcome) -> dict[str, Any]:
    """Return the outcome for ``--json``."""
    return {
        "stages": [
            {
                "name": stage.name,
                "seconds": round(stage.seconds, 2),
                "what": stage.words,
                "up_to_date": stage.up_to_date,
            }
            for stage in outcome.stages
        ],
        "seconds": round(outcome.seconds, 2),
        "up_to_date": outcome.up_to_date,
        "gfx_targets": list(outcome.gfx_targets),
        "image": outcome.image.as_dict() if outcome.image else None,
    }
