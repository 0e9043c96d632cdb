"""What would help, for small clusters whose right answer is known: as a table."""
# ruff: noqa: E501 - a table reads best with an answer a line

from __future__ import annotations

from pathlib import Path

import pytest

from bayplan.api import Pod
from bayplan.cli.options import simulate
from bayplan.explain.explanation import Explanation, explain

CASES = Path(__file__).parent / "cases"
Answer = list[tuple[str, list[str]]]

ANSWERS: dict[str, Answer] = {
    "c01-frag": [
        ("would fit if 1 nvidia.com/gpu was freed on n0", ["default/u0"]),
    ],
    "c01b-frag": [
        ("would fit if 2 nvidia.com/gpu were freed on n1", ["default/u3"]),
    ],
    "c02-taint": [
        ("would fit on n1 if the pod tolerated team=a:NoSchedule", []),
        ("would fit if 3 CPUs were freed on n0", ["default/big"]),
    ],
    "c03-rack": [
        (
            "can never fit with the nodes as they are: of its 5 pods the largest domain, RackLayer/r0, "
            "has room for 4; it would without MustGather at RackLayer",
            [],
        ),
        ("would fit without MustGather at RackLayer", []),
        ("would fit if RackLayer/r0 had 1 more node like r0n0", []),
    ],
    "c03b-rack": [
        (
            "can never fit with the nodes as they are: of its 9 pods the largest domain, RackLayer/r0, "
            "has room for 4",
            [],
        ),
        (
            "would fit without MustGather at RackLayer and if the cluster had 1 more node like r0n0",
            [],
        ),
        ("would fit if RackLayer/r0 had 5 more nodes like r0n0", []),
    ],
    "c04-pvc": [
        ("would fit on nb if volume pv1 could be reached from there", []),
        ("would fit if 3 CPUs were freed on na", ["default/u"]),
    ],
    "c04b-pvc-missing": [
        ("would be tried again if PersistentVolumeClaim default/data existed", []),
    ],
    "c04c-pvc-nonode": [
        ("would fit on nb if volume pv1 could be reached from there", []),
    ],
    "c05-match": [
        ("would fit on n0 without matchAttribute resource.kubernetes.io/pcieRoot in claim c", []),
    ],
    "c05b-cel": [
        (
            "would be tried again if selector #0 of request gpu in claim c did not fail on device "
            "gpu-0 of n0 (no such key: modle; .?modle.orValue(...) is safe to read)",
            [],
        ),
    ],
    "c06-selector": [
        ("would fit on n0 with nodeSelector gpu-type=h100, as its labels are written", []),
    ],
    "c07-missing": [
        ("would be tried once 1 more member existed", []),
    ],
    "c08-pdb": [
        ("would fit if 2 CPUs were freed on n0", ["default/v"]),
        ("would fit if PodDisruptionBudget default/b let v go", []),
    ],
    "c09-port": [
        ("would fit on n0 if host port 80/TCP was free (u has it)", ["default/u"]),
    ],
    "c10-big": [
        ("cannot fit: no node offers 64 CPUs; the largest offers 32 CPUs", []),
    ],
    "c10b-bigmem": [
        ("would fit if 2 CPUs were freed on n1", ["default/u"]),
    ],
    "c11-two": [
        (
            "would fit on n0 if the pod tolerated team=a:NoSchedule and if 2 CPUs were freed on n0",
            ["default/u"],
        ),
    ],
    "c12-spread": [
        ("would fit on na with maxSkew 2 over topology.kubernetes.io/zone (now 1)", []),
    ],
    "c13-cordon": [
        ("would fit on n1 if that node was uncordoned", []),
        ("would fit if 3 CPUs were freed on n0", ["default/u"]),
    ],
    "c14-anti": [
        ("would fit on n0 if w0 ended, as the pod's anti-affinity asks", ["default/w0"]),
    ],
    "c15-gate": [
        (
            "will be tried when it is no longer held back: waiting for scheduling gates: [example.com/wait]",
            [],
        ),
    ],
    "c16-pods": [
        ("would fit if 1 pod slot was freed on n0", ["default/a"]),
    ],
    "c17-unknown": [
        ('cannot fit: no node offers nvidia.com/gpus; did you mean "nvidia.com/gpu"?', []),
    ],
    "c18-minimal": [
        ("would fit if 1 CPU was freed on n1", ["default/u2"]),
    ],
    "c19-notready": [
        ("would fit on n0 if that node was Ready", []),
    ],
    "c20-none": [
        ("cannot fit: the cluster has no nodes", []),
    ],
    "c21-gang-cordon": [
        ("would fit without MustGather at RackLayer", []),
        ("would fit on r0n0 if that node was uncordoned (in RackLayer/r0)", []),
    ],
    "c22-gang-taint": [
        ("would fit without MustGather at RackLayer", []),
        ("would fit on r0n0 if the pod tolerated x=y:NoSchedule (in RackLayer/r0)", []),
    ],
    "d01-gangfree": [
        ("would fit without MustGather at RackLayer", []),
        ("would fit if 1 nvidia.com/gpu was freed on r0n2 (in RackLayer/r0)", ["default/u0"]),
    ],
    "d02-gangany": [
        ("would fit if 1 nvidia.com/gpu was freed on r0n1", ["default/u0"]),
    ],
    "d03-bw": [
        (
            "would fit on n0 without gpu.topology/min-bandwidth 200; GPU0, GPU1, GPU2, GPU3 reach 16 GB/s",
            [],
        ),
    ],
    "d03b-nvlink": [
        ("would fit on n0 without gpu.topology/require-nvlink; GPU0, GPU1, GPU2 reach 16 GB/s", []),
    ],
    "d03c-bad": [
        (
            'would be tried again once this is fixed: annotation gpu.topology/min-bandwidth: expected a number of GB/s above 0, got "lots"',
            [],
        ),
    ],
    "d03d-unkpolicy": [
        (
            'would be tried again once this is fixed: annotation gpu.topology/policy: expected one of best-effort, nvlink, single-numa, spread, got "nvlnk"; did you mean "nvlink"?',
            [],
        ),
    ],
    "d04-aff": [
        ("would fit on n0 if a pod with app=cache ran in the same kubernetes.io/hostname", []),
    ],
    "d05-sc": [
        (
            'would be tried again if StorageClass "fastt" of PersistentVolumeClaim default/data existed',
            [],
        ),
    ],
    "d06-claim": [
        (
            'will be tried when it is no longer held back: waiting for resource claim "nope", which does not exist',
            [],
        ),
    ],
    "d06b-template": [
        (
            'will be tried when it is no longer held back: waiting for resource claim "c" to be created from template "nope", which does not exist',
            [],
        ),
    ],
    "d07-nopg": [
        (
            'will be tried when it is no longer held back: waiting for PodGroup "default/g", which does not exist',
            [],
        ),
    ],
    "d08-layer": [
        (
            'would be tried again once this is fixed: gang "default/g": there is no network layer "RakLayer" (RackLayer, NodeTopologyLayer); did you mean "RackLayer"?',
            [],
        ),
    ],
    "d09-badjson": [
        (
            "will be tried when it is no longer held back: PodGroup default/g: annotation gang.scheduling.koordinator.sh/network-topology-spec: not JSON: JSON is malformed: object keys must be strings (byte 1)",
            [],
        ),
    ],
    "d11-prio": [
        ("would fit if 3 CPUs were freed on n0", ["default/u"]),
    ],
    "d12-never": [
        ("would fit if 3 CPUs were freed on n0", ["default/u"]),
    ],
    "d14-over": [
        ("would fit if 18 CPUs were freed on n0", ["default/u"]),
    ],
    "d15-na": [
        ("would fit on n0 if its label b was 1 (it has none)", []),
    ],
    "d15b-na-num": [
        ("would fit on n0 if its label size was greater than 7 (it is 5)", []),
    ],
    "d15c-na-notin": [
        ("would fit on n0 if its label size was not 5", []),
    ],
    "d16-noexec": [
        ("would fit on n0 if the pod tolerated k:NoExecute", []),
    ],
    "d17-cordon-real": [
        ("would fit on n0 if that node was uncordoned", []),
    ],
    "d18-gang2nodes": [
        (
            "would fit if 1 nvidia.com/gpu was freed on r0n2 and 3 nvidia.com/gpu were freed on r0n0 (in RackLayer/r0)",
            ["default/u0", "default/u1"],
        ),
    ],
    "d19-nolabel": [
        (
            "can never fit with the nodes as they are: of its 3 pods the largest domain, RackLayer/r0, "
            "has room for 2; it would without MustGather at RackLayer",
            [],
        ),
        ("would fit without MustGather at RackLayer", []),
        ("would fit if RackLayer/r0 had 1 more node like n1", []),
    ],
    "permit-gang": [
        ("would fit if the cluster had 1 more node like n0", []),
    ],
    "e-cordon-vs-taint": [
        ("would fit on n0 if that node was uncordoned", []),
        ("would fit on n1 if the pod tolerated t=v:NoSchedule", []),
    ],
    "e-ds-victim": [
        ("would fit if 1 CPU was freed on n0", ["default/b"]),
    ],
    "e-gang-anti2": [
        ("would fit on n1 if old ended, as the pod's anti-affinity asks", ["default/old"]),
    ],
    "e-gang-gate-member": [
        (
            "would be tried once 1 member is no longer held back: waiting for scheduling gates: [x/y]",
            [],
        ),
    ],
    "e-gang-min": [
        ("would fit if x ended on n0", ["default/x"]),
    ],
    "e-mirror": [
        ("would fit if 1 CPU was freed on n0", ["default/b"]),
    ],
    "e-notin-ab": [
        ("would fit on n0 if its label t was not a or b", []),
    ],
    "e-own-members-overcount": [
        ("would fit if o1 ended on n0", ["default/o1"]),
    ],
    "e-prio-nodes": [
        ("would fit if 4 CPUs were freed on n1", ["default/b"]),
    ],
    "e-rwop-full": [
        (
            "would fit if 1 CPU was freed on n0 and when default/u has ended, which uses default/data",
            ["default/u"],
        ),
    ],
    "e-taints3": [
        ("would fit on n1 if the pod tolerated z=1:NoSchedule", []),
    ],
    "e-two-changes": [
        ("would fit on n0 if that node was uncordoned and the pod tolerated gpu=1:NoSchedule", []),
    ],
    "e-two-on-one": [
        ("would fit if a ended on n0", ["default/a"]),
    ],
}
"""The changes, the smallest first, each with the pods that would have to go for it."""

MESSAGES = {
    "c08-pdb": "it would violate the disruption budget default/b.",
    "c20-none": "no nodes available to schedule pods",
    "c03-rack": "RackLayer/r1: 4. preemption: 0/8 nodes are available",
    "d08-layer": 'did you mean "RackLayer"?',
}
"""What the pod is told, at its end."""


def explained(case: str) -> Explanation:
    simulation, _ = simulate((str(CASES / f"{case}.yaml"),), None, None, 600.0, 0)
    key = next(iter(simulation.pending()))
    pod = simulation.cluster.get(Pod, key)
    assert pod is not None
    return explain(simulation.scheduler, pod)


@pytest.mark.parametrize("case", ANSWERS)
def test_what_would_help_is_the_right_answer(case: str) -> None:
    found = explained(case).suggestions
    assert [(one.text, list(one.ends)) for one in found] == ANSWERS[case]


@pytest.mark.parametrize("case", MESSAGES)
def test_the_message_reads_well(case: str) -> None:
    assert MESSAGES[case] in explained(case).message


def test_every_case_is_in_the_table_or_has_no_pending_pod() -> None:
    for path in sorted(CASES.glob("*.yaml")):
        if path.stem not in ANSWERS:
            simulation, _ = simulate((str(path),), None, None, 600.0, 0)
            assert not simulation.pending(), path.stem
