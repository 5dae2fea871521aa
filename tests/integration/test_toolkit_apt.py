"""cuda_toolkit by apt: the real apt and dpkg, on a system of their own with packages made on the spot."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.support.apt_root import AptRoot, gpg_key
from tests.support.module_host import ModuleHost, plan_module, run_module, snapshot, undo_all
from tests.support.small_upgrade import make_small_upgrade
from tests.support.toolkits import toolkits

from crossgrade.errors import TaskError
from crossgrade.modules import cuda_toolkit
from crossgrade.modules.apt_calls import find_apt
from crossgrade.modules.apt_repository import fingerprints
from crossgrade.modules.contract import Change, Unchanged

TOOLKIT = cuda_toolkit.MODULE
pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("apt-get", "dpkg-deb", "dpkg-scanpackages"))),
    reason="needs root (dpkg) and apt with dpkg-dev",
)


@pytest.fixture
def system(tmp_path: Path) -> AptRoot:
    """A system with a driver, and a repository with a toolkit, a newer driver, and packages that would touch it."""
    system = AptRoot(tmp_path / "apt")
    home = toolkits().cuda_13_0
    system.package("nvidia-driver-580", "580.65.06-1")
    system.package("libnvidia-compute-580", "580.65.06-1")
    system.package("libc6", "2.36-1")
    system.package("cuda-toolkit-13-0", "13.0.2-1", Depends="cuda-nvcc-13-0 (>= 13.0), libc6")
    system.package("cuda-nvcc-13-0", "13.0.88-1", links={"usr/local/cuda-13.0": home})
    system.package("cuda", "13.0.2-1", Depends="cuda-toolkit-13-0, cuda-drivers")
    system.package("cuda-drivers", "590.44-1", Depends="nvidia-driver-590")
    system.package("nvidia-driver-590", "590.44-1", Conflicts="nvidia-driver-580")
    system.package("cuda-toolkit-12-8", "12.8.1-1")
    system.index()
    return system


@pytest.fixture
def host(tmp_path: Path, system: AptRoot) -> ModuleHost:
    """With the repository known and a driver installed."""
    system.know_repository()
    system.install("nvidia-driver-580", "libnvidia-compute-580")
    return ModuleHost(tmp_path, environment={**os.environ, **system.environment})


def test_the_toolkit_is_installed_and_exactly_that_is_removed_again(host: ModuleHost, system: AptRoot) -> None:
    before, files = system.installed(), snapshot(system.root)
    planned = plan_module(TOOLKIT, system.arguments(), host.planning())
    assert isinstance(planned, Change)
    assert {(each.subject, each.before, each.after) for each in planned.differences} == {
        ("libc6", "", "2.36-1"), ("cuda-nvcc-13-0", "", "13.0.88-1"), ("cuda-toolkit-13-0", "", "13.0.2-1"),
    }  # fmt: skip
    assert snapshot(system.root) == files, "a plan must not change anything, not even apt's caches"
    outcome = run_module(TOOLKIT, system.arguments(), host)
    assert outcome.values == planned.values
    assert outcome.values["cuda_home"] == str(system.home)
    assert Path(str(outcome.values["nvcc"])).is_file()
    assert set(system.installed()) - set(before) == {"libc6", "cuda-nvcc-13-0", "cuda-toolkit-13-0"}
    assert isinstance(plan_module(TOOLKIT, system.arguments(), host), Unchanged)
    assert "removed 3 packages" in undo_all(TOOLKIT, host)
    assert system.installed() == before
    assert not os.path.lexists(system.home)
    assert set(undo_all(TOOLKIT, host)) == {""}, "an undo may be repeated"


def test_what_was_there_before_stays_when_the_run_is_taken_back(host: ModuleHost, system: AptRoot) -> None:
    system.install("libc6")
    before = system.installed()
    run_module(TOOLKIT, system.arguments(), host)
    undo_all(TOOLKIT, host)
    assert system.installed() == before


def test_its_nvcc_is_proved(host: ModuleHost, system: AptRoot) -> None:
    values = run_module(TOOLKIT, system.arguments(prove_for=["12.0f"]), host).values
    assert values["proved"] == ["12.0f"]


@pytest.mark.parametrize(
    ("packages", "reason"),
    [
        (["cuda"], r"nvidia-driver-580 would be removed .* it belongs to the driver.*cuda-drivers would be installed"),
        (["cuda-drivers"], "nvidia-driver-590 would be installed"),
        (["nvidia-driver-580=580.65.06-1", "libnvidia-compute-580-"], "libnvidia-compute-580 would be removed"),
    ],
)
def test_the_driver_is_never_touched(host: ModuleHost, system: AptRoot, packages: list[str], reason: str) -> None:
    before = system.installed()
    with pytest.raises(TaskError, match=reason):
        run_module(TOOLKIT, system.arguments(packages=packages), host)
    assert system.installed() == before
    assert host.steps == []


def test_a_driver_is_neither_upgraded_nor_downgraded(host: ModuleHost, system: AptRoot) -> None:
    system.package("nvidia-driver-580", "580.95.05-1")
    system.package("libnvidia-compute-580", "575.10-1")
    system.package("cuda-toolkit-13-1", "13.1.0-1", Depends="nvidia-driver-580 (>= 580.95)")
    system.index()
    system.run("apt-get", "-q", "update")
    reason = r"nvidia-driver-580 would be upgraded \(580.65.06-1 -> 580.95.05-1\): it belongs to the driver"
    with pytest.raises(TaskError, match=reason):
        plan_module(TOOLKIT, system.arguments(version="13.1", allow_upgrades=True), host.planning())
    down = system.arguments(packages=["libnvidia-compute-580=575.10-1"])
    with pytest.raises(TaskError, match="would be downgraded"):
        plan_module(TOOLKIT, down, host.planning())


def test_other_upgrades_are_refused_or_said_to_stay(host: ModuleHost, system: AptRoot) -> None:
    system.install("libc6")
    system.package("libc6", "2.40-1")
    system.package("cuda-toolkit-13-1", "13.1.0-1", Depends="libc6 (>= 2.40), cuda-nvcc-13-0")
    system.index()
    system.run("apt-get", "-q", "update")
    arguments = system.arguments(version="13.1")
    with pytest.raises(TaskError, match=r"libc6 would be upgraded \(2.36-1 -> 2.40-1\), which cannot be taken back"):
        plan_module(TOOLKIT, arguments, host.planning())
    planned = plan_module(TOOLKIT, {**arguments, "allow_upgrades": True}, host.planning())
    assert isinstance(planned, Change)
    assert "stay upgraded" in planned.summary


def test_a_toolkit_that_apt_does_not_know(host: ModuleHost, system: AptRoot) -> None:
    with pytest.raises(
        TaskError, match="apt knows no cuda-toolkit-14-0; it knows cuda-toolkit-12-8, cuda-toolkit-13-0"
    ):
        plan_module(TOOLKIT, system.arguments(version="14.0"), host.planning())
    with pytest.raises(TaskError, match=r"apt knows no cuda-toolkit-13-0=13\.0\.9\*"):
        plan_module(TOOLKIT, system.arguments(version="13.0.9"), host.planning())
    assert isinstance(plan_module(TOOLKIT, system.arguments(version="13.0.2"), host.planning()), Change)


def test_the_missing_repository_is_named_with_its_remedy(tmp_path: Path, system: AptRoot) -> None:
    bare = ModuleHost(tmp_path, environment={**os.environ, **system.environment})
    with pytest.raises(TaskError, match="NVIDIA's repository is missing here") as caught:
        plan_module(TOOLKIT, system.arguments(), bare.planning())
    assert "repository:" in caught.value.remedy


def test_the_repository_is_added_with_its_key_and_taken_away_again(tmp_path: Path, system: AptRoot) -> None:
    key, fingerprint = gpg_key(tmp_path / "gpg")
    system.index(sign_with=tmp_path / "gpg")
    host = ModuleHost(tmp_path, environment={**os.environ, **system.environment})
    repository = {"url": system.url, "key": str(key), "fingerprint": fingerprint.lower(), "suite": "./"}
    before = snapshot(system.root)
    planned = plan_module(TOOLKIT, system.arguments(repository=repository), host.planning())
    assert isinstance(planned, Change)
    assert any(each.subject.endswith("crossgrade-cuda.sources") for each in planned.differences)
    assert snapshot(system.root) == before, "a plan must not change anything"
    run_module(TOOLKIT, system.arguments(repository=repository), host)
    source = (system.root / "etc/apt/sources.list.d/crossgrade-cuda.sources").read_text()
    assert f"Signed-By: {system.root}/etc/apt/keyrings/crossgrade-cuda.asc" in source
    assert "cuda-toolkit-13-0" in system.installed()
    undo_all(TOOLKIT, host)
    assert system.installed() == {}
    left = {name for name in set(snapshot(system.root)) - set(before) if "/log/" not in name and "/cache/" not in name}
    assert {name for name in left if "crossgrade" in name or "repository" in name or "keyrings" in name} == set()


def test_a_repository_that_another_key_signs(tmp_path: Path, system: AptRoot) -> None:
    key, fingerprint = gpg_key(tmp_path / "gpg")
    other, other_fingerprint = gpg_key(tmp_path / "other")
    system.index(sign_with=tmp_path / "other")
    host = ModuleHost(tmp_path, environment={**os.environ, **system.environment})
    repository = {"url": system.url, "key": str(key), "fingerprint": fingerprint, "suite": "./"}
    with pytest.raises(TaskError, match=r"cannot be read: .*NO_PUBKEY|cannot be read: .*signature"):
        plan_module(TOOLKIT, system.arguments(repository=repository), host.planning())
    with pytest.raises(TaskError, match=f"holds the key {other_fingerprint}, not {fingerprint}"):
        plan_module(TOOLKIT, system.arguments(repository={**repository, "key": str(other)}), host.planning())


def test_fingerprints_are_those_of_gpg(tmp_path: Path) -> None:
    key, fingerprint = gpg_key(tmp_path / "gpg")
    assert fingerprints(key.read_bytes()) == (fingerprint,)
    binary = subprocess.run(["gpg", "--dearmor"], input=key.read_bytes(), capture_output=True, check=True).stdout
    assert fingerprints(binary) == (fingerprint,)
    with pytest.raises(ValueError, match=r"cut short|packet"):
        fingerprints(binary[:-20])


def test_a_lock_of_another_package_manager(host: ModuleHost, system: AptRoot) -> None:
    with (system.root / "var/lib/dpkg/lock-frontend").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        # a lock of this very process would not stop a child of its own; a child of apt is another process
        with pytest.raises(TaskError, match=r"another package manager was at work for 0.5 s: Could not get lock"):
            run_module(TOOLKIT, system.arguments(lock_timeout=0.5), host)
    assert any("waiting: Could not get lock" in message for message in host.messages)
    undo_all(TOOLKIT, host)
    assert "cuda-toolkit-13-0" not in system.installed()
    host.steps.clear()
    run_module(TOOLKIT, system.arguments(lock_timeout=0.5), host)
    assert "cuda-toolkit-13-0" in system.installed()


def test_what_others_need_by_now_is_not_removed(host: ModuleHost, system: AptRoot) -> None:
    run_module(TOOLKIT, system.arguments(), host)
    system.package("their-own-tool", "1.0-1", Depends="cuda-nvcc-13-0")
    system.index()
    system.run("apt-get", "-q", "update")
    system.install("their-own-tool")
    with pytest.raises(TaskError, match="cannot be removed without their-own-tool"):
        undo_all(TOOLKIT, host)
    assert "cuda-nvcc-13-0" in system.installed()


def test_an_installation_that_was_killed_is_taken_back(host: ModuleHost, system: AptRoot) -> None:
    """dpkg has unpacked one package of the step and configured none; the variables of the task are gone by now."""
    before = system.installed()
    run_module(TOOLKIT, system.arguments(), host)
    undo_all(TOOLKIT, host)
    system.run("dpkg", "--root", str(system.root), "--unpack", str(system.repository / "cuda-nvcc-13-0_13.0.88-1.deb"))
    later = ModuleHost(host.directory, environment={"PATH": os.environ["PATH"]}, steps=host.steps)
    assert "removed 1 packages" in undo_all(TOOLKIT, later)
    assert system.installed() == before
    assert not os.path.lexists(system.home)


def test_a_run_that_fails_later_and_one_that_was_killed_take_the_packages_back(
    host: ModuleHost, system: AptRoot, tmp_path: Path
) -> None:
    """APT_CONFIG is the task's own here: the undo, which has no task, must not work on this machine's packages."""
    assert host.environment["APT_CONFIG"]
    upgrade = make_small_upgrade(tmp_path / "small")
    arguments = ", ".join(f"{name}: {json.dumps(value)}" for name, value in system.arguments().items())
    task = (
        f"    - name: Toolkit\n      cuda_toolkit: {{{arguments}}}\n"
        f"      environment: {{APT_CONFIG: {system.environment['APT_CONFIG']}}}\n"
    )
    text = upgrade.playbook.read_text()
    upgrade.playbook.write_text(text.replace("    - name: Candidate\n", f"{task}    - name: Candidate\n"))
    before = system.installed()
    failed = upgrade.run("upgrade", "-e", '{"imports": ["missing"]}')
    assert (failed.code, "removed 3 packages" in failed.stdout) == (2, True), failed.stdout + failed.stderr
    assert system.installed() == before
    upgrade.run("upgrade", environment={"CROSSGRADE_KILL_AT": "effect:cuda_toolkit#2"})
    assert "cuda-toolkit-13-0" in system.installed()
    assert upgrade.run("rollback").code == 0
    assert system.installed() == before
    assert upgrade.run("upgrade").code == 0
    assert "cuda-toolkit-13-0" in system.installed()


def test_a_link_that_the_run_asks_for(host: ModuleHost, system: AptRoot) -> None:
    link = system.home.with_name("cuda")
    run_module(TOOLKIT, system.arguments(link=str(link)), host)
    assert link.readlink() == system.home
    undo_all(TOOLKIT, host)
    assert not os.path.lexists(link)


def test_a_system_without_apt(host: ModuleHost, tmp_path: Path) -> None:
    bare = ModuleHost(tmp_path, environment={**host.environment, "PATH": str(tmp_path)})
    with pytest.raises(TaskError, match="needs Debian or Ubuntu: there is no apt-get"):
        plan_module(TOOLKIT, {"method": "apt", "version": "13.0"}, bare.planning())


def test_without_permission_it_says_so(host: ModuleHost) -> None:
    apt = find_apt(host)
    apt.require_permission()
    os.seteuid(65534)
    try:
        with pytest.raises(TaskError, match="installing packages needs root: uid 65534 may not write to"):
            apt.require_permission()
    finally:
        os.seteuid(0)
