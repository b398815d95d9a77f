"""Images to registries: what is missing is sent, manifests go as the bytes they are.

Traffic and logins (docker's config file and credential helpers) are oras'. Manifests are never
parsed and written again, because that would change their digest. Referrers of an image (SBOM,
provenance) go with it; where the registry does not list them itself, the fallback tag does.
Source: OCI distribution-spec 1.1.
"""

from __future__ import annotations

import ipaddress
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import requests
from oras.auth import AuthenticationException
from oras.container import Container
from oras.provider import Registry

from assembler.digest import CHUNK, chunks
from assembler.errors import ImageError
from assembler.image.documents import INDEX, MANIFEST, REF_NAME, index
from assembler.image.layout import Layout
from assembler.progress import Progress, Task

_REFERENCE = re.compile(
    r"^(?P<host>[A-Za-z0-9.-]+(?::[0-9]+)?|\[[0-9a-f:]+\](?::[0-9]+)?)/"
    r"(?P<name>[a-z0-9]+(?:[._/-]+[a-z0-9]+)*)(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?$"
)


PAUSES = (0.5, 2.0)  # seconds before a second and a third attempt


@dataclass(frozen=True)
class Reference:
    """A repository in a registry, and perhaps a tag."""

    host: str
    name: str
    tag: str | None = None

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Read ``HOST/NAME[:TAG]``; the host is never guessed."""
        found = _REFERENCE.match(text)
        if not found or ("." not in found["host"] and ":" not in found["host"]
                         and found["host"] != "localhost"):  # fmt: skip
            raise ImageError(
                f"{text!r} names no repository in a registry",
                remedy="write HOST/NAME[:TAG], as in registry.example.com/atom:1.0",
            )
        return cls(found["host"], found["name"], found["tag"])

    @property
    def is_local(self) -> bool:
        """Whether the registry is on this machine, where plain HTTP is the rule."""
        name = self.host.rsplit(":", 1)[0].strip("[]")
        try:
            return ipaddress.ip_address(name).is_loopback
        except (ValueError, AuthenticationException):
            return name == "localhost"

    def at(self, tag: str) -> str:
        """Return the reference with a tag or digest."""
        return f"{self.host}/{self.name}{'@' if ':' in tag else ':'}{tag}"


@dataclass(frozen=True)
class Pushed:
    """What a push did: references by tag, and how many bytes were sent or already there."""

    references: tuple[str, ...]
    digests: tuple[str, ...]
    sent_blobs: int
    sent_bytes: int
    present_blobs: int

    def as_dict(self) -> dict[str, object]:
        """Return the result as plain data."""
        return asdict(self)


class _Body:
    """A file as a request's body: read anew for every attempt, in constant memory."""

    def __init__(self, path: Path, task: Task) -> None:
        self._path = path
        self._task = task

    def __len__(self) -> int:
        return self._path.stat().st_size

    def __iter__(self) -> Iterator[bytes]:
        with self._path.open("rb") as stream:
            for chunk in chunks(stream, CHUNK):
                yield chunk
                self._task.advance(len(chunk))


class Pusher:
    """Sends one layout to one repository."""

    def __init__(
        self, layout: Layout, reference: Reference, progress: Progress, *, plain_http: bool = False
    ) -> None:
        self._layout = layout
        self._reference = reference
        self._progress = progress
        insecure = plain_http or reference.is_local
        self._registry = Registry(hostname=reference.host, insecure=insecure)
        self._container = Container(f"{reference.host}/{reference.name}")
        self._registry.auth.load_configs(self._container)
        self._reached = False
        self._base = f"{'http' if insecure else 'https'}://{reference.host}/v2/{reference.name}"

    def push(self, tags: Sequence[str] = ()) -> Pushed:
        """Send every image of the layout and return what was sent.

        A layout with one image gets ``tags`` (default: the reference's, else the image's own);
        several keep their own tags. ImageError when the registry refuses.
        """
        entries = [dict(entry) for entry in self._layout.entries()]
        images = [entry for entry in entries if "platform" in entry]
        if not images or not all(map(self._layout.is_complete, images)):
            raise ImageError(
                f"{self._layout.path} is not a complete OCI image layout",
                remedy="make it with `assembler image`",
            )
        if not all(map(self._layout.is_complete, entries)):
            raise ImageError(
                f"an attestation in {self._layout.path} is not complete",
                remedy="attach all of them anew with `assembler sbom --attach`",
            )
        given = tuple(tags) or ((self._reference.tag,) if self._reference.tag else ())
        if len(images) > 1 and given:
            raise ImageError(
                f"{self._layout.path} holds {len(images)} images, which cannot share a tag",
                remedy="push them without a tag: each keeps its own",
            )
        manifests = [self._layout.document(entry["digest"]) or {} for entry in entries]
        sent, size, present = self._blobs(manifests)
        for entry in [*images, *(entry for entry in entries if "platform" not in entry)]:
            self._manifest(entry["digest"], entry["mediaType"], entry["digest"])
        self._list_referrers(entries, manifests)
        references = []
        for entry in images:
            for tag in given or (entry["annotations"][REF_NAME],):
                self._manifest(entry["digest"], entry["mediaType"], tag)
                references.append(self._reference.at(tag))
        digests = tuple(entry["digest"] for entry in images)
        return Pushed(tuple(references), digests, sent, size, present)

    def _blobs(self, manifests: Sequence[Mapping[str, Any]]) -> tuple[int, int, int]:
        parts = {
            part["digest"]: part["size"]
            for manifest in manifests
            for part in (manifest["config"], *manifest["layers"])
        }
        missing = {}
        for digest, size in parts.items():
            answer = self._ask("HEAD", f"/blobs/{digest}", expect=(200, 404))
            if answer.status_code == 404:
                missing[digest] = size
        if missing:
            words = f"sending {len(missing)} of {len(parts)} blobs"
            with self._progress.task(words, sum(missing.values()), in_bytes=True) as task:
                for digest in missing:
                    self._blob(digest, task)
        return len(missing), sum(missing.values()), len(parts) - len(missing)

    def _blob(self, digest: str, task: Task) -> None:
        answer = self._ask("POST", "/blobs/uploads/", expect=(202,))
        place = answer.headers["Location"]
        if place.startswith("/"):
            scheme, _, rest = self._base.partition("://")
            place = f"{scheme}://{rest.partition('/')[0]}{place}"
        place += f"{'&' if '?' in place else '?'}digest={digest}"
        body = _Body(self._layout.blob(digest), task)
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(len(body))}
        self._ask("PUT", place, data=body, headers=headers, expect=(201,))

    def _manifest(self, digest: str, media_type: str, reference: str) -> None:
        data = self._layout.blob(digest).read_bytes()
        self._put(data, media_type, reference)

    def _put(self, data: bytes, media_type: str, reference: str) -> requests.Response:
        return self._ask(
            "PUT",
            f"/manifests/{reference}",
            data=data,
            headers={"Content-Type": media_type},
            expect=(201,),
        )

    def _list_referrers(
        self, entries: Sequence[dict[str, Any]], manifests: Sequence[Mapping[str, Any]]
    ) -> None:
        """Write the fallback tag of each subject when the registry has no list of its own."""
        found: dict[str, list[dict[str, Any]]] = {}
        for entry, manifest in zip(entries, manifests, strict=True):
            if "subject" in manifest:
                found.setdefault(manifest["subject"]["digest"], []).append(entry)
        for subject, referrers in found.items():
            answer = self._ask("GET", f"/referrers/{subject}", expect=(200, 404, 405))
            if answer.status_code != 200:
                data = index(referrers)
                self._put(data, INDEX, subject.replace(":", "-"))

    def _ask(
        self,
        method: str,
        path: str,
        *,
        expect: Sequence[int],
        data: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> requests.Response:
        url = path if "://" in path else self._base + path
        accept = {"Accept": f"{MANIFEST}, {INDEX}"} if method in ("HEAD", "GET") else {}
        try:
            answer = self._try(url, method, data, {**accept, **(headers or {})})
        except requests.exceptions.MissingSchema:
            # oras takes the realm of a Basic challenge for a token server's address.
            raise self._refused("it asks for a login") from None
        except requests.RequestException as error:
            raise ImageError(
                f"the registry {self._reference.host} cannot be reached ({_reason(error)})",
                remedy="check the name and the network, or use --plain-http for one without TLS",
            ) from None
        except ValueError:
            raise self._refused("it asks for a login") from None
        if answer.status_code not in expect:
            raise self._refused(f"{answer.status_code} {_message(answer)}".strip())
        return answer

    def _try(self, url: str, method: str, data: Any, headers: dict[str, str]) -> requests.Response:
        """Ask once; once the registry has answered at all, a dropped connection is tried again."""
        # Without oras' own retries: they take two minutes to say that nobody is there.
        ask = Registry.do_request.__wrapped__
        for pause in PAUSES if self._reached else ():
            try:
                answer: requests.Response = ask(self._registry, url, method, data, dict(headers))
            except (requests.ConnectionError, requests.Timeout):
                time.sleep(pause)
                continue
            if answer.status_code < 500:
                return answer
            time.sleep(pause)
        answer = ask(self._registry, url, method, data, dict(headers))
        self._reached = True
        return answer

    def _refused(self, words: str) -> ImageError:
        return ImageError(
            f"the registry {self._reference.host} refuses {self._reference.name} ({words})",
            remedy=f"log in with `docker login {self._reference.host}` and check your rights",
        )


def _message(answer: requests.Response) -> str:
    try:
        return str(json.loads(answer.content)["errors"][0]["message"])
    except (ValueError, KeyError, IndexError, TypeError):
        return answer.reason or ""


def _reason(error: requests.RequestException) -> str:
    cause: BaseException = error
    while cause.__cause__ or cause.__context__:
        cause = cause.__cause__ or cause.__context__ or cause
    return str(cause) or type(error).__name__
