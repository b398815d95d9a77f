"""Errors that a user can cause or cure.

Each class is one kind of trouble with its own exit code (docs/reference/exit-codes.md).
A message is one sentence: what was seen, what was wanted, and what to do about it.
"""

from __future__ import annotations

from typing import ClassVar


class AssemblerError(Exception):
    """Base of everything that ends a command with a sentence instead of a traceback.

    ``saw`` says what was found, ``remedy`` what the reader can do. Both are plain clauses
    without a final full stop; ``str()`` joins them into the sentence that is printed.
    """

    exit_code: ClassVar[int] = 1
    kind: ClassVar[str] = "error"

    def __init__(self, saw: str, *, remedy: str) -> None:
        super().__init__(saw)
        self.saw = saw
        self.remedy = remedy

    def __str__(self) -> str:
        """Return the sentence printed on stderr."""
        return f"{self.saw}; {self.remedy}."

    def as_dict(self) -> dict[str, object]:
        """Return the same facts for ``--json``."""
        return {
            "kind": self.kind,
            "exit_code": self.exit_code,
            "saw": self.saw,
            "remedy": self.remedy,
        }


class ConfigError(AssemblerError):
    """stack.toml, a recipe, a pin file or an option is wrong, or a path named is not there."""

    exit_code = 3
    kind = "config"


class HashMismatchError(AssemblerError):
    """A file's bytes are not the pinned ones."""

    exit_code = 4
    kind = "hash-mismatch"


class SourceUnavailableError(AssemblerError):
    """A pinned file can be had from none of the places that should have it."""

    exit_code = 5
    kind = "source-unavailable"


class BuildError(AssemblerError):
    """A recipe could not be built."""

    exit_code = 6
    kind = "build"


class ChannelError(AssemblerError):
    """The channel lacks something, or holds something it should not."""

    exit_code = 7
    kind = "channel"


class SolveError(AssemblerError):
    """No set of packages satisfies the request."""

    exit_code = 8
    kind = "solve"


class LockError(AssemblerError):
    """A lock file cannot be read, or does not belong to this stack or channel."""

    exit_code = 9
    kind = "lock"


class ImageError(AssemblerError):
    """An image cannot be planned, written, read, loaded or pushed."""

    exit_code = 10
    kind = "image"


class VerifyError(AssemblerError):
    """An image or a package failed a gate, or a package its own test."""

    exit_code = 11
    kind = "verify"


class NoSpaceError(AssemblerError):
    """The disk is full; nothing was changed."""

    exit_code = 12
    kind = "no-space"


class BusyError(AssemblerError):
    """Another process holds what this one needs."""

    exit_code = 13
    kind = "busy"


class AccessError(AssemblerError):
    """A file or folder cannot be read or written."""

    exit_code = 15
    kind = "access"


class MissingToolError(AssemblerError):
    """The machine lacks a program or a privilege."""

    exit_code = 14
    kind = "missing-tool"
