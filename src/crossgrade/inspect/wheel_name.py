"""Whether the name of a wheel's file says what its own metadata says: installers go by the one or the other.

Builders append a local version to the file alone (``+cu130``), and people rename files. uv then installs a dist of
one version and reports another, or refuses it; pip refuses it. Sources: PyPA specification "Binary distribution format"
(name and version of the file are those of METADATA); sglang issue 14327.
"""

from __future__ import annotations

import zipfile
import zlib
from email.parser import HeaderParser
from pathlib import Path, PurePosixPath

_MOST_METADATA = 1 << 20


def misnamed(wheel: Path) -> str:
    """In words how file name and metadata differ; empty where they agree, or where there is no metadata to compare.

    A file that is no wheel is left to whoever unpacks it.
    """
    from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
    from packaging.version import InvalidVersion, Version

    try:
        name, version, _, _ = parse_wheel_filename(wheel.name)
    except InvalidWheelFilename as error:
        return f"{wheel.name} is not the name of a wheel: {error}"
    stated = _stated(wheel)
    if stated is None:
        return ""
    try:
        same = canonicalize_name(stated[0]) == name and Version(stated[1]) == version
    except InvalidVersion:
        same = False
    if same:
        return ""
    return f"the name of {wheel.name} says {name} {version}, and its METADATA says {stated[0]} {stated[1]}"


def _stated(wheel: Path) -> tuple[str, str] | None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                path = PurePosixPath(member.filename)
                if len(path.parts) == 2 and path.parts[0].endswith(".dist-info") and path.name == "METADATA":
                    with archive.open(member) as file:
                        headers = HeaderParser().parsestr(file.read(_MOST_METADATA).decode("utf-8", "replace"))
                    return str(headers.get("Name", "")), str(headers.get("Version", ""))
    # NotImplementedError: how zipfile answers a compression or encryption that it does not know
    except (OSError, ValueError, RuntimeError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError):
        return None
    return None
