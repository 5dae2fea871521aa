"""Names of C++ symbols: what they are called, and which are the same function with other types."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossgrade.inspect.mangled import demangled, most_alike, qualified_name

# the classic of PyTorch 2.10: `int` became `unsigned int` (../shared/facts.md)
OLD = b"_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib"
NEW = b"_ZN3c104cuda29c10_cuda_check_implementationEjPKcS2_jb"


@pytest.mark.parametrize(
    ("name", "qualified"),
    [
        (OLD, b"_ZN3c104cuda29c10_cuda_check_implementation"),
        (b"_ZNK3c106SymInt22maybe_as_int_slow_pathEv", b"_ZNK3c106SymInt22maybe_as_int_slow_path"),
        (b"_ZNSt6vectorIiSaIiEE9push_backEOi", b"_ZNSt6vector"),
        (b"_Z5checki", b"_Z5check"),
        (b"_Z3foo3bar", b"_Z3foo"),
        (b"_ZSt4cout", b"_ZSt4cout"),
        (b"_ZTVN3c105ErrorE", b""),
        (b"_Zcase", b""),
        (b"_ZN99shortE", b""),
        (b"malloc", b""),
        (b"", b""),
    ],
)
def test_which_function_a_name_means(name: bytes, qualified: bytes) -> None:
    assert qualified_name(name) == qualified


def test_the_same_function_with_other_types() -> None:
    others = [b"_ZN3c104cuda34c10_cuda_check_implementation_moreEi", b"_ZN3c104cuda5otherEi", b"malloc", OLD]
    assert most_alike({OLD: qualified_name(OLD)}, [*others, NEW]) == {OLD: (NEW,)}
    assert most_alike({OLD: qualified_name(OLD)}, [OLD, *others]) == {}
    assert most_alike({b"malloc": qualified_name(b"malloc")}, [b"malloc2"]) == {}


def test_people_read_it_as_they_write_it() -> None:
    assert demangled(OLD.decode()) == (
        "c10::cuda::c10_cuda_check_implementation(int, char const*, char const*, int, bool)"
    )
    assert demangled("malloc") == "malloc"
    assert demangled("_ZN99shortE") == "_ZN99shortE"


@given(st.binary(max_size=60))
def test_any_name_at_all(name: bytes) -> None:
    found = qualified_name(b"_ZN" + name)
    assert (b"_ZN" + name).startswith(found)
    assert isinstance(demangled("_ZN" + name.decode("latin-1")), str)
