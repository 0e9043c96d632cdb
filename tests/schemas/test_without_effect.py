"""What would change where pods go, and is not honoured, is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from bayplan.cluster.manifests import load_manifests

EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
JOBSET = f"""
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {{name: js, annotations: {{{EXCLUSIVE}: rack}}}}
spec:
  replicatedJobs:
  - name: w
    template: {{spec: {{template: {{spec: {{containers: [{{name: c, image: i}}]}}}}}}}}
"""
PYTORCH = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: p}
spec:
  runPolicy: {schedulingPolicy: {minAvailable: 1, scheduleTimeoutSeconds: 60}}
  pytorchReplicaSpecs: {Worker: {template: {spec: {containers: [{name: c, image: i}]}}}}
"""
RAY = """
apiVersion: ray.io/v1
kind: RayCluster
metadata: {name: r, labels: {volcano.sh/queue-name: "q"}}
spec:
  headGroupSpec: {template: {spec: {containers: [{name: c, image: i}]}}}
"""
VOLCANO = """
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: v}
spec:
  tasks:
  - {name: a, replicas: 1, template: {spec: {containers: [{name: c, image: i}]}}}
  - name: b
    dependsOn: {name: [a]}
    template: {spec: {containers: [{name: c, image: i}]}}
"""


def notes_of(folder: Path, text: str) -> list[str]:
    path = folder / "job.yaml"
    path.write_text(text, encoding="utf-8")
    return load_manifests((str(path),)).notes()


@pytest.mark.parametrize(
    ("text", "line", "path"),
    [
        (JOBSET, 4, f'$.metadata.annotations["{EXCLUSIVE}"]'),
        (PYTORCH, 6, "$.spec.runPolicy.schedulingPolicy.scheduleTimeoutSeconds"),
        (RAY, 4, '$.metadata.labels["volcano.sh/queue-name"]'),
        (VOLCANO, 9, "$.spec.tasks[].dependsOn"),
    ],
)
def test_a_note_names_the_file_the_line_and_the_field(
    tmp_path: Path, text: str, line: int, path: str
) -> None:
    (note,) = notes_of(tmp_path, text)
    assert f"job.yaml:{line}" in note
    assert f"{path}: has no effect here: " in note


def test_one_note_for_a_field_of_many_objects(tmp_path: Path) -> None:
    assert len(notes_of(tmp_path, f"{JOBSET}---{JOBSET.replace('js', 'other')}")) == 1


def test_a_label_that_says_nothing_is_no_note(tmp_path: Path) -> None:
    assert notes_of(tmp_path, RAY.replace('"q"', '""')) == []
