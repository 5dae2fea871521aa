"""The pages on modules, keywords and known failures, made from the code's own tables: they cannot fall behind it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from crossgrade.commands.common import guarded
from crossgrade.errors import ExitCode, WrongOptionsError
from crossgrade.failures.signatures import Signature, signatures
from crossgrade.modules import NAMES, load_module
from crossgrade.playbook.arguments import refused_arguments
from crossgrade.playbook.describe import ArgumentDescription, describe_arguments
from crossgrade.playbook.schema import KEYWORDS
from crossgrade.playbook.statements import STATEMENTS

PAGES = Path("docs")
_HEAD = """# Modules

Made by `invoke docs` from the modules themselves. Names, defaults and conversions are Ansible's where Ansible has the
module; `ansible.builtin.copy` and `copy` are the same.

- **reads**: runs in a plan too
- **checks**: a plan lists it, a run does it and changes nothing
- **changes**: may change the machine; it is taken back when the run fails, as far as the module's line does not say
  else (`command`, `shell` and `script` never are)
"""

_KEYWORDS_HEAD = """# Keywords

Made by `invoke docs` from the keyword table. A keyword that Ansible has and that is not here yet is refused with its
place in the file; nothing is ignored in silence. Keywords mean what they mean in Ansible, with these differences:

- `gather_facts` is off unless a play asks for it; then `ansible_facts` and `ansible_…` hold the basics under Ansible's
  names, and `ansible_facts.crossgrade` driver, GPUs, toolkits and compilers. [facts](facts.md) says more about a server
  than a play needs; `preflight` judges that.
- A play whose tasks already fail in check mode is not begun (exit code 1, nothing changed).
- When a play fails and nothing rescues it, what its tasks changed is taken back (`rolled_back=` in the recap).
- Variables of crossgrade itself: `crossgrade_root`, `crossgrade_store`, `crossgrade_python`, `crossgrade_active` (the
  number of the active generation when the play began, or none).
"""

_FAILURES_HEAD = """# Known failures

Made by `invoke docs` from `knowledge/failures.yml`. When a task fails, its output is matched with these, and cause,
evidence, remedy and link stand beside the output itself: at the terminal, in the events and in the run's report.
`crossgrade explain` does the same for pasted text, a log file, or its standard input (`-`):

```sh
crossgrade explain "ImportError: libnvrtc.so.12: cannot open shared object file: No such file or directory"
crossgrade explain build.log --context gpu=12.0 --context torch_cuda=13.0 --json
```

- Of several failures in one output the root stands first: causes before what follows from them, errors before what is
  only warned of, and among equals the earliest line. What a log says at the level INFO or DEBUG is no failure.
- What is known beside the output (`gpu`, `torch`, `torch_cuda`, `driver`, `nvcc`, `traceback_mentions`) is filled into
  the text. The driver of this machine is known without being said.
- Where nothing fits, it says so and shows the last lines (exit code 2). It never guesses.
- Of an output of more than 64 MiB its first and last 32 MiB are read, and it says so.
- Passwords and tokens that it recognises are replaced by asterisks; of a task with `no_log` nothing is told at all.
  A secret that looks like a plain word is not recognised.

{count} signatures of {kinds} kinds. In cause and remedy below, words in braces stand for what the output says.
"""


def docs_command() -> int:
    """Write the pages. It works in a checkout only."""

    def body() -> int:
        if not PAGES.is_dir():
            raise WrongOptionsError("there is no docs folder here", remedy="Change to the top folder of a checkout.")
        for name, text in pages().items():
            (PAGES / name).write_text(text, encoding="utf-8")
        return ExitCode.DONE

    return guarded(body)


def pages() -> dict[str, str]:
    """All generated pages by file name."""
    return {"modules.md": modules_page(), "keywords.md": keywords_page(), "failures.md": failures_page()}


def modules_page() -> str:
    """The whole page, as Markdown."""
    parts = [_HEAD]
    for name in sorted(NAMES):
        module = load_module(name)
        if module.name != name:
            parts.append(f"## {name}\n\nThe same as `{module.name}`.\n")
            continue
        parts.append(f"## {name}\n\n{module.summary} ({module.effect})\n")
        rows = [_row(argument) for argument in describe_arguments(module.arguments)]
        if rows:
            parts.append("| argument | type | default | |\n| --- | --- | --- | --- |\n" + "\n".join(rows) + "\n")
        parts += _refused(refused_arguments(module.arguments))
    return "\n".join(parts)


def _refused(refused: Mapping[str, str]) -> list[str]:
    """One line for each reason, with the arguments that it is given for."""
    reasons = list(dict.fromkeys(refused.values()))
    names = {reason: ", ".join(f"`{name}`" for name in refused if refused[name] == reason) for reason in reasons}
    lines = [f"- {names[reason]}: {reason}." for reason in reasons]
    return ["What Ansible has and is refused here:\n\n" + "\n".join(lines) + "\n"] if lines else []


def _row(argument: ArgumentDescription) -> str:
    names = ", ".join(f"`{name}`" for name in (argument.name, *argument.aliases))
    default = "" if argument.default in (None, "", (), {}, []) else json.dumps(argument.default).strip('"')
    if argument.required:
        default = "**required**"
    # sorted: some declarations are sets; written as JSON, so that a newline among them can be seen
    chosen = ", ".join(f"`{choice}`" for choice in sorted(json.dumps(choice).strip('"') for choice in argument.choices))
    choices = f" One of {chosen}." if chosen else ""
    words = (argument.doc + choices).replace("|", "\\|").replace("\n", " ")
    return f"| {names} | {argument.type} | {default} | {words} |"


def keywords_page() -> str:
    """Every keyword of Ansible with its state here, as Markdown."""
    parts = [_KEYWORDS_HEAD]
    for level in ("play", "block", "task"):
        keywords = KEYWORDS[level]
        here = ", ".join(f"`{name}`" for name in sorted(keywords) if keywords[name].supported)
        parts.append(f"## {level}\n\nHere: {here}.\n")
        for heading, never in (("Not here yet", False), ("Cannot be supported", True)):
            lacking = [k for k in keywords.values() if not k.supported and k.never is never]
            listed = "\n".join(f"- `{k.name}`{f': {k.instead}' if k.instead else ''}" for k in lacking)
            parts.extend([f"{heading}:\n", f"{listed}\n"] if lacking else [])
    parts.append("## Statements that bring in tasks\n\n[Includes](includes.md) says how they work.\n")
    for name, arguments in STATEMENTS.items():
        rows = [_row(argument) for argument in describe_arguments(arguments)]
        table = "| argument | type | default | |\n| --- | --- | --- | --- |\n" + "\n".join(rows)
        parts.append(f"### {name}\n\n{(arguments.__doc__ or '').strip().splitlines()[0]}\n\n{table}\n")
    return "\n".join(parts)


def failures_page() -> str:
    """Every signature with its cause, remedy, links and source, as Markdown."""
    known = signatures()
    head = _FAILURES_HEAD.replace("{count}", str(len(known)))
    return "\n".join([head.replace("{kinds}", str(len({each.kind for each in known}))), *map(_failure, known)])


def _failure(signature: Signature) -> str:
    links = " · ".join(f"<{link}>" for link in signature.links)
    rank = "" if signature.rank == "root" else f" ({signature.rank})"
    return (
        f"## {signature.kind}{rank}\n\n```text\n{signature.example}\n```\n\n"
        f"- **Cause**: {signature.cause}\n- **Remedy**: {signature.remedy}\n- {links}\n- Source: {signature.source}\n"
    )
