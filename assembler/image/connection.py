"""One repository of a registry: what a reference names, and requests to it.

Traffic and logins (docker's config file and credential helpers) are oras', but for registries that
ask for a login by HTTP's Basic scheme instead of a token. Plain HTTP is for registries on this
machine, and where it is asked for. Source: OCI distribution-spec 1.1.
"""

from __future__ import annotations

import ipaddress
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import requests
from oras.auth import AuthenticationException
from oras.container import Container
from oras.provider import Registry

from assembler.errors import ImageError
from assembler.image.documents import INDEX, MANIFEST

_REFERENCE = re.compile(
    r"^(?P<host>[A-Za-z0-9.-]+(?::[0-9]+)?|\[[0-9a-f:]+\](?::[0-9]+)?)/"
    r"(?P<name>[a-z0-9]+(?:[._/-]+[a-z0-9]+)*)(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?"
    r"(?:@(?P<digest>sha256:[0-9a-f]{64}))?$"
)
# Docker Hub goes by one name in references, by another on the wire, and by a third in logins.
HUB = "docker.io"
_HUB_ENDPOINT = "registry-1.docker.io"
_HUB_LOGIN = "https://index.docker.io/v1/"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
ACCEPT = f"{MANIFEST}, {INDEX}, {DOCKER_MANIFEST}, {DOCKER_LIST}"
PAUSES = (0.5, 2.0)  # seconds before a second and a third attempt


@dataclass(frozen=True)
class Reference:
    """A repository in a registry, and perhaps a tag or a digest."""

    host: str
    name: str
    tag: str | None = None
    digest: str | None = None

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Read ``HOST/NAME[:TAG][@DIGEST]``; the host is never guessed."""
        found = _REFERENCE.match(text)
        if not found or ("." not in found["host"] and ":" not in found["host"]
                         and found["host"] != "localhost"):  # fmt: skip
            raise ImageError(
                f"{text!r} names no repository in a registry",
                remedy="write HOST/NAME[:TAG], as in registry.example.com/atom:1.0",
            )
        host, name = found["host"], found["name"]
        if host == HUB and "/" not in name:
            name = f"library/{name}"
        return cls(host, name, found["tag"], found["digest"])

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


class Connection:
    """Requests to one repository; refusals and silence become ImageError."""

    def __init__(self, reference: Reference, *, plain_http: bool = False) -> None:
        self.reference = reference
        insecure = plain_http or reference.is_local
        hub = reference.host == HUB
        host = _HUB_ENDPOINT if hub else reference.host
        self._registry = Registry(hostname=host, insecure=insecure)
        container = Container(f"{reference.host}/{reference.name}")
        if hub:
            container.registry = _HUB_LOGIN
        self._registry.auth.load_configs(container)
        self._reached = False
        self._root = f"{'http' if insecure else 'https'}://{host}/v2/"
        self._basic: dict[str, str] | None = None  # not known before the registry was asked
        self.base = f"{self._root}{reference.name}"

    def ask(
        self,
        method: str,
        path: str,
        *,
        expect: Sequence[int],
        data: Any = None,
        headers: Mapping[str, str] | None = None,
        stream: bool = False,
    ) -> requests.Response:
        """Return the answer to one request, whose status is one of the expected.

        ``path`` is below the repository, or a whole address. With ``stream`` the caller reads the
        answer's body. Raises ImageError when the registry is silent or answers otherwise.
        """
        url = path if "://" in path else self.base + path
        accept = {"Accept": ACCEPT} if method in ("HEAD", "GET") else {}
        try:
            self._learn()
            answer = self._try(url, method, data, {**accept, **(headers or {})}, stream=stream)
        except requests.exceptions.MissingSchema:
            # oras takes the realm of a Basic challenge for a token server's address.
            raise self.refused("it asks for a login") from None
        except requests.RequestException as error:
            raise self.unreachable(error) from None
        except ValueError:
            raise self.refused("it asks for a login") from None
        if answer.status_code == 401 and self._basic:
            raise self.refused("it does not take the login that docker's config holds")
        if answer.status_code not in expect:
            raise self.refused(f"{answer.status_code} {_message(answer)}".strip())
        return answer

    def _learn(self) -> None:
        """Find out once whether a login, if there is one, goes by the Basic scheme."""
        if self._basic is None:
            self._basic = {}
            login = getattr(self._registry.auth, "_basic_auth", None)
            if login:
                answer = self._registry.session.get(self._root)
                challenge = answer.headers.get("Www-Authenticate", "")
                if answer.status_code == 401 and challenge.lower().startswith("basic"):
                    self._basic = {"Authorization": f"Basic {login}"}

    def _once(
        self, url: str, method: str, data: Any, headers: dict[str, str], *, stream: bool
    ) -> requests.Response:
        if self._basic:
            own = self._basic if url.startswith(self._root) else {}
            plain: requests.Response = self._registry.session.request(
                method, url, data=data, headers={**headers, **own}, stream=stream
            )
            return plain
        # Without oras' own retries: they take two minutes to say that nobody is there.
        answer: requests.Response = Registry.do_request.__wrapped__(
            self._registry, url, method, data, headers, stream=stream
        )
        return answer

    def _try(
        self, url: str, method: str, data: Any, headers: dict[str, str], *, stream: bool
    ) -> requests.Response:
        """Ask once; once the registry has answered at all, a dropped connection is tried again."""
        for pause in PAUSES if self._reached else ():
            try:
                answer = self._once(url, method, data, dict(headers), stream=stream)
            except (requests.ConnectionError, requests.Timeout):
                time.sleep(pause)
                continue
            if answer.status_code < 500:
                return answer
            time.sleep(pause)
        answer = self._once(url, method, data, dict(headers), stream=stream)
        self._reached = True
        return answer

    def unreachable(self, error: requests.RequestException) -> ImageError:
        """Return the error for a registry that does not answer."""
        return ImageError(
            f"the registry {self.reference.host} cannot be reached ({_reason(error)})",
            remedy="check the name and the network, or use --plain-http for one without TLS",
        )

    def refused(self, words: str) -> ImageError:
        """Return the error for an answer that is a refusal."""
        return ImageError(
            f"the registry {self.reference.host} refuses {self.reference.name} ({words})",
            remedy=f"log in with `docker login {self.reference.host}` and check your rights",
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
