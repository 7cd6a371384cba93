"""Thrift's binary and compact protocols: reads and writes values of given types.

A message says by itself what is in it, so a reader passes over fields that it does not know. It
trusts nothing: a length is checked against the bytes that were received before anything is made of
it, every value counts against `MAX_VALUES`, and nesting is limited to `MAX_DEPTH`.

The binary protocol has big-endian numbers of fixed width. In the compact one most numbers are
varints, 7 bits a byte, lowest first, and a field has the distance from the one before it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

MAX_VALUES: Final = 100_000
"""The most fields and elements in one message."""
MAX_DEPTH: Final = 16
"""How deep structs, lists, sets and maps may nest."""
LARGE_STRING: Final = 1 << 20
"""Binary data of so many bytes, or more, is not copied if the message is a memoryview."""
MAX_TEXT: Final = 4 << 20
"""The most bytes of a text, which is copied."""
_MAX_NAME: Final = 1024
"""The most bytes of a method's name."""
_PAUSE_EVERY: Final = 1000
"""Elements of a list or set that are read between two pauses."""

# The types, by their numbers in the binary protocol.
STOP: Final = 0
FLAG: Final = 1
"""None of thrift's: a bool that is a field in the compact protocol, where its type is its value."""
BOOL: Final = 2
BYTE: Final = 3
DOUBLE: Final = 4
I16: Final = 6
I32: Final = 8
I64: Final = 10
STRING: Final = 11
STRUCT: Final = 12
MAP: Final = 13
SET: Final = 14
LIST: Final = 15
_WIDTHS: Final = {BOOL: 1, BYTE: 1, DOUBLE: 8, I16: 2, I32: 4, I64: 8}
_COMPACT: Final = (BOOL, BOOL, BYTE, I16, I32, I64, DOUBLE, STRING, LIST, SET, MAP, STRUCT)
"""The types in the order of their numbers in the compact protocol, from 1 on."""
_TO_COMPACT: Final = {wire: number for number, wire in enumerate(_COMPACT, 1)}

_SHORT: Final = Struct(">h")
_INT: Final = Struct(">i")
_LONG: Final = Struct(">q")
_FIELD: Final = Struct(">bh")
_ELEMENTS: Final = Struct(">bi")
_VERSION: Final = Struct(">HH")
_VERSION_1: Final = 0x8001
COMPACT_ID: Final = 0x82
"""The first byte of a message in the compact protocol."""
_COMPACT_VERSION: Final = 1

Part = bytes | memoryview
"""A part of what is sent; a memoryview is large, and is not copied."""


class MalformedError(ValueError):
    """Bytes that are not what they should be, or have too many values or levels."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The type of a value.

    Attributes:
        wire: its number in the binary protocol.
        is_text: whether a string is UTF-8; otherwise it is binary data.
        element: the type of the elements of a list or set. They are read as a tuple, in which those
            of a set may come twice: a client could choose some that collide in a hash table.
        fields: those of a struct, which is written from a tuple of their values.
        make: makes a struct from the values of its fields.
    """

    wire: int
    is_text: bool = False
    element: "Kind | None" = None
    fields: "tuple[Field, ...]" = ()
    make: Callable[..., Any] | None = None


REQUIRED: Final = object()
"""The default of a field that has none."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a struct; one whose value is None is not written."""

    number: int
    name: str
    kind: Kind
    default: Any = REQUIRED


_OTHER: Final = object()
"""What is read of a value that has another type than it should."""


class BinaryReader:
    """Reads a message in the binary protocol.

    Its methods raise MalformedError, and UnicodeDecodeError for a text that is not UTF-8.
    """

    __slots__ = ("_at", "_data", "_pause", "_values_left")

    def __init__(self, data: Part, pause: Callable[[], None] | None = None) -> None:
        """Begin; `pause` is called now and then within a list or set, to let others run."""
        self._data = data
        self._pause = pause
        self._at = 0
        self._values_left = MAX_VALUES

    @property
    def rest(self) -> Part:
        """What has not been read."""
        return self._data[self._at :]

    def struct(self, fields: tuple[Field, ...], depth: int = 0) -> list[Any]:
        """Read a struct; return the values of `fields`."""
        found: dict[int, Any] = {}
        wire, number = self._field(0)
        while wire != STOP:
            if number in found:
                raise MalformedError(f"field {number} twice")
            self._count(1)
            known = None
            for field in fields:
                if field.number == number:
                    known = field
            value = self._value(wire, None if known is None else known.kind, depth + 1)
            if known is not None and value is _OTHER:
                raise MalformedError(f"{known.name} has another type")
            found[number] = value
            wire, number = self._field(number)
        values = []
        for field in fields:
            value = found.get(field.number, field.default)
            if value is REQUIRED:
                raise MalformedError(f"{field.name} is missing")
            values.append(value)
        return values

    def _value(self, wire: int, kind: Kind | None, depth: int) -> Any:
        """Read a value of the type `wire`; return `_OTHER` if it is not of this kind."""
        if depth > MAX_DEPTH:
            raise MalformedError("nested too deep")
        if kind is not None and kind.wire != wire:
            kind = None
        value: Any = None
        if wire == STRING:
            value = self._string(kind)
        elif wire in (LIST, SET):
            return self._elements(kind, depth + 1)
        elif wire == STRUCT:
            values = self.struct(() if kind is None else kind.fields, depth)
            value = values if kind is None or kind.make is None else kind.make(*values)
        elif wire == MAP:
            key, mapped, count = self._map_begin()
            self._count(2 * count)
            for _ in range(count):
                self._value(key, None, depth + 1)
                self._value(mapped, None, depth + 1)
        else:
            value = self._number(wire)
        return _OTHER if kind is None else value

    def _elements(self, kind: Kind | None, depth: int) -> Any:
        wire, count = self._list_begin()
        self._count(count)
        element = None if kind is None else kind.element
        if element is not None and element.wire != wire:
            element = None
        values = []
        for place in range(1, count + 1):
            value = self._string(element) if wire == STRING else self._value(wire, element, depth)
            if element is not None:
                values.append(value)
            if self._pause is not None and place % _PAUSE_EVERY == 0:
                self._pause()
        return _OTHER if element is None else tuple(values)

    def _string(self, kind: Kind | None) -> Any:
        if kind is not None and kind.is_text:
            return self._text(MAX_TEXT)
        size = self._length()
        begin = self._skip(size)
        if kind is None:
            return None
        data = self._data[begin : self._at]
        return data if isinstance(data, bytes) or size >= LARGE_STRING else bytes(data)

    def _text(self, most: int) -> str:
        size = self._length()
        begin = self._skip(size)
        if size > most:
            raise MalformedError(f"more than {most} bytes besides items")
        return bytes(self._data[begin : self._at]).decode()

    def _skip(self, size: int) -> int:
        """Pass `size` bytes, which must have been received; return where they begin."""
        begin = self._at
        if not 0 <= size <= len(self._data) - begin:
            raise MalformedError("cut short")
        self._at = begin + size
        return begin

    def _byte(self) -> int:
        return self._data[self._skip(1)]

    def _count(self, values: int) -> None:
        self._values_left -= values
        if values < 0 or self._values_left < 0:
            raise MalformedError(f"more than {MAX_VALUES} values")

    # --- what differs in the compact protocol ---

    def message_begin(self) -> tuple[str, int, int]:
        """Read the header of a message: its name, its type and its number."""
        if self._number(I16) & 0xFFFF != _VERSION_1:
            raise MalformedError("unknown version")
        message_type = self._number(I16) & 0xFF
        return self._text(_MAX_NAME), message_type, self._number(I32)

    def _field(self, previous: int) -> tuple[int, int]:  # noqa: ARG002 # numbers are absolute
        """Pass the head of the field after `previous`; return its type and number."""
        wire = self._byte()
        return wire, 0 if wire == STOP else _SHORT.unpack_from(self._data, self._skip(2))[0]

    def _list_begin(self) -> tuple[int, int]:
        """Pass the head of a list or set; return the type of the elements and their count."""
        return self._byte(), self._length()

    def _map_begin(self) -> tuple[int, int, int]:
        """Pass the head of a map; return the types of the keys and values, and their count."""
        return self._byte(), self._byte(), self._length()

    def _length(self) -> int:
        """Pass the head of a string; return its length."""
        size: int = _INT.unpack_from(self._data, self._skip(4))[0]
        return size

    def _number(self, wire: int) -> int:
        """Read a value of another type; a bool or a float is only passed."""
        width = _WIDTHS.get(wire)
        if width is None:
            raise MalformedError(f"unknown type {wire}")
        begin = self._skip(width)
        return int.from_bytes(self._data[begin : self._at], signed=True)


class BinaryWriter:
    """Writes a message, or a part of one, in the binary protocol."""

    __slots__ = ("_done", "_out")

    def __init__(self) -> None:
        self._done: list[Part] = []
        self._out = bytearray()

    def struct(self, fields: tuple[Field, ...], values: tuple[Any, ...]) -> None:
        """Write a struct that has these values of `fields`."""
        previous = 0
        for place, field in enumerate(fields):
            value = values[place]
            if value is not None:
                self._field(field.kind.wire, field.number, previous)
                self.value(field.kind, value)
                previous = field.number
        self._out.append(STOP)

    def value(self, kind: Kind, value: Any) -> None:
        """Write a value. A list of parts is a struct that was written before."""
        if kind.element is not None:
            self._list_begin(kind.element.wire, len(value))
            for one in value:
                self.value(kind.element, one)
        elif kind.wire == STRING:
            self._string(value.encode() if kind.is_text else value)
        elif kind.wire != STRUCT:
            self._number(kind.wire, value)
        elif isinstance(value, list):
            self._add(value)
        else:
            self.struct(kind.fields, value)

    def parts(self) -> list[Part]:
        """Return what was written; a memoryview is a part of its own."""
        return [*self._done, bytes(self._out)]

    def _string(self, data: Part) -> None:
        self._length(len(data))
        if isinstance(data, memoryview):
            self._add([data])
        else:
            self._out += data

    def _add(self, parts: list[Part]) -> None:
        if self._out:
            self._done.append(bytes(self._out))
            self._out.clear()
        self._done += parts

    # --- what differs in the compact protocol ---

    def message_begin(self, name: str, message_type: int, seqid: int) -> None:
        """Write the header of a message."""
        self._out += _VERSION.pack(_VERSION_1, message_type)
        self._string(name.encode())
        self._number(I32, seqid)

    def _field(self, wire: int, number: int, previous: int) -> None:  # noqa: ARG002 # as above
        self._out += _FIELD.pack(wire, number)

    def _list_begin(self, wire: int, count: int) -> None:
        self._out += _ELEMENTS.pack(wire, count)

    def _length(self, size: int) -> None:
        self._out += _INT.pack(size)

    def _number(self, wire: int, number: int) -> None:
        self._out += (_LONG if wire == I64 else _INT).pack(number)


class OldBinaryReader(BinaryReader):
    """Reads messages without a version."""

    __slots__ = ()

    def message_begin(self) -> tuple[str, int, int]:
        """Read the header of a message: its name, its type and its number."""
        return self._text(_MAX_NAME), self._byte(), self._number(I32)


class OldBinaryWriter(BinaryWriter):
    """Writes messages without a version."""

    __slots__ = ()

    def message_begin(self, name: str, message_type: int, seqid: int) -> None:
        """Write the header of a message."""
        self._string(name.encode())
        self._out.append(message_type)
        self._number(I32, seqid)


class CompactReader(BinaryReader):
    """Reads the compact protocol."""

    __slots__ = ()

    def message_begin(self) -> tuple[str, int, int]:
        """Read the header of a message: its name, its type and its number."""
        self._skip(1)
        head = self._byte()
        if head & 0x1F != _COMPACT_VERSION:
            raise MalformedError("unknown version")
        seqid = self._varint(32)
        return self._text(_MAX_NAME), head >> 5, seqid

    def _field(self, previous: int) -> tuple[int, int]:
        head = self._byte()
        if head & 0x0F == STOP:
            return STOP, 0
        number = previous + (head >> 4) if head >> 4 else self._number(I16)
        wire = self._type(head & 0x0F)
        return FLAG if wire == BOOL else wire, number

    def _list_begin(self) -> tuple[int, int]:
        head = self._byte()
        count = head >> 4
        return self._type(head & 0x0F), self._varint(32) if count == 15 else count

    def _map_begin(self) -> tuple[int, int, int]:
        count = self._varint(32)
        types = self._byte() if count else 0x33
        return self._type(types >> 4), self._type(types & 0x0F), count

    def _length(self) -> int:
        return self._varint(32)

    def _number(self, wire: int) -> int:
        if wire in (FLAG, BOOL, BYTE, DOUBLE):
            return self._skip(0 if wire == FLAG else _WIDTHS[wire])
        zigzag = self._varint(8 * _WIDTHS[wire])  # 0, -1, 1, -2 are written as 0, 1, 2, 3
        return (zigzag >> 1) ^ -(zigzag & 1)

    def _varint(self, bits: int) -> int:
        """Read a varint, which must fit into so many bits."""
        number = shift = 0
        while True:
            byte = self._byte()
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift >= bits:
                raise MalformedError("a number too large")
        if number >> bits:
            raise MalformedError("a number too large")
        return number

    def _type(self, number: int) -> int:
        if not 0 < number <= len(_COMPACT):
            raise MalformedError(f"unknown type {number}")
        return _COMPACT[number - 1]


class CompactWriter(BinaryWriter):
    """Writes the compact protocol."""

    __slots__ = ()

    def message_begin(self, name: str, message_type: int, seqid: int) -> None:
        """Write the header of a message."""
        self._out += bytes((COMPACT_ID, _COMPACT_VERSION | message_type << 5))
        self._length(seqid)
        self._string(name.encode())

    def _field(self, wire: int, number: int, previous: int) -> None:
        distance = number - previous
        self._out.append((distance << 4 if 0 < distance < 16 else 0) | _TO_COMPACT[wire])
        if not 0 < distance < 16:
            self._number(I16, number)

    def _list_begin(self, wire: int, count: int) -> None:
        self._out.append(min(count, 15) << 4 | _TO_COMPACT[wire])
        if count >= 15:
            self._length(count)

    def _length(self, size: int) -> None:
        while size > 0x7F:
            self._out.append(size & 0x7F | 0x80)
            size >>= 7
        self._out.append(size)

    def _number(self, wire: int, number: int) -> None:  # noqa: ARG002 # of any width
        self._length(number << 1 if number >= 0 else ~(number << 1))
