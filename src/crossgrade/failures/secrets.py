"""What must not be repeated: passwords and tokens in the output of tools. Pure."""

from __future__ import annotations

import re

_HIDDEN = "********"
_VALUE = r"(?!None\b|\d{1,12}\b)[^\s'\",;)&]{4,400}"
_NAME = r"[\w-]{0,60}(?:password|passwd|secret|token|api[_-]?key|access[_-]?key|credential)s?"
# Each leaves in place what says that a secret was there.
_SECRETS = tuple(
    re.compile(pattern)
    for pattern in (
        r"(\w{1,20}://)[^\s/@'\"]{1,400}(?=@)",  # https://user:password@host/
        r"(?i)(authorization['\"]?\s{0,4}[:=]\s{0,4}['\"]?(?:(?:bearer|basic|token)\s{1,2})?)[^\s'\",]{4,400}",
        r"(?i)(\bbearer\s{1,2})[\w.~+/=-]{8,400}",
        r"\b(hf_|sk-|gh[posu]_|github_pat_|glpat-|pypi-|nvapi-|xox[abp]-|AKIA|ASIA)[\w-]{8,400}",
        rf"(?i)({_NAME}['\"]?\s{{0,2}}[=:]\s{{0,2}}['\"]?){_VALUE}",
        rf"(?i)(--{_NAME}\s{{1,4}})(?!-){_VALUE}",
    )
)


def without_secrets(text: str) -> str:
    """The text with what looks like a password or a token replaced by asterisks.

    It knows credentials in addresses, authorization headers, tokens by their well-known beginnings, and what follows
    a name such as `password`, `token` or `api_key`. A secret that looks like a plain word is not recognised.
    """
    for pattern in _SECRETS:
        text = pattern.sub(rf"\1{_HIDDEN}", text)
    return text
