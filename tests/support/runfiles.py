"""A stand-in for NVIDIA's runfile, which is around 4 GB and not reachable here.

Like the real one it is a shell script that takes `--silent`, `--toolkit`, `--toolkitpath=` and the rest, refuses
what it does not know, and lays out a toolkit; the toolkit is a real one, from PyPI's wheels.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

_SCRIPT = """#!/bin/sh
# Made by the tests of crossgrade.
silent= toolkit= path= tmpdir=
for option in "$@"; do
  case "$option" in
    --silent) silent=yes ;;
    --toolkit) toolkit=yes ;;
    --toolkitpath=*) path="${option#*=}" ;;
    --tmpdir=*) tmpdir="${option#*=}" ;;
    --defaultroot=*|--override|--no-man-page|--no-opengl-libs|--no-drm) ;;
    --driver) echo "the driver would be installed" >&2; exit 9 ;;
    *) echo "unknown option: $option" >&2; exit 2 ;;
  esac
done
[ -n "$silent" ] && [ -n "$toolkit" ] && [ -n "$path" ] || { echo "not silent" >&2; exit 3; }
[ -d "$tmpdir" ] || { echo "no room in $tmpdir" >&2; exit 4; }
echo "$@" > "$tmpdir/unpacked"
mkdir -p "$path" || exit 5
cp -rL "@HOME@/bin" "@HOME@/nvvm" "$path/" || exit 6
cp -rL "@HOME@/include" "$path/include" || exit 6
mkdir -p "$path/lib64"
for file in @HOME@/lib64/*; do ln -s "$(readlink -f "$file")" "$path/lib64/$(basename "$file")"; done
echo "$@" > "$path/options.txt"
@MORE@
"""


def write_runfile(path: Path, home: Path, more: str = "") -> str:
    """Write the script that installs the toolkit `home`; `more` are lines for its end. Returns its sha256."""
    text = _SCRIPT.replace("@HOME@", str(home)).replace("@MORE@", more)
    path.write_text(text)
    return hashlib.sha256(text.encode()).hexdigest()
