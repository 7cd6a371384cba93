"""What JSON the API parses."""

import json

import pytest

from kestrelmq.admin.bodies import check_parts
from kestrelmq.admin.errors import ApiError

MIB = 1 << 20


@pytest.mark.parametrize(
    "body",
    [
        b"1," * 1000,
        json.dumps({"text": "x" * MIB}).encode(),
        json.dumps({"text": "\n" * MIB}).encode(),
        json.dumps({"text": json.dumps([{"order": 1}] * 50_000), "delay": 5}).encode(),
        json.dumps({"reads": ["1-b193ca9227743471" * 10] * 1000}, indent=8).encode(),
        b'{"text":"' + b"x" * MIB,
        b'{"text":"' + b"x" * MIB + b"\\",
    ],
)
def test_long_strings_are_parsed(body: bytes) -> None:
    """Also if they hold JSON, or their end is missing; each look at them is short."""
    assert sum(1 for _ in check_parts(body)) >= len(body) // MIB


@pytest.mark.parametrize(
    "body",
    [
        b'{"xids":[' + b"1," * MIB + b"1]}",
        b'{"reads":[' + b'"a",' * MIB + b'"a"]}',
        b"{" + b",".join(b'"%d":1' % number for number in range(100_000)) + b"}",
        b"[" * MIB,
        b'{"text":"' + b"x" * MIB + b'","more":[' + b"1," * MIB + b"1]}",
    ],
)
def test_very_many_parts_are_refused(body: bytes) -> None:
    """Parsing them would take long and much memory, wherever in the body they are."""
    with pytest.raises(ApiError) as refused:
        list(check_parts(body))
    assert (refused.value.status, refused.value.code) == (413, "too_many_parts")
