"""The pages on modules, the language and known failures, made from the code's own tables: they cannot fall behind."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from crossgrade.commands.common import guarded
from crossgrade.commands.language import PLACES, words
from crossgrade.errors import ExitCode, WrongOptionsError
from crossgrade.failures.signatures import Signature, signatures
from crossgrade.modules import NAMES, load_module
from crossgrade.modules.guide import guide_of
from crossgrade.playbook.arguments import refused_arguments
from crossgrade.playbook.describe import ArgumentDescription, describe_arguments
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

_LANGUAGE_HEAD = """# The language

Made by `invoke docs` from the code's own tables. Playbooks are Ansible's (ansible-core 2.19): what a name means there,
it means here, unless this page says otherwise. What Ansible has and is not here is refused with its place in the file;
nothing is ignored in silence. `crossgrade doc NAME` says the same at the terminal.

| state | meaning |
| --- | --- |
| same | as in Ansible; held to it by `tests/conformance`, which runs both |
| different | on purpose; the note says why |
| absent | refused; the note says what to use |
| own | crossgrade's own |

## What is different on purpose

- **A run is a transaction.** When a play fails and nothing rescues it, what its tasks changed is taken back
  (`rolled_back=` in the recap).
- **A plan that already fails is not begun**: exit code 1, and nothing was changed.
- **A plan does not break on `register`.** What only the run knows is a typed unknown; what depends on it is shown as
  `may change`.
- **A changed task is looked at again.** After `apply`, the module's own look must find nothing left to do.
- **Facts are gathered when a play first needs one** (`ansible_facts`, `ansible_system` …) where it does not say
  `gather_facts`, and no task `Gathering Facts` is counted; `true` gathers them at the beginning as Ansible does,
  `false` never. They hold the basics under Ansible's names, and `ansible_facts.crossgrade` driver, GPUs, toolkits and
  compilers. [facts](facts.md) says more about a server than a play needs; `preflight` judges that.
- **Files are read strictly**: a key that is there twice, a second document, a tag other than `!unsafe` and `!vault` and
  a module's argument that does not exist are errors. A file is read past its mistakes: all are told at once, each with
  line, column, an excerpt and what to write.
- **A date stays text**, and so does a time.

In an editor with yaml-language-server, `crossgrade schema > crossgrade.schema.json` and this first line of a playbook
give completion, descriptions and errors:

```yaml
# yaml-language-server: $schema=crossgrade.schema.json
```
"""

_STATEMENTS_HEAD = """## Statements that bring in tasks

[Includes](includes.md) says how they work. Their arguments:
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
    return {"modules.md": modules_page(), "language.md": language_page(), "failures.md": failures_page()}


def modules_page() -> str:
    """The whole page, as Markdown."""
    parts = [_HEAD]
    for name in sorted(NAMES):
        module = load_module(name)
        if module.name != name:
            parts.append(f"## {name}\n\nThe same as `{module.name}`.\n")
            continue
        guide = guide_of(module)
        parts.append(f"## {name}\n\n{module.summary} ({module.effect})\n")
        rows = [_row(argument) for argument in describe_arguments(module.arguments)]
        if rows:
            parts.append("| argument | type | default | |\n| --- | --- | --- | --- |\n" + "\n".join(rows) + "\n")
        parts += _refused(refused_arguments(module.arguments))
        returns = "; ".join(f"`{key}`: {what.rstrip('.')}" for key, what in guide.returns.items())
        told = [f"- **Returns**: {returns}."] if returns else []
        told += [f"- **Check mode**: {guide.plan}"]
        told += [f"- **Diff**: {guide.diff}", f"- **Undo**: {guide.undo}"] if module.effect == "changes" else []
        parts.append("\n".join(told) + "\n")
        if guide.example:
            parts.append(f"```yaml\n{guide.example.rstrip()}\n```\n")
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


_KEYWORDS_HEAD = """Each has its state on a play, on an entry of `roles`, on a block, on a task and on a handler.
A place is empty where Ansible has no such keyword either.
"""
_TITLES = {
    "keyword": ("Keywords", "keyword"),
    "module": ("Modules of Ansible", "module"),
    "filter": ("Filters", "filter"),
    "test": ("Tests", "test"),
    "lookup": ("Lookups", "lookup"),
    "variable": ("Variables that are there by themselves", "variable"),
}


def language_page() -> str:
    """Every name of the language with its state here, as Markdown."""
    parts = [_LANGUAGE_HEAD]
    for kind, (title, column) in _TITLES.items():
        found = [word for word in words(kind) if kind != "module" or word.state != "own"]
        where = kind == "keyword"
        parts.append(f"## {title}\n")
        if where:
            parts.append(_KEYWORDS_HEAD)
        if kind == "module":
            parts.append("Those of crossgrade itself and all arguments: [modules](modules.md).\n")
        head = [column, *(PLACES if where else ["state"]), "what it is for", "difference and why, or what to use"]
        rows = [
            [
                ", ".join(f"`{n}`" for n in w.names),
                *([w.states.get(place, "") for place in PLACES] if where else [w.state]),
                w.what,
                w.note,
            ]
            for w in found
        ]
        parts.append("\n".join(_table(head, rows)) + "\n")
    parts.append(_STATEMENTS_HEAD)
    for name, arguments in STATEMENTS.items():
        table = [_row(argument) for argument in describe_arguments(arguments)]
        parts.append(
            f"### {name}\n\n| argument | type | default | |\n| --- | --- | --- | --- |\n" + "\n".join(table) + "\n"
        )
    return "\n".join(parts)


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *escaped]]


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
