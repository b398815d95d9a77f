"""Any solvable request of a generated channel comes out of its three files as it went in."""

from __future__ import annotations

import tempfile
from pathlib import Path
from urllib.parse import unquote

from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from assembler.channel.index import publish, read_records
from assembler.channel.location import package_url
from assembler.errors import SolveError
from assembler.lock.files import read_lock, write_lock
from assembler.lock.model import LOCAL_CHANNEL, Lock
from assembler.lock.pixi import read_pixi
from assembler.lock.solve import solve
from assembler.stack import Stack
from tests import data_stack
from tests.tiny_packages import make_package

AWKWARD = ["ch", "my channel", "a+b", "50%", "%41", "#1", "é漢", "$HOME"]
NAMES = ["a", "b-c", "d_e", "f.g", "h"]

constraint = st.sampled_from(["", ">=1", "<2", ">=1,<3", "1.*", "!=2.0", "* *_0"])
dependency = st.tuples(st.sampled_from(NAMES), constraint).map(lambda pair: " ".join(pair).strip())
one = st.fixed_dictionaries(
    {
        "name": st.sampled_from(NAMES),
        "version": st.sampled_from(["1.0", "1.5+cpu", "2.0", "2.0rc1", "10"]),
        "number": st.integers(0, 2),
        "subdir": st.sampled_from(["noarch", "linux-64"]),
        "depends": st.lists(dependency, max_size=2),
        "constrains": st.lists(dependency, max_size=1),
    }
)


def profile(name: str = "data"):  # type: ignore[no-untyped-def]
    import tomllib

    data = tomllib.loads(data_stack.STACK)
    data["profile"]["data"]["name"] = name
    return Stack.model_validate(data).select(None)


@settings(
    max_examples=25,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(
    wanted=st.lists(one, min_size=1, max_size=10),
    asked=st.sets(st.integers(0, 9), min_size=1, max_size=4),
    place=st.sampled_from(AWKWARD),
)
def test_a_request_of_a_generated_channel(
    wanted: list[dict[str, object]], asked: set[int], place: str
) -> None:
    names = [str(item["name"]) for item in wanted]
    for item in wanted:  # dependencies on what is there, so that most requests have an answer
        depends = item["depends"]
        assert isinstance(depends, list)
        item["depends"] = [spec for spec in depends if spec.split()[0] in names]
    request = sorted({names[number % len(names)] for number in asked})
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        channel = top / place
        made = {
            make_package(top / f"{item['subdir']}", build=f"h{item['number']}_0", **item)  # type: ignore[arg-type]
            for item in wanted
        }
        publish(channel, sorted(made))
        try:
            packages = solve(channel, profile(), specs=request)
        except SolveError:
            event("no solution")
            return
        event(f"{min(len(packages), 3)} packages or more")
        assert solve(channel, profile(), specs=request) == packages
        records = {record.path: record for record in read_records(channel)}
        lock = Lock("data", "linux-64", tuple(request), (LOCAL_CHANNEL,), packages)
        write_lock(lock, top / "locks")
        assert read_lock(top / "locks") == lock
        expected = {(p.path, records[p.path].sha256) for p in packages}
        assert {(p.path, p.sha256) for p in packages} == expected
        text = (top / "locks/explicit.txt").read_text()
        lines = text.split("@EXPLICIT\n")[1].splitlines()
        assert {
            tuple(line.removeprefix("$ATOM_CHANNEL/").split("#sha256:")) for line in lines
        } == expected
        moved = top / "elsewhere" / place
        environment = read_pixi(top / "locks/pixi.lock", moved).default_environment()
        assert environment
        found = environment.conda_repodata_records_for_platform(environment.platforms()[0])
        assert {(unquote(r.url), r.sha256.hex()) for r in found or () if r.sha256} == {
            (unquote(package_url(moved, path)), sha256) for path, sha256 in expected
        }
