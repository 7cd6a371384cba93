"""Checks the shape of a thrift struct before anything is built from it.

A malformed message can declare any length or count, and a library that trusts it may allocate, loop
or recurse without end. So every length is checked here against the bytes that were received, every
value counts against `MAX_VALUES`, and nesting is limited to `MAX_DEPTH`; nothing is allocated for
the declared sizes. A struct that passes is well-formed and small enough to decode.
"""

from abc import ABC, abstractmethod
from struct import Struct, unpack_from
from typing import Final, TypeAlias

from thriftpy2.thrift import TType

MAX_VALUES: Final = 100_000
"""The most fields and elements in one message."""

MAX_DEPTH: Final = 16
"""How deep structs, lists, sets and maps may nest."""

Shape: TypeAlias = tuple[int, int]
"""A field's type and the type of its elements (0 when it has none), as `TType` numbers."""

StringList: TypeAlias = tuple[int, int, int, int]
"""Where a list of strings begins, where the first of them does, where it ends; their number."""

_I32: Final = Struct(">i")
_WIDTHS: Final = {
    TType.BOOL: 1,
    TType.BYTE: 1,
    TType.I16: 2,
    TType.I32: 4,
    TType.I64: 8,
    TType.DOUBLE: 8,
}
# The type numbers of the compact protocol; 1 is true and 2 is false.
_COMPACT_TYPES: Final = {
    1: TType.BOOL,
    2: TType.BOOL,
    3: TType.BYTE,
    4: TType.I16,
    5: TType.I32,
    6: TType.I64,
    7: TType.DOUBLE,
    8: TType.STRING,
    9: TType.LIST,
    10: TType.SET,
    11: TType.MAP,
    12: TType.STRUCT,
}


class MalformedError(ValueError):
    """Bytes that are not a thrift message, or a message with too many values or levels."""


class StructWalker(ABC):
    """Walks through `data`.

    Attributes:
        data: the bytes.
        at: the position of the next byte.
        string_lists: those that are fields of the outermost struct, by number.
    """

    __slots__ = ("_number", "_values_left", "at", "data", "string_lists")

    def __init__(self, data: bytes | memoryview, at: int) -> None:
        self.data = data
        self.at = at
        self.string_lists: dict[int, StringList] = {}
        self._number = 0
        self._values_left = MAX_VALUES

    def struct(self, depth: int = 0) -> dict[int, Shape]:
        """Walk through a struct; return the shapes of its fields by number."""
        fields: dict[int, Shape] = {}
        while (field := self._field()) is not None:
            ttype, number = field
            if number in fields:
                raise MalformedError(f"field {number} twice")
            self._count(1)
            if not depth:
                self._number = number
            fields[number] = self._field_value(ttype, depth + 1)
        return fields

    def _value(self, ttype: int, depth: int) -> Shape:
        """Walk through one value."""
        if depth > MAX_DEPTH:
            raise MalformedError("nested too deep")
        if ttype == TType.STRUCT:
            self.struct(depth)
        elif ttype in (TType.LIST, TType.SET):
            begin = self.at
            element, count = self._list_begin()
            self._count(count)
            if element == TType.STRING and depth < MAX_DEPTH:
                first = self.at
                self._strings(count)  # the items of a put
                if depth == 1:
                    self.string_lists[self._number] = begin, first, self.at, count
            else:
                for _ in range(count):
                    self._value(element, depth + 1)
            return ttype, element
        elif ttype == TType.MAP:
            key, value, count = self._map_begin()
            self._count(2 * count)
            for _ in range(count):
                self._value(key, depth + 1)
                self._value(value, depth + 1)
        elif ttype == TType.STRING:
            self.skip(self.length())
        else:
            self._scalar(ttype)
        return ttype, 0

    def _strings(self, count: int) -> None:
        """Walk through `count` strings."""
        for _ in range(count):
            self.skip(self.length())

    def skip(self, size: int) -> int:
        """Pass `size` bytes, which must have been received; return where they begin."""
        begin = self.at
        if not 0 <= size <= len(self.data) - begin:
            raise MalformedError("cut short")
        self.at = begin + size
        return begin

    def byte(self) -> int:
        """Return the next byte."""
        return self.data[self.skip(1)]

    def _count(self, values: int) -> None:
        self._values_left -= values
        if values < 0 or self._values_left < 0:
            raise MalformedError(f"more than {MAX_VALUES} values")

    def _field_value(self, ttype: int, depth: int) -> Shape:
        """Walk through a field's value."""
        return self._value(ttype, depth)

    @abstractmethod
    def _field(self) -> tuple[int, int] | None:
        """Pass the head of a field; return its type and number, or None at the struct's end."""

    @abstractmethod
    def _list_begin(self) -> tuple[int, int]:
        """Pass the head of a list or set; return the type of the elements and their count."""

    @abstractmethod
    def _map_begin(self) -> tuple[int, int, int]:
        """Pass the head of a map; return the types of the keys and values, and their count."""

    @abstractmethod
    def length(self) -> int:
        """Pass the head of a string; return its length."""

    @abstractmethod
    def _scalar(self, ttype: int) -> None:
        """Pass a value of a type without elements or fields."""


class BinaryWalker(StructWalker):
    """Walks through the binary protocol: numbers are big-endian and of fixed width."""

    __slots__ = ()

    def integer(self) -> int:
        """Return the next i32."""
        number: int = _I32.unpack_from(self.data, self.skip(_I32.size))[0]
        return number

    def _field(self) -> tuple[int, int] | None:
        ttype = self.byte()
        if ttype == TType.STOP:
            return None
        return ttype, unpack_from(">h", self.data, self.skip(2))[0]

    def _list_begin(self) -> tuple[int, int]:
        return self.byte(), self.integer()

    def _map_begin(self) -> tuple[int, int, int]:
        return self.byte(), self.byte(), self.integer()

    def length(self) -> int:
        """Pass the head of a string; return its length."""
        return self.integer()

    def _strings(self, count: int) -> None:
        data, at, end = self.data, self.at, len(self.data)
        for _ in range(count):
            if end - at < _I32.size:
                raise MalformedError("cut short")
            size: int = _I32.unpack_from(data, at)[0]
            at += _I32.size
            if not 0 <= size <= end - at:
                raise MalformedError("cut short")
            at += size
        self.at = at

    def _scalar(self, ttype: int) -> None:
        if (width := _WIDTHS.get(ttype)) is None:
            raise MalformedError(f"unknown type {ttype}")
        self.skip(width)


class CompactWalker(StructWalker):
    """Walks through the compact protocol: most numbers are varints, 7 bits a byte, lowest first."""

    __slots__ = ("_last_field",)

    def __init__(self, data: bytes | memoryview, at: int) -> None:
        super().__init__(data, at)
        self._last_field = 0

    def varint(self, bits: int) -> int:
        """Return the next varint, which must fit into `bits` bits."""
        number = shift = 0
        while True:
            byte = self.byte()
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift >= bits:
                raise MalformedError("a number too large")
        if number >> bits:
            raise MalformedError("a number too large")
        return number

    def struct(self, depth: int = 0) -> dict[int, Shape]:
        """Walk through a struct; field numbers are relative to the previous field of the struct."""
        outer, self._last_field = self._last_field, 0
        fields = super().struct(depth)
        self._last_field = outer
        return fields

    def _field(self) -> tuple[int, int] | None:
        head = self.byte()
        if head & 0x0F == 0:
            return None
        if head >> 4:
            self._last_field += head >> 4
        else:
            zigzag = self.varint(16)
            self._last_field = (zigzag >> 1) ^ -(zigzag & 1)
        return self._type(head & 0x0F), self._last_field

    def _field_value(self, ttype: int, depth: int) -> Shape:
        # The type number of a boolean field is also its value.
        return (ttype, 0) if ttype == TType.BOOL else self._value(ttype, depth)

    def _list_begin(self) -> tuple[int, int]:
        head = self.byte()
        count = head >> 4
        return self._type(head & 0x0F), self.varint(32) if count == 15 else count

    def _map_begin(self) -> tuple[int, int, int]:
        count = self.varint(32)
        if not count:
            return TType.BYTE, TType.BYTE, 0
        types = self.byte()
        return self._type(types >> 4), self._type(types & 0x0F), count

    def length(self) -> int:
        """Pass the head of a string; return its length."""
        return self.varint(32)

    def _scalar(self, ttype: int) -> None:
        if ttype in (TType.BOOL, TType.BYTE, TType.DOUBLE):
            self.skip(_WIDTHS[ttype])
        else:
            self.varint(8 * _WIDTHS[ttype])

    def _type(self, number: int) -> int:
        if (ttype := _COMPACT_TYPES.get(number)) is None:
            raise MalformedError(f"unknown type {number}")
        return ttype
