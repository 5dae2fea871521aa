"""YAML text to plain data with positions: strict, bounded, and with explanations that people need.

It works on the parser's events, so that a bad file is refused before it has been built: too large, too deep,
aliases that multiply. What `ansible-vault` has encrypted, a file or a value, is opened on the way.

Types are those of YAML 1.1 as PyYAML's SafeLoader and Ansible have them (`yes` is true), with two differences: a
date stays text, and `!unsafe` gives text in which templates are not expanded.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from crossgrade.errors import Place, PlaybookError
from crossgrade.playbook.explain import explain_syntax_error, looks_like_unquoted_template, quoted_template
from crossgrade.playbook.positions import (
    Node,
    PlaybookErrors,
    PlaybookProblem,
    SealedText,
    Source,
    excerpt_of,
    lines_of,
)
from crossgrade.playbook.recovery import Reading, Recovery
from crossgrade.playbook.vault_format import is_vault

MAX_BYTES = 5_000_000
MAX_DEPTH = 100
MAX_VALUES = 300_000
MAX_PROBLEMS = 50  # more would not be read
MAX_MISTAKES = 20  # of syntax: after each, the file is read again
LARGEST_MENDED = 200_000  # characters: a larger file is not read again and again

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_VAULT_TAGS = ("!vault", "!vault-encrypted")
_SEALED_AND_WRONG = "not valid YAML; the file is encrypted, so nothing of it is shown"
_MERGE = object()  # the value of the plain key `<<`


class UnsafeText(str):
    """Text marked `!unsafe`: templates in it are not expanded."""

    __slots__ = ()


class _Frame:
    """A collection that is being read."""

    __slots__ = ("anchor", "key", "merged", "node")

    def __init__(self, node: Node, anchor: str | None) -> None:
        self.node = node
        self.anchor = anchor
        self.key: Node | None = None
        self.merged: list[Node] = []


def read_text(file: Path) -> str:
    """The text of a YAML file, opened when it is encrypted (SealedText then).

    Raises PlaybookError when it cannot be read, is too large, is not UTF-8 or cannot be opened.
    """
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise PlaybookError(
            f"{file}: cannot be read: {error.strerror or error}", remedy="Check the path and its permissions."
        ) from error
    if len(data) > MAX_BYTES:
        raise PlaybookError(
            f"{file}: larger than {MAX_BYTES // 1_000_000} MB",
            remedy="A file of variables or tasks is never that large: is it the right one?",
        )
    if is_vault(data):
        from crossgrade.playbook.vault import decrypt_text

        return SealedText(decrypt_text(data.decode("ascii", "replace"), Place(str(file), 1, 1)).removeprefix("\ufeff"))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        raise PlaybookError(
            "this byte is not UTF-8 text",
            remedy="Save the file as UTF-8.",
            place=Place(str(file), line, column),
        ) from error


def parse_yaml(text: str, file: str, *, keep_sealed: bool = False) -> Source:
    """All values of one YAML document, with their positions. An empty document has the value None.

    `keep_sealed` leaves values under `!vault` as they are, for who does not need them.
    Raises PlaybookErrors with all that is wrong.
    """
    if len(text) > MAX_BYTES:
        raise PlaybookError(f"{file}: larger than {MAX_BYTES // 1_000_000} MB", remedy="Is it the right file?")
    reading = read_yaml(text, file, keep_sealed=keep_sealed)
    if reading.source is None or reading.problems:
        raise PlaybookErrors(reading.problems)
    return reading.source


def read_yaml(text: str, file: str, *, keep_sealed: bool = False) -> Reading:
    """Read a text to its end, past its mistakes. It raises nothing for a wrong text.

    A line whose mistake is certain is read as it was meant; any other mistake is left out with what stands below it.
    Of a file that is encrypted as a whole only the first mistake of syntax is told, and not by its own words.
    """
    lines = Recovery(lines_of(text))
    problems: list[PlaybookProblem] = []
    sealed = isinstance(text, SealedText)
    opened: dict[str, str] = {}
    meant = text
    for _ in range(MAX_MISTAKES if len(text) <= LARGEST_MENDED else 1):
        composer = _Composer(meant, file, text, None if keep_sealed else opened)
        try:
            root = composer.run()
        except yaml.YAMLError as error:
            explained = explain_syntax_error(error, meant, file, text)
            at = (explained.problem.place.line if explained.problem.place else 1) - 1
            if sealed:
                lines.silent.add(at)
                problems.append(PlaybookProblem(_SEALED_AND_WRONG, place=explained.problem.place))
                break
            if at not in lines.silent and at not in lines.mended:
                problems.append(explained.problem)
            if not (lines.mend(explained.mended) or lines.leave_out(at)):
                break
            meant = lines.text
        else:
            if sealed:
                from crossgrade.playbook import secrets

                secrets.learn_document(root.value)
            return lines.reading(Source(file, text, root), problems, composer.problems)
    return lines.reading(None, problems, composer.problems)


class _Stop(Exception):  # noqa: N818 - it ends the reading; the problem that caused it is already noted
    pass


class _Composer:
    """Reads `text`, and shows the lines of `written`, from which it was made.

    `opened` keeps what was decrypted, by what it was decrypted from; with None, it stays as it is.
    """

    def __init__(self, text: str, file: str, written: str, opened: dict[str, str] | None) -> None:
        self.text = text
        self.written = written
        self.sealed = isinstance(written, SealedText)
        self.opened = opened
        self.file = file
        self.problems: list[PlaybookProblem] = []
        self.stack: list[_Frame] = []
        self.anchors: dict[str, Node | None] = {}  # None while the anchored value is still being read
        self.values = 0
        self.root: Node | None = None
        self.documents = 0
        self.resolved: dict[str, Any] = {}

    def problem(self, line: int, column: int, message: str, remedy: str = "") -> None:
        if self.sealed:  # what a message quotes could be a secret
            message = re.sub(r'"[^"]*"', '"…"', message)
        self.problems.append(
            PlaybookProblem(
                message,
                remedy=remedy,
                place=Place(self.file, line + 1, column + 1),
                excerpt=excerpt_of(self.written, line + 1, column + 1),
            )
        )
        if len(self.problems) >= MAX_PROBLEMS:
            raise _Stop

    def run(self) -> Node:
        # ReaderError (a control character) can be raised here already
        self.loader = _Loader(str(self.text))  # it takes no subclass
        try:
            self._read()
        except _Stop:
            pass
        finally:
            self.loader.dispose()
        return self.root if self.root is not None else Node(0, 0, None)

    def _read(self) -> None:
        get_event = self.loader.get_event
        while True:
            event = get_event()
            kind = type(event)
            if kind is yaml.ScalarEvent:
                self._scalar(event)
            elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
                self._open(event, mapping=kind is yaml.MappingStartEvent)
            elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
                self._close()
            elif kind is yaml.AliasEvent:
                self._alias(event)
            elif kind is yaml.DocumentStartEvent:
                self.documents += 1
                if self.documents > 1:
                    mark = event.start_mark
                    self.problem(
                        mark.line,
                        mark.column,
                        "a second YAML document starts here",
                        "Write one document per file.",
                    )
                    return
            elif kind is yaml.StreamEndEvent:
                return

    def _count(self, mark: Any, values: int) -> None:
        self.values += values
        if self.values > MAX_VALUES:
            self.problem(
                mark.line,
                mark.column,
                f"more than {MAX_VALUES} values, counting each alias as often as it is used",
                "A playbook is never that large: is it the right file?",
            )
            raise _Stop

    def _open(self, event: Any, *, mapping: bool) -> None:
        mark = event.start_mark
        self._count(mark, 1)
        if len(self.stack) >= MAX_DEPTH:
            self.problem(mark.line, mark.column, f"nested more than {MAX_DEPTH} deep", "Is it the right file?")
            raise _Stop
        node = Node(mark.line, mark.column, {} if mapping else [])
        if mapping:
            node.entries = {}
        else:
            node.items = []
        tag = event.tag
        if tag is not None and tag not in (_TAG + "map", _TAG + "seq", "!"):
            self._wrong_tag(mark, tag)
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        self.stack.append(_Frame(node, event.anchor))

    def _close(self) -> None:
        frame = self.stack.pop()
        if frame.merged:
            _merge(frame)
        if frame.anchor is not None:
            self.anchors[frame.anchor] = frame.node
        self._add(frame.node)

    def _alias(self, event: Any) -> None:
        mark = event.start_mark
        node = self.anchors.get(event.anchor)
        if node is None:
            inside = event.anchor in self.anchors
            message = (
                f'the alias "*{event.anchor}" stands inside its own value'
                if inside
                else (f'there is no anchor "&{event.anchor}" above this alias')
            )
            remedy = "" if inside else "Text that starts with `*` needs quotes."
            self.problem(mark.line, mark.column, message, remedy)
            node = Node(mark.line, mark.column, None)
        self._count(mark, node.size)
        self._add(node)

    def _add(self, node: Node) -> None:
        """A value is complete: it goes to the collection that is open, or is the document itself."""
        if not self.stack:
            self.root = node
            return
        frame = self.stack[-1]
        parent = frame.node
        if parent.items is not None:
            parent.items.append(node)
            parent.value.append(node.value)
            parent.size += node.size
        elif frame.key is None:
            frame.key = node
        else:
            key, frame.key = frame.key, None
            parent.size += node.size
            self._entry(frame, key, node)

    def _entry(self, frame: _Frame, key: Node, node: Node) -> None:
        entries = frame.node.entries
        assert entries is not None  # noqa: S101 - only mappings get here; for the type checker
        if key.value is _MERGE:
            self._note_merge(frame, node)
            return
        if key.items is not None or key.entries is not None:
            if looks_like_unquoted_template(self.text, key.line, key.column):
                message, remedy = (
                    "a value that starts with `{{` is read as a mapping",
                    "Put the whole value in quotes." if self.sealed else quoted_template(self.text, key.line),
                )
            else:
                message, remedy = (
                    "a mapping or list cannot be a key",
                    "Put it in quotes if it is meant as text.",
                )
            self.problem(key.line, key.column, message, remedy)
            return
        name: Hashable = key.value
        if name in entries:
            line = entries[name][0] + 1
            self.problem(
                key.line,
                key.column,
                f'the key "{name}" is there twice, first in line {line}',
                "Remove one: which of the two would count is not obvious to a reader. Or does a new item begin here, "
                "without its `- `?",
            )
            return
        entries[name] = (key.line, key.column, node)
        frame.node.value[name] = node.value

    def _note_merge(self, frame: _Frame, node: Node) -> None:
        for part in node.items if node.items is not None else [node]:
            if part.entries is None:
                self.problem(part.line, part.column, "`<<` merges mappings, and this is none")
            else:
                frame.merged.append(part)

    def _wrong_tag(self, mark: Any, tag: str) -> None:
        shown = tag.replace(_TAG, "!!")
        hint = (
            "`!vault` stands before a text."
            if tag in _VAULT_TAGS
            else "Of YAML's tags only `!unsafe` and `!vault` are. A text that begins with `!` needs quotes."
        )
        self.problem(mark.line, mark.column, f'the tag "{shown}" is not supported', hint)

    def _opened(self, text: str, mark: Any) -> str:
        """A value that is encrypted by itself: text in which templates are not expanded, as in Ansible."""
        if self.opened is None:
            return UnsafeText(text)
        if text in self.opened:
            return UnsafeText(self.opened[text])
        from crossgrade.playbook import secrets
        from crossgrade.playbook.vault import VaultError, decrypt_text

        try:
            value = decrypt_text(text, Place(self.file, mark.line + 1, mark.column + 1))
        except VaultError as error:
            self.problem(mark.line, mark.column, error.message, error.remedy)
            return UnsafeText("")
        self.opened[text] = value
        secrets.learn(value)
        return UnsafeText(value)

    def _scalar(self, event: Any) -> None:
        mark = event.start_mark
        self._count(mark, 1)
        text: str = event.value
        value: Any = text
        if event.tag is None:
            if event.implicit[0]:
                value = self._plain(text, mark)
        elif event.tag == "!unsafe":
            value = UnsafeText(text)
        elif event.tag in _VAULT_TAGS:
            value = self._opened(text, mark)
        elif event.tag not in ("!", _TAG + "str"):
            value = self._tagged(event.tag, text, mark)
        node = Node(mark.line, mark.column, value)
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        self._add(node)

    def _plain(self, text: str, mark: Any) -> Any:
        """An unquoted scalar: YAML 1.1 decides its type by its spelling."""
        known = self.resolved.get(text, self)
        if known is not self:
            return known
        tag = self.loader.resolve(yaml.ScalarNode, text, (True, False))
        if tag == _TAG + "str":
            value: Any = text
        elif tag == _TAG + "merge":
            value = _MERGE if self._awaits_key() else text
        else:
            return self._tagged(tag, text, mark)
        if tag == _TAG + "str":
            self.resolved[text] = value
        return value

    def _awaits_key(self) -> bool:
        return bool(self.stack) and self.stack[-1].node.entries is not None and self.stack[-1].key is None

    def _tagged(self, tag: str, text: str, mark: Any) -> Any:
        node = yaml.ScalarNode(tag, text)
        try:
            if tag == _TAG + "null":
                return None
            if tag == _TAG + "bool":
                return self.loader.construct_yaml_bool(node)
            if tag == _TAG + "int":
                return self.loader.construct_yaml_int(node)
            if tag == _TAG + "float":
                return self.loader.construct_yaml_float(node)
            if tag in (_TAG + "timestamp", _TAG + "value"):
                return text
        except (ValueError, KeyError, IndexError, OverflowError):
            kind = tag.replace(_TAG, "")
            self.problem(
                mark.line,
                mark.column,
                f"this is not a valid {kind}",
                "Put it in quotes if it is meant as text.",
            )
            return text
        self._wrong_tag(mark, tag)
        return text


def _merge(frame: _Frame) -> None:
    """Put the merged mappings below the mapping's own keys; of several, the first wins (YAML 1.1)."""
    node = frame.node
    own_entries, own_values = node.entries or {}, node.value
    entries: dict[Hashable, tuple[int, int, Node]] = {}
    for part in reversed(frame.merged):
        entries.update(part.entries or {})
    entries.update(own_entries)
    node.entries = entries
    merged = {key: entry[2].value for key, entry in entries.items()}
    own_values.clear()
    own_values.update(merged)
