"""Fixtures that several files of integration tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.small_project import commit_all, write_project
from tests.support.store_host import StoreHost

from crossgrade.store.layout import remove_path


@pytest.fixture(scope="session")
def build_environments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the build environments of all builders are kept."""
    return tmp_path_factory.mktemp("environments")


@pytest.fixture
def builder(tmp_path: Path, build_environments: Path) -> Iterator[StoreHost]:
    """A host that builds, without the user's own git configuration."""
    host = StoreHost(tmp_path, environment={**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"})
    place = host.store.build_environment("any").parent
    remove_path(place)
    place.symlink_to(build_environments)
    yield host
    place.unlink()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A git repository with a small project in its folder `kernels`."""
    place = write_project(tmp_path / "repository" / "kernels").parent
    commit_all(place)
    return place
