"""A playbook of the modules that fetch, unpack and edit files, through the program itself."""

from __future__ import annotations

import tarfile
from pathlib import Path

from tests.support.commands import crossgrade, snapshot

PLAYBOOK = """
- hosts: localhost
  vars: {base: "@BASE@"}
  tasks:
    - ansible.builtin.file: {path: "{{ base }}/out", state: directory}
      name: Directory
    - ansible.builtin.get_url: {url: "file://{{ base }}/source.tgz", dest: "{{ base }}/fetched.tgz", mode: "0600"}
      name: Fetch
      register: got
    - ansible.builtin.unarchive: {src: "{{ got.dest }}", dest: "{{ base }}/out", copy: false, creates: "@BASE@/out/x"}
      name: Unpack what the run fetches
    - ansible.builtin.unarchive: {src: "{{ base }}/fetched.tgz", dest: "{{ base }}/out", copy: false, keep_newer: true}
      name: Unpack
    - ansible.builtin.lineinfile: {path: "{{ base }}/out/x", line: more}
      name: Edit
    - ansible.builtin.slurp: {src: "{{ base }}/out/x"}
      register: read
    - ansible.builtin.find: {paths: "{{ base }}/out"}
      register: found
    - ansible.builtin.assert:
        that:
          - read.content | b64decode == 'x\\nmore\\n'
          - found.matched == 1
    - ansible.builtin.fail: {msg: enough}
      when: fails | default(false) | bool
"""


def prepared(tmp_path: Path) -> tuple[str | Path, ...]:
    base = tmp_path / "base"
    base.mkdir()
    (base / "x").write_text("x\n", encoding="utf-8")
    with tarfile.open(base / "source.tgz", "w:gz") as tar:
        tar.add(base / "x", "x")
    (base / "x").unlink()
    (tmp_path / "play.yml").write_text(PLAYBOOK.replace("@BASE@", str(base)), encoding="utf-8")
    return "--playbook", tmp_path / "play.yml", "--root", tmp_path / "root"


def test_what_only_the_run_shows_may_change_and_comes_out_as_foreseen(tmp_path: Path) -> None:
    options = prepared(tmp_path)
    before = snapshot(tmp_path / "base")
    planned = crossgrade("plan", *options)
    assert planned.code == 0, planned.stderr
    assert "± Unpack\n" in planned.stdout
    assert "± Edit\n" in planned.stdout
    assert snapshot(tmp_path / "base") == before
    done = crossgrade("upgrade", *options, "--json")
    assert done.code == 0, done.stdout[-2000:]
    assert not done.of_kind("prediction_differs")
    again = crossgrade("upgrade", *options, "--json")
    assert again.code == 0, again.stdout[-2000:]
    assert {event["status"] for event in again.of_kind("task_result")} <= {"ok", "skipped"}


def test_a_run_that_fails_leaves_no_file(tmp_path: Path) -> None:
    options = prepared(tmp_path)
    play = tmp_path / "play.yml"
    # a command fails in the run only: a plan that fails is not begun
    play.write_text(play.read_text(encoding="utf-8").replace("ansible.builtin.fail: {msg: enough}", "command: 'false'"))
    before = snapshot(tmp_path / "base")
    failed = crossgrade("upgrade", *options, "-e", "fails=true", "--json")
    assert failed.code != 0
    assert failed.of_kind("rolled_back")
    assert snapshot(tmp_path / "base") == before
