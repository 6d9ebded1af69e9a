"""Fixtures of served indexes."""

import pytest

from tests.support.serving import client_of, opened_service, write_indexes


@pytest.fixture(scope="package")
def served(tmp_path_factory, tiny):
    """The folder of the toy collection with the indexes `bm25` and `dense`."""
    pytest.importorskip("starlette")
    return write_indexes(tmp_path_factory.mktemp("served"), tiny())


@pytest.fixture(scope="package")
def service(served):
    """The service of both indexes."""
    with opened_service(f"bm25={served}/bm25", f"dense={served}/dense") as service:
        yield service


@pytest.fixture
def client(service):
    """A client of a server of both indexes."""
    with client_of(service) as client:
        yield client
