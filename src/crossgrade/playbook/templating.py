"""Templates and conditions of a playbook, expanded with its variables.

Only text that comes from the playbook, the inventory or the command line is a template; what a module, a file
or a fact gave is data, whatever braces it holds (Ansible's rule since 2.19). Variables are expanded when they
are asked for. Jinja is imported when the first template is met.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from crossgrade.errors import Place
from crossgrade.playbook import limits
from crossgrade.playbook.argument_types import ConversionError, name_of_type, shown, to_bool
from crossgrade.playbook.compiling import compiled, environment
from crossgrade.playbook.lazy import LazyDict, LazyList, ScopesSeen
from crossgrade.playbook.markers import OMIT, DependsOnUnknown, Unknown
from crossgrade.playbook.model import Condition, Templated
from crossgrade.playbook.positions import Spot
from crossgrade.playbook.template_errors import (
    MAX_EXPRESSION_SHOWN,
    ConditionError,
    TemplateError,
    TemplateLimitError,
    UndefinedVariableError,
    failure,
    quoted,
)
from crossgrade.playbook.values import has_template, is_template_text
from crossgrade.playbook.variables import Layer, Scope, ScopeTable

if TYPE_CHECKING:
    from jinja2.environment import Template

__all__ = [
    "ConditionError",
    "DependsOnUnknown",
    "Templar",
    "TemplateError",
    "TemplateLimitError",
    "UndefinedVariableError",
    "check_syntax",
    "has_template",
]

ResultT = TypeVar("ResultT")
_ONLY_A_NAME = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")
MAX_NESTED_VARIABLES = 60


class Templar:
    """Expands templates with the variables of one scope. What it has worked out, it keeps.

    `directory`: relative paths of `lookup('file', …)` start here, unless the scope has directories of its own.
    `environment`: what `lookup('env', …)` sees.
    `time_limit` is the CPU time of one call, in seconds. `foreseen` says for a plan what will lie at a path that an
    earlier task makes, changes or removes, as mappings like the result of `stat`; None for any other path.
    """

    def __init__(
        self,
        scope: Scope,
        *,
        directory: Path = Path(),
        environment: Mapping[str, str] | None = None,
        time_limit: float = limits.CPU_SECONDS,
        foreseen: Callable[[str], Any] = lambda _: None,
    ) -> None:
        self.scope = scope
        self.directory = directory
        self.directories = scope.directories or (directory,)
        self.environment: Mapping[str, str] = os.environ if environment is None else environment
        self._time_limit = time_limit
        self.foreseen = foreseen
        self._values: dict[str, Any] = {}
        self._resolving: list[str] = []
        self._busy = False
        self.including: tuple[Path, ...] = ()  # where template files that are brought in are looked for
        self.loaded: dict[str, Template] = {}

    # --- what the engine calls

    def template(self, value: Any, spot: Spot | None = None, *, keep: Collection[str] = ()) -> Any:
        """`value` with every template in it expanded, in plain data.

        Entries and items that come out as `omit` are left out; a value that is `omit` itself gives OMIT. The
        keys in `keep` of a mapping stay as they are. Raises TemplateError and DependsOnUnknown.
        """
        if isinstance(value, Mapping):
            return self._template_mapping(value, spot, keep)
        if isinstance(value, list | tuple):
            items = [self.template(item, None if spot is None else spot.at(at)) for at, item in enumerate(value)]
            return [item for item in items if item is not OMIT]
        if not is_template_text(value) or _is_unsafe(value):
            if isinstance(value, Unknown):
                raise DependsOnUnknown(value.origin, place=_place(spot))
            return value
        return self._guarded(lambda: self._finalized(self._render(value)), value, spot)

    def _template_mapping(self, value: Mapping[Any, Any], spot: Spot | None, keep: Collection[str]) -> Any:
        result: dict[Any, Any] = {}
        for key, item in value.items():
            if key in keep:
                result[key] = item
                continue
            expanded = self.template(item, None if spot is None else spot.at(key))
            if expanded is not OMIT:
                result[key] = expanded
        return result

    def evaluate_condition(self, expression: Condition, spot: Spot | None = None) -> bool:
        """Whether a condition (`when`, `failed_when`, …) holds. Raises TemplateError and DependsOnUnknown.

        As in Ansible since 2.19, its value must be true or false: text and numbers are not taken for either.
        """
        if isinstance(expression, bool):
            return expression
        text = self._expression_of(expression, spot)
        if isinstance(text, bool):
            return text
        result = self._guarded(lambda: self._finalized(self._evaluate(text)), text, spot)
        return _as_truth(result, text, spot)

    def all_hold(self, expressions: Iterable[Condition], spot: Spot | None = None) -> bool:
        """Whether all conditions hold; the first that does not ends the question."""
        several = list(expressions)
        for at, expression in enumerate(several):
            here = spot.at(at) if spot is not None and len(several) > 1 else spot
            if not self.evaluate_condition(expression, here):
                return False
        return True

    def boolean(self, value: Templated, default: bool = False, spot: Spot | None = None) -> bool:
        """The value of a keyword that is true or false, or a template that gives one."""
        if value is None:
            return default
        expanded = self.template(value, spot)
        if expanded is OMIT or expanded is None:
            return default
        try:
            return to_bool(expanded)
        except ConversionError as error:
            raise TemplateError(str(error), expression=str(value), place=_place(spot)) from error

    def render_text(self, text: str, name: str, marks: Mapping[str, Any] | None = None) -> str:
        """The text of a template file, expanded; `name` is its path, or words for messages. A last newline stays.

        `marks` are options of Jinja that this text is read with (`variable_start_string`, `trim_blocks`); its own first
        line goes before them.
        """
        from crossgrade.playbook.finalize import finalize, text_of
        from crossgrade.playbook.template_files import file_scope, rendered_parts

        path = Path(name)
        in_a_file = path.is_absolute() and path.is_file()
        templar = self._within(file_scope(self.scope, path, {})) if in_a_file else self

        def render() -> str:
            parts, body = rendered_parts(templar, text, path if in_a_file else None, marks or {})
            joined = "".join(text_of(finalize(part)) for part in parts if part is not None)
            missing_newlines = _last_newlines(body) - _last_newlines(joined)
            return str(limits.check_size(joined + "\n" * max(missing_newlines, 0)))

        return self._guarded(render, text, None, name)

    def render_value(self, text: str, path: Path, variables: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
        """What a template file gives, of its own type, for a lookup in another template.

        `variables` are seen in it only; `options` are Jinja's.
        """
        from crossgrade.playbook.template_files import file_scope, rendered_parts

        templar = self._within(file_scope(self.scope, path, variables))
        parts, body = rendered_parts(templar, text, path, options)
        return _with_last_newlines(environment(keep_backslashes=False).concat(parts), body)

    def _within(self, scope: Scope) -> Templar:
        """Another one for a scope in this one, under the limits of this one."""
        made = Templar(scope, directory=self.directory, environment=self.environment, foreseen=self.foreseen)
        made._busy = True
        return made

    # --- what the Jinja environment calls

    @property
    def foresees(self) -> bool:
        """Whether this is no run, so that what only a run can know is unknown: what programs print, what chance gives.

        It is a run where the variable `ansible_check_mode`, which a playbook cannot set, is false.
        """
        layer = self.scope.find("ansible_check_mode")
        return layer is None or layer.values["ansible_check_mode"] is not False

    def resolve(self, name: str) -> Any:
        """A variable's value, as a template sees it: Jinja's `missing` when there is none."""
        if name in self._values:
            return self._values[name]
        if name == "ansible_search_path":
            return [str(directory) for directory in self.directories]
        layer = self.scope.find(name)
        if layer is None:
            from jinja2.utils import missing

            return missing
        raw = layer.values[name]
        if not layer.templated or not isinstance(raw, str | dict | list):
            value = self._as_seen(raw)
        else:
            value = self._resolve_templated(name, raw, layer)
        self._values[name] = value
        return value

    def _as_seen(self, raw: Any) -> Any:
        """Data as a template sees it: a scope, and a table of scopes (`hostvars`), as mappings of variables."""
        if isinstance(raw, Scope):
            seen = Templar(raw, directory=self.directory, environment=self.environment, foreseen=self.foreseen)
            return seen.all()
        if isinstance(raw, ScopeTable):
            return ScopesSeen(raw, self._as_seen)
        return raw

    def all(self) -> LazyDict:
        """All variables as one mapping (`hostvars`, `vars`), each expanded when it is asked for."""
        names = dict.fromkeys(self.scope.names(), "")
        return LazyDict(names, lambda _, name: self.resolve(str(name)))

    def _resolve_templated(self, name: str, raw: Any, layer: Layer) -> Any:
        if name in self._resolving:
            loop = " → ".join([*self._resolving[self._resolving.index(name) :], name])
            place = _place(layer.spot.at(name)) if layer.spot is not None else None
            raise TemplateError(f"the variables are defined by means of each other: {loop}", place=place)
        if len(self._resolving) >= MAX_NESTED_VARIABLES:
            raise limits.LimitExceeded("variables refer to variables too many times over")
        self._resolving.append(name)
        try:
            return self._expand(raw, name, layer, (name,))
        finally:
            self._resolving.pop()

    def _expand(self, raw: Any, name: str, layer: Layer, path: tuple[Hashable, ...]) -> Any:
        """A variable or a part of it. What is not defined gives an undefined value, and no error yet."""
        if isinstance(raw, str):
            if not is_template_text(raw) or _is_unsafe(raw):
                return raw
            return self._render_part(raw, name, layer, path)
        if isinstance(raw, Mapping):
            if not has_template(raw):
                return raw
            return LazyDict(raw, lambda item, key: self._expand(item, name, layer, (*path, key)))
        if isinstance(raw, list):
            if not has_template(raw):
                return raw
            return LazyList(raw, lambda item, key: self._expand(item, name, layer, (*path, key)))
        return raw

    def _render_part(self, raw: str, name: str, layer: Layer, path: tuple[Hashable, ...]) -> Any:
        from jinja2 import UndefinedError

        from crossgrade.playbook.jinja_environment import PlaybookUndefined

        try:
            value = self._render(raw)
            if not isinstance(value, PlaybookUndefined):
                return value
            reason = value.reason
        except UndefinedError as error:
            reason = str(error)
        if "(needed for " not in reason:
            where = f" at {layer.spot.at(*path).place}" if layer.spot is not None else ""
            reason = f'{reason} (needed for "{name}"{where})'
        return PlaybookUndefined(hint=reason)

    # --- inside

    def _render(self, text: str) -> Any:
        made = environment(keep_backslashes=True)
        parts, _ = made.run(compiled("value", text), self)
        return _with_last_newlines(made.concat(parts), text)

    def _evaluate(self, expression: str) -> Any:
        _, context = environment(keep_backslashes=False).run(compiled("condition", expression), self)
        return context.vars["result"]

    @staticmethod
    def _finalized(value: Any) -> Any:
        from crossgrade.playbook.finalize import finalize

        return finalize(value)

    def _expression_of(self, condition: Any, spot: Spot | None) -> str | bool:
        """The expression that a condition means; most are one already."""
        if not isinstance(condition, str) or not condition.strip():
            raise ConditionError(
                f"a condition is an expression, true or false, and not {shown(condition)}",
                expression=str(condition),
                place=_place(spot),
            )
        text = condition.strip()
        if not is_template_text(text):
            return text
        only = _ONLY_A_NAME.fullmatch(text)
        if only is not None:
            layer = self.scope.find(only[1])
            raw = None if layer is None else layer.values[only[1]]
            if layer is not None and layer.templated and isinstance(raw, str) and not is_template_text(raw):
                return self._expression_of(raw, spot)  # a variable that holds an expression
        if not text.startswith(("{{", "{%")) or not text.endswith(("}}", "%}")):
            raise ConditionError(
                "a condition is an expression already, and needs no {{ }} inside",
                expression=text,
                remedy="Write the variable's name without braces and quotes.",
                place=_place(spot),
            )
        return _as_truth(self.template(text, spot), text, spot)

    def _guarded(self, work: Callable[[], ResultT], text: str, spot: Spot | None, name: str = "") -> ResultT:
        """Do the work within its limits; whatever goes wrong is told with the template and its place."""
        if self._busy:
            return work()
        self._busy = True
        try:
            with limits.cpu_time_limit(self._time_limit):
                return work()
        except limits.TimeIsUp:
            message = f"it takes more than {self._time_limit:g} s"
            raise TemplateLimitError(
                f"{message}, in {quoted(text, name)}", expression=text, place=_place(spot)
            ) from None
        except DependsOnUnknown as unknown:
            raise DependsOnUnknown(unknown.origin, expression=text, place=_place(spot)) from None
        except Exception as error:
            raise failure(error, text, _place(spot), name, self.scope.names()) from error
        finally:
            self._busy = False
            self._resolving.clear()


def check_syntax(text: str, spot: Spot, *, condition: bool = False) -> TemplateError | None:
    """What is wrong with a template or condition that can be seen without its variables, or None."""
    if not condition and not is_template_text(text):
        return None
    if condition and is_template_text(text):
        condition = False
    try:
        compiled("condition" if condition else "value", text.strip() if condition else text)
    except Exception as error:  # noqa: BLE001 - Jinja's parser and Python's compiler raise many kinds
        return failure(error, text, spot.place)
    return None


def _as_truth(value: Any, expression: str, spot: Spot | None) -> bool:
    if isinstance(value, bool):
        return value
    what = name_of_type(value) if not isinstance(value, str | int | float) else shown(value)
    raise ConditionError(
        f"the condition `{expression[:MAX_EXPRESSION_SHOWN]}` gives {what}, and neither true nor false",
        expression=expression,
        remedy="Compare it (`x | length > 0`, `x == 'yes'`), test it (`x is truthy`) or convert it (`x | bool`).",
        place=_place(spot),
    )


def _place(spot: Spot | None) -> Place | None:
    return None if spot is None else spot.place


def _last_newlines(text: str) -> int:
    return len(text) - len(text.rstrip("\n"))


def _with_last_newlines(result: Any, text: str) -> Any:
    """Jinja takes the newline at the end of a template away; it stays, as in Ansible."""
    if isinstance(result, str):
        result += "\n" * max(_last_newlines(text) - _last_newlines(result), 0)
    return result


def _is_unsafe(value: Any) -> bool:
    return type(value) is not str and type(value).__name__ == "UnsafeText"
