"""From requirements as users state them to the form that a plan keeps."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest
from tests.support.module_host import ModuleHost
from tests.support.tiny_wheels import tiny_wheel

from crossgrade.errors import TaskError
from crossgrade.modules.contract import LockRequest
from crossgrade.modules.stated import Stating, state_request


@pytest.fixture
def host(tmp_path: Path) -> ModuleHost:
    return ModuleHost(tmp_path, environment={"TOKEN": "hush"})


def stated(host: ModuleHost, *requirements: str, **indexes: object) -> LockRequest:
    return state_request(host, "/py", requirements, (), (), (), LockRequest((), "/py", **indexes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        'sglang[all]>=0.5 ; python_version >= "3.10"',
        "x @ https://host/x-1-py3-none-any.whl#sha256=aa",
        "x @ git+https://host/x.git@v1#subdirectory=python",
        "x @ git+ssh://git@host/x.git@v1",
        "x @ https://me:${TOKEN}@host/x-1-py3-none-any.whl",
    ],
)
def test_what_needs_no_change_stays_as_it_is_written(host: ModuleHost, text: str) -> None:
    request = stated(host, text)
    assert (request.requirements, request.credentials) == ((text,), ())


def test_a_wheel_by_path_or_file_address_is_named_with_its_hash(host: ModuleHost) -> None:
    wheel = tiny_wheel(host.playbook_directory, "x", "1.0+cu130")
    address = f"{wheel.as_uri()}#sha256={sha256(wheel.read_bytes()).hexdigest()}"
    marker = 'python_version > "3"'
    texts = (wheel.name, f"./{wheel.name}[extra] ; {marker}", f"x @ {wheel.as_uri()}", str(wheel))
    assert stated(host, *texts).requirements == (
        f"x @ {address}",
        f"x[extra] @ {address} ; {marker}",
        f"x @ {address}",
        f"x @ {address}",
    )
    with pytest.raises(TaskError, match="has another sha256 than the requirement asks for"):
        stated(host, f"x @ {wheel.as_uri()}#sha256={'0' * 64}")


@pytest.mark.parametrize(
    ("text", "message", "remedy"),
    [
        ("./checkout", "is no wheel", "extension_build"),
        ("x @ file:///tmp", "is a source tree", "extension_build"),
        ("./gone-1-py3-none-any.whl", "no wheel at", "playbook"),
        ("--index-url https://x", "is an option", "index_url"),
        ("x @ hg+https://host/x", "cannot be pinned", "git"),
        ("x @ git+https://me:hush@host/x.git@v1", "holds credentials", "ssh"),
        ("x @ https://host/x-1-py3-none-any.whl?token=hush", "secret in its query", "path"),
        ("numpy>", "not a requirement", "list item"),
    ],
)
def test_what_cannot_be_kept_is_refused_without_showing_a_secret(
    host: ModuleHost, text: str, message: str, remedy: str
) -> None:
    with pytest.raises(TaskError, match=message) as caught:
        stated(host, text)
    assert remedy in caught.value.remedy
    assert "hush" not in str(caught.value)


def test_credentials_are_taken_out_and_do_not_count(host: ModuleHost) -> None:
    def ask(password: str) -> LockRequest:
        return stated(
            host,
            f"x @ https://me:{password}@host/x-1-py3-none-any.whl",
            index_url="https://me:${TOKEN}@host/simple",
            extra_index_urls=(f"https://{password}@host/cu130",),
        )

    request = ask("one")
    assert request.requirements == ("x @ https://${CROSSGRADE_CREDENTIAL_1}@host/x-1-py3-none-any.whl",)
    assert (request.index_url, request.extra_index_urls) == ("https://host/simple", ("https://host/cu130",))
    assert dict(request.credentials) == {
        "CROSSGRADE_CREDENTIAL_1": "me:one",
        "https://host/simple": "me:hush",
        "https://host/cu130": "one",
    }
    assert (ask("two"), ask("two").described()) == (request, request.described())
    with pytest.raises(TaskError, match="the variable MISSING, which an address names, is not set"):
        stated(host, index_url="https://me:${MISSING}@host/simple")
    with pytest.raises(TaskError, match=r"https://\*\*\*\*@host"):
        stated(host, find_links=("https://me:hush@host/page",))


def test_files_that_include_each_other_end(host: ModuleHost) -> None:
    (host.playbook_directory / "a.txt").write_text("-r b.txt\n")
    (host.playbook_directory / "b.txt").write_text("six\n-r a.txt\n")
    with pytest.raises(TaskError, match="includes itself"):
        Stating(host).read("a.txt", LockRequest((), "/py"))
    with pytest.raises(TaskError, match="no requirements file"):
        Stating(host).read("uv.lock", LockRequest((), "/py"))
    with pytest.raises(TaskError, match="cannot read"):
        Stating(host).read("gone.txt", LockRequest((), "/py"))
