"""What goes wrong in a template, said with its text, its place and a remedy."""

from __future__ import annotations

import re
from collections.abc import Collection

from crossgrade.errors import Place, TaskError
from crossgrade.playbook import limits
from crossgrade.playbook.lazy import LoopError
from crossgrade.playbook.positions import printable
from crossgrade.playbook.suggest import did_you_mean
from crossgrade.playbook.template_advice import advice
from crossgrade.playbook.values import is_template_text

MAX_EXPRESSION_SHOWN = 200
_NO_SUCH = re.compile(r"No (filter|test) named '([^']*)'")
_NOT_DEFINED = re.compile(r'"(\w+)" is not defined')


class TemplateError(TaskError):
    """A template or condition that cannot be worked out. `expression` is its text."""

    def __init__(self, message: str, *, expression: str = "", remedy: str = "", place: Place | None = None) -> None:
        super().__init__(printable(message), remedy=printable(remedy), place=place)
        self.expression = expression


class UndefinedVariableError(TemplateError):
    """A variable, or a part of one, that is not defined."""


class ConditionError(TemplateError):
    """A condition that is no expression, or whose value is neither true nor false."""


class TemplateLimitError(TemplateError):
    """A template that asks for more time, text or items than it may have."""


def failure(
    error: Exception, text: str, place: Place | None, name: str = "", variables: Collection[str] = ()
) -> TemplateError:
    """The error to raise for one that Jinja, Python or a filter raised. `name` is that of a template file."""
    from jinja2 import TemplateNotFound, TemplateRuntimeError, TemplateSyntaxError, UndefinedError
    from jinja2.exceptions import SecurityError

    def failed(kind: type[TemplateError], message: str, remedy: str = "") -> TemplateError:
        return kind(f"{message}, in {quoted(text, name)}", expression=text, remedy=remedy, place=place)

    if isinstance(error, TemplateError):
        if error.place is None and place is not None:
            return type(error)(error.message, expression=error.expression, remedy=error.remedy, place=place)
        return error
    if isinstance(error, UndefinedError):
        missing = _NOT_DEFINED.search(str(error))
        hint = did_you_mean(missing[1], variables) if missing else ""
        return failed(UndefinedVariableError, str(error), hint)
    if isinstance(error, TemplateNotFound):
        return failed(TemplateError, f"there is no template {error.message}")
    unknown = _NO_SUCH.search(str(error)) if isinstance(error, TemplateSyntaxError | TemplateRuntimeError) else None
    if unknown is not None:
        return failed(TemplateError, *_no_such(unknown[1], unknown[2]))
    if isinstance(error, TemplateSyntaxError):
        line = f" (its line {error.lineno})" if "\n" in text else ""
        message, remedy = advice(error.message or "", text)
        return failed(TemplateError, f"{message}{line}", remedy)
    if isinstance(error, limits.LimitExceeded):
        return failed(TemplateLimitError, str(error))
    if isinstance(error, LoopError):
        return failed(TemplateError, str(error))
    if isinstance(error, RecursionError | MemoryError | OverflowError):
        return failed(TemplateLimitError, "it is nested too deeply, or its result is too large")
    if isinstance(error, SecurityError):
        return failed(TemplateError, f"not allowed in a template: {error}")
    return failed(TemplateError, _first_line(error), getattr(error, "remedy", ""))


def _no_such(kind: str, name: str) -> tuple[str, str]:
    """What to say of a filter or a test that is not there, and what to do."""
    from crossgrade.playbook.compiling import environment
    from crossgrade.playbook.filters_refused import REFUSED
    from crossgrade.playbook.jinja_environment import short_name

    short = short_name(name)
    if kind == "filter" and short in REFUSED:
        reason, remedy = REFUSED[short]
        return f"Ansible's filter `{short}` is not supported: {reason}", remedy
    known = environment(keep_backslashes=False)
    if "." in short:
        remedy = f"There are the {kind}s of ansible-core and of Jinja; those of other collections are not here."
    else:
        remedy = did_you_mean(short, known.filters if kind == "filter" else known.tests)
    return f"there is no {kind} `{name}`", remedy


def quoted(text: str, name: str) -> str:
    if name:
        return f"the template {name}"
    shortened = text if len(text) <= MAX_EXPRESSION_SHOWN else text[:MAX_EXPRESSION_SHOWN] + "…"
    one_line = "".join(letter if letter.isprintable() else " " for letter in shortened.strip())
    return f'"{one_line}"' if is_template_text(text) else f"the expression `{one_line}`"


def _first_line(error: Exception) -> str:
    text = str(error).strip().split("\n")[0][:300]
    if type(error).__module__.startswith("crossgrade"):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
