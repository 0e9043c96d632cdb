"""Traces of jobs, as a collector receives them: OTLP over HTTP, on loopback."""

from __future__ import annotations

import gzip
import itertools
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from tests.live.stage import stage

from bayplan.api import Pod
from bayplan.cli import main
from bayplan.errors import InputError
from bayplan.testing import make_gang, make_node, make_object, make_pod


class Collector:
    """What was received, by name of the span."""

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[Span] = []
        self.service: set[str] = set()

    def receive(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            named = {one.key: one.value.string_value for one in resource.resource.attributes}
            self.service.add(named["service.name"])
            for scope in resource.scope_spans:
                self.spans += scope.spans

    def of(self, job: str) -> dict[str, list[Span]]:
        """Return the spans of a job's trace, in their order."""
        (root,) = (one for one in self.spans if said(one).get("bayplan.job") == job)
        found: dict[str, list[Span]] = {}
        own = [one for one in self.spans if one.trace_id == root.trace_id]
        for one in sorted(own, key=lambda span: (span.start_time_unix_nano, span.name)):
            assert one is root or one.parent_span_id == root.span_id
            assert one.start_time_unix_nano <= one.end_time_unix_nano
            found.setdefault(one.name, []).append(one)
        return found


def said(span: Span) -> dict[str, Any]:
    found = {}
    for one in span.attributes:
        kind = one.value.WhichOneof("value")
        value = getattr(one.value, kind)
        if kind == "array_value":
            value = [item.string_value for item in value.values]
        found[one.key] = value
    return found


def events(span: Span) -> list[str]:
    return [one.name for one in span.events]


@contextmanager
def collector() -> Iterator[Collector]:
    made = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/traces"
            assert self.headers["Content-Type"] == "application/x-protobuf"
            made.receive(body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever, args=(0.01,))
    serving.start()
    made.url = f"http://127.0.0.1:{server.server_address[1]}/v1/traces"
    try:
        yield made
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


async def test_a_jobs_trace_tells_its_life_and_leads_to_its_decisions() -> None:
    with collector() as received:
        async with stage([make_node("small", cpu=2)]) as made:
            app = await made.start(traces_endpoint=received.url)
            made.create(make_pod("big", cpu=4))
            await made.run_out(1)
            made.advance_to(30.0)
            made.create(make_node("large", cpu=8))
            await made.run_out()
            page = app.listener.url
            await made.stop(app)
        found = received.of("default/big")
    assert received.service == {"bayplan"}
    (root,) = found["job"]
    assert events(root) == ["created", "placed"]
    assert said(root)["bayplan.outcome"] == "running"
    assert said(root)["bayplan.profile"] == "default-scheduler"
    (queued,) = found["queued"]
    assert queued.start_time_unix_nano == root.start_time_unix_nano
    refused, placed = found["try"]
    assert said(refused)["bayplan.outcome"] == "Unschedulable"
    assert "Insufficient cpu" in said(refused)["bayplan.message"]
    assert said(refused)["bayplan.refused_by"] == ["NodeResourcesFit"]
    assert said(refused)["bayplan.decision"] == f"{page}/debug/decisions?unit=default/big"
    assert said(placed)["bayplan.outcome"] == "Placed"
    assert refused.end_time_unix_nano <= placed.start_time_unix_nano
    for name in ("bind", "start"):
        (span,) = found[name]
        assert said(span)["k8s.pod.name"] == "big"
        assert said(span)["k8s.node.name"] == "large"
    assert found["start"][0].end_time_unix_nano <= root.end_time_unix_nano


async def test_a_gang_is_one_trace_and_the_same_refusal_one_span() -> None:
    with collector() as received:
        async with stage([make_node("n", cpu=2)]) as made:
            app = await made.start(traces_endpoint=received.url)
            made.create(make_gang("train", 3))
            made.create(*(make_pod(f"train-{i}", cpu=1, gang="train") for i in range(3)))
            await made.run_out(1)
            for index in range(3):
                made.advance_to(made.cluster.clock.now + 400.0)
                made.create(make_node(f"useless-{index}", cpu=0))
                await made.run_out(made.cluster.clock.now)
            made.create(make_node("more", cpu=2))
            await made.run_out(made.cluster.clock.now + 600.0)
            await made.stop(app)
        found = received.of("default/train")
    outcomes = [said(one)["bayplan.outcome"] for one in found["try"]]
    assert outcomes[-1] == "Placed"
    assert sum(said(one)["bayplan.cycles"] for one in found["try"]) >= len(outcomes)
    messages = [said(one)["bayplan.message"] for one in found["try"]]
    assert all(a != b for a, b in itertools.pairwise(messages))
    assert len(found["bind"]) == len(found["start"]) == 3
    assert said(found["job"][0])["bayplan.pods"] == 3


async def test_a_job_that_goes_before_it_runs_ends_its_trace() -> None:
    with collector() as received:
        async with stage([make_node("n", cpu=2)]) as made:
            app = await made.start(traces_endpoint=received.url)
            made.create(make_pod("big", cpu=4), make_pod("stays", cpu=3))
            await made.run_out(1)
            made.cluster.delete(Pod, "default/big")
            made.create(make_pod("other", cpu=1))
            await made.run_out(2)
            await made.stop(app)
        gone, stays = received.of("default/big"), received.of("default/stays")
    assert said(gone["job"][0])["bayplan.outcome"] == "gone"
    assert said(stays["job"][0])["bayplan.outcome"] == "unfinished"


async def test_a_collector_that_is_not_there_keeps_nothing_from_its_node() -> None:
    async with stage([make_node("n", cpu=2)]) as made:
        app = await made.start(traces_endpoint="http://127.0.0.1:9/v1/traces")
        made.create(make_pod("p", cpu=1))
        await made.run_out()
        assert made.placements() == {"default/p": "n"}
        await made.stop(app)


def test_without_an_endpoint_nothing_of_opentelemetry_is_imported() -> None:
    code = "import sys, bayplan.live.app; print([m for m in sys.modules if 'opentel' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


async def test_without_the_sdk_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "bayplan.live.traces", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    async with stage() as made:
        with pytest.raises(InputError, match=r"pip install 'bayplan\[traces\]'"):
            made.make(traces_endpoint="http://127.0.0.1:9/v1/traces")


def test_an_endpoint_has_to_be_a_url(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--config", "configs/profiles/default.yaml", "--traces-endpoint", "here:4317")
    monkeypatch.setattr("sys.argv", ["bayplan", "run", *given])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = 'expected a URL such as http://collector:4318/v1/traces, got "here:4317"'
    assert said in " ".join(capsys.readouterr().err.split())


async def test_when_a_queue_admitted_a_job_is_an_event_of_its_trace() -> None:
    kueue = "kueue.x-k8s.io/v1beta2"
    resources = [{"name": name, "nominalQuota": most} for name, most in (("cpu", 8),)]
    spec = {
        "namespaceSelector": {},
        "resourceGroups": [
            {"coveredResources": ["cpu"], "flavors": [{"name": "f", "resources": resources}]}
        ],
    }
    container = {"name": "c", "resources": {"requests": {"cpu": 1}}}
    job = {"suspend": True, "template": {"spec": {"containers": [container]}}}
    objects = [
        {"kind": "ResourceFlavor", "metadata": {"name": "f"}, "apiVersion": kueue},
        {"kind": "ClusterQueue", "metadata": {"name": "cq"}, "spec": spec, "apiVersion": kueue},
        {
            "kind": "LocalQueue",
            "metadata": {"name": "lq"},
            "spec": {"clusterQueue": "cq"},
            "apiVersion": kueue,
        },
        {
            "kind": "Job",
            "metadata": {"name": "train", "labels": {"kueue.x-k8s.io/queue-name": "lq"}},
            "spec": job,
            "apiVersion": "batch/v1",
        },
    ]
    with collector() as received:
        async with stage([make_node("n", cpu=4)]) as made:
            app = await made.start(traces_endpoint=received.url)
            made.create(*map(make_object, objects))
            await made.run_out()
            ((pod, _),) = made.placements().items()
            await made.stop(app)
        roots = [one for one in received.spans if one.name == "job"]
    assert [events(one) for one in roots] == [["created", "admitted", "placed"]], pod
