"""The checksum of notes and items."""

import zlib

import pytest

from kestrelmq.format.checksum import crc32


@pytest.mark.parametrize("size", [0, 1, 15, 16, 64, 1045, 70_000])
def test_the_checksum_is_that_of_zlib(size: int) -> None:
    """Whatever computes it, also if it continues another one."""
    data = bytes(number * 7 % 256 for number in range(size))
    assert crc32(data) == zlib.crc32(data)
    for begin in (1, 0xFFFF_FFFF):
        assert crc32(data, begin) == zlib.crc32(data, begin)
