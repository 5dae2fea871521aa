"""A venv that was copied runs from its new place: real venvs, real shells, and paths that nobody should have."""

from __future__ import annotations

import base64
import csv
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.small_upgrade import make_wheel
from tests.support.toolkits import uv_program

from crossgrade.store.quoting import ACTIVATION
from crossgrade.store.relocation import relocate

NAMES = (
    "plain",
    "with space",
    "dollar$HOME",
    "quote'd",
    "Größe",
    "-dash",
    "back`tick",
    'double"quote',
    "back\\slash",
    "$a'b",
    "long" * 40,
)


def make(folder: Path, maker: str, wheel: Path) -> Path:
    """A venv with a console script, a dist from a local wheel and one that is editable."""
    venv = folder / "venv"
    if maker == "uv":
        subprocess.run([uv_program(), "venv", "-q", "--python", sys.executable, str(venv)], check=True)
    else:
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    source = venv / "src" / "local"
    source.mkdir(parents=True)
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        '[project]\nname = "local-one"\nversion = "1"\n[project.scripts]\nlocal-one = "local_one:main"\n'
    )
    (source / "local_one").mkdir()
    (source / "local_one" / "__init__.py").write_text("def main():\n    import sys\n    print(sys.prefix)\n")
    install = [uv_program(), "pip", "install", "-q", "--python", str(venv / "bin" / "python")]
    subprocess.run([*install, str(wheel), "-e", str(source)], check=True)
    return venv


@pytest.fixture(scope="module", params=["uv", "venv"])
def venv(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    return make(folder, request.param, make_wheel(folder, "1.0"))


def copied(venv: Path, tmp_path: Path, name: str) -> Path:
    place = tmp_path / name
    shutil.copytree(venv, place, symlinks=True)
    return place


def texts(venv: Path) -> str:
    found = ["\n".join(path.read_text(errors="replace") for path in (venv / "bin").iterdir() if path.is_file())]
    found.append((venv / "pyvenv.cfg").read_text())
    found += [path.read_text() for path in venv.rglob("*.pth")]
    found += [path.read_text() for path in venv.rglob("direct_url.json")]
    return "\n".join(found)


@pytest.mark.parametrize("name", NAMES)
def test_its_programs_run_its_own_python(venv: Path, tmp_path: Path, name: str) -> None:
    place = copied(venv, tmp_path, name)
    changed = relocate(place, [venv], place)
    assert changed
    said = subprocess.run([place / "bin" / "local-one"], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == str(place)
    assert said.stderr == ""
    assert str(venv) not in texts(place)
    assert relocate(place, [venv], place) == (), "a second call changes nothing"
    # and on to a third place, from the forms that were written for this one
    third = tmp_path / "third"
    place.rename(third)
    relocate(third, [place], third)
    said = subprocess.run([third / "bin" / "local-one"], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == str(third)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shell", ["sh", "bash", "tcsh", "fish"])
def test_activation(venv: Path, tmp_path: Path, name: str, shell: str) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed here (CI installs it)")
    if shell == "tcsh" and "$" in name and (venv / "bin" / "pip").exists():
        pytest.skip("the csh script of venv puts the path into double quotes itself when it extends PATH")
    place = copied(venv, tmp_path, name)
    relocate(place, [venv], place)
    ending = {"tcsh": ".csh", "fish": ".fish"}.get(shell, "")
    script = tmp_path / "script"
    word = "source" if ending else "."
    quoted = ACTIVATION[f"activate{ending}"].write(f"{place}/bin/activate{ending}")
    script.write_text(f'{word} {quoted}\necho "$VIRTUAL_ENV"\n')
    said = subprocess.run([program, script], capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin"})
    assert said.stdout.strip() == str(place), said.stderr


@pytest.mark.parametrize(
    ("script", "line"),
    [
        ("activate.nu", "const virtual_env = r#'/new/it's'#"),
        ("activate.bat", '("/new/it\'s")'),
    ],
)
def test_shells_that_are_not_here(tmp_path: Path, script: str, line: str) -> None:
    venv = tmp_path / "venv"
    subprocess.run([uv_program(), "venv", "-q", "--python", sys.executable, str(venv)], check=True)
    relocate(venv, [venv], Path("/new/it's"))
    assert line in (venv / "bin" / script).read_text()


def test_a_neighbour_with_a_longer_name_is_left_alone(venv: Path, tmp_path: Path) -> None:
    place = copied(venv, tmp_path, "place")
    neighbour = place / "bin" / "neighbour"
    neighbour.write_text(f"#!{venv}2/bin/python\n")
    pth = next(place.glob("lib/python3*/site-packages")) / "more.pth"
    pth.write_text(f"{venv}2/lib\n{venv}/lib\n/deeper{venv}\n")
    relocate(place, [venv], place)
    assert neighbour.read_text() == f"#!{venv}2/bin/python\n"
    assert pth.read_text() == f"{venv}2/lib\n{place}/lib\n/deeper{venv}\n"


def test_records_fit_and_hard_links_and_modes_stay(venv: Path, tmp_path: Path) -> None:
    place = copied(venv, tmp_path, "place")
    script = place / "bin" / "small-engine"
    script.chmod(0o751)
    shared = tmp_path / "shared"
    shared.hardlink_to(script)
    before = shared.read_bytes()
    relocate(place, [venv], place)
    assert shared.read_bytes() == before != script.read_bytes()
    assert script.stat().st_mode & 0o7777 == 0o751
    checked = 0
    for record in place.glob("lib/python3*/site-packages/*.dist-info/RECORD"):
        for name, digest, size in csv.reader(record.read_text().splitlines()):
            if digest:
                data = (record.parent.parent / name).read_bytes()
                assert (
                    digest == "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                )
                assert int(size) == len(data)
                checked += 1
    assert checked > 5


def test_absolute_links_into_the_old_place(venv: Path, tmp_path: Path) -> None:
    place = copied(venv, tmp_path, "place")
    (place / "link").symlink_to(venv / "bin" / "python")
    (place / "away").symlink_to("/usr/bin/env")
    assert "link" in relocate(place, [venv], place)
    assert (place / "link").readlink() == place / "bin" / "python"
    assert str((place / "away").readlink()) == "/usr/bin/env"


@pytest.mark.parametrize("link", ["bin", "lib", "share", "pyvenv.cfg"])
def test_nothing_behind_a_link_is_touched(tmp_path: Path, link: str) -> None:
    """An archive may hold a venv whose `bin` is a link to /usr/bin: what is there is not the venv's."""
    outside, venv = tmp_path / "outside", tmp_path / "venv"
    site = outside / "lib" / "python3.11" / "site-packages"
    (site / "x.dist-info").mkdir(parents=True)
    (outside / "bin").mkdir()
    (outside / "share" / "jupyter" / "kernels" / "k").mkdir(parents=True)
    for path in (
        outside / "bin" / "tool",
        outside / "pyvenv.cfg",
        site / "a.pth",
        site / "x.dist-info" / "RECORD",
        outside / "share" / "jupyter" / "kernels" / "k" / "kernel.json",
    ):
        path.write_text("#!/old/place/bin/python\n/old/place\n")
    before = {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()}
    venv.mkdir()
    (venv / link).symlink_to(outside / link)
    assert relocate(venv, [Path("/old/place")], venv) == ()
    assert {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()} == before
    assert (venv / link).is_symlink()
