"""How the activation scripts of a venv quote its path, language by language.

Read off the scripts that venv, virtualenv and uv write, and the manuals of the shells: `'` cannot stand inside
single quotes in sh, csh doubles nothing and expands `!` even there, fish takes backslashes, PowerShell doubles
`'`, nu has raw strings, cmd expands `%`, xonsh is Python.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass

Quote = Callable[[str], str]


def _double(text: str) -> str:
    return f'"{text}"'


def _single(text: str) -> str:
    return f"'{text}'"


def _csh(text: str) -> str:
    return "'" + text.replace("'", "'\\''").replace("!", "\\!") + "'"


def _fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _powershell(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _nu(text: str) -> str:
    if "'" not in text:
        return f"'{text}'"
    marks = "#"
    while f"'{marks}" in text:
        marks += "#"
    return f"r{marks}'{text}'{marks}"


def _nu_raw(text: str) -> str:
    return f"r#'{text}'#"


def _cmd(text: str) -> str:
    return '"' + text.replace("%", "%%") + '"'


def _sh(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


@dataclass(frozen=True)
class Language:
    """`write` quotes a path so that any path survives; `forms` are the ways in which one may stand there already."""

    write: Quote
    forms: tuple[Quote, ...]

    def replace(self, text: str, old: str, new: str) -> str:
        """The text with every quoted or bare `old` that is a whole path replaced by a quoted `new`."""
        written = self.write(new)
        # uv quotes a path for sh in the scripts of every shell
        quoted = {form(old) for form in (*self.forms, shlex.quote)}
        bare = re.escape(old)
        # longest first, so that the bare path does not match inside its own quotes
        alternatives = "|".join(re.escape(form) for form in sorted(quoted, key=len, reverse=True))
        pattern = rf"(?:{alternatives})(?![\w./-])|(?<![\w./'\"-]){bare}(?![\w./'\"-])"
        return re.sub(pattern, lambda _: written, text)


SH = Language(_sh, (_sh, _double, shlex.quote))
# By name of file below `bin`; what the tools write beside these holds no path.
ACTIVATION: dict[str, Language] = {
    "activate": SH,
    "activate.bash": SH,
    "activate.csh": Language(_csh, (_csh, _double, _single)),
    "activate.fish": Language(_fish, (_fish, _double, _single)),
    "activate.nu": Language(_nu, (_nu, _nu_raw, _double, _single)),
    "activate.ps1": Language(_powershell, (_powershell, _double, _single)),
    "Activate.ps1": Language(_powershell, (_powershell, _double, _single)),
    "activate.bat": Language(_cmd, (_cmd, _double)),
    "activate.xsh": Language(repr, (repr, _double, _single)),
    "activate_this.py": Language(repr, (repr, _double, _single)),
}
