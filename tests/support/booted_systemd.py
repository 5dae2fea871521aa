"""A real systemd as process 1 of namespaces of its own, with no units but ours; needs root.

It sees the machine's files, but `/run`, `/etc/systemd/system` and `/var/lib/systemd` are its own, `/proc/sys` and
`/sys` are read-only, its control group is one that is taken away afterwards, and of the machine's own units it loads
none: booting those would start the machine's services a second time and empty `/tmp`.

    python booted_systemd.py enter FOLDER    (in a mount namespace) join the control group, then
    python booted_systemd.py boot FOLDER     (in all the namespaces) mount what is private, become systemd
    python booted_systemd.py leave FOLDER    (in a mount namespace) take the control group away
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

SYSTEMD = Path("/lib/systemd/systemd")
_ALONE = ("unshare", "--mount")
_TARGETS = ("sysinit", "basic", "timers", "shutdown", "umount", "final", "exit")


def why_not() -> str:
    """Why systemd cannot be booted here, "" when it can."""
    if os.geteuid() != 0:
        return "only root can boot a systemd in namespaces"
    missing = [name for name in ("setpriv", "unshare", "nsenter", "mount", "systemctl") if shutil.which(name) is None]
    if missing or not SYSTEMD.exists():
        return f"not installed here: {', '.join(missing) or SYSTEMD}"
    if subprocess.run([*_ALONE, "--pid", "--fork", "true"], capture_output=True, check=False).returncode:
        return "this root may not make namespaces"
    return ""


class BootedSystemd:
    """The machine, on and off. What lies in `folder` outlives a reboot, as a disk does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._unshare: subprocess.Popen[bytes] | None = None
        self._pid = 0
        for name in ("etc", "var", "base", "run", "cgroup"):
            (folder / name).mkdir(parents=True)
        (folder / "group").write_text(f"crossgrade-test-{secrets.token_hex(4)}")
        for name in _TARGETS:
            (folder / "base" / f"{name}.target").write_text("[Unit]\nDefaultDependencies=no\n")
        target = "[Unit]\nDefaultDependencies=no\nRequires=sysinit.target basic.target\nWants=timers.target\n"
        (folder / "base" / "multi-user.target").write_text(target)

    @property
    def units(self) -> list[str]:
        """The units that lie in /etc/systemd/system."""
        return sorted(path.name for path in (self.folder / "etc").iterdir() if path.is_file())

    def boot(self) -> None:
        """Switch it on, and wait until systemctl is answered."""
        dies_with_us = ("setpriv", "--pdeathsig", "KILL")
        with (self.folder / "boot.log").open("ab") as log:
            self._unshare = subprocess.Popen(
                [*dies_with_us, *_ALONE, sys.executable, __file__, "enter", str(self.folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + 60
        while not self._answers():
            words = (self.folder / "boot.log").read_text()
            assert self._unshare.poll() is None, f"systemd did not boot: {words}"
            assert time.monotonic() < deadline, f"systemd is not up after a minute: {words}"
            time.sleep(0.1)

    def _answers(self) -> bool:
        assert self._unshare is not None
        children = Path(f"/proc/{self._unshare.pid}/task/{self._unshare.pid}/children")
        with contextlib.suppress(OSError, IndexError, ValueError):
            self._pid = int(children.read_text().split()[0])
            if Path(f"/proc/{self._pid}/comm").read_text().strip() == "systemd":
                found = self.call(["systemctl", "is-active", "multi-user.target"])
                return found.stdout.strip() == "active"
        return False

    def power_off(self) -> None:
        """As a power cut does it: everything in there is killed."""
        if self._unshare is None:
            return
        self._unshare.kill()  # unshare --kill-child takes process 1 along, and that all others
        self._unshare.wait(timeout=60)
        deadline = time.monotonic() + 60
        while self._pid and Path(f"/proc/{self._pid}").exists():
            assert time.monotonic() < deadline, f"process {self._pid} does not end"
            time.sleep(0.02)
        self._unshare, self._pid = None, 0

    def inside(self, argv: Sequence[str]) -> list[str]:
        """The command line that runs a program in there."""
        return ["nsenter", "--target", str(self._pid), "--mount", "--uts", "--ipc", "--pid", "--cgroup", "--", *argv]

    def call(self, argv: Sequence[str], environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.inside(argv),
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            start_new_session=True,  # a kill point kills its whole process group
        )

    def property_of(self, unit: str, name: str) -> str:
        return self.call(["systemctl", "show", "--value", f"--property={name}", unit]).stdout.strip()

    def close(self) -> None:
        self.power_off()
        subprocess.run([*_ALONE, sys.executable, __file__, "leave", str(self.folder)], check=True)


@contextlib.contextmanager
def booted(folder: Path) -> Iterator[BootedSystemd]:
    machine = BootedSystemd(folder)
    try:
        machine.boot()
        yield machine
    finally:
        machine.close()


# ---- what runs inside the namespaces


def _mount(*arguments: str | Path) -> None:
    subprocess.run(["mount", *map(str, arguments)], check=True)


def _control_group(folder: Path) -> Path:
    _mount("--make-rprivate", "/")
    _mount("-t", "cgroup2", "cgroup2", folder / "cgroup")
    return folder / "cgroup" / (folder / "group").read_text()


def _enter(folder: Path) -> None:
    group = _control_group(folder)
    group.mkdir(exist_ok=True)
    (group / "cgroup.procs").write_text(str(os.getpid()))
    names = ["--pid", "--fork", "--kill-child", "--mount", "--uts", "--ipc", "--cgroup"]
    os.execvp("unshare", ["unshare", *names, sys.executable, __file__, "boot", str(folder)])  # noqa: S606


def _boot(folder: Path) -> None:
    _mount("-t", "proc", "proc", "/proc")
    for read_only in ("/proc/sys", "/sys"):
        _mount("--bind", read_only, read_only)
        _mount("-o", "remount,ro,bind", read_only)
    _mount("-t", "cgroup2", "cgroup2", "/sys/fs/cgroup")
    _mount("-t", "tmpfs", "tmpfs", "/run")
    _mount("--bind", folder / "etc", "/etc/systemd/system")
    _mount("--bind", folder / "var", "/var/lib/systemd")
    for device in ("/dev/console", "/dev/kmsg"):
        if Path(device).exists():
            _mount("--bind", "/dev/null", device)
    environment = {
        "PATH": os.environ["PATH"],
        "container": "crossgrade-test",  # systemd then leaves alone what belongs to the machine
        "SYSTEMD_UNIT_PATH": f"/etc/systemd/system:{folder / 'base'}",
        "SYSTEMD_GENERATOR_PATH": str(folder / "run"),
    }
    os.execve(SYSTEMD, [str(SYSTEMD), "--unit=multi-user.target", "--log-target=null"], environment)  # noqa: S606


def _leave(folder: Path) -> None:
    group = _control_group(folder)
    for _ in range(100):
        for below in sorted((path for path in [group, *group.rglob("*")] if path.is_dir()), reverse=True):
            with contextlib.suppress(OSError):  # its last process is not quite gone yet
                below.rmdir()
        if not group.exists():
            return
        time.sleep(0.05)
    raise SystemExit(f"{group} cannot be removed")


if __name__ == "__main__":
    {"enter": _enter, "boot": _boot, "leave": _leave}[sys.argv[1]](Path(sys.argv[2]))
