"""What a server says of itself: every setting as it was resolved, without secrets.

Which paths tell it is in `knowledge/servers.yml`; SGLang's answer holds its API keys.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

from crossgrade.bench.listening import fetch
from crossgrade.facts.secrets import is_secret
from crossgrade.knowledge import table

ANSWER_SECONDS = 10.0
LARGEST_BYTES = 8 << 20
CONCEALED = "***"


def ask_for_info(base_url: str) -> tuple[dict[str, Any] | None, str]:
    """The answer of the first path that tells, fit to be kept; and in words where it is from, or why there is none."""
    address = urlsplit(base_url)
    paths = list(dict.fromkeys(path for row in table("servers") for path in _texts(row.get("info"))))
    why = ""
    for path in paths:
        try:
            status, body = fetch(
                str(address.hostname), int(address.port or 80), path, ANSWER_SECONDS, most=LARGEST_BYTES
            )
        except TimeoutError:  # a server that hangs: the other paths would take as long
            return None, f"none ({path}: no answer within {ANSWER_SECONDS:g} s)"
        if status == "200":
            try:
                found = json.loads(body)
            except ValueError:
                found = None
            if isinstance(found, dict):
                return {"path": path, "info": without_secrets(found)}, f"kept, from {path}"
            status = "no JSON object"
        why = why or f"{path}: {status}"
    return None, f"none ({why})"


def without_secrets(value: Any, name: str = "") -> Any:
    """The same with stars for what is a secret by its name or its look, however deep. Pure.

    A text that is a whole command line is gone through by its words.
    """
    if isinstance(value, dict):
        return {str(key): without_secrets(item, str(key)) for key, item in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(item, str) for item in value):
            return _words(value, name)
        return [without_secrets(item, name) for item in value]
    if isinstance(value, str):
        if is_secret(name, value):
            return CONCEALED
        if " -" in value:
            return " ".join(_words(value.split(" "), ""))
    elif value is not None and not isinstance(value, bool) and is_secret(name, str(value)):
        return CONCEALED
    return value


def _words(words: list[str], name: str) -> list[str]:
    """The words of a command line, or the texts of a list: what follows an option for a secret, or looks like one."""
    found, option = [], name
    for word in words:
        before, equals, value = word.partition("=")
        if word.startswith("-") and equals and is_secret(before, value):
            found.append(f"{before}={CONCEALED}")
        elif word.startswith("-"):
            found.append(word)
        else:
            found.append(CONCEALED if is_secret(option, word) else word)
        option = word if word.startswith("-") and not equals else name
    return found


def _texts(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []
