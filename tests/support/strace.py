"""strace in front of a program: the Nth call of a system call is killed, or fails (strace(1), "inject")."""

from __future__ import annotations

from pathlib import Path


def injecting(*injections: str, log: Path = Path("/dev/null"), children: bool = True) -> list[str]:
    """The argument list to put before a program's. An injection is `CALLS:signal=SIGKILL:when=5` or the like."""
    traced = ",".join(injection.partition(":")[0] for injection in injections)
    argv = ["strace", "-qq", "-o", str(log), "-e", f"trace={traced}", *(["-f"] if children else [])]
    for injection in injections:
        argv += ["-e", f"inject={injection}"]
    return argv
