"""What this system's dynamic loader is set to: its directories, its cache, its tokens.

The loader itself says so: ``ld.so --list-diagnostics`` (glibc 2.33 and newer). The cache is read from
/etc/ld.so.cache; its layout is glibc's `sysdeps/generic/dl-cache.h`.
"""

from __future__ import annotations

import os
import platform
import re
import struct
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_CACHE_MAGIC = b"glibc-ld.so.cache1.1"
_MAX_CACHE = 64 << 20
# Type ELF_LIBC6 (3) and the machine's bits, from glibc's ldconfig.h.
_CACHE_FLAGS = {"x86_64": 0x0303, "aarch64": 0x0A03}
_LOADERS = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}
_DIAGNOSTIC = re.compile(r'^([\w.]+)(?:\[0x[0-9a-f]+\])?="(.*)"$')


@dataclass(frozen=True)
class LoaderSettings:
    """The settings of one system's loader.

    ``cache`` maps a soname to a path; ``library_token`` and ``platform_token`` are the values of $LIB and
    $PLATFORM; ``hardware_directories`` are tried below each directory first.
    """

    machine: str = "x86_64"
    glibc: str = ""
    system_directories: tuple[str, ...] = ("/lib64", "/usr/lib64", "/lib", "/usr/lib")
    library_token: str = "lib64"  # noqa: S105  # a path, not a secret
    platform_token: str = "x86_64"  # noqa: S105  # as above
    hardware_directories: tuple[str, ...] = ()
    cache: Mapping[str, str] = field(default_factory=dict)


def read_loader_settings(cache_file: Path = Path("/etc/ld.so.cache")) -> LoaderSettings:
    """The settings of the system that crossgrade runs on; built-in defaults where the loader does not say."""
    machine = platform.machine()
    loader = _LOADERS.get(machine, "")
    cache = parse_loader_cache(_content(cache_file), machine)
    if not Path(loader).is_file():
        return LoaderSettings(machine=machine, cache=cache)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LD_")}
    try:
        answer = subprocess.run(
            [loader, "--list-diagnostics"], capture_output=True, env=environment, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return LoaderSettings(machine=machine, cache=cache)
    text = answer.stdout.decode(errors="replace") if answer.returncode == 0 else ""
    return settings_from_diagnostics(text, machine, cache)


def settings_from_diagnostics(text: str, machine: str, cache: Mapping[str, str]) -> LoaderSettings:
    """Settings from the output of ``ld.so --list-diagnostics``."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if match := _DIAGNOSTIC.match(line):
            found.setdefault(match[1], []).append(match[2])
    directories = tuple(path.rstrip("/") or "/" for path in found.get("path.system_dirs", []))
    if not directories:
        return LoaderSettings(machine=machine, cache=cache)
    supported = found.get("dl_hwcaps_subdirs", [""])[0].split(":")
    active = re.search(r"^dl_hwcaps_subdirs_active=(0x[0-9a-f]+)", text, re.MULTILINE)
    bits = int(active[1], 16) if active else 0
    # Bit 0 stands for the last name of the list, the least demanding one (glibc's dl-hwcaps_subdirs.c).
    chosen = [name for place, name in enumerate(reversed(supported)) if name and bits >> place & 1]
    return LoaderSettings(
        machine=machine,
        glibc=found.get("version.version", [""])[0],
        system_directories=directories,
        library_token=found.get("dl_dst_lib", ["lib"])[0],
        platform_token=found.get("dl_platform", [machine])[0],
        hardware_directories=tuple(f"glibc-hwcaps/{name}" for name in reversed(chosen)),
        cache=cache,
    )


def parse_loader_cache(data: bytes, machine: str) -> dict[str, str]:
    """Soname to path from the content of ld.so.cache; empty where the content is not understood."""
    wanted = _CACHE_FLAGS.get(machine)
    base = data.find(_CACHE_MAGIC)
    if base < 0 or wanted is None or len(data) < base + 48:
        return {}
    count = struct.unpack_from("<I", data, base + 20)[0]
    if base + 48 + 24 * count > len(data):
        return {}
    found: dict[str, str] = {}
    for flags, key, value, _, hardware in struct.iter_unpack("<iIIIQ", data[base + 48 : base + 48 + 24 * count]):
        if flags == wanted and hardware == 0:
            found.setdefault(_text(data, base + key), _text(data, base + value))
    return found


def _text(data: bytes, start: int) -> str:
    end = data.find(b"\0", start, start + 4096)
    return os.fsdecode(data[start:end]) if end >= 0 else ""


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_CACHE)
    except OSError:
        return b""
