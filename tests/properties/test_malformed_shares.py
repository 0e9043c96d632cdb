"""Whatever texts pods and nodes carry about shares, there is a message or an exact amount.

``pytest tests/properties/test_malformed_shares.py --hypothesis-profile=thorough`` tries 100,000
texts of each adapter.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.damaged import damaged_by, numbers_in
from tests.properties.share_fields import ADAPTERS, Field

from bayplan.api import Pod
from bayplan.api.objects import DecodeError
from bayplan.testing import Cluster
from bayplan_plugins.gpus.ledger import GpuLedger

_TOGETHER = 50
"""Texts in one cluster."""
_THOROUGH = 100_000
_MIB = 1 << 20
_FREE = {0, 1, 100}
"""Amounts that stand for a text that names none."""


def _worlds() -> int:
    thorough = settings.get_current_profile_name() == "thorough"
    return _THOROUGH // _TOGETHER if thorough else 3


def _world(chance: Random, fields: list[Field]) -> list[tuple[Field, str]]:
    """Return as many texts as there are in one cluster, each with its field."""
    chosen = chance.choices(fields, k=_TOGETHER)
    return [(field, damaged_by(chance, *field.valid)) for field in chosen]


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_text_gives_a_message_or_an_exact_amount(adapter: str) -> None:
    known = ADAPTERS[adapter]

    @settings(max_examples=_worlds())
    @given(st.integers(0, 2**32))
    def check(seed: int) -> None:
        world = _world(Random(seed), known.fields)
        cluster = Cluster([known.pod], plugins=known.plugins)
        seen = {}
        for number, (field, text) in enumerate(world):
            try:
                objects = field.objects(text, number)
            except DecodeError:
                # The API server refuses it, or the cache says so.
                continue
            seen[number] = field, text
            for one in objects:
                cluster.api.create(one)
        cluster.api.deliver()
        cluster.schedule()
        for number, (field, text) in seen.items():
            _check(cluster, number, field, text)

    check()


def _check(cluster: Cluster, number: int, field: Field, text: str) -> None:
    messages = _messages(cluster, number)
    assert all(len(one) < 1000 for one in messages), messages
    told = any(field.subject in one for one in messages)
    assert told or field.sound(text), f"{field}: nothing is said of {text!r}, only {messages}"
    node = f"n{number}"
    state = cluster.snapshot.shared(GpuLedger, GpuLedger).state(node)
    if state is None:
        return
    for gpu, use in zip(state.gpus, state.used, strict=True):
        assert min(gpu.compute, gpu.memory, gpu.slots) >= 0
        assert min(use.compute, use.memory, use.slots) >= 0
    if field.literal and not told:
        # That of a GPU in MIG mode may be the sum of its partitions.
        amounts = {gpu.memory // _MIB for gpu in state.gpus if gpu.mode != "mig"}
        amounts |= {gpu.slots for gpu in state.gpus}
        amounts |= {share // _MIB for share in _held(cluster, f"default/r{number}", node)}
        assert amounts <= numbers_in(text) | _FREE | _BASE


_BASE = {81920, 10, 3000}
"""What the GPUs have where the text is about something else."""


def _held(cluster: Cluster, key: str, node: str) -> list[int]:
    """Return the memory of each share of a running pod."""
    found = cluster.snapshot.placed.get(key)
    if found is None:
        return []
    ledger = cluster.snapshot.shared(GpuLedger, GpuLedger)
    return [share.memory for share in ledger.shares(found[0], node)]


def _messages(cluster: Cluster, number: int) -> list[str]:
    """Return what is said of a node's problems, and why its pod is pending."""
    problems = cluster.snapshot.problems
    of_node = [
        f"{subject}: {text}" for (node, subject), text in problems.items() if node == f"n{number}"
    ]
    pod = cluster.api.get(Pod, f"default/p{number}")
    return [*of_node, cluster.message(f"p{number}")] if pod is not None else of_node
