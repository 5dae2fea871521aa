"""One task of a playbook: its keywords, which module it names, and that module's arguments."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from crossgrade.playbook import misplaced
from crossgrade.playbook.argument_types import shown
from crossgrade.playbook.arguments import check_arguments, declared_arguments, free_form_argument
from crossgrade.playbook.conduct import (
    ModuleDefaults,
    read_action,
    read_conduct,
    read_module_defaults,
    short_name,
)
from crossgrade.playbook.freeform import UnbalancedError, split_pairs
from crossgrade.playbook.model import ACTIONS, ArgumentSpots, Condition, LoopControl, Task, VariableSpots
from crossgrade.playbook.positions import Spot
from crossgrade.playbook.schema import KEYWORDS, LOOP_CONTROL, LOOPS, MODULES_LATER, On
from crossgrade.playbook.suggest import did_you_mean, listing
from crossgrade.playbook.values import Reader, has_template, is_template_text


@dataclass(frozen=True)
class ModuleCatalogue:
    """The modules that exist, and how to get the arguments of one (which may import it)."""

    names: Collection[str]
    arguments_of: Callable[[str], type[Any] | None]


def _any_of(keyword_names: Collection[str], key: object) -> bool:
    return isinstance(key, str) and key in keyword_names


class TaskReader:
    """Reads tasks and notes what is wrong with them."""

    def __init__(self, reader: Reader, catalogue: ModuleCatalogue) -> None:
        self.reader = reader
        self.catalogue = catalogue

    def short_name(self, key: str) -> str:
        """Without `ansible.builtin.`"""
        return short_name(key)

    def looks_like_task(self, value: Mapping[Any, Any]) -> bool:
        return any(
            isinstance(key, str) and (self.short_name(key) in self.catalogue.names or key == "block") for key in value
        )

    def task(
        self, spot: Spot, value: Mapping[Any, Any], uid: str, place: On, defaults: ModuleDefaults | None = None
    ) -> Task | None:
        """The task, or None where it names no module that is here. `defaults` are the `module_defaults` around it."""
        keywords = KEYWORDS[place]
        candidates = [key for key in value if not _any_of(keywords, key)]
        for key in value:
            known = keywords.get(key) if isinstance(key, str) else None
            if known is not None and not known.supported:
                self.reader.note(spot.at(key), known.refusal(), known.instead, key=True)
        defaults = read_module_defaults(
            self.reader, spot.at("module_defaults"), value.get("module_defaults"), defaults or {}
        )
        action = read_action(self.reader, spot, value)
        if action is not None and not candidates:
            if self.short_name(action.module) not in self.catalogue.names:
                self._unknown_key(spot.at(action.key), action.module, place, None)
                return None
            module = self.short_name(action.module)
            arguments = self._arguments(spot, value, action.key, module, action.arguments, defaults)
            return self._read_keywords(spot, value, uid, action.key, module, arguments)
        module_key = self._module_key(spot, candidates, place)
        if module_key is None:
            self._task_without_module(spot, value, place)
            return None
        module = self.short_name(module_key)
        if action is not None:
            self.reader.note(
                spot.at(action.key), f"a task has one module, this one has `{module_key}` and `{action.key}`", key=True
            )
        arguments = self._arguments(spot, value, module_key, module, value[module_key], defaults)
        return self._read_keywords(spot, value, uid, module_key, module, arguments)

    def _task_without_module(self, spot: Spot, value: Mapping[Any, Any], place: On) -> None:
        """Its keywords are checked all the same, so that all problems are seen at once."""
        self._read_keywords(spot, value, "", "", "", {})
        keywords = KEYWORDS[place]
        if all(_any_of(keywords, key) for key in value):
            unsupported = any(not keywords[key].supported for key in value)
            if not unsupported and not set(ACTIONS) & set(value):
                self.reader.note(spot, "the task names no module", "A task needs one: `- command: nvidia-smi`.")

    def _module_key(self, spot: Spot, candidates: list[Any], place: On) -> str | None:
        known = [key for key in candidates if isinstance(key, str) and self.short_name(key) in self.catalogue.names]
        if len(known) > 1:
            first, second = known[0], known[1]
            self.reader.note(
                spot.at(second),
                f"a task has one module, this one has `{first}` and `{second}`",
                f"Start a new task with `- {second}:`.",
                key=True,
            )
        for key in candidates:
            if key not in known:
                self._unknown_key(spot.at(key), key, place, known[0] if known else None)
        return known[0] if known else None

    def _unknown_key(self, here: Spot, key: Any, place: On, module_key: str | None) -> None:
        note = self.reader.note
        if not isinstance(key, str):
            note(here, f"a keyword or module was expected, got {shown(key)}", key=True)
            return
        short = self.short_name(key)
        elsewhere = [other for other in KEYWORDS if key in KEYWORDS[other]]
        if module_key is not None and self._is_argument(self.short_name(module_key), key):
            note(
                here,
                f"`{key}` is an argument of `{module_key}`, and stands in the column of the task's keywords",
                f"Indent it below `{module_key}:`.",
                key=True,
            )
        elif short in MODULES_LATER and module_key is None:
            note(here, f"Ansible's module `{short}` is not supported here yet", MODULES_LATER[short], key=True)
        elif key.startswith("with_") and elsewhere == []:
            note(here, f"`{key}` is not supported", "Write `loop`.", key=True)
        elif elsewhere:
            note(
                here,
                f"a {place} has no keyword `{key}`",
                f"`{key}` is a keyword of a {' or '.join(elsewhere)}: check the indentation.",
                key=True,
            )
        elif module_key is not None:
            remedy = misplaced.odd_space(key) or did_you_mean(key, KEYWORDS[place])
            note(here, f"a {place} has no keyword `{key}`", remedy, key=True)
        else:
            remedy = misplaced.odd_space(key) or did_you_mean(short, [*self.catalogue.names, *KEYWORDS[place]])
            remedy = remedy or f"The modules are: {listing(self.catalogue.names, limit=40)}."
            note(here, f"there is no module or keyword `{key}`", remedy, key=True)

    def _is_argument(self, module: str, name: str) -> bool:
        arguments_type = self.catalogue.arguments_of(module)
        if arguments_type is None:
            return False
        return any(name in (one.name, *one.options.aliases) for one in declared_arguments(arguments_type))

    def _arguments(
        self,
        spot: Spot,
        value: Mapping[Any, Any],
        module_key: str,
        module: str,
        given: Any,
        defaults: ModuleDefaults,
    ) -> dict[str, Any]:
        here = spot.at(module_key)
        arguments_type = self.catalogue.arguments_of(module)
        if arguments_type is None:
            return {}
        arguments: dict[str, Any] | None
        if isinstance(given, dict):
            arguments = dict(given)
        elif given is None:
            arguments = {}
        elif isinstance(given, str):
            arguments = self._short_form(here, module, given, arguments_type)
        else:
            arguments = self._bare_value(here, given, arguments_type)
        if arguments is None:
            return {}
        extra = value.get("args")
        if isinstance(extra, dict):
            for name, item in extra.items():
                arguments.setdefault(name, item)
        elif extra is not None:
            self.reader.expected(spot.at("args"), "a mapping (`name: value`)", extra)
        for name, item in defaults.get(module, {}).items():
            arguments.setdefault(name, item)
        problems = check_arguments(arguments_type, arguments, ArgumentSpots(spot, here), has_template)
        names = {name for one in declared_arguments(arguments_type) for name in (one.name, *one.options.aliases)}
        self.reader.problems += misplaced.of_arguments(problems, spot, module_key, given, names)
        return arguments

    def _bare_value(self, here: Spot, given: Any, arguments_type: type[Any]) -> dict[str, Any] | None:
        free_form = free_form_argument(arguments_type)
        if free_form is not None and not isinstance(given, bool):
            return {free_form: given}
        self.reader.expected(here, "the module's arguments as a mapping (`name: value`)", given)
        return None

    def _short_form(self, here: Spot, module: str, text: str, arguments_type: type[Any]) -> dict[str, Any] | None:
        free_form = free_form_argument(arguments_type)
        names = {
            spelling for one in declared_arguments(arguments_type) for spelling in (one.name, *one.options.aliases)
        }
        if free_form is not None:  # `command: cmd=ls` runs a program of that name, as in Ansible
            names -= {free_form, "argv", "expand_argument_vars"}
        takes_any = any(one.options.rest for one in declared_arguments(arguments_type))
        try:
            pairs, rest = split_pairs(text, names if free_form else None)
        except UnbalancedError as error:
            self.reader.note(here, f"`{module}`: {error}", misplaced.UNBALANCED)
            return None
        if free_form is not None:
            rest = rest if pairs else text  # a shell's text keeps its lines as they were written
            return {free_form: rest, **pairs} if rest else dict(pairs)
        if rest:
            several = listing(one.name for one in declared_arguments(arguments_type) if not one.options.rest)
            expected = "any name" if takes_any else several
            self.reader.note(
                here,
                f"`{module}` takes no text of its own, but arguments below it",
                misplaced.of_text(rest, pairs, expected),
            )
            return None
        return dict(pairs)

    def _read_keywords(
        self,
        spot: Spot,
        value: Mapping[Any, Any],
        uid: str,
        module_key: str,
        module: str,
        arguments: Mapping[str, Any],
    ) -> Task:
        reader = self.reader

        def conditions(name: str) -> tuple[Condition, ...]:
            return reader.conditions(spot.at(name), value[name]) if name in value else ()

        def texts(name: str, *, split: bool = False) -> tuple[str, ...]:
            return reader.texts(spot.at(name), value.get(name), split=split)

        own_vars = reader.variables(spot.at("vars"), value.get("vars"))
        register = value.get("register")
        loop_with, loop = self._loop(spot, value)
        conduct = read_conduct(reader, spot, value)
        if "local_action" in value and conduct.delegate_to is None:
            conduct = replace(conduct, delegate_to="localhost")
        texts("collections")
        return Task(
            uid=uid,
            name=reader.text(spot.at("name"), value.get("name")),
            module=module,
            module_key=module_key,
            arguments=arguments,
            spot=spot,
            vars=own_vars,
            vars_spots=VariableSpots((spot.at("vars"),)) if own_vars else None,
            when=conditions("when"),
            changed_when=conditions("changed_when"),
            failed_when=conditions("failed_when"),
            until=conditions("until"),
            retries=reader.whole_number(spot.at("retries"), value.get("retries")),
            delay=reader.number(spot.at("delay"), value.get("delay")),
            loop=loop,
            loop_with=loop_with,
            loop_control=self._loop_control(spot.at("loop_control"), value.get("loop_control")),
            register=None if register is None else reader.variable_name(spot.at("register"), register),
            environment=reader.environment(spot.at("environment"), value.get("environment")),
            tags=texts("tags", split=True),
            notify=texts("notify"),
            listen=texts("listen"),
            ignore_errors=reader.boolean(spot.at("ignore_errors"), value.get("ignore_errors")),
            no_log=reader.boolean(spot.at("no_log"), value.get("no_log")),
            check_mode=reader.boolean(spot.at("check_mode"), value.get("check_mode")),
            diff=reader.boolean(spot.at("diff"), value.get("diff")),
            any_errors_fatal=reader.boolean(spot.at("any_errors_fatal"), value.get("any_errors_fatal")),
            conduct=conduct,
        )

    def _loop(self, spot: Spot, value: Mapping[Any, Any]) -> tuple[str, Any]:
        """The lookup that makes the items, "" where the list itself is given, and what is given."""
        several = [key for key in ("loop", *(f"with_{name}" for name in LOOPS)) if key in value]
        if len(several) > 1:
            self.reader.note(
                spot.at(several[1]), f"a task has one loop, this one has `{several[0]}` and `{several[1]}`", key=True
            )
        if several and several[0] != "loop":
            given = value[several[0]]
            if given is None:
                self.reader.expected(spot.at(several[0]), "what to go through", given)
            return several[0].removeprefix("with_"), given if given is not None else []
        return "", self._plain_loop(spot, value)

    def _plain_loop(self, spot: Spot, value: Mapping[Any, Any]) -> Any:
        if "loop" not in value:
            return None
        loop = value["loop"]
        if isinstance(loop, list) or is_template_text(loop):
            return loop
        hint = ""
        if isinstance(loop, str):
            hint = f'A variable is written "{{{{ {loop} }}}}".'
        elif isinstance(loop, dict):
            hint = 'Write `loop: "{{ the_dict | dict2items }}"`.'
        self.reader.expected(spot.at("loop"), "a list, or a template that gives one", loop, hint)
        return None

    def _loop_control(self, spot: Spot, value: Any) -> LoopControl:
        given = self.reader.mapping(spot, value)
        for key in given:
            if key not in LOOP_CONTROL:
                hint = did_you_mean(str(key), LOOP_CONTROL)
                self.reader.note(spot.at(key), f"`loop_control` has no keyword `{key}`", hint, key=True)
        names = {
            key: self.reader.variable_name(spot.at(key), given[key])
            for key in ("loop_var", "index_var")
            if given.get(key) is not None
        }
        return LoopControl(
            loop_var=names.get("loop_var") or "item",
            index_var=names.get("index_var"),
            label=given.get("label"),
            pause=self.reader.number(spot.at("pause"), given.get("pause")) or 0,
            extended=self.reader.boolean(spot.at("extended"), given.get("extended")),
            extended_allitems=self.reader.boolean(spot.at("extended_allitems"), given.get("extended_allitems")),
            break_when=(
                self.reader.conditions(spot.at("break_when"), given["break_when"]) if "break_when" in given else ()
            ),
        )
