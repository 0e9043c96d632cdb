"""Traces: CSV and JSON lines, and messages that name the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from bayplan.api import ApiObject, Job, KaiPodGroup, VolcanoPodGroup
from bayplan.errors import InputError
from bayplan.simulation.trace import TraceJob, read_trace
from bayplan.simulation.trace_objects import arrivals_of_trace
from bayplan.testing import make_object

CSV = """name,queue,arrival,duration,pods,priority,cpu,nvidia.com/gpu
a,team,0,90,,,500m,1
b,team,1h,30m,2,7,1,
"""


def read(tmp_path: Path, text: str) -> list[TraceJob]:
    path = tmp_path / "jobs.csv"
    path.write_text(text)
    return read_trace(path)


def test_csv_has_a_column_for_each_resource(tmp_path: Path) -> None:
    first, second = read(tmp_path, CSV)
    assert (first.name, first.queue, first.arrival, first.duration) == ("a", "team", 0, 90)
    assert (first.pods, first.priority) == (1, 0)
    assert first.requests == {"cpu": "500m", "nvidia.com/gpu": "1"}
    assert (second.arrival, second.duration, second.pods, second.priority) == (3600, 1800, 2, 7)
    assert second.requests == {"cpu": "1"}


def test_json_lines_say_the_same(tmp_path: Path) -> None:
    jobs = read(
        tmp_path,
        '{"name": "a", "arrival": 0, "requests": {"cpu": 2}}\n\n'
        '{"name": "b", "arrival": "90s", "pods": 3}\n',
    )
    assert [(job.name, job.arrival, job.pods) for job in jobs] == [("a", 0, 1), ("b", 90, 3)]
    assert jobs[0].requests == {"cpu": "2"}
    assert jobs[1].duration is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "jobs.csv:1: the header has no column"),
        ("name,arrival\n", "holds no jobs"),
        ("name,cpu\na,1\n", 'jobs.csv:1: the header has no column "arrival"'),
        ("name,arrival,cpu,cpu\n", "jobs.csv:1: a column comes twice"),
        ("name,arrival\na,1\nb\n", "jobs.csv:3: expected 2 cells, got 1"),
        ("name,arrival\na,soon\n", "jobs.csv:2: arrival: expected a duration"),
        ("name,arrival\na,-1\n", "jobs.csv:2: arrival: "),
        ("name,arrival\na,nan\n", "jobs.csv:2: arrival: "),
        ("name,arrival,pods\na,1,0\n", "jobs.csv:2: pods: "),
        ("name,arrival,cpu\na,1,much\n", "jobs.csv:2: requests: "),
        (
            "name,arrival,cpu\na,1,-1\n",
            "jobs.csv:2: requests: cpu: expected an amount of 0 or more",
        ),
        ("name,arrival\nA b,1\n", "jobs.csv:2: name: "),
        ("name,arrival\na,1\na,2\n", 'jobs.csv:3: job "a" comes twice; first in '),
        ('{"name": "a"}', 'jobs.csv:1: arrival: the required field "arrival" is missing'),
        ('{"name": "a", "arival": 1}', 'jobs.csv:1: arival: "arival" is not known here; did you'),
        ('{"name": "a", "arrival": 1}\n[]', "jobs.csv:2: expected a JSON object"),
        ('{"name": "a", "arrival": 1}\n{', "jobs.csv:2: not JSON"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError) as raised:
        read(tmp_path, text)
    assert message in str(raised.value)


QUEUES: list[ApiObject] = [
    make_object(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "queue-m", "labels": {"bayplan.dev/queue": "m"}},
        }
    ),
    *(
        make_object(
            {
                "apiVersion": "v1",
                "kind": "ResourceQuota",
                "metadata": {"name": "compute", "namespace": space},
            }
        )
        for space in ("team", "v")
    ),
]
QUEUES += [
    make_object({"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": {}})
    for version, kind, name in (
        ("scheduling.volcano.sh/v1beta1", "Queue", "v"),
        ("scheduling.volcano.sh/v1beta1", "Queue", "both"),
        ("scheduling.run.ai/v2", "Queue", "k"),
        ("scheduling.run.ai/v2", "Queue", "both"),
        ("scheduling.sigs.k8s.io/v1alpha1", "ElasticQuota", "e"),
    )
]


def made_of(queue: str, pods: int = 2) -> tuple[Job, list[object]]:
    job = TraceJob(name="j", arrival=5, duration=60, queue=queue, pods=pods, requests={"cpu": "1"})
    made = arrivals_of_trace([job], QUEUES, "bayplan")
    assert {at for at, _ in made} == {5}
    (found,) = [obj for _, obj in made if isinstance(obj, Job)]
    return found, [obj for _, obj in made if not isinstance(obj, Job)]


def test_pods_name_their_queue_as_its_system_does() -> None:
    job, (group,) = made_of("v")
    assert isinstance(group, VolcanoPodGroup)
    assert (group.spec.queue, group.spec.min_member) == ("v", 2)
    assert job.spec.template.metadata.annotations["scheduling.k8s.io/group-name"] == "j"
    job, (group,) = made_of("kai/both")
    assert isinstance(group, KaiPodGroup)
    assert group.spec.queue == "both"
    assert job.spec.template.metadata.labels["kai.scheduler/queue"] == "both"
    job, groups = made_of("e")
    assert groups == []
    meta = job.spec.template.metadata
    assert meta.labels["quota.scheduling.koordinator.sh/name"] == "e"
    assert meta.annotations["gang.scheduling.koordinator.sh/min-available"] == "2"


def test_a_config_map_and_a_namespace_are_queues_too() -> None:
    job, groups = made_of("m")
    assert groups == []
    assert job.spec.template.metadata.labels["bayplan.dev/queue"] == "m"
    job, _ = made_of("team")
    assert job.metadata.namespace == "team"


def test_a_job_has_as_many_pods_as_the_trace_says_for_as_long() -> None:
    job, groups = made_of("", 3)
    assert groups == []
    assert (job.spec.parallelism, job.spec.completions, job.spec.suspend) == (3, 3, False)
    assert job.spec.template.metadata.annotations["bayplan.dev/duration"] == "60.000s"
    (container,) = job.spec.template.spec.containers
    assert container.resources.requests["cpu"].text == "1"


def test_a_queue_that_is_unknown_or_not_unique_is_an_error() -> None:
    with pytest.raises(InputError, match='there is no queue "w"'):
        made_of("w")
    with pytest.raises(
        InputError, match=r'several queues have the name "both": volcano .* and kai'
    ):
        made_of("both")
