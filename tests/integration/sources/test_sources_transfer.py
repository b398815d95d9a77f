"""Downloads over HTTP: resumed, retried, refused, and never half kept."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from conftest_sources import Server, sha

from assembler.errors import HashMismatchError, NoSpaceError
from assembler.sources.store import Store
from assembler.sources.transfer import Network, TransferError, download, free_bytes, to_file

DATA = random.Random(1).randbytes(3_000_000)
NETWORK = Network(backoff=0.001, timeout=10)


class Count:
    total = 0.0

    def __call__(self, amount: float) -> None:
        self.total += amount


def get(store: Store, url: str, digest: str = sha(DATA), network: Network = NETWORK) -> Count:
    count = Count()
    download(store, network, url, digest, name="big.whl", advance=count)
    return count


def left(store: Store) -> list[str]:
    return sorted(path.name for path in (store.root / "partial").iterdir())


def test_a_download_goes_on_after_breaks(tmp_path: Path, server: Server) -> None:
    url = server.put("/big.whl", DATA, cut=[1_000_000, 700_000], failures=[503, 429])
    store = Store(tmp_path)
    count = get(store, url)
    assert store.path(sha(DATA)).read_bytes() == DATA
    assert count.total == len(DATA)
    ranges = [wanted for _, wanted in server.log]
    assert ranges[:3] == ["", "", ""]
    first, second = (int(wanted.removeprefix("bytes=").rstrip("-")) for wanted in ranges[3:])
    assert 900_000 < first <= 1_000_000
    assert 600_000 < second - first <= 700_000
    assert left(store) == []


def test_a_server_without_ranges_is_read_from_the_start(tmp_path: Path, server: Server) -> None:
    url = server.put("/big.whl", DATA, cut=[1_000_000], ranges=False)
    store = Store(tmp_path)
    assert get(store, url).total == len(DATA)
    assert store.path(sha(DATA)).read_bytes() == DATA


def test_a_beginning_of_other_bytes_is_dropped(tmp_path: Path, server: Server) -> None:
    url = server.put("/big.whl", DATA)
    store = Store(tmp_path)
    for beginning in (b"x" * 1000, DATA + b"too long"):
        store.partial(sha(DATA)).parent.mkdir(exist_ok=True)
        store.partial(sha(DATA)).write_bytes(beginning)
        assert get(store, url).total == len(DATA)
        assert store.path(sha(DATA)).read_bytes() == DATA
        store.path(sha(DATA)).unlink()


def test_a_complete_beginning_needs_no_bytes(tmp_path: Path, server: Server) -> None:
    url = server.put("/big.whl", DATA)
    store = Store(tmp_path)
    (tmp_path / "partial").mkdir()
    store.partial(sha(DATA)).write_bytes(DATA)
    get(store, url)
    assert store.path(sha(DATA)).read_bytes() == DATA
    assert server.log == [("/big.whl", f"bytes={len(DATA)}-")]


def test_other_bytes_are_refused_and_not_kept(tmp_path: Path, server: Server) -> None:
    url = server.put("/big.whl", b"other bytes")
    store = Store(tmp_path)
    with pytest.raises(HashMismatchError) as caught:
        get(store, url)
    for word in ("big.whl", sha(DATA), sha(b"other bytes")):
        assert word in str(caught.value)
    assert left(store) == []
    assert not store.has(sha(DATA))


@pytest.mark.parametrize(
    ("behaviour", "words", "requests"),
    [
        ({"failures": [500] * 9}, "HTTP 500", 5),
        ({"failures": [403]}, "HTTP 403", 1),
        ({"user": "u:p"}, "HTTP 401", 1),
    ],
)
def test_a_refusal_is_said(
    tmp_path: Path, server: Server, behaviour: dict[str, object], words: str, requests: int
) -> None:
    url = server.put("/big.whl", DATA, **behaviour)
    with pytest.raises(TransferError, match=words) as caught:
        get(Store(tmp_path), url.replace("127.", "user:hunter2@127.") + "#hunter2")
    assert "hunter2" not in str(caught.value)
    assert caught.value.exit_code == 5
    assert len(server.log) == requests


def test_a_missing_server_is_said(tmp_path: Path) -> None:
    with pytest.raises(TransferError, match="cannot be reached"):
        get(Store(tmp_path), "http://127.0.0.1:9/big.whl", network=Network(attempts=2, backoff=0))
    with pytest.raises(TransferError, match="proxy"):
        get(
            Store(tmp_path),
            "http://files.example.org/big.whl",
            network=Network(attempts=1, proxies={"http": "http://127.0.0.1:9"}),
        )
    with pytest.raises(TransferError, match="not an address"):
        get(Store(tmp_path), "gopher://x/big.whl")


def test_a_silent_server_times_out(tmp_path: Path, server: Server) -> None:
    release = threading.Event()
    url = server.put("/big.whl", DATA, wait=release)
    store = Store(tmp_path)
    with pytest.raises(TransferError, match=r"broke off|in time|cannot be reached"):
        get(store, url, network=Network(attempts=1, timeout=0.2))
    release.set()
    have = size(store.partial(sha(DATA)))
    assert 0 < have <= len(DATA) // 2
    get(store, url)
    assert server.log[-1] == ("/big.whl", f"bytes={have}-")


def test_a_proxy_is_used(tmp_path: Path, server: Server) -> None:
    # A proxy is asked with the whole address as the path.
    server.put("http://files.example.org/big.whl", DATA)
    network = Network(proxies={"http": server.url})
    get(Store(tmp_path), "http://files.example.org/big.whl", network=network)
    assert server.log == [("http://files.example.org/big.whl", "")]


def test_a_full_disk_leaves_nothing(tmp_path: Path, server: Server) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    url = server.put("/big.whl", DATA)
    store = Store(tmp_path)
    (tmp_path / "partial").mkdir()
    store.partial(sha(DATA)).symlink_to("/dev/full")
    with pytest.raises(NoSpaceError, match=r"big\.whl"):
        get(store, url)
    assert left(store) == []
    assert not store.has(sha(DATA))


def test_local_files_are_copied(tmp_path: Path) -> None:
    source = tmp_path / "torch 2+cpu.whl"
    source.write_bytes(DATA)
    store = Store(tmp_path / "store")
    assert get(store, source.as_uri()).total == len(DATA)
    assert store.path(sha(DATA)).read_bytes() == DATA
    assert not store.path(sha(DATA)).samefile(source)
    with pytest.raises(TransferError, match="No such file"):
        get(Store(tmp_path / "other"), (tmp_path / "gone").as_uri())
    with pytest.raises(HashMismatchError):
        get(store, source.as_uri(), digest="0" * 64)
    assert left(store) == []


def test_an_unknown_hash_is_downloaded_beside(tmp_path: Path, server: Server) -> None:
    to_file(NETWORK, server.put("/x", DATA), tmp_path / "x", name="x")
    assert (tmp_path / "x").read_bytes() == DATA
    with pytest.raises(TransferError, match="HTTP 404"):
        to_file(NETWORK, server.url + "/none", tmp_path / "none", name="none")


def test_room_is_told_for_folders_to_come(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / "a" / "b") > 0


CHILD = """
import sys
from pathlib import Path
from assembler.sources.store import Store
from assembler.sources.transfer import Network, download
download(Store(Path(sys.argv[1])), Network(), sys.argv[2], sys.argv[3], name="big.whl",
         advance=lambda amount: None)
"""


def test_a_killed_download_goes_on(tmp_path: Path, server: Server) -> None:
    release = threading.Event()
    url = server.put("/big.whl", DATA, wait=release)
    store = Store(tmp_path)
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path), url, sha(DATA)])
    try:
        wait_for(lambda: size(store.partial(sha(DATA))) >= len(DATA) // 4)
        os.kill(child.pid, signal.SIGKILL)
        assert child.wait(30) == -signal.SIGKILL
    finally:
        child.kill()
        release.set()
    have = size(store.partial(sha(DATA)))
    assert 0 < have < len(DATA)
    assert not store.has(sha(DATA))
    get(store, url)
    assert server.log[-1] == ("/big.whl", f"bytes={have}-")
    assert store.path(sha(DATA)).read_bytes() == DATA
    assert left(store) == []


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def wait_for(condition: object, seconds: float = 30) -> None:
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.01)
