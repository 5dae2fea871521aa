"""The pieces of YAML that a first playbook is written in. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from crossgrade.facts.serving import Secret
from crossgrade.playbook.positions import printable


def environment_name(secret: Secret) -> str:
    """The environment variable that a secret is read from."""
    return secret.where if secret.where.isidentifier() else secret.variable.upper()


def quoted(value: str) -> str:
    """Text as a double-quoted scalar; templates in it are not expanded."""
    import yaml  # loaded on first use, as everywhere

    text = yaml.safe_dump(value, default_style='"', allow_unicode=True, width=1 << 30).strip()
    return f"!unsafe {text}" if any(mark in value for mark in ("{{", "{%", "{#")) else text


def scalar(value: str | Secret) -> str:
    return f'"{{{{ {value.variable} }}}}"' if isinstance(value, Secret) else quoted(value)


def comment(text: str, width: int = 110, indent: str = "") -> list[str]:
    """Lines of a comment; what a command line holds cannot end one."""
    from textwrap import wrap

    return [f"{indent}# {line}" for line in wrap(printable(text), width, break_long_words=False)]


def listed(words: Sequence[str]) -> str:
    return f"[{', '.join(map(quoted, words))}]"


def task(
    name: str, module: str, arguments: Mapping[str, str], register: str = "", when: str = "", *, last: bool = False
) -> list[str]:
    """The lines of a task; the values are YAML already."""
    lines = [f"- name: {quoted(name)}", *([f"  when: {when}"] if when else []), f"  {module}:"]
    lines += [f"    {key}: {value}" for key, value in arguments.items()]
    lines += [f"  register: {register}"] if register else []
    return lines if last else [*lines, ""]
