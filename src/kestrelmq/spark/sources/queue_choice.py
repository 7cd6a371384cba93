"""Which queues the option `queue` of the sources means: names, and patterns of names.

A pattern is as for file names in a shell: `*`, `?`, `[abc]`, `[!abc]`. A pattern without a plus
matches no fanout child: a reader of `orders_*` would otherwise take what the children's own
readers wait for, and get each item once more from each child.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache
from typing import Final

from kestrelmq.names import master_of, queue_name_error

_MAGIC: Final = re.compile(r"[*?\[]")
_BRACKETED: Final = re.compile(r"\[([*?\[])\]")
_INNER: Final = r"\1"
_WILDCARDS: Final = re.compile(r"\[!?\]?[^\]]*\]|[*?]")


@dataclass(frozen=True, slots=True)
class QueueChoice:
    """Queues by name and by pattern; each once, and sorted.

    Attributes:
        names: the queues that are named.
        patterns: the patterns of the others.
    """

    names: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "QueueChoice":
        """Return the choice that an option's value means.

        The value is a name, a pattern, or several of these: separated by commas, or as a JSON list,
        in which names may have commas. `[*]`, `[?]` and `[[]` mean the characters themselves.

        Raises:
            ValueError: what the value must be instead.
        """
        return cls.of(_words(text))

    @classmethod
    def of(cls, words: Sequence[str]) -> "QueueChoice":
        """Return the choice of names and patterns, which may have commas. Raises as `parse`."""
        names: set[str] = set()
        patterns: set[str] = set()
        for word in words:
            literal, is_pattern = _BRACKETED.sub(_INNER, word), _is_pattern(word)
            # A pattern may match what a name can be; its wildcards stand for some character.
            error = queue_name_error(_WILDCARDS.sub("x", word) if is_pattern else literal)
            if error is not None:
                what = "a queue's name" if len(words) == 1 else f"names of queues, but {word!r} is"
                raise ValueError(f"{what}: {error}")
            (patterns if is_pattern else names).add(word if is_pattern else literal)
        return cls(tuple(sorted(names)), tuple(sorted(patterns)))

    @property
    def only(self) -> str | None:
        """The queue's name if it is a single one by name, else None."""
        return self.names[0] if len(self.names) == 1 and not self.patterns else None

    def __str__(self) -> str:
        """Return the option's value that means this choice; equal choices have equal values."""
        words = [*map(literally, self.names), *self.patterns]
        if any("," in word for word in words) or (words and _is_list(words[0])):
            return json.dumps(words, ensure_ascii=False)
        return ",".join(words)

    def matches(self, name: str) -> bool:
        """Whether the queue is one of these."""
        return name in self.names or any(_matches(pattern, name) for pattern in self.patterns)

    def children_of(self, name: str) -> list[str]:
        """Return the children of a queue that patterns such as `orders_*+copy` mean."""
        halves = [pattern.split("+") for pattern in self.patterns if "+" in pattern]
        return [
            f"{name}+{_BRACKETED.sub(_INNER, child)}"
            for master, child in halves
            if _matches(master, name) and not _is_pattern(child)
        ]


def _matches(pattern: str, name: str) -> bool:
    if "+" not in pattern and master_of(name) is not None:
        return False
    return _compiled(pattern).match(name) is not None


@lru_cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern))


def _is_pattern(word: str) -> bool:
    return _MAGIC.search(_BRACKETED.sub("", word)) is not None


def _words(text: str) -> list[str]:
    if _is_list(text):
        words = json.loads(text)
        if not words:
            raise ValueError("a queue's name: the list is empty")
        return [str(word) for word in words]
    return [word.strip() for word in text.split(",")]


def _is_list(text: str) -> bool:
    """Whether it is a JSON list of texts; `[ab]*` is a pattern."""
    if not text.lstrip().startswith("["):
        return False
    try:
        words = json.loads(text)
    except ValueError:
        return False
    return isinstance(words, list) and all(isinstance(word, str) for word in words)


def literally(name: str) -> str:
    """Return the pattern that matches only this name."""
    return _MAGIC.sub(lambda found: f"[{found[0]}]", name)
