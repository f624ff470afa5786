"""The types of numbers, switches, durations and sizes in the file, and what is said when one is wrong.

The sentences never contain the value: it may be a password. The report adds what was found.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import (
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Strict,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, core_schema

from chronosd.config.expand import Expanded
from chronosd.config.nodes import plain_value
from chronosd.durations import (
    DURATION_EXPECTED,
    SIZE_EXPECTED,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)

MAX_DURATION_S = 3650 * 86_400.0
"""Ten years: beyond that a duration is a typing error, and sums with clocks stay exact."""


def retype(value: Any) -> Any:
    """Give text that came from an expansion the type that it would have as a plain scalar."""
    return plain_value(value) if isinstance(value, Expanded) else value


Whole = Annotated[int, Strict(), BeforeValidator(retype)]
Flag = Annotated[bool, Strict(), BeforeValidator(retype)]


@dataclass(frozen=True, slots=True)
class Seconds:
    """Marks a float as a duration of at least ``least`` seconds, if ``whole`` without a fraction of one."""

    least: float = 0.0
    whole: bool = False

    def read(self, value: Any) -> float:
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise ValueError(DURATION_EXPECTED)
        try:
            seconds = parse_duration(value)
        except ValueError:
            raise ValueError(DURATION_EXPECTED) from None
        if seconds < self.least:
            raise ValueError(f"must be at least {format_duration(self.least)}")
        if seconds > MAX_DURATION_S:
            raise ValueError(f"must be at most {format_duration(MAX_DURATION_S)}")
        if self.whole and seconds != int(seconds):
            raise ValueError("must be a whole number of seconds")
        return seconds

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.read, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        text = r"^\+?(([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h|d))+$"
        number: dict[str, Any] = {"type": "number", "minimum": self.least, "maximum": MAX_DURATION_S}
        return {"anyOf": [{"type": "string", "pattern": text}, number]}


@dataclass(frozen=True, slots=True)
class Bytes:
    """Marks an int as a size in bytes between ``least`` and ``most``."""

    least: int = 0
    most: int = 1 << 50

    def read(self, value: Any) -> int:
        if not isinstance(value, str | int) or isinstance(value, bool):
            raise ValueError(SIZE_EXPECTED)
        try:
            size = parse_size(value)
        except ValueError:
            raise ValueError(SIZE_EXPECTED) from None
        if size < self.least:
            raise ValueError(f"must be at least {format_size(self.least)}")
        if size > self.most:
            raise ValueError(f"must be at most {format_size(self.most)}")
        return size

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.read, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        text = r"^([0-9]+\.?[0-9]*|\.[0-9]+) ?(B|[kKMGT]B|[KMGT]iB)$"
        return {
            "anyOf": [
                {"type": "string", "pattern": text},
                {"type": "integer", "minimum": self.least, "maximum": self.most},
            ]
        }


def _workers(value: Any) -> Any:
    value = retype(value)
    if value == "auto":
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return value


Word = BeforeValidator(lambda value: str(value) if isinstance(value, Expanded) else value)
"""For Literal types, which compare exact strings."""
Workers = Annotated[
    int,
    Strict(),
    Field(ge=1, le=1024),
    BeforeValidator(_workers),
    WithJsonSchema({"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 1, "maximum": 1024}]}),
]
