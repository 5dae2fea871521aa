"""Who listens on a TCP port of this machine, and what it answers over HTTP. Source: proc(5), /proc/net/tcp."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Set as AbstractSet
from pathlib import Path

_LISTENING = "0A"


def get(host: str, port: int, path: str, timeout: float, *, most: int | None = None) -> str:
    """The status code of a GET, or in words why there is none. As `fetch`, without what was sent."""
    return fetch(host, port, path, timeout, most=most)[0]


def fetch(host: str, port: int, path: str, timeout: float, *, most: int | None = None) -> tuple[str, bytes]:
    """The status code of a GET, or in words why there is none, and the body; redirections are not followed.

    `timeout` is seconds for each step, `most` how many bytes of the answer are read, all by default. Raises
    TimeoutError.
    """
    import http.client  # some 10 ms that nobody else needs

    connection = http.client.HTTPConnection(host, port, timeout=timeout)
    try:
        connection.request("GET", path, headers={"Connection": "close"})
        response = connection.getresponse()
        body = response.read(most)
        return str(response.status), body
    except TimeoutError:
        raise
    except (OSError, http.client.HTTPException) as error:
        return f"none ({str(error) or type(error).__name__})", b""
    finally:
        connection.close()


def listening_sockets(port: int) -> frozenset[str]:
    """The inodes of the sockets that listen on a TCP port. Raises OSError when the kernel does not say."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(FileNotFoundError), Path(f"/proc/net/{table}").open(encoding="ascii") as lines:
            for line in lines:
                fields = line.split()
                if len(fields) > 9 and fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(fields[9])
    return frozenset(inodes)


def holds_socket(pid: int, inodes: AbstractSet[str]) -> bool:
    """Whether a process has one of these sockets open; False for one that has ended or is another user's."""
    with contextlib.suppress(OSError):
        folder = f"/proc/{pid}/fd"
        for name in os.listdir(folder):  # noqa: PTH208 - every process is looked into: names are enough
            with contextlib.suppress(OSError):  # it was closed meanwhile
                target = os.readlink(f"{folder}/{name}")  # noqa: PTH115
                if target.startswith("socket:[") and target[8:-1] in inodes:
                    return True
    return False
