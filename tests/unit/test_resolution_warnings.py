"""What a plan warns of, from locks and from what the indexes have: functions from data to data."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from crossgrade.knowledge import table
from crossgrade.modules.contract import LockRequest, Offer, Offers
from crossgrade.modules.locks import lock_entries, lock_of
from crossgrade.modules.resolution_warnings import (
    Resolution,
    asked_for_by,
    count_changes,
    sources,
    torch_cuda,
    warnings_of,
)

HASH = "--hash=sha256:" + "0a" * 32


def lock_text(dists: Mapping[str, str]) -> str:
    """`{"torch==2.11.0": "sglang"}`: a lock of these, with who asks for them; "" for the playbook."""
    return "".join(
        f"{pin} \\\n    {HASH}\n    # via {parents or '-r requirements.in'}\n    # from https://pypi.org/simple\n"
        for pin, parents in dists.items()
    )


def warned(
    dists: Mapping[str, str],
    *,
    requirements: tuple[str, ...] = (),
    before: Mapping[str, str] | None = None,
    locked: Mapping[str, Offer] | None = None,
    newest: Mapping[str, Offer] | None = None,
    requested: frozenset[str] = frozenset(),
) -> list[tuple[str, str]]:
    lock = lock_of(lock_text(dists))
    expected = {dist.name: dist.version for dist in lock.dists}
    offers = Offers(locked or {}, newest or {})
    request = LockRequest(requirements, "python3")
    found = warnings_of(Resolution(request, lock, before or {}, expected, offers, requested))
    assert all(one.message and one.remedy and "{" not in one.remedy.replace("{source}", "") for one in found)
    return [(one.name, one.subject) for one in found]


FOR_12 = {"torch==2.9.1": "sglang", "nvidia-nccl-cu12==2.27.5": "torch", "nvidia-cublas-cu12==12.8.4.1": "torch"}
FOR_13 = {"torch==2.14.1": "sglang", "nvidia-nccl-cu13==2.30.7": "torch", "cuda-toolkit==13.0.3.0": "torch"}


def test_a_stack_for_one_cuda_is_not_warned_about() -> None:
    # sglang 0.5.23 brings the parts of nvidia-cutlass-dsl for both releases: they lie in folders of their own
    both = {"nvidia-cutlass-dsl-libs-cu12==4.8.0": "nvidia-cutlass-dsl", "nvidia-cutlass-dsl-libs-cu13==4.8.0": "x"}
    assert warned({**FOR_13, **both, "sglang-kernel==0.4.10": "sglang"}) == []
    assert warned({**FOR_12, "sgl-kernel==0.3.21": "sglang"}) == []
    assert warned(both) == []


@pytest.mark.parametrize(
    ("dists", "expected"),
    [
        (
            {**FOR_13, "nvidia-nccl-cu12==2.27.5": "old"},
            [("cuda-same-files", "nvidia-nccl-cu12")],
        ),
        ({**FOR_13, "sgl-kernel==0.3.21": "sglang"}, [("cuda-mixed", "sgl-kernel")]),
        ({**FOR_12, "sglang-kernel==0.4.10": "sglang"}, [("cuda-mixed", "sglang-kernel")]),
        ({**FOR_13, "flashinfer-jit-cache==0.7.2+cu128": "x"}, [("cuda-mixed", "flashinfer-jit-cache")]),
        ({**FOR_13, "nvidia-cudnn-cu12==9.10.2.21": "x"}, [("cuda-mixed", "nvidia-cudnn-cu12")]),
        ({"torch==2.11.0+cu130": "", "torchvision==0.26+cu128": ""}, [("cuda-mixed", "torchvision")]),
    ],
)
def test_cuda_releases_mixed(dists: Mapping[str, str], expected: list[tuple[str, str]]) -> None:
    assert warned(dists) == expected


def test_which_cuda_torch_is_for() -> None:
    def of(dists: Mapping[str, str]) -> int | None:
        return torch_cuda({entry.dist.name: entry for entry in lock_entries(lock_text(dists))})

    assert (of(FOR_12), of(FOR_13), of({"torch==2.11.0+cu126": ""}), of({"torch==2.11.0": ""}), of({})) == (
        12, 13, 12, None, None,
    )  # fmt: skip


def days(version: str, published: str) -> Offer:
    return Offer(version, 0, published)


def test_a_resolver_that_went_back() -> None:
    old, new = {"sglang": days("0.1.9", "2024-01-30")}, {"sglang": days("0.5.23", "2026-11-20")}
    lock = {"sglang==0.1.9": ""}
    assert warned(lock, requirements=("sglang",), locked=old, newest=new) == [("held-back", "sglang")]
    assert warned(lock, requirements=("sglang==0.1.9",), locked=old, newest=new) == []
    assert warned(lock, requirements=("sglang<0.2",), locked=old, newest=new) == []
    by_other = {"sglang==0.1.9": "server"}
    assert warned(by_other, locked=old, newest=new) == [("ancient", "sglang")]
    assert warned(by_other, locked=old, newest=new, before={"sglang": "0.5.9"}) == [("downgraded", "sglang")]
    assert warned(by_other, locked=old, newest=new, before={"sglang": "0.1.8"}) == [("ancient", "sglang")]
    # no day is known: only releases are told apart
    bare_old, bare_new = {"sglang": Offer("0.1.9")}, {"sglang": Offer("0.5.23")}
    assert warned(lock, requirements=("sglang",), locked=bare_old, newest=bare_new) == [("held-back", "sglang")]
    assert warned(by_other, locked=bare_old, newest=bare_new) == []


def test_who_is_asked_for_less_is_not_told_that_it_is_less() -> None:
    lock, before = {"numpy==2.3.5": "sglang"}, {"numpy": "2.4.6"}
    assert warned(lock, before=before) == [("downgraded", "numpy")]
    assert warned({"numpy==2.3.5": ""}, before=before, requirements=("numpy<2.4",)) == []
    assert warned({"numpy==2.3.5": ""}, before=before, requirements=("numpy",)) == [("downgraded", "numpy")]


def test_prereleases() -> None:
    lock = {"lxml==7.0.0b1": "blobfile", "flash-attn-4==4.0.0b36": "sglang", "six==1.17.0": ""}
    newest = {"lxml": Offer("6.1.3"), "flash-attn-4": Offer("4.0.0b36"), "six": Offer("1.17.0")}
    expected = [("prerelease-beside-final", "lxml"), ("prerelease-only", "flash-attn-4")]
    assert warned(lock, newest=newest) == expected
    assert warned(lock, newest=newest, requirements=("lxml==7.0.0b1",)) == expected[1:]
    assert warned(lock) == [], "nothing is known of the newest"


def test_what_is_built_and_what_is_gone() -> None:
    lock = {"six==1.17.0": ""}
    assert warned(lock, locked={"six": Offer("1.17.0", wheel=False)}) == [("built-from-source", "six")]
    gone = frozenset({"six", "hf-transfer"})
    assert warned(lock, requested=gone, before={"hf-transfer": "0.1"}) == [("no-longer-there", "hf-transfer")]


def test_who_asks_and_how_much_changes() -> None:
    [entry] = lock_entries(lock_text({"numpy==2": "a"}).replace("# via a", "# via\n" + "    #   -r r.in\n" + "".join(
        f"    #   {name}\n" for name in "abcde"
    )))  # fmt: skip
    assert asked_for_by(entry) == "the playbook, a, b and 3 more"
    before = {"up": "1", "down": "2", "same": "1", "gone": "1", "commit": "1"}
    after = {"up": "2", "down": "1.0", "same": "1", "new": "1", "commit": "git abc"}
    assert str(count_changes(before, after)) == "2 upgraded, 1 downgraded, 1 new, 1 removed"
    assert str(count_changes(before, before)) == "no version changes"
    entries = tuple(lock_entries(lock_text({"numpy==2": "a"})))
    assert sources(entries) == "from pypi.org"


def test_every_warning_has_a_remedy_and_a_source() -> None:
    for row in table("resolution_warnings"):
        str(row["remedy"]).format(dist="d", version="1", newest="2", parents="p")
        assert str(row["source"])
