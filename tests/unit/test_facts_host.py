"""Facts of system, toolkits, environments, processes and units, from texts and trees as tools write them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from crossgrade.facts import holders, indexes, system, toolkits, units, venv
from crossgrade.facts.gpus import Gpu, GpuProcess
from crossgrade.facts.tree import tree_bytes
from crossgrade.inspect.query import run_query

# ---- system

MOUNTS = """\
/dev/nvme0n1p2 / ext4 rw,relatime 0 0
/dev/nvme1n1 /srv/big\\040disk xfs rw,noatime 0 0
overlay /srv/big\\040disk/read overlay ro,relatime 0 0
"""


def test_the_mount_of_a_path() -> None:
    mounts = system.parse_mounts(MOUNTS)
    assert system.mount_of("/home/me", mounts) == ("/dev/nvme0n1p2", "/", "ext4", False)
    assert system.mount_of("/srv/big disk/store", mounts) == ("/dev/nvme1n1", "/srv/big disk", "xfs", False)
    assert system.mount_of("/srv/big disk/read/x", mounts) == ("overlay", "/srv/big disk/read", "overlay", True)
    assert system.mount_of("/srv/big diskette", mounts) == ("/dev/nvme0n1p2", "/", "ext4", False)
    assert system.mount_of("/x", []) is None
    upon = system.parse_mounts(MOUNTS + "tmpfs /srv/big\\040disk tmpfs rw 0 0\n")
    assert system.mount_of("/srv/big disk/store", upon) == ("tmpfs", "/srv/big disk", "tmpfs", False)


def test_the_newest_kernel() -> None:
    assert system.newest_kernel(["6.8.0-9-generic", "6.8.0-85-generic", "6.5.0-45-generic"]) == "6.8.0-85-generic"
    assert system.newest_kernel([]) is None


def a_machine(place: Path) -> Path:
    for release in ("6.8.0-9-generic", "6.8.0-85-generic", "6.11.0-1-generic"):
        (place / "lib/modules" / release).mkdir(parents=True)
    (place / "boot").mkdir()
    for release in ("6.8.0-9-generic", "6.8.0-85-generic"):  # 6.11 was removed and left its folder
        (place / "boot" / f"vmlinuz-{release}").write_text("")
    (place / "run").mkdir()
    (place / "proc").mkdir()
    (place / "proc/cmdline").write_text("BOOT_IMAGE=/vmlinuz ro amd_iommu=on iommu=pt pci=noacs quiet\n")
    (place / "proc/meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 400 kB\nSwapTotal: 8 kB\n")
    (place / "proc/mounts").write_text("/dev/vda / ext4 rw 0 0\n")
    for number in range(3):
        (place / "sys/kernel/iommu_groups" / str(number)).mkdir(parents=True)
    return place


def test_a_reboot_that_is_due(tmp_path: Path) -> None:
    place = a_machine(tmp_path)
    facts = system.read_system({}, system=place, kernel="6.8.0-9-generic")
    assert facts.reboot == ("kernel 6.8.0-85-generic is installed, 6.8.0-9-generic runs",)
    assert facts.iommu_parameters == ("amd_iommu=on", "iommu=pt", "pci=noacs")
    assert (facts.iommu_groups, facts.memory_available_bytes, facts.swap_bytes) == (3, 400 * 1024, 8 * 1024)
    assert facts.unknown["libstdcxx"] == "/etc/ld.so.cache has no libstdc++.so.6"
    (place / "run/reboot-required").write_text("*** System restart required ***\n")
    (place / "run/reboot-required.pkgs").write_text("nvidia-driver-580\nlinux-base\nlinux-base\n")
    facts = system.read_system({}, system=place, kernel="6.8.0-85-generic")
    assert facts.reboot == ("packages ask for it: linux-base, nvidia-driver-580",)


def test_a_libcuda_that_comes_first(tmp_path: Path) -> None:
    compat = tmp_path / "cuda-13.0/compat"
    compat.mkdir(parents=True)
    (compat / "libcuda.so.590.44.01").write_text("")
    (compat / "libcuda.so.1").symlink_to("libcuda.so.590.44.01")
    facts = system.read_system({"LD_LIBRARY_PATH": f"/nowhere::{compat}"}, system=a_machine(tmp_path / "root"))
    (library,) = facts.cuda_driver_libraries
    assert (library.version, library.origin) == ("590.44.01", "LD_LIBRARY_PATH")
    assert library.target == str((compat / "libcuda.so.590.44.01").resolve())


def test_passwords_and_secrets_are_left_out(tmp_path: Path) -> None:
    environment = {
        "HTTPS_PROXY": "http://me:secret@proxy:3128/",
        "https_proxy": "http://me:hidden@lower:3128",
        "NO_PROXY": "localhost",
        "NVIDIA_API_KEY": "secret",
        "NCCL_P2P_DISABLE": "1",
        "HOME": "/home/me",
    }
    facts = system.read_system(environment, system=a_machine(tmp_path))
    assert facts.proxies == {"https_proxy": "http://***@lower:3128", "no_proxy": "localhost"}
    assert facts.variables == {"NCCL_P2P_DISABLE": "1"}


# ---- toolkits


def a_toolkit(home: Path, release: str = "13.0") -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "bin/nvcc").write_text("#!/bin/sh\n")
    (home / "bin/nvcc").chmod(0o755)
    (home / "version.json").write_text(json.dumps({"cuda_nvcc": {"version": f"{release}.88"}}))
    (home / "include/crt").mkdir(parents=True)
    (home / "include/crt/host_config.h").write_text("#if __GNUC__ > 15\n#error\n#endif\n")
    return home


def test_who_put_a_toolkit_there(tmp_path: Path) -> None:
    runfile = a_toolkit(tmp_path / "usr/local/cuda-12.8", "12.8")
    (runfile / "bin/cuda-uninstaller").write_text("")
    a_toolkit(tmp_path / "usr/local/cuda-13.0")
    lists = tmp_path / "var/lib/dpkg/info"
    lists.mkdir(parents=True)
    (lists / "cuda-nvcc-13-0.list").write_text("/.\n/usr/local/cuda-13.0/bin/nvcc\n")
    a_toolkit(tmp_path / "opt/cuda-13.1", "13.1")
    own = a_toolkit(tmp_path / "store/toolkits/abc")
    env = tmp_path / "env"
    a_toolkit(env / "lib/python3.12/site-packages/nvidia/cu13", "13.2")
    found = toolkits.read_toolkits(
        {"PATH": ""}, run_query, venv=env, store_toolkits=tmp_path / "store/toolkits", system=tmp_path
    ).toolkits
    said = {Path(each.facts.home).name: each.manager for each in found}
    assert said == {
        "cuda-12.8": "runfile",
        "cuda-13.0": "dpkg: cuda-nvcc-13-0",
        "cuda-13.1": "",
        "cu13": "wheels",
        own.name: "crossgrade",
    }
    assert all(each.facts.newest_gcc == 15 for each in found)


def test_one_toolkit_by_several_ways_is_one(tmp_path: Path) -> None:
    home = a_toolkit(tmp_path / "usr/local/cuda-13.0")
    (home / "bin/nvcc.profile").write_text("")
    (tmp_path / "usr/local/cuda").symlink_to("cuda-13.0")
    environment = {"PATH": str(home / "bin"), "CUDA_HOME": str(tmp_path / "usr/local/cuda"), "CUDA_PATH": "/nowhere"}
    found = toolkits.read_toolkits(environment, run_query, system=tmp_path)
    (only,) = found.toolkits
    assert only.origins[0] == "CUDA_HOME"
    assert len(only.origins) == 4
    assert found.problems == ("CUDA_PATH: /nowhere is not a directory",)


def test_what_usr_local_cuda_is(tmp_path: Path) -> None:
    assert toolkits.local_cuda(tmp_path) == toolkits.LocalCuda("missing")
    local = tmp_path / "usr/local"
    a_toolkit(local / "cuda-13.0")
    (tmp_path / "etc/alternatives").mkdir(parents=True)
    (tmp_path / "etc/alternatives/cuda").symlink_to("/usr/local/cuda-13.0")
    (local / "cuda").symlink_to("/etc/alternatives/cuda")
    chain = ("/etc/alternatives/cuda", "/usr/local/cuda-13.0")
    assert toolkits.local_cuda(tmp_path) == toolkits.LocalCuda("link", chain, "update-alternatives")
    (local / "cuda").unlink()
    (local / "cuda").symlink_to("cuda-12.8")
    assert toolkits.local_cuda(tmp_path) == toolkits.LocalCuda("dangling link", ("cuda-12.8",), "somebody")
    (local / "cuda").unlink()
    (local / "cuda").mkdir()
    assert toolkits.local_cuda(tmp_path).kind == "directory"


# ---- environments


def test_git_status_of_a_checkout() -> None:
    status = (
        "# branch.oid 0123456789abcdef0123456789abcdef01234567\0# branch.head main\0"
        "1 .M N... 100644 100644 100644 aaaa bbbb python/a file.py\0"
        "2 R. N... 100644 100644 100644 aaaa aaaa R100 new.py\0? old.py\0"
        "u UU N... 100644 100644 100644 100644 a b c both.py\0"
        "? notes.txt\0"
    )
    commit, branch, changed, untracked = venv.parse_status(status)
    assert (commit[:8], branch, untracked) == ("01234567", "main", 1)
    assert changed == ("python/a file.py", "new.py", "both.py")
    assert venv.parse_status("# branch.oid (initial)\0# branch.head (detached)\0") == ("", "", (), 0)


def test_a_conda_environment(tmp_path: Path) -> None:
    """By the layout that conda documents: there is no conda here to make one."""
    (tmp_path / "conda-meta").mkdir()
    (tmp_path / "conda-meta/history").write_text(
        "==> 2026-01-01 10:00:00 <==\n# cmd: conda create\n# conda version: 25.9.1\n"
    )
    site = tmp_path / "lib/python3.12/site-packages"
    for name, by in (("numpy-2.3.0", "conda"), ("pip-26.1", "conda"), ("torch-2.14.1", "pip")):
        (site / f"{name}.dist-info").mkdir(parents=True)
        (site / f"{name}.dist-info/INSTALLER").write_text(by)
    found = venv.read_venv(tmp_path, {}, run_query)
    assert (found.kind, found.maker, found.python) == ("conda", "25.9.1", "3.12")
    assert (found.installers, found.has_pip) == ({"conda": 2, "pip": 1}, True)


def test_what_is_no_environment(tmp_path: Path) -> None:
    found = venv.read_venv(tmp_path, {}, run_query)
    assert (found.kind, found.dists) == ("", ())
    assert "is not a virtual environment" in found.unknown["dists"]


# ---- processes

SGLANG = holders.ProcessSight(
    42,
    ("/srv/ml-env/bin/python", "-m", "sglang.launch_server"),
    1000,
    "/usr/bin/python3.12",
    "/srv",
    "/srv/ml-env",
    "/x/compat",
    frozenset({"/usr/lib/libc.so.6"}),
    ("/dev/nvidia-uvm", "/dev/nvidia1", "/dev/nvidiactl"),
    "0::/system.slice/sglang.service\n",
)


@pytest.mark.parametrize(
    ("sight", "why"),
    [
        (SGLANG, "its command line names it"),
        (holders.ProcessSight(1, ("python",), program="/srv/ml-env/bin/python3.12"), "its program lies there"),
        (holders.ProcessSight(1, ("bin/python",), directory="/srv/ml-env"), "its command line names it"),
        (
            holders.ProcessSight(1, ("sglang::scheduler",), mapped=frozenset({"/srv/ml-env/lib/x.so"})),
            "it has loaded libraries from there",
        ),
        (
            holders.ProcessSight(1, ("python",), program="/usr/bin/python3", virtual_env="/srv/ml-env"),
            "its VIRTUAL_ENV",
        ),
        (holders.ProcessSight(1, ("bash",), program="/usr/bin/bash", virtual_env="/srv/ml-env"), ""),
        (holders.ProcessSight(1, ("/srv/ml-env-2/bin/python",), program="/srv/ml-env-2/bin/python"), ""),
        (holders.ProcessSight(1, ("vim", "notes", "/srv/ml-env/x"), program="/usr/bin/vim"), ""),
    ],
)
def test_what_runs_from_an_environment(sight: holders.ProcessSight, why: str) -> None:
    assert holders.why_from(sight, "/srv/ml-env") == why


def test_who_holds_which_gpu() -> None:
    cards = (
        Gpu(0, "first", "0000:01:00.0", minor=1, processes=(GpuProcess(7, "/usr/bin/train"),)),
        Gpu(1, "second", "0000:02:00.0", minor=0, processes=()),
    )
    container = "a" * 64
    hidden = holders.ProcessSight(8, ("idle",), hidden=True, control_group=f"0::/docker/{container}\n")
    found = holders.judge_sights([SGLANG, hidden], ["/srv/ml-env"], cards)
    assert [(each.pid, each.gpus, each.unit, each.from_venv) for each in found] == [
        (7, (0,), "", False),  # named by the driver alone
        (42, (0,), "sglang.service", True),  # /dev/nvidia1 is GPU 0 here
    ]
    assert (found[0].command, found[1].library_path) == ("/usr/bin/train", "/x/compat")


# ---- units and containers

UNIT = """\
[Unit]
Description=SGLang
[Service]
# ExecStart=/srv/ml-env/bin/python old
Environment=CUDA_HOME=/usr/local/cuda
ExecStart=/srv/ml-env/bin/python -m sglang.launch_server \\
    # a comment in between
    --tp 8
WorkingDirectory=/srv/ml-env-2
"""


def test_the_settings_that_name_an_environment() -> None:
    named = units.naming(units.settings_of(UNIT), ["/srv/ml-env"])
    assert named == ("ExecStart=/srv/ml-env/bin/python -m sglang.launch_server --tp 8",)


def test_units_of_system_and_user(tmp_path: Path) -> None:
    system_units, home = tmp_path / "etc/systemd/system", tmp_path / "home"
    own = home / ".config/systemd/user"
    for folder in (system_units / "sglang.service.d", own, tmp_path / "usr/lib/systemd/system"):
        folder.mkdir(parents=True)
    (system_units / "sglang.service").write_text("[Service]\nExecStart=/usr/local/bin/serve\n")
    (system_units / "sglang.service.d/env.conf").write_text("[Service]\nEnvironment=VIRTUAL_ENV=/srv/ml-env\n")
    (tmp_path / "usr/lib/systemd/system/sglang.service").write_text("[Service]\nExecStart=/srv/ml-env/bin/never\n")
    (system_units / "other.service").write_text("[Service]\nExecStart=/bin/true\n")
    (own / "chat.service").write_text(UNIT)
    found = units.read_units(Path("/srv/ml-env"), {"PATH": ""}, run_query, system=tmp_path, home=home)
    assert [(unit.name, unit.user) for unit in found.units] == [("sglang.service", False), ("chat.service", True)]
    assert found.units[0].settings == ("Environment=VIRTUAL_ENV=/srv/ml-env",)
    assert found.unknown == {
        "units' states": "systemd does not run here",
        "user units' states": "systemd does not run here",
    }


def test_what_systemctl_shows() -> None:
    text = "Id=a.service\nActiveState=active\nSubState=running\nMainPID=12\n\nId=b.service\nActiveState=inactive\n"
    shown = units.parse_shown(text)
    assert (shown["a.service"]["MainPID"], shown["b.service"]["ActiveState"]) == ("12", "inactive")


def test_running_containers() -> None:
    line = {"ID": "f" * 64, "Names": "sglang", "Image": "lmsysorg/sglang:v0.5.9", "Command": '"python3 -m x"'}
    (found,) = units.parse_containers("docker", json.dumps(line) + "\n\n")
    assert (found.id, found.name, found.command) == ("f" * 12, "sglang", "python3 -m x")
    with pytest.raises(ValueError, match=r"."):
        units.parse_containers("docker", "CONTAINER ID   IMAGE\n")


# ---- indexes and room


def test_which_indexes_would_be_asked() -> None:
    assert indexes.index_urls({}) == ("https://pypi.org/simple/",)
    environment = {"PIP_INDEX_URL": "https://pip/", "UV_INDEX": "torch=https://torch/whl https://more/?a=b"}
    assert indexes.index_urls(environment) == ("https://pip/", "https://torch/whl", "https://more/?a=b")
    assert indexes.index_urls(environment, "https://own/", ["https://pip2/"])[:2] == ("https://own/", "https://pip2/")
    assert indexes.shown_url("https://me:secret@host:8080/x") == "https://host:8080/x"


def test_a_folder_as_an_index(tmp_path: Path) -> None:
    there, gone = indexes.ask_indexes([f"file://{tmp_path}", str(tmp_path / "gone")], {})
    assert (there.status, gone.status, gone.problem) == (200, None, "there is no such folder")


def test_the_room_of_a_tree(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"x" * 100_000)
    (tmp_path / "again").hardlink_to(tmp_path / "one")
    (tmp_path / "link").symlink_to("one")
    assert 100_000 <= tree_bytes(tmp_path) < 110_000
    with pytest.raises(OSError, match="gone"):
        tree_bytes(tmp_path / "gone")
