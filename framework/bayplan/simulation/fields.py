"""What the files of simulations have in common: their fields' names, and durations."""

from __future__ import annotations

from typing import Annotated, Any

import pydantic
from pydantic import BeforeValidator, Field
from pydantic.alias_generators import to_camel

from bayplan.inputs.durations import parse_duration

__all__ = ["LONGEST", "FileFields", "Seconds", "seconds_of_field"]

LONGEST = 366 * 86_400.0
"""The longest duration of such a file, in seconds."""


def seconds_of_field(value: Any) -> float:
    """Return the seconds of a number, or of a duration such as "3m".

    :raises ValueError: for anything else.
    """
    if isinstance(value, str):
        return parse_duration(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError('expected a duration such as "3m"')
    return float(value)


Seconds = Annotated[
    float, BeforeValidator(seconds_of_field), Field(ge=0, le=LONGEST, allow_inf_nan=False)
]


class FileFields(pydantic.BaseModel):
    """A mapping of a file, with names in camel case and no others than these."""

    model_config = pydantic.ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True
    )
