"""What this machine lets the tests do; CI's own machine lets them do all of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from functools import lru_cache

import pytest


@lru_cache(maxsize=1)
def can_mount() -> bool:
    """Root in a container often may not mount anything."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return False
    with tempfile.TemporaryDirectory() as place:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], capture_output=True, check=False)
        if mounted.returncode == 0:
            subprocess.run(["umount", place], check=True)
    return mounted.returncode == 0


@lru_cache(maxsize=1)
def can_trace() -> bool:
    """strace is there and may trace."""
    if shutil.which("strace") is None:
        return False
    return subprocess.run(["strace", "-o", os.devnull, "true"], capture_output=True, check=False).returncode == 0


needs_mounts = pytest.mark.skipif(not can_mount(), reason="mounting a filesystem is not allowed here")
needs_strace = pytest.mark.skipif(not can_trace(), reason="strace is not there, or may not trace")
