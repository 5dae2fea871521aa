"""apt on a system of its own, with the real apt and dpkg: predicted, done, taken back, and refused where it must be."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.support.apt_root import AptRoot
from tests.support.module_host import ModuleHost, plan_module, run_module, snapshot, undo_all

from crossgrade.errors import TaskError
from crossgrade.modules.apt import MODULE
from crossgrade.modules.contract import Change, Unchanged

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("apt-get", "dpkg-deb", "dpkg-scanpackages"))),
    reason="needs root, apt and dpkg-dev",
)


@pytest.fixture
def apt(tmp_path: Path) -> AptRoot:
    """one (1.0 installed, 2.0 offered as well), two (needs three, recommends four), and parts of a driver."""
    made = AptRoot(tmp_path / "apt")
    made.package("one", "1.0-1")
    made.package("one", "2.0-1")
    made.package("two", Depends="three", Recommends="four")
    made.package("three")
    made.package("four")
    made.package("cuda-drivers", "580-1")
    made.package("needs-driver", Depends="cuda-drivers")
    made.package("instead-of-one", Conflicts="one")
    made.index()
    made.know_repository()
    made.install("one=1.0-1")
    return made


@pytest.fixture
def host(tmp_path: Path, apt: AptRoot) -> ModuleHost:
    return ModuleHost(tmp_path, environment={**os.environ, **apt.environment})


ALL = {"one": "1.0-1"}


@pytest.mark.parametrize(
    ("arguments", "after"),
    [
        ({"name": "two", "install_recommends": False}, {**ALL, "two": "1.0-1", "three": "1.0-1"}),
        ({"name": "two"}, {**ALL, "two": "1.0-1", "three": "1.0-1", "four": "1.0-1"}),
        ({"name": "one", "state": "latest"}, {"one": "2.0-1"}),
        ({"name": "one=2.0*", "only_upgrade": True}, {"one": "2.0-1"}),
        ({"name": ["one"], "state": "absent"}, {}),
        ({"name": ["one"], "state": "absent", "purge": True}, {}),
        ({"name": ["thr*", "four"]}, {**ALL, "three": "1.0-1", "four": "1.0-1"}),
        ({"name": "instead-of-one"}, {"instead-of-one": "1.0-1"}),
        ({"deb": "{repository}/three_1.0-1.deb"}, {**ALL, "three": "1.0-1"}),
    ],
)
def test_as_predicted_and_back(
    apt: AptRoot, host: ModuleHost, arguments: dict[str, Any], after: dict[str, str]
) -> None:
    arguments = (
        {**arguments, "deb": arguments["deb"].format(repository=apt.repository)} if "deb" in arguments else arguments
    )
    before = snapshot(apt.root)
    planning = host.planning()
    planned = plan_module(MODULE, arguments, planning)
    assert isinstance(planned, Change)
    predicted = {**ALL, **{one.subject: one.after for one in planned.differences}}
    assert {name: version for name, version in predicted.items() if version} == after
    assert isinstance(plan_module(MODULE, arguments, planning), Unchanged)  # the first task of the plan does it
    assert snapshot(apt.root) == before
    assert run_module(MODULE, arguments, host).changed
    assert apt.installed() == after
    assert isinstance(plan_module(MODULE, arguments, host), Unchanged)
    undo_all(MODULE, host)
    assert apt.installed() == ALL
    undo_all(MODULE, host)
    assert apt.installed() == ALL


@pytest.mark.parametrize(
    "arguments",
    [{"name": "one"}, {"name": "one=1.*"}, {"name": "two", "state": "absent"}, {"name": "two", "only_upgrade": True}],
)
def test_nothing_to_do(host: ModuleHost, arguments: dict[str, Any]) -> None:
    assert isinstance(plan_module(MODULE, arguments, host.planning()), Unchanged)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "needs-driver"}, "would touch the NVIDIA driver: cuda-drivers"),
        ({"name": "cuda-drivers"}, "would touch the NVIDIA driver"),
        ({"name": "nope"}, "apt knows no nope"),
        ({"name": "-o"}, "is no name of a package"),
        ({"name": "one", "force": True}, "what its own checks forbid"),
        ({"name": "one", "allow_unauthenticated": True}, "what its own checks forbid"),
        ({"upgrade": "dist"}, "cannot be taken back"),
        ({"deb": "http://x/y.deb"}, "fetched from nowhere"),
        ({"name": "instead-of-one", "fail_on_autoremove": True}, "would also remove one"),
    ],
)
def test_what_is_refused(host: ModuleHost, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(TaskError, match=words):
        plan_module(MODULE, arguments, host.planning())


def test_a_plan_says_what_cannot_be_taken_back(apt: AptRoot, host: ModuleHost) -> None:
    (apt.repository / "one_1.0-1.deb").unlink()
    apt.index()
    apt.run("apt-get", "-q", "update")
    planned = plan_module(MODULE, {"name": "one", "state": "latest"}, host.planning())
    assert isinstance(planned, Change)
    assert "cannot be taken back for one" in planned.summary
    run_module(MODULE, {"name": ["one", "three"], "state": "latest"}, host)
    with pytest.raises(TaskError, match=r"no repository has these versions any more: one 1\.0-1; removed three"):
        undo_all(MODULE, host)


def test_lists_are_read_anew_when_they_are_old(apt: AptRoot, host: ModuleHost) -> None:
    (apt.root / "etc/apt/sources.list.d/local.list").write_text(f"deb [trusted=yes] copy:{apt.repository}/ ./\n")
    apt.run("apt-get", "-q", "update")  # of a `file:` repository apt keeps only a link, and sees new packages at once
    apt.package("new")
    apt.index()
    lists = apt.root / "var/lib/apt/lists"
    os.utime(lists, (0, 0))
    planned = plan_module(MODULE, {"name": "new", "cache_valid_time": 3600}, host.planning())
    assert isinstance(planned, Change)
    assert planned.summary == "read the package lists; install new, as far as the new lists have it"
    outcome = run_module(MODULE, {"name": "new", "cache_valid_time": 3600}, host)
    assert outcome.values["cache_updated"]
    assert "new" in apt.installed()
    assert isinstance(plan_module(MODULE, {"name": "new", "cache_valid_time": 3600}, host), Unchanged)
    undo_all(MODULE, host)
    assert apt.installed() == ALL


def test_somebody_needs_what_was_new(apt: AptRoot, host: ModuleHost) -> None:
    run_module(MODULE, {"name": "three"}, host)
    apt.install("two")
    with pytest.raises(TaskError, match="would also change two"):
        undo_all(MODULE, host)
