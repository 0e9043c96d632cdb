"""The servers that keep the contract: the embedded one, the real one, or a given one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cluster.apiserver.faces import Client, Face, client_of, serving


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "server" in metafunc.fixturenames:
        given = metafunc.config.getoption("--kubeconfig")
        servers = ["embedded", "real"] if given is None else ["given"]
        metafunc.parametrize("server", servers, indirect=True, scope="module")


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[Client | Face]:
    """The server under test, by name."""
    if request.param == "given":
        yield client_of(request.config.getoption("--kubeconfig"))
    elif request.param == "real":
        yield request.getfixturevalue("plane").client
    else:
        with serving() as face:
            yield face


@pytest.fixture(scope="module")
def face(server: Client | Face) -> Face | None:
    """The embedded server, None for any other."""
    return server if isinstance(server, Face) else None


@pytest.fixture(scope="module")
def client(server: Client | Face) -> Client:
    return Client(server.server.url) if isinstance(server, Face) else server
