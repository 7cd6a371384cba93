"""Which queues an option means: names, lists and patterns."""

import pytest

from kestrelmq.spark.sources.queue_choice import QueueChoice, literally


@pytest.mark.parametrize(
    ("text", "names", "patterns", "canonical"),
    [
        ("work", ["work"], [], "work"),
        ("b, a,b", ["a", "b"], [], "a,b"),
        ("orders_*,a", ["a"], ["orders_*"], "a,orders_*"),
        ('["b", "a"]', ["a", "b"], [], "a,b"),
        ('["a,b", "c"]', ["a,b", "c"], [], '["a,b", "c"]'),
        ("[ab]?", [], ["[ab]?"], "[ab]?"),
        ("[1]", [], ["[1]"], "[1]"),
        ("a[*]", ["a*"], [], "a[*]"),
        ("a[*]*", [], ["a[*]*"], "a[*]*"),
        ("work+copy", ["work+copy"], [], "work+copy"),
        ("orders_*+copy", [], ["orders_*+copy"], "orders_*+copy"),
    ],
)
def test_names_and_patterns(
    text: str, names: list[str], patterns: list[str], canonical: str
) -> None:
    """Separated by commas or as a JSON list; the same choice is always written alike."""
    choice = QueueChoice.parse(text)

    assert (choice.names, choice.patterns) == (tuple(names), tuple(patterns))
    assert str(choice) == canonical
    assert QueueChoice.parse(canonical) == choice


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a queue's name: a queue name must not be empty"),
        ("[]", "the list is empty"),
        ("a,b/c", "names of queues, but 'b/c' is: a queue name must not contain '/'"),
        ("a.*", "must not contain '.'"),
        ("*+*+x", "at most one"),
        ('["a", ""]', "but '' is: a queue name must not be empty"),
    ],
)
def test_what_is_no_queue_is_refused(text: str, message: str) -> None:
    """The error says which word is wrong."""
    with pytest.raises(ValueError, match=message):
        QueueChoice.parse(text)


def test_a_pattern_matches_whole_names() -> None:
    """As for file names in a shell; a fanout child only if the pattern has a plus."""
    choice = QueueChoice.parse("orders_*,[!a]x,work")

    assert [name for name in ("orders_1", "orders_", "bx", "work") if choice.matches(name)] == [
        "orders_1",
        "orders_",
        "bx",
        "work",
    ]
    for other in ("orders", "my_orders_1", "Orders_1", "ax", "works", "orders_1+copy", "work+copy"):
        assert not choice.matches(other)
    children = QueueChoice.parse("orders_*+copy")
    assert children.matches("orders_1+copy")
    assert not children.matches("orders_1")
    assert QueueChoice.parse(literally("a*[b]?")).names == ("a*[b]?",)


def test_the_children_that_a_pattern_means() -> None:
    """Those of a literal name, of the queues that match what stands before the plus."""
    choice = QueueChoice.parse("orders_*+copy,*+[*],*+c*")

    assert choice.children_of("orders_1") == ["orders_1+*", "orders_1+copy"]
    assert choice.children_of("work") == ["work+*"]
    assert choice.children_of("work+copy") == []
