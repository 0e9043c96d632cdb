"""Trace files: which jobs arrive when, for how long, with what requests.

A trace is CSV with a header, or JSON lines. ``name`` and ``arrival`` are required; ``queue``,
``duration``, ``pods`` and ``priority`` are not. In CSV every other column is a resource that each
pod requests; in JSON these are in ``requests``. Times are seconds, or durations such as "1h30m".
"""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import pydantic

from bayplan.api.quantity import Quantity
from bayplan.errors import InputError
from bayplan.inputs.documents import read_text
from bayplan.inputs.durations import parse_duration
from bayplan.inputs.jsontext import parse_json
from bayplan.inputs.limits import ANNOTATION, FILE
from bayplan.inputs.validated import checked

__all__ = ["TraceJob", "read_trace", "shuffled"]

_MOST_PODS = 10_000
_FIELDS = ("name", "queue", "arrival", "duration", "pods", "priority")


def _seconds(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        return parse_duration(value)


Seconds = Annotated[
    float,
    pydantic.BeforeValidator(_seconds),
    pydantic.Field(ge=0, le=100 * 365 * 86_400, allow_inf_nan=False),
]


class TraceJob(pydantic.BaseModel):
    """One job of a trace: ``pods`` equal pods that are placed together.

    ``queue`` is its queue, as ``NAME`` or ``SYSTEM/NAME``, "" for none. ``arrival`` is when it
    comes and ``duration`` how long its pods run, in seconds; None is without end. ``requests`` are
    what each pod requests, as Kubernetes writes quantities. ``where`` is its place in the file.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    name: str = pydantic.Field(pattern=r"^[a-z0-9]([-a-z0-9.]{0,200}[a-z0-9])?$")
    arrival: Seconds
    queue: str = ""
    duration: Seconds | None = None
    pods: int = pydantic.Field(default=1, ge=1, le=_MOST_PODS)
    priority: int = 0
    requests: Mapping[str, str] = {}
    where: str = ""

    @pydantic.field_validator("requests", mode="before")
    @classmethod
    def _quantities(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        texts = {name: str(amount) for name, amount in value.items()}
        for name, text in texts.items():
            if Quantity(text).amount < 0:
                raise ValueError(f'{name}: expected an amount of 0 or more, got "{text}"')
        return texts


def read_trace(path: Path) -> list[TraceJob]:
    """Read a trace, in the order of the file.

    :raises InputError: for a file that cannot be read, or a job that cannot be used; it names the
        line.
    """
    text = read_text(path, FILE)
    rows = _json_lines if text.lstrip().startswith("{") else _csv_rows
    jobs: list[TraceJob] = []
    seen: dict[str, str] = {}
    for line, content in rows(text, str(path)):
        where = f"{path}:{line}"
        job = _job(content, where)
        if job.name in seen:
            raise InputError(f'job "{job.name}" comes twice; first in {seen[job.name]}', where)
        seen[job.name] = where
        jobs.append(job)
    if not jobs:
        raise InputError("holds no jobs", str(path))
    return jobs


def shuffled(jobs: Sequence[TraceJob], seed: int) -> list[TraceJob]:
    """Return the same jobs, arriving at the same times in another order; that of seed 0 is theirs.

    So the load over time stays, and what depends on the order of jobs shows.
    """
    if not seed:
        return list(jobs)
    order = list(jobs)
    random.Random(seed).shuffle(order)  # noqa: S311 - no secret
    return [
        job.model_copy(update={"arrival": place.arrival})
        for place, job in zip(jobs, order, strict=True)
    ]


def _job(content: dict[str, Any], where: str) -> TraceJob:
    return checked(TraceJob, {**content, "where": where}, lambda _: where)


def _json_lines(text: str, source: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            content = parse_json(line, ANNOTATION)
        except ValueError as exc:
            raise InputError(str(exc), f"{source}:{number}") from None
        if not isinstance(content, dict):
            raise InputError("expected a JSON object", f"{source}:{number}")
        yield number, content


def _csv_rows(text: str, source: str) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.reader(text.splitlines())
    try:
        header = [name.strip() for name in next(reader, [])]
        for name in ("name", "arrival"):
            if name not in header:
                raise InputError(f'the header has no column "{name}"', f"{source}:1")
        if len(set(header)) < len(header):
            raise InputError("a column comes twice", f"{source}:1")
        for cells in reader:
            if cells:
                yield reader.line_num, _row(header, cells, f"{source}:{reader.line_num}")
    except csv.Error as exc:
        raise InputError(f"not CSV: {exc}", f"{source}:{reader.line_num}") from None


def _row(header: Sequence[str], cells: Sequence[str], where: str) -> dict[str, Any]:
    if len(cells) != len(header):
        raise InputError(f"expected {len(header)} cells, got {len(cells)}", where)
    given = {name: cell.strip() for name, cell in zip(header, cells, strict=True) if cell.strip()}
    row: dict[str, Any] = {name: given.pop(name) for name in _FIELDS if name in given}
    return {**row, "requests": given}
