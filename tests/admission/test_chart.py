"""The chart changes those policies that the arguments of Queues change.

tests/chart renders it with Helm, where there is one; this reads its text everywhere.
"""

from __future__ import annotations

import json
import re
from typing import Any

from tests.paths import ROOT

from bayplan.admission import Defaults, mutating_policies, validating_policies

TEMPLATE = (ROOT / "configs/chart/bayplan/templates/admission.yaml").read_text()


def policies(defaults: Defaults) -> dict[tuple[str, str], Any]:
    made = [*mutating_policies(defaults), *validating_policies(defaults)]
    return {(one["kind"], one["metadata"]["name"]): one["spec"] for one in made}


def test_the_same_policies_follow_the_namespaces_of_queued_jobs() -> None:
    every, some = policies(Defaults()), policies(Defaults(queued={"matchLabels": {"a": "b"}}))
    follow = {key for key, spec in some.items() if spec != every[key]}
    (named,) = re.findall(r"\$ofQueues := list (.*) -}}", TEMPLATE)
    (mutating,) = re.findall(r'regexMatch "(.*?)" \$object', TEMPLATE)
    (validating,) = re.findall(r'\$ofChanges := "(.*?)"', TEMPLATE)
    names = set(json.loads(f"[{named.replace(' ', ',')}]"))
    assert follow == {
        (kind, name)
        for kind, name in some
        if (kind == "MutatingAdmissionPolicy" and (name in names or re.search(mutating, name)))
        or (kind == "ValidatingAdmissionPolicy" and re.search(validating, name))
    }


def test_the_same_conditions_say_that_pods_wait_for_queues() -> None:
    without, with_pods = policies(Defaults()), policies(Defaults(pods=True))
    differ = {
        (before["name"], before["expression"], after["expression"])
        for key, spec in with_pods.items()
        for before, after in zip(
            without[key].get("matchConditions", ()), spec.get("matchConditions", ()), strict=True
        )
        if before != after
    }
    assert {name for name, _, _ in differ} == {"pods-are-an-integration", "pods-are-queued"}
    for name, before, after in differ:
        assert f'if eq .name "{name}"' in TEMPLATE
        # What the chart does to them: "false", at the start, becomes "true".
        assert re.sub("^false", "true", before) == after
