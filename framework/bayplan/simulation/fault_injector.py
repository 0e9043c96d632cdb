"""Lets parts of a simulated cluster fail and come back, by the rules of a file of faults.

Each part fails at times of its own, which follow from the seed alone: whatever the scheduler
does, the same parts fail at the same times.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from functools import partial

import msgspec

from bayplan.api import ResourceSlice
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.errors import InputError, did_you_mean
from bayplan.simulation.broken_parts import BrokenParts, Repair
from bayplan.simulation.faults import FaultRule, Faults
from bayplan.snapshot import Snapshot
from bayplan.snapshot.networks import Networks
from bayplan.topology.network.tree import TopologyError

__all__ = ["FaultInjector"]


class FaultInjector(msgspec.Struct):
    """Plays faults on an embedded cluster. ``counts`` has how many there were, by what failed.

    Call :meth:`look` at each instant, when nothing is left to do at it: nodes that come fail, too.
    """

    cluster: MemoryCluster
    snapshot: Snapshot
    faults: Faults
    seed: int
    parts: BrokenParts
    counts: Counter[str] = msgspec.field(default_factory=Counter)
    _planned: set[tuple[int, str]] = msgspec.field(default_factory=set)
    _seen: object = None

    def look(self) -> None:
        """Plan the faults of what has come since the last look."""
        table = self.snapshot.nodes
        at = table.epoch, table.label_version, len(self.cluster.list(ResourceSlice))
        if at == self._seen:
            return
        self._seen = at
        for number, rule in enumerate(self.faults.rules):
            for name in self._parts(rule):
                known = (number, name) in self._planned
                is_over = rule.at is not None and rule.at < self.cluster.now
                if not known and not is_over and rule.name in ("", name):
                    self._planned.add((number, name))
                    chance = random.Random(f"{self.seed}/{number}/{name}")  # noqa: S311 - no secret
                    self._plan(rule, name, chance)

    def idle_rules(self) -> list[str]:
        """Return, in words, the rules by which nothing could fail up to now."""
        planned = {number for number, _ in self._planned}
        return [
            f"faults.{number}: there was no {rule.name or rule.what} that could fail"
            for number, rule in enumerate(self.faults.rules)
            if number not in planned
        ]

    def check(self) -> None:
        """Check that there is what rules name, once the cluster is there.

        :raises InputError: naming the rule.
        """
        for number, rule in enumerate(self.faults.rules):
            place = self.faults.place(number)
            if rule.layer:
                try:
                    Networks.of(self.snapshot).find([rule.layer])
                except TopologyError as exc:
                    raise InputError(f"faults.{number}.layer: {exc}", place) from None
            known = list(self._parts(rule))
            if rule.name and rule.name not in known:
                near = did_you_mean(rule.name, known)
                message = f'there is no {rule.what} "{rule.name}"{near}'
                raise InputError(f"faults.{number}.name: {message}", place)

    def _plan(self, rule: FaultRule, name: str, chance: random.Random) -> None:
        fail = partial(self._fail, rule, name, chance)
        if rule.at is not None:
            self.cluster.clock.call_at(rule.at, fail)
        elif rule.mean_time_between is not None:
            delay = chance.expovariate(1 / rule.mean_time_between)
            self.cluster.clock.call_later(delay, fail, idle=True)

    def _fail(self, rule: FaultRule, name: str, chance: random.Random) -> None:
        repair = self._break(rule, name)
        if repair is not None:
            self.counts[rule.what] += 1
        by_chance = rule.at is None

        def end() -> None:
            if repair is not None:
                repair()
            if by_chance:
                self._plan(rule, name, chance)

        self.cluster.clock.call_later(rule.down_for, end, idle=True)

    # What fails ----------------------------------------------------------------------------------

    def _parts(self, rule: FaultRule) -> Iterable[str]:
        """Return the names of all that may fail by a rule."""
        if rule.layer:
            return self._domains(rule)
        nodes = self.snapshot.nodes
        return self.parts.gpus(nodes.nodes) if rule.of == "gpu" else nodes.names

    def _domains(self, rule: FaultRule) -> dict[str, list[str]]:
        """Return the nodes of each domain of a layer; none while no node has it."""
        table = self.snapshot.nodes
        try:
            tree = Networks.of(self.snapshot).find([rule.layer])
        except TopologyError:
            return {}
        domains = tree.layers.get(tree.find_layer(rule.layer) or "", [])
        return {one.label: [table.names[row] for row in one.rows.tolist()] for one in domains}

    # How it fails --------------------------------------------------------------------------------

    def _break(self, rule: FaultRule, name: str) -> Repair | None:
        """Let something fail; return what repairs it, None if it is not there any more."""
        if rule.layer:
            nodes = self._domains(rule).get(name, [])
            repairs = [one for one in map(self.parts.silence, nodes) if one is not None]
            return partial(_all, repairs) if repairs else None
        if rule.of == "node":
            return self.parts.silence(name)
        if rule.of == "nic":
            return self.parts.cut_off(name)
        node, _, gpu = name.partition("/")
        return self.parts.lose_gpu(node, gpu)


def _all(repairs: Iterable[Repair]) -> None:
    for repair in repairs:
        repair()
