"""Times in an image: those of its packages, or what SOURCE_DATE_EPOCH says.

The rule is that of reproducible-builds.org: no time in the image is later than SOURCE_DATE_EPOCH.
Files have the time of their own package, so that one new package does not touch the layers of the
others; times later than SOURCE_DATE_EPOCH become it, and the image's ``created`` is it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from assembler.errors import ConfigError

VARIABLE = "SOURCE_DATE_EPOCH"
LATEST = 253402300799  # 9999-12-31T23:59:59Z, the last second RFC 3339 can write


@dataclass(frozen=True)
class Epoch:
    """The upper bound of all times, in seconds since 1970; None when nothing bounds them."""

    bound: int | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Epoch:
        """Read SOURCE_DATE_EPOCH. Unset or empty means no bound; anything but digits an error."""
        text = environment.get(VARIABLE, "")
        if not text:
            return cls()
        if not (text.isascii() and text.isdigit()) or int(text) > LATEST:
            raise ConfigError(
                f"{VARIABLE} is {text!r}",
                remedy="set it to whole seconds since 1970, without sign or point, or unset it",
            )
        return cls(int(text))

    def clamp(self, seconds: int) -> int:
        """Return a time that is neither before 1970 nor after the bound."""
        return max(0, seconds if self.bound is None else min(seconds, self.bound))

    def created(self, times: Iterable[int]) -> int:
        """Return the image's creation time: the bound, else the newest of the times."""
        return self.bound if self.bound is not None else max([0, *times])


def rfc3339(seconds: int) -> str:
    """Return a time as OCI documents write it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
