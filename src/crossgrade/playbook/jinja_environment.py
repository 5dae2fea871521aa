"""Jinja as Ansible (2.19 and later) has it: native types, chained undefined values, lazy variables, a sandbox.

Imported only when there is a template to expand: Jinja takes longer to import than most plans to make.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, cast

from jinja2 import StrictUndefined, TemplateNotFound, UndefinedError, nodes, pass_context
from jinja2.compiler import CodeGenerator, Frame
from jinja2.environment import Template
from jinja2.lexer import Lexer
from jinja2.nativetypes import NativeCodeGenerator
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import missing

from crossgrade.playbook import limits
from crossgrade.playbook.finalize import finalize, text_of
from crossgrade.playbook.markers import OMIT, DependsOnUnknown, Unknown, unknown_in

if TYPE_CHECKING:
    from crossgrade.playbook.templating import Templar


COLLECTIONS = ("ansible.builtin.", "ansible.legacy.")  # what may stand before the name of a filter, test or lookup


def short_name(name: str) -> str:
    """The name without the collection of ansible-core before it."""
    return next((name.removeprefix(prefix) for prefix in COLLECTIONS if name.startswith(prefix)), name)


class ByName(dict[str, Any]):
    """Filters or tests, which may be asked for with their collection, too."""

    def __missing__(self, name: str) -> Any:
        short = short_name(name)
        if short == name:
            raise KeyError(name)
        return self[short]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and super().__contains__(short_name(name))

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(short_name(name), default)


class PlaybookUndefined(StrictUndefined):
    """An undefined value. What is below it is the same undefined value; any other use is an error."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name[:2] == "__":
            raise AttributeError(name)
        return self

    def __getitem__(self, key: Any) -> Any:
        return self

    @property
    def reason(self) -> str:
        """Why this is undefined."""
        return str(self._undefined_message)

    @property
    def _undefined_message(self) -> str:
        if self._undefined_hint:
            return self._undefined_hint
        name = self._undefined_name
        if self._undefined_obj is missing:
            return f'"{name}" is not defined'
        holder = self._undefined_obj
        if isinstance(name, int):
            return f"there is no item {name} in {_kind_of(holder)}"
        return f'there is no "{name}" in {_kind_of(holder)}'


def _kind_of(value: Any) -> str:
    from crossgrade.playbook.argument_types import name_of_type
    from crossgrade.playbook.suggest import listing

    if isinstance(value, Mapping):
        names = listing((str(name) for name in value), limit=12)
        return f"a mapping with {names}" if names else "an empty mapping"
    return name_of_type(value)


# Whose variables a template sees; the templates that it brings in see the same.
_current: ContextVar[Templar | None] = ContextVar("_current", default=None)


class PlaybookContext(Context):
    """Looks variables up in the playbook's scope, when they are asked for."""

    templar: Templar

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        current = _current.get()
        if current is not None:
            self.templar = current

    def resolve_or_missing(self, key: str) -> Any:
        if key in self.vars:
            return self.vars[key]
        found = self.templar.resolve(key)
        if found is missing:
            found = self.parent.get(key, missing)
        origin = self.templar.scope.unknown_origin
        return Unknown(origin, certain=False) if found is missing and origin else found


class _Lexer(Lexer):
    """With `keep_backslashes`, a backslash in a string of an expression is only a backslash, as in Ansible.

    So that a regular expression in YAML does not need its backslashes doubled.
    """

    keep_backslashes = False

    def tokeniter(self, *arguments: Any, **named: Any) -> Iterator[tuple[int, str, str]]:
        inside = False
        for line, token, text in super().tokeniter(*arguments, **named):
            if token == "variable_begin":  # noqa: S105 - the kind of a token
                inside = True
            elif token == "variable_end":  # noqa: S105 - the kind of a token
                inside = False
            if inside and self.keep_backslashes and token == "string":  # noqa: S105 - the kind of a token
                yield line, token, text.replace("\\", "\\\\")
            else:
                yield line, token, text


class _CodeGenerator(NativeCodeGenerator):
    @staticmethod
    def _default_finalize(value: Any) -> Any:
        return value

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        parts = list(group)
        return repr(parts[0]) if len(parts) == 1 else repr("".join(str(part) for part in parts))

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 - Jinja's name
        """`a ~ b`, through a function that knows a limit."""
        self.write("environment.join_texts((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


@pass_context
def _as_it_is(_context: Context, value: Any) -> Any:
    """Given as `finalize`, it keeps Jinja from working constants out, and turning them into text, early."""
    return value


class PlaybookEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox in which the templates of playbooks run."""

    intercepted_binops = frozenset(("*", "**", "+", "%"))
    context_class = PlaybookContext
    code_generator_class: type[CodeGenerator] = _CodeGenerator

    def __init__(self, *, keep_backslashes: bool, **marks: Any) -> None:
        self._marks = marks
        super().__init__(
            undefined=PlaybookUndefined,
            **{"trim_blocks": True, **marks},
            optimized=False,
            autoescape=False,
            finalize=_as_it_is,
            cache_size=0,
        )
        self._own_lexer = _Lexer(self)
        self._own_lexer.keep_backslashes = keep_backslashes
        from crossgrade.playbook.filters import FILTERS, FILTERS_THAT_TAKE_UNDEFINED
        from crossgrade.playbook.functions import FUNCTIONS
        from crossgrade.playbook.tests import TESTS, TESTS_THAT_TAKE_UNDEFINED, TESTS_THAT_TAKE_UNKNOWN

        filters = {**cast("dict[str, Callable[..., Any]]", self.filters), **FILTERS}
        for name, function in filters.items():
            filters[name] = _guarded(function, undefined=name in FILTERS_THAT_TAKE_UNDEFINED)
        self.filters = ByName(filters)
        tests = {**cast("dict[str, Callable[..., Any]]", self.tests), **TESTS}
        for name, test in tests.items():
            tests[name] = _guarded(
                test,
                undefined=name in TESTS_THAT_TAKE_UNDEFINED,
                unknown=name in TESTS_THAT_TAKE_UNKNOWN,
            )
        self.tests = ByName(tests)
        self.globals = {
            "range": limits.check_range,
            "dict": dict,
            "namespace": self.globals["namespace"],
            "cycler": self.globals["cycler"],
            "joiner": self.globals["joiner"],
            "omit": OMIT,
            **FUNCTIONS,
        }

    @property
    def lexer(self) -> Lexer:
        return self._own_lexer

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        limits.check_operation(operator, left, right)
        try:
            return super().call_binop(context, operator, left, right)
        except DependsOnUnknown:
            raise
        except Exception:  # noqa: BLE001 - raised again unless an unknown value explains it
            return _unknown_or_raise((left, right))

    @staticmethod
    def join_texts(parts: Iterable[Any]) -> str:
        return str(limits.check_size("".join(text_of(part) for part in parts)))

    def getattr(self, obj: Any, attribute: str) -> Any:
        """`obj.attribute`: an attribute that may be seen, or else the item of this name."""
        if isinstance(obj, Unknown):
            return obj.part(attribute)
        if isinstance(obj, StrictUndefined):
            return obj
        value = getattr(obj, attribute, missing)
        safe = value is missing or self.is_safe_attribute(obj, attribute, value)
        if value is not missing and safe:
            return self._wrapped(value)
        try:
            return obj[attribute]
        except (TypeError, LookupError):
            return self.undefined(obj=obj, name=attribute) if safe else self.unsafe_undefined(obj, attribute)

    def _wrapped(self, value: Any) -> Any:
        """`"…".format` in a form that stays inside the sandbox; anything else as it is."""
        wrapped = self.wrap_str_format(value)
        return value if wrapped is None else wrapped

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(obj, Unknown):
            return obj.part(argument)
        if isinstance(obj, StrictUndefined):
            return obj
        for part in (argument,) if not isinstance(argument, slice) else (argument.start, argument.stop):
            if isinstance(part, StrictUndefined):
                return part
        try:
            return obj[argument]
        except (AttributeError, TypeError, LookupError):
            if isinstance(argument, str):
                value = getattr(obj, argument, missing)
                if value is not missing:
                    if self.is_safe_attribute(obj, argument, value):
                        return self._wrapped(value)
                    return self.unsafe_undefined(obj, argument)
            return self.undefined(obj=obj, name=argument)

    def call(self, __context: Context, __obj: Any, *arguments: Any, **named: Any) -> Any:
        if not isinstance(__obj, Macro):
            for value in (__obj, *arguments, *named.values()):
                if isinstance(value, StrictUndefined):
                    return value
                if isinstance(value, Unknown):
                    return Unknown(value.origin, certain=False)
            method = getattr(__obj, "__wrapped__", __obj)
            owner = getattr(method, "__self__", None)
            if owner is not None:
                limits.check_method(owner, getattr(method, "__name__", ""), arguments, named)
        try:
            return _plain_result(super().call(__context, __obj, *arguments, **named))
        except DependsOnUnknown:
            raise
        except Exception:
            if isinstance(__obj, Macro):
                raise
            return _unknown_or_raise((arguments, named))

    def compile_template(self, text: str) -> Template:
        return self.from_string(text)

    def compile_condition(self, expression: str) -> Template:
        """A template whose only work is to set `result` to the value of the expression."""
        parser = Parser(self, expression, state="variable")
        parsed = parser.parse_expression()
        if not parser.stream.eos:
            parser.fail("there is more after the end of the expression", parser.stream.current.lineno)
        parsed.set_environment(self)
        body = nodes.Assign(nodes.Name("result", "store"), parsed, lineno=1)
        return self.from_string(nodes.Template([body], lineno=1))

    def run(self, template: Template, templar: Templar) -> tuple[list[Any], PlaybookContext]:
        """The parts that the template puts out, not yet joined, and the context with what it has set."""
        token = _current.set(templar)
        try:
            context = template.new_context()
            assert isinstance(context, PlaybookContext)  # noqa: S101 - for the type checker: context_class says so
            return list(template.root_render_func(context)), context
        finally:
            _current.reset(token)

    def _load_template(self, name: str | Template, _globals: Any = None) -> Template:
        """What `include`, `import` and `extends` ask for. Raises TemplateNotFound."""
        from crossgrade.playbook.template_files import load

        templar = _current.get()
        found = load(templar, str(name), self._marks) if templar is not None else None
        if found is None:
            raise TemplateNotFound(str(name))
        return found

    @staticmethod
    def concat(parts: Iterable[Any]) -> Any:
        """One part keeps its type; several are joined as text, those that are None or `omit` left out."""
        found = [part for part in parts if part is not None]
        if not found:
            return None
        if len(found) == 1:
            return found[0]
        found = [part for part in found if part is not OMIT]
        return limits.check_size("".join(text_of(finalize(part)) for part in found))


def _plain_result(value: Any) -> Any:
    """What a function or filter gave; an iterator or a view as the list of its items: it can be used twice then."""
    if isinstance(value, Iterator | KeysView | ValuesView | ItemsView):
        return limits.bounded_list(value)
    return limits.check_size(value)


def _guarded(function: Callable[..., Any], *, undefined: bool = False, unknown: bool = False) -> Callable[..., Any]:
    """A filter or test that hands an undefined or unknown argument on, and sees neither."""

    @functools.wraps(function)
    def guarded(*arguments: Any, **named: Any) -> Any:
        for value in (*arguments, *named.values()) if named else arguments:
            if isinstance(value, StrictUndefined):
                if not undefined:
                    return value
            elif isinstance(value, Unknown) and not unknown:
                return Unknown(value.origin, certain=False)
        try:
            return _plain_result(function(*arguments, **named))
        except DependsOnUnknown as inside:  # in a list or a mapping
            return Unknown(inside.origin, certain=False)
        except Exception:  # noqa: BLE001 - raised again unless an unknown value explains it
            return _unknown_or_raise((arguments, named))

    return guarded


def _unknown_or_raise(given: Any) -> Unknown:
    """Inside `except`: an unknown value where one is part of what was given, since the run may have one that fits."""
    unknown = unknown_in(given)
    if unknown is None:
        raise
    return Unknown(unknown.origin, certain=False)


__all__ = ["PlaybookContext", "PlaybookEnvironment", "PlaybookUndefined", "UndefinedError"]
