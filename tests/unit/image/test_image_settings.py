"""Times, activation, compression and requests: the small rules."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assembler import stack
from assembler.errors import ConfigError, ImageError
from assembler.image.activation import environment
from assembler.image.compression import Codec
from assembler.image.epoch import Epoch, rfc3339
from assembler.image.request import Request, check_request
from assembler.lock.model import Lock, LockedPackage


@pytest.mark.parametrize(("text", "bound"), [("", None), ("0", 0), ("1700000000", 1700000000)])
def test_source_date_epoch(text, bound):
    assert Epoch.from_environment({"SOURCE_DATE_EPOCH": text}).bound == bound
    assert Epoch.from_environment({}).bound is None


@pytest.mark.parametrize("text", ["-1", "1.5", "now", " 1", "1e9", "٣", str(10**12)])
def test_source_date_epochs_that_are_none(text):
    with pytest.raises(ConfigError, match="whole seconds since 1970"):
        Epoch.from_environment({"SOURCE_DATE_EPOCH": text})


def test_times_are_never_after_the_bound_nor_before_1970():
    assert Epoch(10).clamp(20) == 10
    assert Epoch(10).clamp(5) == 5
    assert Epoch().clamp(-3) == 0
    assert Epoch().created([3, 9, 4]) == 9
    assert Epoch(2).created([3]) == 2
    assert Epoch().created([]) == 0
    assert rfc3339(0) == "1970-01-01T00:00:00Z"


def test_activation_is_baked_in_conda_s_order():
    found = environment(
        "/opt/atom",
        {
            "etc/conda/activate.d/a.sh": "# comment\nexport ROCM_PATH=$CONDA_PREFIX\nA='$x'\n\n",
            "etc/conda/activate.d/b.sh": 'export B="${ROCM_PATH}/lib"  # why\n',
            "etc/conda/activate.d/c.fish": "set -gx NO 1",
            "etc/conda/env_vars.d/v.json": '{"V": "1"}',
        },
        {"LANG": "C.UTF-8", "V": "2"},
    )
    assert found == {
        "PATH": "/opt/atom/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "CONDA_PREFIX": "/opt/atom",
        "V": "2",
        "ROCM_PATH": "/opt/atom",
        "A": "$x",
        "B": "/opt/atom/lib",
        "LANG": "C.UTF-8",
    }


@pytest.mark.parametrize(
    "line",
    ["source x", "export A=$(date)", "A=`date`", "if true; then", "export A=1 B=2", "A=1; B=2",
     "export A=${B:-x}", "unset A", "A='x'$y", "A=a\\ b", "A='unclosed"],
)  # fmt: skip
def test_scripts_that_do_more_are_refused(line):
    with pytest.raises(ImageError, match=r"a\.sh, line 2 does more than set a variable"):
        environment("/opt/atom", {"etc/conda/activate.d/a.sh": f"A=1\n{line}\n"}, {})


def test_variables_that_are_no_json():
    with pytest.raises(ImageError, match="not a JSON object"):
        environment("/p", {"etc/conda/env_vars.d/v.json": "[1]"}, {})


codecs = st.sampled_from([Codec("zstd", 1), Codec("zstd", 3), Codec("gzip", 1), Codec("gzip", 6)])


@given(codecs, st.lists(st.binary(max_size=3000), max_size=5), st.integers(1, 700))
def test_joined_pieces_expand_to_joined_bytes(codec, pieces, cut):
    joined = b"".join(map(codec.whole, pieces))
    chunks = [joined[at : at + cut] for at in range(0, len(joined), cut)]
    assert b"".join(codec.expand(chunks)) == b"".join(pieces)


@pytest.mark.parametrize("codec", [Codec("zstd", 3), *(Codec("gzip", n) for n in range(10))])
def test_bytes_depend_on_neither_threads_nor_cuts(codec):
    # Machine code and text: on regular data every cut gives the same bytes anyway.
    data = (Path(sys.executable).resolve().read_bytes() + Path(__file__).read_bytes())[-3_000_000:]
    results = set()
    for threads in (1, 2):
        for cut in (len(data), 700_001, 4096):
            stream = codec.start(threads)
            out = b"".join(stream.compress(data[at : at + cut]) for at in range(0, len(data), cut))
            results.add(out + stream.flush())
    assert len(results) == 1


@pytest.mark.parametrize("level", range(10))
def test_gzip_is_what_everybody_reads(level):
    data = Path(__file__).read_bytes()
    assert gzip.decompress(Codec("gzip", level).whole(data) * 2) == data * 2


@pytest.mark.parametrize(
    ("text", "level", "codec"),
    [("zstd", None, Codec("zstd", 3)), ("zstd:9", None, Codec("zstd", 9)),
     ("gzip", None, Codec("gzip", 4)), ("gzip", 9, Codec("gzip", 9)),
     ("zstd:19", 19, Codec("zstd", 19))],
)  # fmt: skip
def test_codecs_as_people_write_them(text, level, codec):
    assert Codec.parse(text, level) == codec


@pytest.mark.parametrize(
    ("text", "level"),
    [("zstd:", None), ("zstd:x", None), ("zstd:99", None), ("lz4", None), ("zstd:9", 3), ("", 3)],
)
def test_codecs_as_nobody_should_write_them(text, level):
    with pytest.raises(ConfigError):
        Codec.parse(text, level)


@pytest.mark.parametrize(("name", "level"), [("xz", 1), ("zstd", 0), ("zstd", 20), ("gzip", 10)])
def test_codecs_that_are_none(name, level):
    with pytest.raises(ConfigError):
        Codec.of(name, level)


def locked(name: str, depends: tuple[str, ...] = (), url: str | None = None) -> LockedPackage:
    return LockedPackage(
        name, "1", "0", 0, "linux-64", f"{name}-1-0.conda", f"linux-64/{name}-1-0.conda",
        "0" * 64, "0" * 32, 1, depends, url=url,
    )  # fmt: skip


def image(prefix: str = "/opt/atom", glibc: str = "2.36") -> stack.Image:
    base = stack.Base(suite="bookworm", glibc=glibc, packages=())
    return stack.Image(name="x", prefix=prefix, user="1:1", entrypoint=(), base=base)


def lock(*packages: LockedPackage, platform: str = "linux-64") -> Lock:
    return Lock("p", platform, (), (), packages)


def test_a_base_older_than_a_package_needs():
    check_request(lock(locked("a", ("__glibc >=2.36,<3",))), image())
    with pytest.raises(ImageError, match=r"a needs glibc 2\.38, but the base brings 2\.36"):
        check_request(lock(locked("a", ("__glibc >=2.38",))), image())


def test_locks_that_are_no_image():
    with pytest.raises(ImageError, match="no packages"):
        check_request(lock(), image())
    with pytest.raises(ImageError, match="osx-64"):
        check_request(lock(locked("a"), platform="osx-64"), image())
    with pytest.raises(ImageError, match="not in the channel but at https"):
        check_request(lock(locked("a", url="https://example.org/x")), image())
    for prefix in ("opt/atom", "/", "/usr"):
        with pytest.raises(ImageError, match="prefix"):
            check_request(lock(locked("a")), image(prefix))


@pytest.mark.parametrize("tag", ["", "a:b", "-x", "a/b", "x" * 129])
def test_tags_that_no_registry_takes(tag):
    with pytest.raises(ConfigError, match="not a tag"):
        Request(lock(locked("a")), tag)
