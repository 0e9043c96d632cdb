"""Credentials that are plain are read as the official client reads them."""

from __future__ import annotations

import asyncio
import base64
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bayplan.cluster.kubernetes.credentials import Credentials
from bayplan.cluster.kubernetes.plain_credentials import in_kubeconfig
from bayplan.errors import InputError

DATA = base64.b64encode(b"data").decode()
SERVERS = st.sampled_from(
    ["https://10.0.0.1:6443", "https://h/prefix/", "http://127.0.0.1:8001", "h:6443", "", 7]
)
CLUSTERS = st.fixed_dictionaries(
    {"server": SERVERS},
    optional={
        "certificate-authority": st.sampled_from(["ca.crt", "sub/../ca.crt", "missing"]),
        "certificate-authority-data": st.sampled_from([DATA, "", "a"]),
        "insecure-skip-tls-verify": st.booleans(),
        "tls-server-name": st.sampled_from(["name", ""]),
        "proxy-url": st.just("http://proxy:3128"),
        "extensions": st.just([]),
    },
)
USERS = st.fixed_dictionaries(
    {},
    optional={
        "token": st.sampled_from(["t", ""]),
        "tokenFile": st.sampled_from(["token", "missing"]),
        "client-certificate": st.just("client.crt"),
        "client-certificate-data": st.just(DATA),
        "client-key": st.just("client.key"),
        "client-key-data": st.just(DATA),
        "username": st.just("u"),
        "password": st.just("p"),
    },
)


def write(folder: Path, content: Any) -> Path:
    for name in ("ca.crt", "client.crt", "client.key", "token"):
        (folder / name).write_text(f"in {name}")
    (folder / "sub").mkdir(exist_ok=True)
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(content))
    return path


def content_of(cluster: Any, user: Any) -> dict[str, Any]:
    return {
        "current-context": "here",
        "contexts": [
            {"name": "here", "context": {"cluster": "c", "user": "u"}},
            {"name": "nobody", "context": {"cluster": "c"}},
            {"name": "stranger", "context": {"cluster": "c", "user": "x"}},
            {"name": "lost", "context": {"cluster": "x", "user": "u"}},
            {"name": "twice", "context": {"cluster": "c", "user": "u"}},
            {"name": "twice", "context": {"cluster": "c", "user": "u"}},
        ],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    }


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(CLUSTERS, USERS, st.sampled_from(["", "here", "nobody", "stranger", "lost", "twice"]))
def test_what_is_plain_is_what_the_official_client_reads(
    tmp_path: Path, cluster: Any, user: Any, context: str
) -> None:
    path = write(tmp_path, content_of(cluster, user))

    found = in_kubeconfig(path, context)

    if found is None:
        return
    try:
        by_client, lasts = asyncio.run(Credentials(path, context)._by_client())
    except InputError:
        # It cannot read contexts without a user, which kubectl can.
        assert context == "nobody"
        return
    assert found == by_client
    assert lasts == 60


@pytest.mark.parametrize(
    "user",
    [
        {"exec": {"command": "true"}},
        {"auth-provider": {"name": "oidc"}},
        {"username": "u", "password": "p"},
        {"token": "t", "as": "somebody"},
        {"token": 7},
    ],
)
def test_everything_else_is_left_to_the_official_client(tmp_path: Path, user: Any) -> None:
    path = write(tmp_path, content_of({"server": "https://h"}, user))

    assert in_kubeconfig(path) is None


async def test_a_certificate_that_cannot_be_used_is_named_before_any_request(
    tmp_path: Path,
) -> None:
    cluster = {"server": "https://h", "certificate-authority-data": DATA}
    path = write(tmp_path, content_of(cluster, {"token": "t"}))

    with pytest.raises(InputError, match=r"kubeconfig: its certificates cannot be used"):
        await Credentials(path).endpoint()


def test_a_plain_kubeconfig_does_not_load_the_official_client(tmp_path: Path) -> None:
    path = write(tmp_path, content_of({"server": "https://h"}, {"token": "t"}))
    program = (
        "import asyncio, sys; from pathlib import Path\n"
        "from bayplan.cluster.kubernetes.credentials import Credentials\n"
        f"print(asyncio.run(Credentials(Path({str(path)!r})).endpoint()).url)\n"
        "print('kubernetes' in sys.modules)"
    )

    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert run.stdout.split() == ["https://h", "False"]
