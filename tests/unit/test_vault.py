"""Vaults: what real `ansible-vault` encrypts is opened, what is damaged or not ours is told with its place."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.vaults import encrypt, encrypt_value, password_file

from crossgrade.errors import Place, PlaybookError, WrongOptionsError
from crossgrade.playbook import secrets
from crossgrade.playbook.loader import load_variables, peek_variables
from crossgrade.playbook.positions import PlaybookErrors
from crossgrade.playbook.templating import Templar
from crossgrade.playbook.variables import Precedence, Scope
from crossgrade.playbook.vault import VaultError, decrypt, decrypt_text, read_sealed, use_passwords
from crossgrade.playbook.vault_format import VaultFormatError, is_vault, parse_envelope
from crossgrade.playbook.vault_passwords import passwords_of, vault_sources

TEXT = "token: s3cret-äöü\nnumber: 31415\nlist: [one-long-item, {deep: two-long-items}]\nmade: '{{ token }}!'\n"


@pytest.fixture(autouse=True)
def _as_in_a_new_process() -> Iterator[None]:
    yield
    use_passwords([])
    secrets.forget_all()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Password files, and one text encrypted in both formats."""
    made = tmp_path_factory.mktemp("vaults")
    password_file(made)
    password_file(made, "another one", "other")
    (made / "old").write_text(encrypt(TEXT, made / "password"), encoding="utf-8")
    (made / "new").write_text(encrypt(TEXT, made / "password", "prod"), encoding="utf-8")
    (made / "binary").write_text(encrypt(bytes(range(256)) * 3, made / "password"), encoding="utf-8")
    (made / "value.yml").write_text(encrypt_value("inline {{ 1 + 1 }}", "x", made / "password"), encoding="utf-8")
    return made


def use(*files: Path, ids: tuple[str, ...] = ()) -> None:
    use_passwords(passwords_of(vault_sources([str(file) for file in files], ids, ask=False), {}))


@pytest.mark.parametrize("name", ["old", "new"])
def test_both_formats_are_opened(folder: Path, name: str) -> None:
    use(folder / "other", folder / "password")
    assert decrypt_text((folder / name).read_text()) == TEXT
    values = load_variables(folder / name).values
    assert values["number"] == 31415
    assert Templar(Scope().with_layer(Precedence.PLAY_VARS, values)).template("{{ made }}") == "s3cret-äöü!"


def test_the_label_chooses_the_password_that_is_tried_first(folder: Path, tmp_path: Path) -> None:
    assert parse_envelope((folder / "new").read_text()).label == "prod"
    use(ids=(f"dev@{tmp_path / 'not there'}", f"prod@{folder / 'password'}"))
    assert decrypt_text((folder / "new").read_text()) == TEXT  # the other is not even looked for
    use(ids=(f"prod@{folder / 'other'}", f"dev@{folder / 'password'}"))
    assert decrypt_text((folder / "new").read_text()) == TEXT  # a label is a hint, as in Ansible


def test_a_binary_file_is_opened_byte_by_byte(folder: Path) -> None:
    use(folder / "password")
    assert read_sealed(folder / "binary") == bytes(range(256)) * 3
    assert read_sealed(folder / "password") is None
    assert not is_vault((folder / "password").read_bytes())


def test_a_value_is_text_in_which_no_template_is_expanded(folder: Path) -> None:
    use(folder / "password")
    values = load_variables(folder / "value.yml").values
    assert Templar(Scope().with_layer(Precedence.PLAY_VARS, values)).template("{{ x }}") == "inline {{ 1 + 1 }}"


def test_without_a_password_the_place_is_told(folder: Path) -> None:
    with pytest.raises(VaultError, match="no password is given") as caught:
        load_variables(folder / "new")
    assert caught.value.place == Place(str(folder / "new"), 1, 1)
    assert "prod" in str(caught.value)
    assert "--vault-password-file" in caught.value.remedy
    with pytest.raises(PlaybookErrors, match="no password is given") as errors:
        load_variables(folder / "value.yml")
    assert errors.value.errors[0].place == Place(str(folder / "value.yml"), 1, 4)
    assert "x: !vault |" in errors.value.errors[0].excerpt
    assert int(errors.value.exit_code) == 4


def test_with_a_wrong_password_its_origin_is_told(folder: Path) -> None:
    use(folder / "other")
    with pytest.raises(VaultError, match=r"no given password opens it: .*other") as caught:
        load_variables(folder / "old")
    assert "another one" not in str(caught.value)
    assert repr(caught.value).count("another one") == 0


def test_every_changed_digit_is_noticed(folder: Path) -> None:
    """The HMAC covers the ciphertext; a changed salt or HMAC does not fit either."""
    use(folder / "password")
    head, *lines = (folder / "old").read_text().splitlines()
    for number in range(0, len(lines), 2):
        line = lines[number]
        changed = [*lines]
        changed[number] = line[:10] + ("3" if line[10] != "3" else "2") + line[11:]
        with pytest.raises(VaultError):
            decrypt("\n".join([head, *changed]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("1.1", "1.0"), "format 1.0 is not supported"),
        (lambda text: text.replace("AES256", "AES"), "the cipher AES is not supported"),
        (lambda text: text.partition("\n")[0], "part of it is missing"),
        (lambda text: text[: len(text) // 3], "missing|hex digits"),
        (lambda text: text + "zz", "no hex digits"),
        (lambda text: text.replace(text.splitlines()[1] + "\n", ""), "no hex digits|missing|opens it"),
        (lambda text: "$ANSIBLE_VAULT;1.1\n" + text.partition("\n")[2], "first line"),
    ],
)
def test_a_damaged_text_is_told(folder: Path, change: object, message: str) -> None:
    use(folder / "password")
    assert callable(change)
    damaged = change((folder / "old").read_text())
    with pytest.raises(VaultError, match=message) as caught:
        decrypt(damaged, Place("f", 3, 2))
    assert caught.value.place == Place("f", 3, 2)


def test_line_ends_and_spaces_do_not_matter(folder: Path) -> None:
    use(folder / "password")
    text = (folder / "old").read_text()
    assert decrypt_text("\r\n".join(text.splitlines()) + "\r\n\r\n") == TEXT
    assert decrypt_text("\n".join(f"   {line}  " for line in text.splitlines()).strip()) == TEXT


def test_errors_in_an_encrypted_file_show_nothing_of_it(folder: Path, tmp_path: Path) -> None:
    use(folder / "password")
    for text in (
        *("a: hidden-word: b\n", "a: 'hidden-word\n", "a: &x hidden-word\nb: *hidden-word\n", "- hidden-word\n"),
        *("a: {{ hidden-word }}\n", "a:\thidden-word\nb: 'hidden-word' x\n", "hidden-word: 1\nhidden-word: 2\n"),
        *("a: b\n  c: hidden-word\nd: @hidden-word\n", "a: {{ hidden-word }}/x\n", "a: !hidden-word x\n"),
    ):
        (tmp_path / "v.yml").write_text(encrypt(text, folder / "password"))
        with pytest.raises(PlaybookError) as caught:
            load_variables(tmp_path / "v.yml")
        assert "hidden-word" not in str(secrets.masked(str(caught.value)))
        assert "v.yml:" in str(caught.value)


def test_values_are_opened_beside_mistakes(folder: Path, tmp_path: Path) -> None:
    """Each mistake of the file is told, and nothing of a value that could be opened."""
    use(folder / "password")
    value = (folder / "value.yml").read_text()
    (tmp_path / "v.yml").write_text(f"{value}a: @1\nb: 'c' d\nx: 3\n")
    with pytest.raises(PlaybookErrors) as caught:
        load_variables(tmp_path / "v.yml")
    lines = value.count("\n")
    assert [error.place.line - lines for error in caught.value.errors if error.place] == [1, 2, 3]
    assert "inline" not in str(caught.value)


def test_a_damaged_value_is_told_once(folder: Path, tmp_path: Path) -> None:
    use(folder / "password")
    value = (folder / "value.yml").read_text().splitlines()
    (tmp_path / "v.yml").write_text("\n".join([*value[:3], *value[4:], "a: @1", ""]))
    with pytest.raises(PlaybookErrors) as caught:
        load_variables(tmp_path / "v.yml")
    assert [error.place.line for error in caught.value.errors if error.place] == [1, len(value)]


def test_a_peek_needs_no_password(folder: Path, tmp_path: Path) -> None:
    value = (folder / "value.yml").read_text().replace("\n", "\n    ")
    (tmp_path / "p.yml").write_text(f"- hosts: all\n  vars:\n    crossgrade_root: /there\n    {value}\n")
    assert peek_variables(tmp_path / "p.yml")["crossgrade_root"] == "/there"


def test_passwords_come_from_programs_too(folder: Path, tmp_path: Path) -> None:
    for name in ("plain", "keys-client.py"):
        (tmp_path / name).write_text('#!/bin/sh\ntest "$1$2" = "$WANTED" && echo hunter2\n')
        (tmp_path / name).chmod(0o755)
    sealed = (folder / "new").read_text()
    for wanted, source in (("", f"{tmp_path / 'plain'}"), ("--vault-idprod", f"prod@{tmp_path / 'keys-client.py'}")):
        environment = {"WANTED": wanted, "PATH": "/usr/bin:/bin"}
        use_passwords(passwords_of(vault_sources([], [source], ask=False), environment))
        assert decrypt_text(sealed) == TEXT
    use_passwords(passwords_of(vault_sources([str(tmp_path / "plain")], [], ask=False), {"WANTED": "no"}))
    with pytest.raises(WrongOptionsError, match=r"program .*plain failed: exit code 1"):
        decrypt(sealed)


def test_ansibles_variables_name_passwords(folder: Path) -> None:
    sealed = (folder / "new").read_text()
    for environment in (
        {"ANSIBLE_VAULT_PASSWORD_FILE": str(folder / "password")},
        {"ANSIBLE_VAULT_IDENTITY_LIST": f"dev@{folder / 'other'}, prod@{folder / 'password'}"},
    ):
        use_passwords(passwords_of([], environment))
        assert decrypt_text(sealed) == TEXT


@pytest.mark.parametrize(
    ("source", "message"),
    [("nothing", "is not there"), (".", "is not there"), ("empty", "is empty"), ("runs", "cannot be run|failed")],
)
def test_passwords_that_cannot_be_had(folder: Path, tmp_path: Path, source: str, message: str) -> None:
    (tmp_path / "empty").write_text(" \n")
    (tmp_path / "runs").write_text("no program\n")
    (tmp_path / "runs").chmod(0o755)
    use(tmp_path / source)
    with pytest.raises(WrongOptionsError, match=message):
        decrypt((folder / "old").read_text())


def test_cryptography_is_loaded_only_for_a_vault_that_opens(folder: Path) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom crossgrade.playbook.loader import load_variables\n"
        "from crossgrade.playbook.vault import use_passwords, VaultError\n"
        "from crossgrade.playbook.vault_passwords import passwords_of, vault_sources\n"
        "use_passwords(passwords_of(vault_sources([sys.argv[2]], [], ask=False), {}))\n"
        "try:\n    load_variables(Path(sys.argv[1]))\nexcept VaultError:\n    pass\n"
        "print('cryptography' in sys.modules)\n"
    )
    for password, loaded in (("other", "False"), ("password", "True")):
        argv = [sys.executable, "-c", program, str(folder / "old"), str(folder / password)]
        assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip() == loaded


def test_secrets_are_masked_where_they_are_whole(folder: Path) -> None:
    use(folder / "password")
    load_variables(folder / "new")
    said = {"a": "x s3cret-äöü y", "b": ["one-long-items", 31415, 314159], "c": ("two-long-items",), "d": "s3cre"}
    assert secrets.masked(said) == {"a": "x *** y", "b": ["***s", "***", 314159], "c": ("***",), "d": "s3cre"}
    assert secrets.holds_secret({"x": ["s3cret-äöü"]})
    assert not secrets.holds_secret("nothing")


def test_how_secrets_are_written_elsewhere_is_masked_too() -> None:
    secrets.learn('it\'s "quoted"\nand has lines')
    for text in ('it\'s "quoted"\nand has lines', 'it\'s \\"quoted\\"\\nand has lines', "- and has lines"):
        assert "lines" not in secrets.masked(text)
    secrets.learn({"short": "abcd", "word": "present", "yes": True, "pin": 12, "two": "ab", "number": 70000})
    assert secrets.masked("abcd abcde present 12 ab 70000 'abcd'") == "*** abcde present 12 ab *** '***'"
    secrets.learn("a-password with-several-long-words")
    assert secrets.masked("run 'a-password' 'with-several-long-words'") == "run 'a-password' '***'"


def test_of_an_encrypted_playbook_only_names_and_the_like_are_told() -> None:
    tasks = [
        {"name": "Install the key", "copy": {"content": "the-content-of-it", "dest": "/etc/x"}, "vars": {"a": "four"}}
    ]
    secrets.learn_document(tasks)
    assert secrets.masked("Install the key: the-content-of-it four") == "Install the key: *** ***"


def test_without_secrets_nothing_is_copied() -> None:
    said = {"a": ["b"]}
    assert secrets.masked(said) is said


@pytest.mark.parametrize(
    "text", ["", "$ANSIBLE_VAULT;", "$ANSIBLE_VAULT;1.1;AES256\n" + "00" * 100, "$ANSIBLE_VAULT;;;\n\n"]
)
def test_only_typed_errors_come_out(text: str) -> None:
    with pytest.raises(VaultFormatError):
        parse_envelope(text)


def test_inner_parts_of_a_wrong_length_are_refused() -> None:
    inner = b"00\n" + b"ab" * 31 + b"\n" + b"cd" * 16
    with pytest.raises(VaultFormatError, match=re.compile("wrong length")):
        parse_envelope("$ANSIBLE_VAULT;1.1;AES256\n" + inner.hex())
