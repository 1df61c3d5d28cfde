"""Write and read the result document as JSON."""

from __future__ import annotations

import msgspec

from tracelens.errors import InputError
from tracelens.model.result import SCHEMA, Analysis

_MAJOR = int(SCHEMA.rpartition("/")[2])


def encode(analysis: Analysis, *, indent: int | None = 1) -> str:
    """Serialise an analysis; unknown numbers become null, never NaN."""
    raw = msgspec.json.encode(analysis)
    if indent is not None:
        raw = msgspec.json.format(raw, indent=indent)
    return raw.decode() + "\n"


def decode(text: str | bytes) -> Analysis:
    """Read a document written by `encode`, as untrusted input.

    Raises:
        InputError: If it is no TraceLens result, or one of a newer major version.
    """
    try:
        schema = msgspec.json.decode(text, type=_Header).schema
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"not a TraceLens result: {error}", slug="not-a-result") from error
    _check_version(schema)
    try:
        return msgspec.json.decode(text, type=Analysis)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"a damaged TraceLens result: {error}", slug="not-a-result") from error


def schema() -> dict[str, object]:
    """Return the JSON Schema of the document, derived from the dataclasses."""
    document = msgspec.json.schema(Analysis)
    document["title"] = f"TraceLens result, {SCHEMA}"
    document["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return document


class _Header(msgspec.Struct):
    schema: str


def _check_version(schema: str) -> None:
    name, _, major = schema.rpartition("/")
    if name != "tracelens" or not major.isdecimal():
        raise InputError(
            f"not a TraceLens result: its schema is {schema!r:.60}", slug="not-a-result"
        )
    if int(major) > _MAJOR:
        raise InputError(
            f"the result has schema {schema:.40}, this TraceLens reads up to {SCHEMA}",
            hint="update tracelens-distributed",
            slug="newer-result",
        )
