"""The items of a load test, and the check that every one of them arrived.

An item starts with its run, its producer and its number, and the rest of it is known filler. So a
reader can tell at once whether an item belongs to the run and is undamaged. At the end, each item
must have been received exactly once more than it was given back.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

MIN_ITEM_BYTES: Final = 40
"""The smallest size of an item, so that its run, producer and number fit."""

_FILLER: Final = b"0123456789abcdefghijklmnopqrstuvwxyz"


class ItemSet:
    """Makes and identifies the items of one run.

    Args:
        run: a word that distinguishes the items of this run from all others.
        items: number of items in all; the producers share them evenly.
        producers: number of producers.
        size: bytes of each item, at least `MIN_ITEM_BYTES`.
    """

    def __init__(self, run: str, items: int, producers: int, size: int) -> None:
        self.items = items
        self.producers = producers
        self.size = size
        self._run = run.encode()
        share, more = divmod(items, producers)
        self._counts = [share + (producer < more) for producer in range(producers)]
        self._offsets = [0, *accumulate(self._counts)]
        self._filler = _FILLER * (size // len(_FILLER) + 1)

    def count(self, producer: int) -> int:
        """Return the number of items that a producer puts."""
        return self._counts[producer]

    def item(self, producer: int, number: int) -> bytes:
        """Return one item."""
        head = b"%b %d %d " % (self._run, producer, number)
        return head + self._filler[: self.size - len(head)]

    def batches(self, producer: int, size: int) -> Iterator[list[bytes]]:
        """Yield the items of a producer in order, `size` at a time."""
        count = self._counts[producer]
        for start in range(0, count, size):
            stop = min(start + size, count)
            yield [self.item(producer, number) for number in range(start, stop)]

    def identify(self, data: bytes) -> tuple[int, int] | None:
        """Return the producer and number of an item, both counted from 0.

        Return None if the item does not belong to this run or is damaged.
        """
        words = data.split(b" ", 3)
        if len(words) != 4 or not (words[1].isdigit() and words[2].isdigit()):
            return None
        producer, number = int(words[1]), int(words[2])
        if producer >= self.producers or number >= self._counts[producer]:
            return None
        return (producer, number) if data == self.item(producer, number) else None

    def position(self, producer: int, number: int) -> int:
        """Return the index of an item among all items of the run."""
        return self._offsets[producer] + number


class Receipts:
    """The items that one reader of one queue received. Not thread-safe.

    Attributes:
        ordered: whether to check that the items of each producer arrive in order.
        received: the position of each item, in the order of arrival.
        given_back: the positions of the items that were not confirmed.
        foreign: number of items that do not belong to this run or are damaged.
        disordered: number of items that came after a later item of the same producer.
    """

    def __init__(self, item_set: ItemSet, *, ordered: bool = True) -> None:
        self.ordered = ordered
        self.received = array("q")
        self.given_back = array("q")
        self.foreign = 0
        self.disordered = 0
        self._item_set = item_set
        self._latest = [-1] * item_set.producers

    def take(self, items: Iterable[bytes]) -> None:
        """Record items that were received and confirmed."""
        for data in items:
            known = self._item_set.identify(data)
            if known is None:
                self.foreign += 1
                continue
            producer, number = known
            if self.ordered:
                self.disordered += number < self._latest[producer]
                self._latest[producer] = max(number, self._latest[producer])
            self.received.append(self._item_set.position(producer, number))

    def leak(self, data: bytes) -> None:
        """Record an item that was received but not confirmed, so that it must arrive again."""
        known = self._item_set.identify(data)
        if known is None:
            self.foreign += 1
            return
        position = self._item_set.position(*known)
        self.received.append(position)
        self.given_back.append(position)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether every item arrived, once and in order.

    Attributes:
        expected: number of items that should have arrived.
        lost: number of items that did not arrive.
        repeated: number of deliveries of items that had arrived and not been given back.
        foreign: number of items that do not belong to this run or are damaged.
        disordered: number of items that came after a later item of the same producer.
        given_back: number of times that an item was given back and had to be delivered again.
        ordered: whether the order was checked.
    """

    expected: int
    lost: int = 0
    repeated: int = 0
    foreign: int = 0
    disordered: int = 0
    given_back: int = 0
    ordered: bool = True

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.lost or self.repeated or self.foreign or self.disordered)

    def __add__(self, other: "Verdict") -> "Verdict":
        return Verdict(
            self.expected + other.expected,
            self.lost + other.lost,
            self.repeated + other.repeated,
            self.foreign + other.foreign,
            self.disordered + other.disordered,
            self.given_back + other.given_back,
            self.ordered and other.ordered,
        )

    def __str__(self) -> str:
        if self.is_good:
            order = " and in order" if self.ordered else ""
            again = (
                f"; {self.given_back:,} were given back and came again" if self.given_back else ""
            )
            return f"verified: all {self.expected:,} items arrived, once{order}{again}"
        problems = {
            "lost": self.lost,
            "received twice": self.repeated,
            "foreign or damaged": self.foreign,
            "out of order": self.disordered,
        }
        found = ", ".join(f"{count:,} {what}" for what, count in problems.items() if count)
        return f"failed: of {self.expected:,} items {found}"


def judge(item_set: ItemSet, readers: Sequence[Receipts]) -> Verdict:
    """Return the verdict on one queue from the receipts of all its readers."""
    balance = array("q", bytes(8 * item_set.items))
    for reader in readers:
        for position in reader.received:
            balance[position] += 1
        for position in reader.given_back:
            balance[position] -= 1
    return Verdict(
        expected=item_set.items,
        lost=sum(count < 1 for count in balance),
        repeated=sum(count - 1 for count in balance if count > 1),
        foreign=sum(reader.foreign for reader in readers),
        disordered=sum(reader.disordered for reader in readers),
        given_back=sum(len(reader.given_back) for reader in readers),
        ordered=all(reader.ordered for reader in readers),
    )
