"""Write and read the result document as JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from tracelens.digits import as_integer
from tracelens.errors import InputError
from tracelens.model.result import SCHEMA, Analysis

_MAJOR = int(SCHEMA.rpartition("/")[2])
_BEYOND = 1 << 63  # no time, size or count is as large, and doubles overflow before sums do
_LONGEST = 1 << 18  # a list of a run of a hundred thousand ranks
_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def encode(analysis: Analysis, *, indent: int | None = 1) -> str:
    """Serialise an analysis; unknown numbers become null, never NaN."""
    try:
        raw = msgspec.json.encode(analysis)
    except UnicodeEncodeError:  # names of files need not be text
        raw = msgspec.json.encode(_as_text(msgspec.to_builtins(analysis)))
    if indent is not None:
        raw = msgspec.json.format(raw, indent=indent)
    return raw.decode() + "\n"


def _as_text(value: Any) -> Any:
    """Write what no encoding can write as an escape, in every string of a document."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_as_text(key): _as_text(one) for key, one in value.items()}
    return [_as_text(one) for one in value] if isinstance(value, list) else value


def decode(text: str | bytes) -> Analysis:
    """Read a document written by `encode`, as untrusted input.

    Raises:
        InputError: If it is no TraceLens result, or one of a newer major version.
    """
    try:
        schema = msgspec.json.decode(text, type=_Header).schema
    except _UNDECODABLE as error:
        raise InputError(f"not a TraceLens result: {error}", slug="not-a-result") from error
    _check_version(schema)
    try:
        _check_sizes(msgspec.json.decode(text))
        analysis = msgspec.json.decode(text, type=Analysis)
        _check_lateness(analysis)
    except _UNDECODABLE as error:
        raise InputError(f"a damaged TraceLens result: {error}", slug="not-a-result") from error
    return analysis


def schema() -> dict[str, object]:
    """Return the JSON Schema of the document, derived from the dataclasses."""
    document = msgspec.json.schema(Analysis)
    document["title"] = f"TraceLens result, {SCHEMA}"
    document["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return document


def _check_sizes(value: Any) -> None:
    """Refuse numbers that nothing measured can be, and lists no run fills, wherever they stand."""
    if isinstance(value, (int, float)):
        if not -_BEYOND < value < _BEYOND:
            raise msgspec.ValidationError(f"a number beyond 64 bits: {value!r:.40}")
    elif isinstance(value, (dict, list)):
        if len(value) > _LONGEST:
            raise msgspec.ValidationError(f"a list of {len(value):,} entries")
        for one in value.values() if isinstance(value, dict) else value:
            if not isinstance(one, str):
                _check_sizes(one)


def _check_lateness(analysis: Analysis) -> None:
    late = analysis.lateness
    if late is None:
        return
    widths = {len(row) for row in late.late_ns}
    if len(late.late_ns) != len(late.ranks) or not widths <= {len(late.steps)}:
        raise msgspec.ValidationError("`lateness` is no matrix of its ranks and steps")


class _Header(msgspec.Struct):
    schema: str


def _check_version(schema: str) -> None:
    name, _, major = schema.rpartition("/")
    if name != "tracelens" or not major.isdecimal():
        raise InputError(
            f"not a TraceLens result: its schema is {schema!r:.60}", slug="not-a-result"
        )
    if (number := as_integer(major)) is None or number > _MAJOR:
        raise InputError(
            f"the result has schema {schema:.40}, this TraceLens reads up to {SCHEMA}",
            hint="update tracelens-distributed",
            slug="newer-result",
        )
