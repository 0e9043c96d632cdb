"""Which parts of a simulated cluster fail, how often and for how long, from a YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

import msgspec
from pydantic import BeforeValidator, Field, model_validator

from bayplan.billing.prices import single_document
from bayplan.inputs.validated import validated
from bayplan.simulation.fields import LONGEST, FileFields, Seconds, seconds_of_field

__all__ = ["FaultRule", "Faults", "faults_by_mtbf", "load_faults"]

_DOWN_FOR = 4 * 3600.0
_CHECKPOINTS = 3600.0
_RESTART = 300.0
_MOST_YEARS = 1000
_LONGEST_MEAN = _MOST_YEARS * LONGEST
_Mean = Annotated[
    float,
    BeforeValidator(seconds_of_field),
    Field(ge=1, le=_LONGEST_MEAN, allow_inf_nan=False),
]


class FaultRule(FileFields):
    """What fails, when, and for how many seconds.

    ``of`` says what: each node, each GPU, or the NIC of each node; ``layer`` instead names
    a network layer or a node label, each of whose domains fails with all of its nodes, as when a
    leaf switch or the power of a rack fails. They fail by chance, ``mean_time_between`` seconds
    apart in the mean, or once, ``at`` a time. ``name`` is the only one that fails: a node, a domain
    or, as ``NODE/INDEX``, a GPU.
    """

    of: Literal["node", "gpu", "nic"] | None = None
    layer: str = ""
    name: str = ""
    mean_time_between: _Mean | None = None
    at: Seconds | None = None
    down_for: Seconds = Field(default=_DOWN_FOR, ge=1)

    @model_validator(mode="after")
    def _says_what_and_when(self) -> Self:
        if (self.of is None) == (not self.layer):
            raise ValueError("expected either of: node, gpu or nic, or layer: a network layer")
        if (self.mean_time_between is None) == (self.at is None):
            raise ValueError("expected either meanTimeBetween, or at")
        if self.at is not None and not self.name:
            raise ValueError("at: expected the name of what fails then")
        return self

    @property
    def what(self) -> str:
        """What fails, in a word."""
        return self.of or self.layer


class _FileOfFaults(FileFields):
    """The file: the rules, and what a job loses when any of its pods does."""

    api_version: Literal["bayplan.dev/v1alpha1"]
    kind: Literal["Faults"]
    faults: tuple[FaultRule, ...] = ()
    checkpoint_every: Seconds = Field(default=_CHECKPOINTS)
    restart: Seconds = Field(default=_RESTART)


class Faults(msgspec.Struct, frozen=True):
    """The rules, and what a job loses when any of its pods does; times are in seconds.

    :param checkpoint_every: from one checkpoint of a job to the next; 0 is never.
    :param restart: until a job that is whole again makes progress.
    :param places: where each rule is, as in ``faults.yaml:4:3``; none for rules of no file.
    """

    rules: tuple[FaultRule, ...]
    checkpoint_every: float = _CHECKPOINTS
    restart: float = _RESTART
    places: tuple[str, ...] = ()

    def place(self, number: int) -> str:
        """Return where a rule is, "" for one of no file."""
        return self.places[number] if self.places else ""


def load_faults(path: Path) -> Faults:
    """Read a file of faults.

    :raises InputError: naming file, line and path of what cannot be used.
    """
    document = single_document(path, "Faults")
    fields = validated(_FileOfFaults, document.content, document)
    places = tuple(document.where(("faults", number)) for number in range(len(fields.faults)))
    return Faults(fields.faults, fields.checkpoint_every, fields.restart, places)


def faults_by_mtbf(seconds: float) -> Faults:
    """Return faults of nodes alone: each fails so many seconds apart in the mean."""
    return Faults((FaultRule(of="node", mean_time_between=seconds),))
