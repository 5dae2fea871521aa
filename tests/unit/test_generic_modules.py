"""The parts of the generic modules that need no network: what they decide, return and refuse."""

from __future__ import annotations

import os
import re
import stat as bits
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.module_host import ModuleHost, plan_module, run_module, snapshot

from crossgrade.errors import CrossgradeError, TaskError
from crossgrade.modules import assert_, command, debug, fail, set_fact, stat, uri, wait_for
from crossgrade.modules.contract import Change, Outcome, Skipped, Unchanged
from crossgrade.modules.files import expand
from crossgrade.modules.modes import current_umask, read_mode, symbolic_mode


@pytest.fixture
def host(tmp_path: Path) -> ModuleHost:
    return ModuleHost(tmp_path)


# ---- modes


@pytest.mark.parametrize(
    ("written", "read"),
    [("0644", 0o644), ("644", 0o644), ("0o755", 0o755), (0o640, 0o640), ("04755", 0o4755), (None, None)],
)
def test_octal_modes(written: Any, read: int | None) -> None:
    assert read_mode(written) == read


@pytest.mark.parametrize("written", ["0999", "u=z", "rw", "", -1, 0o10000, True, 1.5, ["0644"], "0777777"])
def test_what_is_no_mode_is_refused(written: Any) -> None:
    with pytest.raises(TaskError, match="is not a mode"):
        read_mode(written)


@pytest.mark.parametrize("directory", [False, True])
@pytest.mark.parametrize("current", [0o600, 0o755, 0o644, 0o4711, 0o1777])
@pytest.mark.parametrize(
    "text",
    ["u=rw,g=r,o=", "a+x", "+x", "-w", "go-rwx", "u+X,g=X", "g=u", "o=g-w", "u+s,g-s", "+t", "=r", "u=rwx,go=u-w"],
)
def test_symbolic_modes_are_those_of_chmod(tmp_path: Path, text: str, current: int, *, directory: bool) -> None:
    path = tmp_path / "it"
    path.mkdir() if directory else path.touch()
    if directory:
        current &= ~bits.S_ISUID  # GNU chmod keeps it for directories, against POSIX
    path.chmod(current)
    # its exit code is 1 when the umask kept `-w` from being complete; its work is done all the same
    subprocess.run(["chmod", text, str(path)], check=False, preexec_fn=lambda: os.umask(0o027))
    by_chmod = bits.S_IMODE(path.stat().st_mode)
    assert oct(symbolic_mode(text, current, directory=directory, umask=0o027)) == oct(by_chmod)


def test_the_umask_is_read_and_not_set() -> None:
    before = os.umask(0o027)
    try:
        assert current_umask() == 0o027
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)


def test_variables_and_home_are_expanded_from_the_environment_of_the_task() -> None:
    environment = {"HOME": "/home/ann", "DIR": "data", "EMPTY": ""}
    assert expand("~/x", environment) == "/home/ann/x"
    assert expand("/srv/$DIR/${DIR}${EMPTY}", environment) == "/srv/data/data"
    assert expand("$NOPE/${nope}/$", environment) == "$NOPE/${nope}/$"
    assert expand("a~b", environment) == "a~b"


# ---- command


def test_command_returns_what_ansible_returns(host: ModuleHost) -> None:
    outcome = run_module(command.MODULE, {"cmd": "printf 'one\\ntwo\\n\\n'"}, host)
    assert outcome.changed
    assert not outcome.failed
    assert outcome.values["cmd"] == ["printf", "one\\ntwo\\n\\n"]
    assert outcome.values["stdout"] == "one\ntwo"
    assert outcome.values["stdout_lines"] == ["one", "two"]
    assert (outcome.values["stderr"], outcome.values["stderr_lines"], outcome.values["rc"]) == ("", [], 0)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+", outcome.values["start"])
    assert re.fullmatch(r"0:00:\d\d\.\d+", outcome.values["delta"])


def test_command_fails_by_its_exit_code(host: ModuleHost) -> None:
    program = "import sys; print('so far'); sys.exit('no room left')"
    outcome = run_module(command.MODULE, {"argv": [sys.executable, "-c", program]}, host)
    assert outcome.failed
    assert outcome.values["rc"] == 1
    assert outcome.values["msg"] == "non-zero return code"
    assert outcome.values["stdout"] == "so far"
    assert "exit code 1" in outcome.message
    assert "no room left" in outcome.message


def test_command_has_no_shell(host: ModuleHost, tmp_path: Path) -> None:
    outcome = run_module(command.MODULE, {"cmd": f"echo a > {tmp_path}/out ; echo *"}, host)
    assert outcome.values["stdout"] == f"a > {tmp_path}/out ; echo *"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("program", "rc"), [("no-such-program-here", 2), ("/no/such/program", 2), ("/etc", 13)])
def test_command_without_a_program(host: ModuleHost, program: str, rc: int) -> None:
    outcome = run_module(command.MODULE, {"argv": [program]}, host)
    assert outcome.failed
    assert outcome.values["rc"] == rc
    assert program in outcome.message
    assert host.steps == []


def test_command_that_the_kernel_cannot_execute(host: ModuleHost, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF but not really")
    program.chmod(0o755)
    outcome = run_module(command.MODULE, {"argv": [str(program)]}, host)
    assert (outcome.failed, outcome.values["rc"]) == (True, 8)
    assert "Exec format error" in outcome.message


def test_command_runs_in_chdir_with_the_environment_of_the_task(host: ModuleHost, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    host.environment = {**host.environment, "GREETING": "hello"}
    outcome = run_module(command.MODULE, {"cmd": "sh -c 'pwd; echo $GREETING'", "chdir": str(tmp_path / "there")}, host)
    assert outcome.values["stdout_lines"] == [str(tmp_path / "there"), "hello"]
    assert run_module(command.MODULE, {"cmd": "pwd"}, host).values["stdout"] == str(host.playbook_directory)
    expanded = run_module(command.MODULE, {"argv": ["echo", "$GREETING", "${GREETING}!"]}, host)
    assert expanded.values["stdout"] == "hello hello!"
    assert expanded.values["cmd"] == ["echo", "$GREETING", "${GREETING}!"]
    plain = run_module(command.MODULE, {"argv": ["echo", "$GREETING"], "expand_argument_vars": False}, host)
    assert plain.values["stdout"] == "$GREETING"


def test_command_reads_stdin(host: ModuleHost) -> None:
    assert run_module(command.MODULE, {"cmd": "od -c -An", "stdin": "a"}, host).values["stdout"].split() == ["a", "\\n"]
    raw = run_module(command.MODULE, {"cmd": "od -c -An", "stdin": "a", "stdin_add_newline": False}, host)
    assert raw.values["stdout"].split() == ["a"]


def test_command_creates_and_removes(host: ModuleHost, tmp_path: Path) -> None:
    made = tmp_path / "made"
    task = {"argv": ["touch", str(made)], "creates": str(made)}
    assert run_module(command.MODULE, task, host).changed
    again = run_module(command.MODULE, task, host)
    assert again.changed is False
    assert again.values["rc"] == 0
    assert again.values["stdout"] == f"skipped, since {made} exists"
    assert again.values["msg"] == f"Did not run command since '{made}' exists"
    by_glob = run_module(command.MODULE, {"cmd": "false", "creates": str(tmp_path / "ma*")}, host)
    assert not by_glob.failed
    gone = run_module(command.MODULE, {"cmd": "false", "removes": str(tmp_path / "nothing")}, host)
    assert gone.values["stdout"] == f"skipped, since {tmp_path}/nothing does not exist"
    relative = run_module(command.MODULE, {"cmd": "false", "chdir": str(tmp_path), "creates": "made"}, host)
    assert relative.changed is False


def test_command_in_a_plan(host: ModuleHost, tmp_path: Path) -> None:
    planning = host.planning()
    before = snapshot(tmp_path)
    made = tmp_path / "made"
    first = plan_module(command.MODULE, {"argv": ["touch", str(made)], "creates": str(made)}, planning)
    assert isinstance(first, Change)
    assert not first.values_known
    second = plan_module(command.MODULE, {"cmd": "false", "creates": str(made)}, planning)
    assert isinstance(second, Unchanged)
    removed = plan_module(command.MODULE, {"cmd": f"rm {made}", "removes": str(made)}, planning)
    assert isinstance(removed, Change)
    third = plan_module(command.MODULE, {"cmd": "false", "creates": str(made)}, planning)
    assert isinstance(third, Change)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("cmd", ["echo 'open", "   "])
def test_command_that_cannot_be_split(host: ModuleHost, cmd: str) -> None:
    with pytest.raises(TaskError, match="command"):
        run_module(command.MODULE, {"cmd": cmd}, host)
    with pytest.raises(TaskError, match="does not exist"):
        run_module(command.MODULE, {"cmd": "true", "chdir": "/no/such/place"}, host)


def test_command_tells_of_processes_that_it_stopped(host: ModuleHost) -> None:
    outcome = run_module(command.MODULE, {"argv": ["sh", "-c", "sleep 60 >/dev/null 2>&1 & echo begun"]}, host)
    assert outcome.values["stdout"] == "begun"
    assert "1 processes" in outcome.values["warnings"][0]


# ---- assert, fail, debug, set_fact


def test_assert_returns_what_ansible_returns(host: ModuleHost) -> None:
    host.variables = {"a": 1, "conditions": ["a == 1", "a > 5"]}
    good = run_module(assert_.MODULE, {"that": ["a == 1", "a < 5", True]}, host)
    assert (good.failed, good.values) == (False, {"msg": "All assertions passed"})
    bad = run_module(assert_.MODULE, {"that": ["a == 1", "a in [2, 3]"], "fail_msg": "not in it"}, host)
    assert bad.failed
    assert bad.values == {"msg": "not in it", "assertion": "a in [2, 3]", "evaluated_to": False}
    assert "a in [2, 3]" in bad.message
    by_name = run_module(assert_.MODULE, {"that": "{{ conditions }}"}, host)
    assert by_name.values["assertion"] == "a > 5"
    assert run_module(assert_.MODULE, {"that": "a in [1, 2]", "msg": "m"}, host).failed is False
    with pytest.raises(CrossgradeError, match="nope"):
        run_module(assert_.MODULE, {"that": "nope == 1"}, host)


def test_fail_and_set_fact(host: ModuleHost) -> None:
    failed = run_module(fail.MODULE, {"msg": "not today"}, host)
    assert (failed.failed, failed.message, failed.values) == (True, "not today", {"msg": "not today"})
    assert run_module(fail.MODULE, {}, host).message == "Failed as requested from task"
    outcome = run_module(set_fact.MODULE, {"port": 8080, "names": ["a"], "cacheable": True}, host)
    assert outcome.facts == {"port": 8080, "names": ["a"]}
    assert outcome.values == {"ansible_facts": {"port": 8080, "names": ["a"]}}
    for wrong in ({}, {"not-a-name": 1}, {"1st": 1}, {"class": 1}):
        with pytest.raises(TaskError):
            run_module(set_fact.MODULE, wrong, host)


def test_debug_shows_messages_and_values(host: ModuleHost) -> None:
    host.variables = {"servers": [{"name": "a", "port": 1}], "text": "<&>'"}
    assert run_module(debug.MODULE, {"msg": "hi"}, host).values == {"msg": "hi"}
    assert run_module(debug.MODULE, {"msg": [1, 2]}, host).values == {"msg": [1, 2]}
    assert run_module(debug.MODULE, {}, host).values == {"msg": "Hello world!"}
    assert run_module(debug.MODULE, {"var": "servers[0].port + 1"}, host).values == {"servers[0].port + 1": 2}
    assert run_module(debug.MODULE, {"var": "text"}, host).values == {"text": "<&>'"}
    assert run_module(debug.MODULE, {"var": "nope"}, host).values == {"nope": debug.NOT_DEFINED}
    assert isinstance(plan_module(debug.MODULE, {"msg": "x", "verbosity": 2}, host), Skipped)


# ---- stat


def ansible_stat_keys() -> set[str]:
    """What ansible-core 2.19 returns for a regular file on Linux."""
    names = """exists path mode isdir ischr isblk isreg isfifo islnk issock uid gid size inode dev nlink atime
    mtime ctime wusr rusr xusr wgrp rgrp xgrp woth roth xoth isuid isgid blocks block_size device_type readable
    writeable executable pw_name gr_name checksum mimetype charset version attributes attr_flags"""
    return set(names.split())


def test_stat_of_a_file(host: ModuleHost, tmp_path: Path) -> None:
    path = tmp_path / "grüße"
    path.write_text("hello\n", encoding="utf-8")
    path.chmod(0o4750)
    before = snapshot(tmp_path)
    found = run_module(stat.MODULE, {"path": str(path)}, host).values["stat"]
    assert set(found) == ansible_stat_keys()
    assert found["mode"] == "4750"
    assert (found["exists"], found["isreg"], found["isdir"], found["islnk"]) == (True, True, False, False)
    assert (found["rusr"], found["xgrp"], found["roth"], found["isuid"]) == (True, True, False, True)
    assert found["checksum"] == "f572d396fae9206628714fb2ce00f72e94f2258f"
    assert (found["size"], found["uid"], found["mtime"]) == (6, os.getuid(), path.stat().st_mtime)
    sha256 = run_module(stat.MODULE, {"path": str(path), "checksum_algorithm": "sha256"}, host).values["stat"]
    assert sha256["checksum"].startswith("5891b5b522d5df08")
    assert "checksum" not in run_module(stat.MODULE, {"path": str(path), "get_checksum": False}, host).values["stat"]
    assert snapshot(tmp_path) == before


def test_stat_of_links_and_of_nothing(host: ModuleHost, tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "link").symlink_to("dir")
    (tmp_path / "dangling").symlink_to("nowhere")
    link = run_module(stat.MODULE, {"path": str(tmp_path / "link")}, host).values["stat"]
    assert (link["islnk"], link["isdir"], link["lnk_target"]) == (True, False, "dir")
    assert link["lnk_source"] == str(tmp_path / "dir")
    followed = run_module(stat.MODULE, {"path": str(tmp_path / "link"), "follow": True}, host).values["stat"]
    assert (followed["isdir"], followed["path"]) == (True, str(tmp_path / "link"))
    assert run_module(stat.MODULE, {"path": str(tmp_path / "dangling")}, host).values["stat"]["islnk"]
    for nothing in ({"path": str(tmp_path / "no")}, {"path": str(tmp_path / "dangling"), "follow": True}):
        assert run_module(stat.MODULE, nothing, host).values == {"stat": {"exists": False}}


def test_stat_flags_are_those_of_lsattr(host: ModuleHost, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.touch()
    answer = subprocess.run(["lsattr", "-vd", str(path)], capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        pytest.skip("lsattr is not installed, or the filesystem has no flags")
    version, flags, *_ = answer.stdout.split()
    found = run_module(stat.MODULE, {"path": str(path)}, host).values["stat"]
    assert (found["attr_flags"], found["version"]) == (flags.replace("-", ""), version)


def test_stat_in_a_plan_sees_predictions(host: ModuleHost, tmp_path: Path) -> None:
    planning = host.planning()
    planning.predictions["path", str(tmp_path / "new")] = {"exists": True, "isdir": True, "fresh": True}
    (tmp_path / "old").mkdir()
    (tmp_path / "old/file").touch()
    planning.predictions["path", str(tmp_path / "old")] = {"exists": False}

    def look(path: str) -> Any:
        return run_module(stat.MODULE, {"path": str(tmp_path / path)}, planning).values["stat"]

    assert (look("new")["exists"], look("new")["isdir"]) == (True, True)
    assert "fresh" not in look("new")
    assert look("old") == look("old/file") == look("new/file") == {"exists": False}


# ---- uri: what needs no server


def test_uri_refuses_other_addresses(host: ModuleHost) -> None:
    for url in ("file:///etc/passwd", "ftp://x/", "http://", "localhost:80"):
        with pytest.raises(TaskError, match="no address"):
            run_module(uri.MODULE, {"url": url}, host)
    with pytest.raises(TaskError, match="method"):
        run_module(uri.MODULE, {"url": "http://x", "method": "GET /"}, host)


def test_uri_hides_passwords_in_addresses() -> None:
    assert uri.mask("http://ann:secret@host:80/x?y") == "http://ann:********@host:80/x?y"
    assert uri.mask("http://ann@host/") == "http://ann@host/"


def test_uri_bodies() -> None:
    assert uri.encode_body({"a": [1]}, "json") == b'{"a": [1]}'
    assert uri.encode_body({"a": [1, 2], "b": "x y"}, "form-urlencoded") == b"a=1&a=2&b=x+y"
    assert uri.encode_body([["a", 1], ["a", None]], "form-urlencoded") == b"a=1"
    assert uri.encode_body("ready", "json") == b"ready"
    with pytest.raises(TaskError):
        uri.encode_body(5, "form-urlencoded")


def test_uri_minds_the_proxy_of_the_task() -> None:
    environment = {"http_proxy": "http://proxy:3128", "no_proxy": "localhost,.internal"}
    assert uri.proxy_for("http://example.org/", environment) == "http://proxy:3128"
    assert uri.proxy_for("https://example.org/", environment) is None
    assert uri.proxy_for("http://a.internal/", environment) is None
    assert uri.proxy_for("http://localhost:8000/", environment) is None


def test_uri_creates(host: ModuleHost, tmp_path: Path) -> None:
    planned = plan_module(uri.MODULE, {"url": "http://127.0.0.1:9/", "creates": str(tmp_path)}, host)
    assert isinstance(planned, Unchanged)
    assert planned.values == {"stdout": f"skipped, since '{tmp_path}' exists"}
    assert isinstance(plan_module(uri.MODULE, {"url": "http://127.0.0.1:9/"}, host), Change)


# ---- wait_for: what needs no port


def wait(host: ModuleHost, **arguments: Any) -> Outcome:
    return run_module(wait_for.MODULE, {"timeout": 5, "sleep": 0.05, **arguments}, host)


def test_wait_for_paths(host: ModuleHost, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("starting\nready on port 8123\n", encoding="utf-8")
    found = wait(host, path=str(path), search_regex=r"^ready on (\w+) (?P<number>\d+)$")
    assert found.values["match_groups"] == ["port", "8123"]
    assert found.values["match_groupdict"] == {"number": "8123"}
    assert (found.values["state"], found.values["path"], found.values["elapsed"]) == ("file", str(path), 0)
    assert wait(host, path=str(tmp_path / "no"), state="absent").failed is False
    late = wait(host, path=str(path), state="absent", timeout=0.2)
    assert late.failed
    assert "log is gone" in late.message
    assert wait(host, path=str(path), search_regex="never", timeout=0.2, msg="too late").message == "too late"
    assert wait(host, timeout=0.05).failed is False


@pytest.mark.parametrize(
    "wrong",
    [
        {"path": "/x", "state": "stopped"},
        {"state": "drained"},
        {"path": "/x", "search_regex": "("},
        {"port": 1, "exclude_hosts": ["localhost"]},
        {"port": 1, "active_connection_states": ["OPEN"]},
    ],
)
def test_wait_for_refuses_what_makes_no_sense(host: ModuleHost, wrong: dict[str, Any]) -> None:
    with pytest.raises(TaskError):
        wait(host, **wrong)


def test_connections_are_counted_from_the_kernels_table() -> None:
    lines = [
        "  0: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000 0 0 1",
        "  1: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 2",
        "  2: 0000000000000000FFFF00000100007F:1F90 0000000000000000FFFF00000200007F:C351 01 0 0 0",
        "  3: 0100007F:1F91 0100007F:C352 01 0 0 0",
    ]
    here = {wait_for._sixteen(bytes([127, 0, 0, 1]))}
    everything = set(wait_for.CONNECTION_STATES.values())
    if sys.byteorder == "little":
        assert wait_for.count_connections(lines, 8080, everything, here, set()) == 2
        other = {wait_for._sixteen(bytes([127, 0, 0, 2]))}
        assert wait_for.count_connections(lines, 8080, everything, here, other) == 1
        assert wait_for.count_connections(lines, 8080, {2}, here, set()) == 0
