"""Downloads over HTTP that go on where they stopped, and local files, into the store."""

from __future__ import annotations

import hashlib
import shutil
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import unquote, urlsplit, urlunsplit

from assembler.digest import CHUNK, chunks
from assembler.errors import HashMismatchError, NoSpaceError, SourceUnavailableError
from assembler.sources.store import Store, room

if TYPE_CHECKING:
    import requests

Advance = Callable[[float], None]

_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
_RANGE_REFUSED = 416
_PARTIAL = 206
_PIECE = 1 << 16  # what a break loses at most


class TransferError(SourceUnavailableError):
    """A place did not give the file; another one may (``status`` is the HTTP status, if any)."""

    def __init__(self, saw: str, *, status: int | None = None) -> None:
        super().__init__(
            saw,
            remedy="check the network, proxy and certificate settings and run it again "
            "(what has arrived is kept), or use `--offline` with a filled store",
        )
        self.status = status


def public(url: str) -> str:
    """Return a URL as messages may show it: without user, password and query."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.port:
        host += f":{parts.port}"
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


@dataclass(frozen=True)
class Network:
    """How to reach the network: the user's own proxy and certificate settings, and patience.

    ``verify`` is a certificate file or folder, or True for the usual ones; ``insecure`` lists hosts
    whose certificates the user decided not to check. Times in seconds.
    """

    proxies: Mapping[str, str] = field(default_factory=dict)
    verify: str | bool = True
    client_cert: str | None = None
    insecure: frozenset[str] = frozenset()
    timeout: float = 30
    attempts: int = 5
    backoff: float = 0.5

    def session(self) -> requests.Session:
        """Open a session; the environment's proxies and netrc count where nothing else is set."""
        import requests

        session = requests.Session()
        session.proxies.update(self.proxies)
        session.cert = self.client_cert
        session.headers["Accept-Encoding"] = "identity"  # ranges count the file's own bytes
        return session

    def trust(self, url: str) -> str | bool:
        """Return what requests checks the certificate of this URL's host with."""
        parts = urlsplit(url)
        if {parts.hostname or "", parts.netloc.rpartition("@")[2]} & self.insecure:
            return False
        return self.verify


def system_certificates() -> str | bool:
    """Return the operating system's certificate file or folder, or True where it has none."""
    paths = ssl.get_default_verify_paths()
    if paths.cafile:
        return paths.cafile
    if paths.capath and any(Path(paths.capath).glob("*.0")):
        return paths.capath
    return True


class _RefusedError(Exception):
    """One attempt failed; ``again`` tells whether another may succeed."""

    def __init__(self, saw: str, *, again: bool, status: int | None = None) -> None:
        super().__init__(saw)
        self.again = again
        self.status = status


class _StaleBeginningError(Exception):
    """A resumed download came out wrong, which a fresh one may not."""


class Download:
    """One file's way from a URL into the store."""

    def __init__(
        self, store: Store, network: Network, url: str, sha256: str, *, name: str, advance: Advance
    ) -> None:
        self._store = store
        self._network = network
        self._url = url
        self._sha256 = sha256
        self._name = name
        self._advance = advance
        self._hash = hashlib.sha256()
        self._have = 0

    def run(self) -> None:
        """Bring the file; TransferError or HashMismatchError, and then nothing wrong is kept."""
        try:
            self._once()
        except _StaleBeginningError:
            # The kept beginning stems from other bytes (a server that lied): start anew.
            self._once()

    def _once(self) -> None:
        with self._store.downloading(self._sha256) as partial:
            if partial is None:
                return
            resumed = partial.stat().st_size > 0
            try:
                with room(self._name):
                    self._attempts(partial)
            except NoSpaceError:
                partial.unlink(missing_ok=True)
                raise
            except HashMismatchError:
                if resumed:
                    raise _StaleBeginningError from None
                raise

    def _attempts(self, partial: Path) -> None:
        network = self._network
        left = network.attempts
        with network.session() as session, partial.open("r+b") as stream:
            self._restart(stream, truncate=False)
            if partial.stat().st_size:
                self._rehash(stream)
            while True:
                before = self._have
                try:
                    self._receive(session, stream)
                    break
                except _RefusedError as error:
                    # An attempt that brought something gives the next ones a fresh start.
                    left = (network.attempts if self._have > before else left) - 1
                    if not error.again or left <= 0:
                        raise TransferError(
                            f"{self._name} could not be had from {public(self._url)} ({error})",
                            status=error.status,
                        ) from None
                    time.sleep(network.backoff * 2 ** (network.attempts - left))
        self._store.complete(self._sha256, self._hash.hexdigest(), name=self._name)

    def _rehash(self, stream: BinaryIO) -> None:
        for chunk in chunks(stream):
            self._count(chunk)

    def _restart(self, stream: BinaryIO, *, truncate: bool) -> None:
        self._advance(-self._have)
        self._hash = hashlib.sha256()
        self._have = 0
        stream.seek(0)
        if truncate:
            stream.truncate()

    def _count(self, chunk: bytes) -> None:
        self._hash.update(chunk)
        self._have += len(chunk)
        self._advance(len(chunk))

    def _receive(self, session: requests.Session, stream: BinaryIO) -> None:
        import requests

        network = self._network
        headers = {"Range": f"bytes={self._have}-"} if self._have else {}
        try:
            with session.get(
                self._url,
                headers=headers,
                stream=True,
                timeout=network.timeout,
                verify=network.trust(self._url),
            ) as answer:
                if answer.status_code == _RANGE_REFUSED and self._have:
                    if self._hash.hexdigest() == self._sha256:
                        return
                    self._restart(stream, truncate=True)
                    raise _RefusedError("the server refused to go on", again=True)
                if not answer.ok:
                    status = answer.status_code
                    raise _RefusedError(f"HTTP {status}", again=status in _AGAIN, status=status)
                if self._have and not self._continues(answer):
                    self._restart(stream, truncate=True)
                for chunk in answer.iter_content(_PIECE):
                    stream.write(chunk)
                    self._count(chunk)
                stream.flush()
        except requests.exceptions.SSLError:
            raise _RefusedError("its certificate is not trusted", again=False) from None
        except (requests.exceptions.InvalidURL, requests.exceptions.InvalidSchema):
            raise _RefusedError("it is not an address one can download from", again=False) from None
        except requests.RequestException as error:
            stream.flush()
            raise _RefusedError(_reason(error), again=True) from None

    def _continues(self, answer: requests.Response) -> bool:
        start = answer.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
        return answer.status_code == _PARTIAL and start.strip() == str(self._have)


def _reason(error: requests.RequestException) -> str:
    """Return the kind of failure in words; the exception's own text may hold credentials."""
    import requests

    if isinstance(error, requests.exceptions.ProxyError):
        return "the proxy did not let it through"
    if isinstance(error, requests.exceptions.Timeout):
        return "it did not answer in time"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "the connection broke off"
    return "it cannot be reached"


def download(
    store: Store, network: Network, url: str, sha256: str, *, name: str, advance: Advance
) -> None:
    """Bring ``url`` into the store: http(s) resumable and with retries, file: by copying.

    ``advance`` is told bytes as they arrive, negative ones when a transfer starts over.
    Raises TransferError when the place does not give the file, HashMismatchError when it gives
    another one.
    """
    if urlsplit(url).scheme == "file":
        _copy(store, url, sha256, name=name, advance=advance)
        return
    Download(store, network, url, sha256, name=name, advance=advance).run()


def _copy(store: Store, url: str, sha256: str, *, name: str, advance: Advance) -> None:
    source = Path(unquote(urlsplit(url).path))
    try:
        stream = source.open("rb")
    except OSError as error:
        raise TransferError(f"{name} could not be read ({error.strerror})") from None
    digest = hashlib.sha256()
    with stream, store.downloading(sha256) as partial:
        if partial is None:
            return
        with room(name, partial), partial.open("wb") as target:
            while chunk := stream.read(CHUNK):
                target.write(chunk)
                digest.update(chunk)
                advance(len(chunk))
        store.complete(sha256, digest.hexdigest(), name=name)


def to_file(network: Network, url: str, path: Path, *, name: str) -> None:
    """Download a URL whose hash is not known yet; TransferError when the place does not give it."""
    import requests

    try:
        with (
            network.session() as session,
            session.get(
                url, stream=True, timeout=network.timeout, verify=network.trust(url)
            ) as answer,
            path.open("wb") as stream,
        ):
            if not answer.ok:
                raise TransferError(
                    f"{name} could not be had from {public(url)} (HTTP {answer.status_code})",
                    status=answer.status_code,
                )
            for chunk in answer.iter_content(_PIECE):
                stream.write(chunk)
    except requests.RequestException as error:
        raise TransferError(
            f"{name} could not be had from {public(url)} ({_reason(error)})"
        ) from None


def settings(values: Mapping[str, str]) -> Network:
    """Return the network as pip's configuration (``proxy``, ``cert``, …) describes it."""
    proxy = values.get("proxy")
    try:
        timeout = float(values.get("timeout", "") or values.get("default-timeout", "") or 30)
    except ValueError:
        timeout = 30
    return Network(
        proxies={"http": proxy, "https": proxy} if proxy else {},
        verify=values.get("cert") or system_certificates(),
        client_cert=values.get("client-cert"),
        insecure=frozenset(values.get("trusted-host", "").split()),
        timeout=timeout,
    )


def free_bytes(folder: Path) -> int:
    """Return the room left on the file system that holds (or will hold) ``folder``."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free
