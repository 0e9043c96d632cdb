"""Pods of equal spec that differ in all else: what the answers of a plugin depend on."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from bayplan.api import Pod
from bayplan.testing.builders import make_pod

__all__ = ["Twin", "Watched", "relabelled", "twins_of", "watched"]

_VALUES = ("a", "b")


class Watched(Mapping[str, str]):
    """Labels or annotations that record which names a plugin asks for."""

    def __init__(self, content: Mapping[str, str]) -> None:
        self._content = dict(content)
        self.asked: dict[str, None] = {}

    def __getitem__(self, name: str) -> str:
        self.asked[name] = None
        return self._content[name]

    def __iter__(self) -> Iterator[str]:
        self.asked.update(dict.fromkeys(self._content))
        return iter(self._content)

    def __len__(self) -> int:
        return len(self._content)


class Twin(msgspec.Struct, frozen=True):
    """A pod whose spec is that of another; ``differs`` says what is not, in the plural."""

    differs: str
    pod: Pod


def watched(pod: Pod) -> tuple[Pod, Watched, Watched]:
    """Return a copy of a pod, and its labels and annotations, which record what is asked for."""
    labels, annotations = Watched(pod.metadata.labels), Watched(pod.metadata.annotations)
    # They are read as any mapping is; only a decoder needs dictionaries.
    return (
        _with(pod, labels=cast(Any, labels), annotations=cast(Any, annotations)),
        labels,
        annotations,
    )


def relabelled(
    draw: random.Random, pod: Pod, labels: Iterable[str], annotations: Iterable[str]
) -> Pod:
    """Return a pod with random values of some labels and annotations, or without them."""
    meta = pod.metadata
    return _with(
        pod,
        labels=_with_random(draw, meta.labels, labels),
        annotations=_with_random(draw, meta.annotations, annotations),
    )


def twins_of(pod: Pod, labels: Iterable[str], annotations: Iterable[str]) -> Iterator[Twin]:
    """Yield twins of a pod, each of which differs in one thing.

    :param labels: the names of labels to change, apart from one that no plugin knows.
    :param annotations: the names of annotations to change, apart from one that no plugin knows.
    """
    meta = pod.metadata
    owner = make_pod("owned", owner="Job/another").metadata.owner_references
    yield Twin("names", _with(pod, name=f"{meta.name}-twin"))
    yield Twin("namespaces", _with(pod, namespace="another"))
    yield Twin("owners", _with(pod, owner_references=owner))
    for name in ("example.com/twin", *labels):
        yield Twin(f'labels "{name}"', _with(pod, labels=_with_another(meta.labels, name)))
    for name in ("example.com/twin", *annotations):
        changed = _with_another(meta.annotations, name)
        yield Twin(f'annotations "{name}"', _with(pod, annotations=changed))


def _with_random(
    draw: random.Random, content: Mapping[str, str], names: Iterable[str]
) -> dict[str, str]:
    changed = {**content, **{name: draw.choice(("", *_VALUES)) for name in names}}
    return {name: value for name, value in changed.items() if value}


def _with_another(content: Mapping[str, str], name: str) -> dict[str, str]:
    return {**content, name: next(value for value in _VALUES if value != content.get(name))}


def _with(pod: Pod, **changes: Any) -> Pod:
    return replace(pod, metadata=replace(pod.metadata, **changes))
