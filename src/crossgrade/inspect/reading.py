"""Reading a small file of an environment that may be anything: a pipe, a device, a link to one, far too large."""

from __future__ import annotations

import errno
import os
import stat


def read_regular(path: str | os.PathLike[str], most: int) -> bytes:
    """The first ``most`` bytes of a regular file. Raises OSError, also for what is no regular file.

    A pipe would be waited for, a device may never end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "no regular file")
        parts: list[bytes] = []
        while most > 0 and (part := file.read(most)):
            parts.append(part)
            most -= len(part)
        return b"".join(parts)
