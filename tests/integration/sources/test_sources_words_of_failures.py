"""An index that gives nothing is one sentence, whatever way it fails in."""

from __future__ import annotations

import pytest
from conftest_sources import Server, make_wheel, wheel_entry
from test_sources_fetch import Pip, Project, command

WHEEL = make_wheel("tiny", "1.0")
# name: (pip's settings, environment, words of the sentence); {} is the server's host and port
CASES: dict[str, tuple[dict[str, str], dict[str, str], str]] = {
    "refused": ({"index_url": "http://127.0.0.1:9/simple/"}, {}, "could not be reached"),
    "no such host": ({"index_url": "https://index.invalid/simple/"}, {}, "could not be reached"),
    "proxy": (
        {"index_url": "https://index.invalid/", "proxy": "http://127.0.0.1:9"},
        {},
        "reached",
    ),
    "no index": ({}, {"PIP_NO_INDEX": "1"}, "is not to be had"),
    "404": ({"index_url": "http://{}/nothing/"}, {}, "is not to be had"),
    "HTML": ({"index_url": "http://{}/html/"}, {}, "is not to be had"),
    "500": ({"index_url": "http://{}/broken/"}, {}, "could not be reached"),
    "403": ({"index_url": "http://{}/forbidden/"}, {}, "could not be reached"),
    "no TLS": ({"index_url": "https://{}/simple/"}, {}, "could not be reached"),
    "no address": ({"index_url": "nonsense"}, {}, "tiny"),
    "no find-links": ({"find_links": "/no/such/folder"}, {"PIP_NO_INDEX": "1"}, "is not to be had"),
}


@pytest.mark.parametrize("retries", ["0", "1"])
@pytest.mark.parametrize("case", CASES)
def test_an_index_that_gives_nothing(
    case: str,
    retries: str,
    server: Server,
    pip_environment: Pip,
    project: Project,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings, environment, words = CASES[case]
    server.put("/html/tiny/", b"<html><body>Welcome</body></html>", content_type="text/html")
    server.put("/broken/tiny/", b"", failures=[500] * 9)
    server.put("/forbidden/tiny/", b"", failures=[403] * 9)
    host = server.url.partition("://")[2]
    pip_environment(**{key: value.format(host) for key, value in settings.items()})
    for key, value in {**environment, "PIP_RETRIES": retries}.items():
        monkeypatch.setenv(key, value)
    done = command(project(one=wheel_entry(WHEEL)), "fetch", "-q")
    assert done.returncode == 5, done.stderr
    (line,) = done.stderr.splitlines()
    assert words in line
    assert "pip config list" in line
