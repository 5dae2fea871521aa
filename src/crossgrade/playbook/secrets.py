"""The secrets of this process: texts that came out of a vault, and stars in their place wherever something is told.

What is told (events, plans, reports, the journal's words, messages at the terminal) goes through `masked`. It knows a
secret where it appears whole: as it is, escaped as in JSON, Python or a shell, and each of its lines. What was made
of a secret (a hash, a part, upper case) it cannot know.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

STARS = "***"
# A secret of this length is masked wherever it stands; a shorter one only as a word of its own, and a word of these
# or a very short text never: it is no secret, and half of what is told would become stars.
LONG = 8
SHORT = 3
LONG_WORD = 12  # of a text of several words, such as this are secret by themselves
_WORDS = frozenset(
    (
        *("true", "false", "yes", "no", "none", "null"),
        *("root", "localhost", "present", "absent", "latest", "default"),
        # of events, plans and verdicts themselves
        *("changed", "change", "may change", "check", "skipped", "failed", "fails", "ignored", "failure", "warning"),
        *("note", "passed", "not run", "would pass", "would fail", "done", "rolled back", "interrupted"),
    )
)
# What says how a run goes, not with what: told also when the playbook is encrypted.
_TOLD = frozenset(
    (
        *("name", "hosts", "tags", "when", "register", "loop", "with_items", "until", "changed_when", "failed_when"),
        *("notify", "listen", "state", "mode", "owner", "group", "that", "include_tasks", "import_tasks"),
        *("import_playbook", "include_vars", "vars_files", "roles", "import_role", "include_role"),
    )
)
_MOST_DIGITS = 3  # numbers up to this length are no secrets
Value = TypeVar("Value")

_secrets: set[str] = set()


def learn(value: Any) -> None:
    """Keep every text and number in a value secret from now on. Names (keys of mappings) are no secrets."""
    if isinstance(value, Mapping):
        for item in value.values():
            learn(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            learn(item)
    elif isinstance(value, str):
        _learn_text(value)
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and len(str(abs(value))) > _MOST_DIGITS:
        _add(str(value))


def learn_document(value: Any) -> None:
    """Keep a document secret that was encrypted as a whole: all values of a file of variables.

    Of a playbook or a list of tasks, what is under `vars` and `environment`, and longer texts but for names, tags,
    conditions and the like: with those gone too, nobody could follow a run.
    """
    if isinstance(value, list):
        for item in value:
            _learn_steps(item, "")
    else:
        learn(value)


def _learn_steps(value: Any, key: str) -> None:
    if key in ("vars", "environment"):
        learn(value)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            if name not in _TOLD:
                _learn_steps(item, str(name))
    elif isinstance(value, (list, tuple)):
        for item in value:
            _learn_steps(item, key)
    elif isinstance(value, str) and len(value) >= LONG and "{{" not in value:
        _learn_text(value)


def learn_file(text: str) -> None:
    """Keep a file secret that was decrypted as a whole: all of it together, and lines that look like a key."""
    _add(text.strip())
    for line in text.splitlines():
        if len(line.strip()) >= 2 * LONG and " " not in line.strip():
            _add(line.strip())


def forget_all() -> None:
    """For tests: as in a new process."""
    _secrets.clear()
    _pattern.cache_clear()


def any_known() -> bool:
    """Whether there is any secret."""
    return bool(_secrets)


def holds_secret(value: Any) -> bool:
    """Whether a secret appears in this value."""
    return bool(_secrets) and masked(value) != value


def masked(value: Value) -> Value:
    """The value with stars for every secret in its texts. Without secrets it is the value itself."""
    return _masked(value) if _secrets else value


def _learn_text(text: str) -> None:
    _add(text.strip())
    lines = text.splitlines()
    for line in lines if len(lines) > 1 else ():
        if len(line.strip()) >= LONG:
            _add(line.strip())
    words = text.split()
    for word in words if len(words) > 1 else ():  # a command line takes it apart
        if len(word) >= LONG_WORD:
            _add(word)


def _add(text: str) -> None:
    if len(text) < SHORT or text.lower() in _WORDS or text in _secrets:
        return
    from urllib.parse import quote

    written = (text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], repr(text)[1:-1])
    _secrets.update((*written, shlex.quote(text), quote(text, safe="")))
    _pattern.cache_clear()


@lru_cache(maxsize=1)
def _pattern() -> re.Pattern[str]:
    ordered = sorted(_secrets, key=len, reverse=True)
    parts = [re.escape(one) if len(one) >= LONG else rf"(?<!\w){re.escape(one)}(?!\w)" for one in ordered]
    return re.compile("|".join(parts))


def _masked(value: Any) -> Any:
    if isinstance(value, str):
        found = _pattern().sub(STARS, value)
        return value if found == value else found
    if isinstance(value, Mapping):
        return {_masked(name): _masked(item) for name, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return value
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        items = [_masked(item) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    if isinstance(value, (int, float)) and not isinstance(value, bool) and str(value) in _secrets:
        return STARS
    return value
