"""The units by which systemd watches a confirmation; their texts are pure.

The service is the watcher: started at once, it waits for the deadline and looks after the server's health; systemd
starts it again when it is killed, and at each boot. The timer starts it at the deadline in case it was stopped, and at
boot when the deadline has passed while the machine was off (systemd.timer(5): Persistent=).
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from crossgrade.store.atomic import sync_directory, write_file

SYSTEMCTL_SECONDS = 30.0
# What a restart command may need of the environment; the rest is not for a file that everybody may read.
_KEPT_VARIABLES = ("PATH", "HOME", "LANG")


@dataclass(frozen=True)
class Units:
    """The two units of a store and where they lie. `user` is true for a user's own systemd."""

    name: str
    folder: Path
    user: bool

    @property
    def service(self) -> str:
        return f"{self.name}.service"

    @property
    def timer(self) -> str:
        return f"{self.name}.timer"

    def systemctl(self, *arguments: str) -> list[str]:
        return ["systemctl", *(["--user"] if self.user else []), "--no-ask-password", *arguments]


def units_of(root: Path, *, user: bool, home: Path) -> Units:
    """The units for a store's root; the name is made from its path. `home` is where a user's own units lie."""
    name = f"crossgrade-return-{sha256(os.fsencode(root)).hexdigest()[:12]}"
    folder = home / ".config" / "systemd" / "user" if user else Path("/etc/systemd/system")
    return Units(name, folder, user)


def quoted(word: str) -> str:
    """One argument of a command line or a variable for a unit (systemd.service(5), COMMAND LINES)."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("%", "%%")
    return f'"{escaped}"'


def service_text(argv: Sequence[str], root: Path, environment: Mapping[str, str], *, user: bool) -> str:
    """The text of the service. `argv` begins with an absolute path."""
    command = " ".join(quoted(word).replace("$", "$$") for word in argv)
    kept = [f"{name}={environment[name]}" for name in _KEPT_VARIABLES if name in environment]
    lines = [
        "[Unit]",
        f"Description=crossgrade: go back unless the new environment in {quoted(str(root))[1:-1]} is confirmed",
        "StartLimitIntervalSec=0",
        "",
        "[Service]",
        "Type=exec",
        f"ExecStart={command}",
        "WorkingDirectory=/",
        *(f"Environment={quoted(entry)}" for entry in kept),
        # It is started again however it ended, but for 0, when its work is done. 99 is its end by SIGTERM: a unit that
        # was stopped must not count as failed.
        "Restart=always",
        "RestartSec=2",
        "SuccessExitStatus=99",
        # 6: the link is back, and what failed after it was tried several times
        "RestartPreventExitStatus=0 6",
        "",
        "[Install]",
        f"WantedBy={'default' if user else 'multi-user'}.target",
    ]
    return "\n".join(lines) + "\n"


def timer_text(service: str, deadline: float) -> str:
    """The text of the timer. `deadline` is seconds since 1970; the second after it is taken."""
    moment = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(int(deadline) + 1))
    lines = [
        "[Unit]",
        f"Description=crossgrade: the time by which {service} must have looked",
        "",
        "[Timer]",
        f"OnCalendar={moment}",
        "AccuracySec=1s",
        "Persistent=true",
        f"Unit={service}",
        "",
        "[Install]",
        "WantedBy=timers.target",
    ]
    return "\n".join(lines) + "\n"


def why_no_systemd() -> str:
    """Why systemd cannot watch here, "" when it can."""
    if not Path("/run/systemd/system").is_dir():  # sd_booted(3)
        return "systemd does not run here"
    return _call(_here(Path("/")).systemctl("show", "--property=Version"))


def install(root: Path, argv: Sequence[str], deadline: float) -> str:
    """Write the units, enable and start them. Returns why that failed, "" when it worked.

    Raises OSError when a unit cannot be written.
    """
    units = _here(root)
    units.folder.mkdir(parents=True, exist_ok=True)
    write_file(units.folder / units.service, service_text(argv, root, os.environ, user=units.user).encode(), 0o644)
    write_file(units.folder / units.timer, timer_text(units.service, deadline).encode(), 0o644)
    for arguments in (
        ("daemon-reload",),
        ("enable", units.service, units.timer),
        ("restart", units.timer, units.service),
    ):
        problem = _call(units.systemctl(*arguments))
        if problem:
            return problem
    return ""


def remove(root: Path, *, stop_service: bool) -> None:
    """Stop, disable and remove the units; harmless when there are none.

    The service itself cannot stop itself: it says so by `stop_service=False`, and ends. Raises OSError when a file
    cannot be removed; what systemctl says does not matter, for without a record the units do nothing.
    """
    units = _here(root)
    files = [units.folder / name for name in (units.service, units.timer)]
    if not any(file.exists() for file in files):
        return
    _call(units.systemctl("stop", units.timer, *([units.service] if stop_service else [])))
    _call(units.systemctl("disable", units.service, units.timer))
    for file in files:
        file.unlink(missing_ok=True)
    sync_directory(units.folder)
    _call(units.systemctl("daemon-reload"))


def lingers() -> bool:
    """Whether this user's systemd runs without a login (loginctl(1), enable-linger); root's always does."""
    if os.geteuid() == 0:
        return True
    from crossgrade.process import StartError, run_process

    argv = ["loginctl", "show-user", str(os.getuid()), "--property=Linger", "--value"]
    try:
        return run_process(argv, env=os.environ, timeout=SYSTEMCTL_SECONDS).stdout.strip() == "yes"
    except StartError:
        return False


def _here(root: Path) -> Units:
    return units_of(root, user=os.geteuid() != 0, home=Path.home())


def _call(argv: Sequence[str]) -> str:
    """Run systemctl; what went wrong in words, "" when nothing did."""
    from crossgrade.process import StartError, run_process

    try:
        completed = run_process(argv, env=os.environ, timeout=SYSTEMCTL_SECONDS)
    except StartError as error:
        return error.message
    if completed.succeeded:
        return ""
    words = completed.stderr.strip() or completed.stdout.strip()
    return f"`{' '.join(argv)}`: {completed.outcome()}" + (f": {words}" if words else "")
