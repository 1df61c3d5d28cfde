"""The JSON: valid against its own schema, readable again, and refused when it is not ours."""

from __future__ import annotations

import json

import jsonschema
import pytest
from samples import EXPECTED, analysis

from tracelens.errors import InputError
from tracelens.model.document import schema
from tracelens.model.result import Analysis


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_every_sample_validates_against_the_schema(name: str) -> None:
    document = json.loads(analysis(name).to_json())
    jsonschema.validate(document, schema(), cls=jsonschema.Draft202012Validator)


def test_the_schema_refuses_a_wrong_type() -> None:
    document = json.loads(analysis("ddp").to_json())
    document["run"]["world_size"] = "four"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema(), cls=jsonschema.Draft202012Validator)


@pytest.mark.parametrize("name", ["ddp", "3d-pp2-dp2-tp2"])
def test_a_saved_result_reads_back_equal(name: str) -> None:
    result = analysis(name)
    assert Analysis.from_json(result.to_json()) == result


def test_no_number_is_written_as_nan() -> None:
    for name in EXPECTED:
        json.loads(analysis(name).to_json(), parse_constant=pytest.fail)


@pytest.mark.parametrize(
    ("text", "slug"),
    [
        ("", "not-a-result"),
        ("[]", "not-a-result"),
        ('{"schema": "other/1"}', "not-a-result"),
        ('{"schema": 1}', "not-a-result"),
        ('{"schema": "tracelens/1"}', "not-a-result"),
        ('{"schema": "tracelens/2"}', "newer-result"),
        (f'{{"schema": "tracelens/{"9" * 5000}"}}', "newer-result"),
        ("[" * 100_000, "not-a-result"),
    ],
)
def test_what_is_no_result_is_refused_with_one_message(text: str, slug: str) -> None:
    with pytest.raises(InputError) as caught:
        Analysis.from_json(text)
    assert caught.value.slug == slug
    assert "\n" not in caught.value.message
