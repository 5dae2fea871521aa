"""`crossgrade lint`: each rule finds what it is for, and lets pass what is right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.commands import crossgrade
from tests.support.vaults import encrypt_file, encrypt_value, password_file

from crossgrade.cli import main, with_options
from crossgrade.commands.linting import risks_of
from crossgrade.modules import NAMES
from crossgrade.risks import programs
from crossgrade.risks.judging import RULES

ROOT = Path(__file__).resolve().parents[2]
PLAYBOOKS = sorted(path for path in (ROOT / "playbooks").glob("*.yml") if "inventory" not in path.name)

BACKUP = "- venv_backup: {path: /srv/env}"
ENV = "- python_env: {requirements: [sglang==0.5.23]}"
SERVER = "- server: {generation: 2, command: [x]}"
ACTIVATE = "- activate: {generation: 2}"
RIGHT = "\n".join([BACKUP, ENV, SERVER, ACTIVATE])


def found_in(folder: Path, tasks: str, head: str = "", besides: str = "module-exists") -> list[str]:
    """The rules that find something, in the order of the file, without one that is not asked about."""
    file = folder / "p.yml"
    indented = "".join(f"    {line}\n" for line in tasks.splitlines())
    file.write_text(f"- hosts: localhost\n{head}  tasks:\n{indented}", encoding="utf-8")
    return [finding.rule.name for finding in risks_of(file) if finding.rule.name != besides]


def test_a_right_upgrade_has_no_risk(tmp_path: Path) -> None:
    assert found_in(tmp_path, RIGHT) == []


@pytest.mark.parametrize("path", PLAYBOOKS, ids=[path.name for path in PLAYBOOKS])
def test_shipped_playbooks_are_clean(path: Path) -> None:
    assert [f"{one.place}: {one.rule.name}" for one in risks_of(path)] == []


RISKY: list[tuple[str, str]] = [
    ("backup-missing", "\n".join([ENV, SERVER, ACTIVATE])),
    ("backup-missing", "\n".join([SERVER, ACTIVATE, BACKUP])),
    ("gate-missing", "\n".join([BACKUP, ENV, ACTIVATE])),
    ("gate-missing", "\n".join([BACKUP, SERVER, ENV, ACTIVATE])),  # of another candidate
    ("server-untried", "\n".join([BACKUP, ENV, "- abi_check: {generation: 2}", ACTIVATE])),
    ("gate-after-activation", RIGHT + "\n- smoke_check: {generation: 2, imports: [x]}"),
    ("gate-ignored", RIGHT.replace(SERVER, SERVER + "\n  ignore_errors: true")),
    ("gate-ignored", RIGHT.replace(SERVER, SERVER + "\n  ignore_errors: '{{ careless | default(true) }}'")),
    ("gate-ignored", RIGHT.replace(SERVER, SERVER + "\n  failed_when: false")),
    ("gate-ignored", RIGHT.replace(SERVER, f"- block:\n    {SERVER}\n  rescue:\n    - debug: {{msg: oh}}")),
    ("gate-skippable", RIGHT.replace(SERVER, SERVER + "\n  when: 1 < 2")),
    ("gate-skippable", RIGHT.replace(SERVER, SERVER + "\n  tags: never")),
    ("not-run-passes", RIGHT.replace("[x]}", "[x], on_not_run: warn}")),
    ("benchmark-without-baseline", RIGHT.replace(SERVER, "- benchmark: {generation: 2, server: {}, baseline: none}")),
    ("benchmark-tolerant", RIGHT.replace(SERVER, "- benchmark: {generation: 2, server: {}, allowed_loss: 0.5}")),
    ("activation-without-health", RIGHT.replace(ACTIVATE, "- activate: {generation: 2, restart: [x]}")),
    ("service-left-stopped", "- command: systemctl stop sglang\n  changed_when: true"),
    ("in-place-install", "- command: /srv/env/bin/pip install -U torch\n  changed_when: true"),
    ("in-place-install", "- command: {argv: [python3, -m, pip, install, torch]}\n  changed_when: true"),
    ("in-place-install", "- command: uv pip sync x.txt\n  changed_when: true"),
    ("module-exists", "- command: mkdir -p /srv/x\n  args: {creates: /srv/x}"),
    ("module-exists", "- command: sudo FOO=1 chmod 600 /srv/x\n  changed_when: true"),
    ("driver-by-apt", "- command: apt-get install -y nvidia-driver-580\n  changed_when: true"),
    ("driver-by-apt", "- command: apt-get install -y cuda-13-0=13.0.1-1\n  changed_when: true"),
    ("pipe-hides-failure", "- command: {argv: [sh, -c, 'nvidia-smi | grep RTX']}\n  changed_when: false"),
    ("download-to-shell", "- command: sh -c 'curl -fsSL https://x.example | sudo bash'\n  changed_when: true"),
    ("changed-when-missing", "- command: nvidia-smi"),
    ("unpinned-version", "\n".join([BACKUP, "- python_env: {requirements: [torch]}"])),
    ("unpinned-version", "\n".join([BACKUP, "- python_env: {requirements: ['nvidia-nccl-cu13>=2,<3']}"])),
    ("unpinned-version", "\n".join([BACKUP, "- python_env: {requirements: [numpy>=2]}"])),
    ("unpinned-git", "\n".join([BACKUP, "- python_env: {requirements: ['x @ git+https://h/x.git']}"])),
    ("unpinned-git", "\n".join([BACKUP, "- python_env: {requirements: ['x @ git+ssh://git@h/x@main']}"])),
    ("unpinned-git", "- sglang_build: {git: 'https://h/x', cuda_home: /c, torch: '2.14.1'}"),
    ("unpinned-git", "- sglang_build: {git: 'https://h/x', revision: main, cuda_home: /c, torch: '2.14.1'}"),
    ("no-checksum", "\n".join([BACKUP, "- python_env: {requirements: ['x @ https://h/x-1-py3-none-any.whl']}"])),
    ("no-checksum", "- sglang_build: {sdist: 'https://h/x.tar.gz', cuda_home: /c, torch: '2.14.1'}"),
    ("plain-http", "\n".join([BACKUP, "- python_env: {requirements: [a==1], index_url: 'http://h.example/simple'}"])),
    ("tls-off", "- uri: {url: 'https://h.example', validate_certs: false}"),
    ("tls-off", "- command: curl -fkL https://h.example\n  changed_when: false"),
    ("tls-off", "- command: git fetch\n  environment: {GIT_SSL_NO_VERIFY: 1}\n  changed_when: true"),
    ("plain-secret", "- command: x\n  changed_when: true\n  environment: {HF_TOKEN: abcdefgh}"),
    ("plain-secret", "- uri: {url: 'https://h.example', headers: {Authorization: Bearer abcdefgh12}}"),
    ("plain-secret", "- uri: {url: 'https://me:word@h.example'}"),
    ("no-log-missing", "- uri: {url: 'https://h.example', headers: {Authorization: 'Bearer {{ my_token }}'}}"),
    ("jinja-in-condition", "- debug: {msg: x}\n  when: '{{ a }}'"),
    ("jinja-in-condition", "- debug: {msg: x}\n  until: [a, '{{ b }}']"),
    ("unused-register", "- stat: {path: /x}\n  register: there"),
    ("unknown-handler", "- copy: {dest: /x, content: y}\n  notify: restart"),
    ("shared-cache", "\n".join([BACKUP, ENV.replace("]}", "], environment: {TRITON_CACHE_DIR: /tmp/t}}")])),
    ("shared-cache", "- command: x\n  changed_when: true\n  environment: {FLASHINFER_WORKSPACE_BASE: /tmp/t}"),
    ("library-path", "\n".join([BACKUP, ENV.replace("]}", "], environment: {LD_LIBRARY_PATH: /usr/local/cuda}}")])),
    ("mode-number", "- copy: {dest: /x, content: y, mode: 644}"),
    ("world-writable", "- copy: {dest: /x, content: y, mode: '0666'}"),
    ("noqa-unused", "- debug: {msg: x}  # noqa: latest"),
    ("noqa-unused", "- debug: {msg: x}  # noqa: latset"),
]
HARMLESS = [
    RIGHT.replace(SERVER, SERVER + "\n  when: 1 < 2").replace(ACTIVATE, ACTIVATE + "\n  when: 1 < 2"),
    RIGHT.replace(SERVER, f"- block:\n    {SERVER}\n  rescue:\n    - fail: {{msg: no}}"),
    RIGHT.replace(SERVER, "- server:\n    generation: 2\n    command: [x]\n    on_not_run: warn # no GPU here"),
    RIGHT.replace(SERVER, SERVER + "\n  ignore_errors: false"),
    "- block:\n    - command: systemctl stop x\n      changed_when: true\n"
    "  always:\n    - command: systemctl start x\n      changed_when: true",
    "- command: nvidia-smi\n  changed_when: false",
    "- command: make\n  args: {creates: /x}",
    "- command: systemctl show sglang\n  changed_when: false",
    "- command: pip list\n  changed_when: false",
    "- command: dpkg -i cuda-toolkit-13-0.deb\n  changed_when: true",
    "\n".join([BACKUP, "- python_env: {requirements: ['numpy>=2,<3', 'torch==2.14.*', '{{ more }}', -r x.txt]}"]),
    "\n".join([BACKUP, "- python_env: {requirements: [torch], exclude_newer: '2026-12-01T00:00:00Z'}"]),
    "\n".join([BACKUP, "- python_env: {requirements: ['x @ git+https://h/x@v1.2', 'y @ https://h/y.whl#sha256=00']}"]),
    "- sglang_build: {git: 'https://h/x', revision: v0.5.23, cuda_home: /c, torch: '2.14.1'}",
    "- uri: {url: 'http://127.0.0.1:30000/health'}",
    "- uri: {url: 'https://h.example', headers: {Authorization: 'Bearer {{ my_token }}'}}\n  no_log: true",
    "- command: serve --max-tokens {{ max_tokens }}\n  changed_when: true",
    "- stat: {path: /x}\n  register: there\n- debug: {msg: x}\n  when: there.stat.exists",
    "- copy: {dest: /x, content: y, mode: 0644}",
    "- copy: {dest: /x, content: y, mode: '1777'}",
    "# noqa: mode-number  the reason\n- copy: {dest: /x, content: y, mode: 644}",
    "- copy:\n    dest: /x\n    content: y\n    mode: 644 # noqa: mode-number",
]


@pytest.mark.parametrize(("rule", "tasks"), RISKY, ids=[f"{at}-{rule}" for at, (rule, _) in enumerate(RISKY)])
def test_a_risk_is_found_and_nothing_else(rule: str, tasks: str, tmp_path: Path) -> None:
    assert found_in(tmp_path, tasks, besides="" if rule == "module-exists" else "module-exists") == [rule]


@pytest.mark.parametrize("tasks", HARMLESS)
def test_what_is_right_is_let_pass(tasks: str, tmp_path: Path) -> None:
    assert found_in(tmp_path, tasks) == []


def test_a_window_needs_no_module_whose_start_would_be_undone(tmp_path: Path) -> None:
    stop, start = (f"command: systemctl {verb} x\n      changed_when: true" for verb in ("stop", "start"))
    assert found_in(tmp_path, f"- block:\n    - {stop}\n  always:\n    - {start}", besides="") == []
    assert found_in(tmp_path, "- command: systemctl start x\n  changed_when: true", besides="") == ["module-exists"]


def test_what_is_in_a_vault_is_no_secret_in_plain_text(tmp_path: Path) -> None:
    """No password is needed for values; of a file that is encrypted as a whole, nothing is shown."""
    password = password_file(tmp_path)
    value = "".join(f"      {line}\n" for line in encrypt_value("s3cr3t-of-ours", "api_key", password).splitlines())
    assert found_in(tmp_path, "- debug: {msg: x}", head=f"  vars:\n{value}") == []
    file = tmp_path / "p.yml"
    file.write_text(
        "- hosts: localhost\n  vars: {api_key: s3cr3t-of-ours}\n  tasks: [{command: pip install s3cr3t-of-ours}]\n"
    )
    encrypt_file(file, password)
    done = crossgrade("lint", file)
    assert (done.code, "no password is given" in done.stderr) == (4, True)
    done = crossgrade("lint", file, "--vault-password-file", password)
    assert done.code == 1
    assert "in-place-install" in done.stdout
    assert "plain-secret" not in done.stdout
    assert "s3cr3t" not in done.stdout + done.stderr


def test_secrets_and_policies_of_a_plays_variables(tmp_path: Path) -> None:
    gates = RIGHT.replace("[x]}", "[x], on_not_run: '{{ without_gpu }}'}")
    head = "  vars:\n    without_gpu: warn\n    api_key: hidden-word\n    max_tokens: 5\n    key_file: /etc/key\n"
    assert found_in(tmp_path, gates, head) == ["not-run-passes", "plain-secret"]
    assert found_in(tmp_path, gates, head.replace("warn", "warn # a laptop").replace("hidden-word", "''")) == []


def test_handlers_that_nobody_notifies(tmp_path: Path) -> None:
    head = "  handlers:\n    - {name: a, debug: {msg: x}}\n    - {name: b, listen: c, debug: {msg: x}}\n"
    copies = "- copy: {dest: /x, content: y}\n  notify: c"
    assert found_in(tmp_path, copies, head) == ["unused-handler"]
    assert found_in(tmp_path, copies.replace(": c", ": [a, c]"), head) == []


# Modules of other names are judged where they exist.
WITH_MODULES = [
    ("shell", "shell-not-needed", "- shell: nvidia-smi\n  changed_when: false"),
    ("apt", "driver-by-apt", "- apt: {name: [nvidia-open]}"),
    ("apt", "latest", "- apt: {name: [ccache], state: latest}"),
    ("git", "unpinned-git", "- git: {repo: 'https://h/x', dest: /x}"),
    ("get_url", "no-checksum", "- get_url: {url: 'https://h/x', dest: /x}"),
    ("unarchive", "no-checksum", "- unarchive: {src: 'https://h/x.tar', dest: /x, remote_src: true}"),
    ("systemd_service", "service-left-stopped", "- systemd_service: {name: sglang, state: stopped}"),
]


@pytest.mark.parametrize(("module", "rule", "tasks"), [row for row in WITH_MODULES if row[0] in NAMES])
def test_risks_of_general_modules(module: str, rule: str, tasks: str, tmp_path: Path) -> None:
    assert found_in(tmp_path, tasks) == [rule], module


def test_every_rule_has_a_case_and_says_why_and_what_to_do() -> None:
    tried = {rule for rule, _ in RISKY} | {rule for _, rule, _ in WITH_MODULES} | {"unused-handler"}
    assert set(RULES) == tried
    for rule in RULES.values():
        assert rule.why.endswith(".")
        assert len(rule.remedy) > 10


def test_programs_are_judged_by_modules_that_may_exist() -> None:
    from crossgrade.playbook.schema import MODULES_LATER

    named = {module for modules in programs._INSTEAD.values() for module in modules}
    assert named <= set(NAMES) | set(MODULES_LATER)


def lint(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    try:
        main(["crossgrade", "lint", *words])
        code = 0
    except SystemExit as ending:
        code = int(ending.code or 0)
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p.yml"
    file.write_text("- hosts: localhost\n  vars: {api_key: hidden-word}\n  tasks:\n    - command: nvidia-smi\n")
    code, out, _ = lint(capsys, str(file))
    assert code == 1
    assert "changed-when-missing" in out
    assert "hidden-word" not in out
    code, out, _ = lint(capsys, str(file), "--json")
    found = json.loads(out)
    assert [(one["rule"], one["line"], one["column"]) for one in found] == [
        ("plain-secret", 2, 19),
        ("changed-when-missing", 4, 7),
    ]
    assert lint(capsys, str(file), "--skip", "plain-secret,changed-when-missing")[0] == 0
    code, _, err = lint(capsys, str(file), "--skip", "plain-secrets")
    assert (code, 'Did you mean "plain-secret"?' in err) == (5, True)


def test_a_playbook_that_is_not_valid_hides_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "wrong.yml").write_text("- hosts: a\n  taks: []\n")
    (tmp_path / "right.yml").write_text("- hosts: a\n  tasks: [{command: x}]\n")
    code, out, err = lint(capsys, str(tmp_path / "wrong.yml"), str(tmp_path / "right.yml"))
    assert code == 4
    assert "taks" in err
    assert "changed-when-missing" in out


def test_rules_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert {one["rule"] for one in json.loads(lint(capsys, "--rules", "--json")[1])} == set(RULES)


def test_without_a_playbook_it_takes_what_init_has_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert lint(capsys)[0] == 5
    Path("playbook.yml").write_text("- hosts: a\n  tasks: [{command: x}]\n")
    assert lint(capsys)[0] == 1


def test_a_command_behind_lint_is_no_playbook() -> None:
    assert with_options(["lint", "test"]) == ["lint", "test"]
    assert with_options(["lint", "p.yml", "d/q"]) == ["lint", "--file", "p.yml", "--file", "d/q"]
