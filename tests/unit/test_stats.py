"""Statistics: each is declared once, and everything that shows them shows the same."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Final, get_args

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kestrelmq.admin.models import QueueSummary
from kestrelmq.admin.ostrich import Ostrich, as_json
from kestrelmq.admin.prometheus import Exposition
from kestrelmq.admin.sampling import QueueSnapshot, State
from kestrelmq.cli import tables
from kestrelmq.client.statistics import QueueStats, over_servers, queue_stats
from kestrelmq.clock import TurnClock
from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.errors import JournalError
from kestrelmq.protocol.memcache import Dump, Stats
from kestrelmq.protocol.stats import QUEUE_STATS, SERVER_STATS, Statistic
from kestrelmq.queue.paused import Paused
from kestrelmq.queue.refusals import RefusalReason
from kestrelmq.queues.collection import QueueCollection
from kestrelmq.queues.counters import Counters
from kestrelmq.queues.metrics import Latency
from kestrelmq.queues.stats import read_numbers
from kestrelmq.scheduling.worker import InlineWorker
from kestrelmq.server.context import ServerContext
from kestrelmq.server.loop.turns import TurnLoop
from kestrelmq.server.sessions.memcache_admin import listing
from kestrelmq.server.status import ServerStatus, Status
from tests.support.turning import no_reload

OWN: Final = [stat.name for stat in QUEUE_STATS if stat.shown == "everywhere"]
ADMIN: Final = [stat.name for stat in QUEUE_STATS if stat.shown != "metrics"]


@pytest.fixture
async def context(tmp_path: Path) -> AsyncIterator[ServerContext]:
    """What a server has: a queue `jobs` that has a child, and whose journal cannot be written."""
    queue_config = QueueConfig(keep_journal=False, max_items=9, max_size=900, max_item_size=99)
    config = ServerConfig(queue_path=tmp_path, default=queue_config)
    clock = TurnClock()
    collection = QueueCollection(config, clock)
    for name in ("jobs", "jobs+audit"):
        collection.obtain(name)
    queue = collection.queues["jobs"]
    queue.add(b"12345")
    queue.add(b"123")
    queue.line.remove()
    collection.commits.commit()
    queue.pause(Paused.READS)
    queue.core.failure = JournalError("queue jobs:\nno room")
    loop = asyncio.get_running_loop()
    turns = TurnLoop(clock, collection.commits)
    status = ServerStatus(None, Status.UP, 0.0, clock, loop.call_later)
    counters, worker = Counters(), InlineWorker()
    yield ServerContext(
        config, collection, status, counters, turns, worker, loop, no_reload, lambda: None
    )
    collection.close()
    turns.close()
    turns.selector.close()


def reply(context: ServerContext, request: Stats | Dump) -> str:
    """Return the reply to a memcache request."""
    return b"".join(piece for piece in listing(context, request) if piece).decode()


def stat_lines(text: str) -> Iterator[tuple[str, str]]:
    """Yield the names and values of `STAT` lines."""
    for line in text.splitlines():
        if line.startswith("STAT "):
            _, name, value = line.split(" ", 2)
            yield name, value


async def test_memcache_has_every_statistic_of_a_queue(context: ServerContext) -> None:
    """`stats QUEUE`, `dump_stats` and `stats` have the same names, in the declared order."""
    assert [name for name, _ in stat_lines(reply(context, Stats("jobs")))] == OWN
    dumped = reply(context, Dump("stats", ("jobs",)))
    assert re.findall(r"^  (\w+)=", dumped, re.MULTILINE) == OWN
    everything = dict(stat_lines(reply(context, Stats(None))))
    assert [name for name in everything if name.startswith("queue_jobs_")] == [
        f"queue_jobs_{name}" for name in OWN
    ]
    assert everything["queue_jobs_failure"] == "queue jobs: no room"


async def test_memcache_has_every_statistic_of_the_server(context: ServerContext) -> None:
    """`stats` begins with them, in the declared order; it lacks what only the admin service has."""
    names = [name for name, _ in stat_lines(reply(context, Stats(None)))]
    shown = [stat.name for stat in SERVER_STATS if stat.shown == "everywhere"]
    assert names[: len(shown)] == shown
    assert not {stat.name for stat in SERVER_STATS} - set(shown) & set(names)


async def test_the_client_finds_every_statistic_of_a_queue(context: ServerContext) -> None:
    """None of what `stats` says of a queue gets lost in the client."""
    found = {
        queue.name: queue for queue in queue_stats("s", stat_lines(reply(context, Stats(None))))
    }
    assert list(found) == ["jobs", "jobs+audit"]
    assert list(found["jobs"].values) == OWN


async def test_ostrich_has_every_statistic(context: ServerContext) -> None:
    """Those that only grow are counters, texts are labels, all others are gauges, limits too."""
    parts = await Ostrich(context).rendered(None, as_json)
    sections = json.loads(b"".join(parts))
    places = {"counter": "counters", "gauge": "gauges", "limit": "gauges", "text": "labels"}
    expected: dict[str, set[str]] = {place: set() for place in places.values()}
    for stat in SERVER_STATS:
        expected[places[stat.kind]].add(stat.name)
    for stat in QUEUE_STATS:
        if stat.shown != "metrics":
            expected[places[stat.kind]].add(f"q/jobs/{stat.name}")
    expected["labels"].add("status")
    for place, names in expected.items():
        assert {name for name in sections[place] if not name.startswith("q/jobs+")} == names


async def test_the_api_has_every_number_of_a_queue(context: ServerContext) -> None:
    """The console shows them as they are."""
    numbers = dict(read_numbers(context.collection.queues["jobs"]))
    texts = {stat.name for stat in QUEUE_STATS if stat.kind == "text"}
    assert [*numbers] == [name for name in ADMIN if name not in texts]
    assert {type(value) for value in numbers.values()} == {int}
    assert (numbers["items"], numbers["put_bytes"], numbers["get_items_hit"]) == (1, 8, 1)


async def test_the_server_sums_up_its_queues(context: ServerContext) -> None:
    """The child has two items from before, which its master got, and one is read of it alone."""
    for misses, queue in enumerate(context.collection.queues.values(), 2):
        queue.add(b"1234")
        queue.line.remove()
        queue.counts.get_misses += misses
    numbers = dict(stat_lines(reply(context, Stats(None))))
    names = ("curr_items", "bytes", "total_items", "get_hits", "get_misses")
    assert [int(numbers[name]) for name in names] == [5, 18, 7, 2, 5]


async def test_prometheus_has_every_metric(context: ServerContext) -> None:
    """Each is there once, of its kind, and what it says stands beside it."""
    text = b"".join(await Exposition(context).render()).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    for stat in (*QUEUE_STATS, *SERVER_STATS):
        if stat.metric is not None:
            family = families[f"kestrelmq_{stat.metric.name}"]
            assert family.type == ("counter" if stat.kind == "counter" else "gauge")
            assert family.documentation.startswith(stat.metric.help or stat.help)
            total = "_total" if stat.kind == "counter" else ""
            assert text.count(f"# HELP kestrelmq_{stat.metric.name}{total} ") == 1
            label = stat.metric.label
            assert [
                sample.value
                for sample in family.samples
                if sample.labels.get(label, "") == stat.label
            ]
            assert len({tuple(sample.labels.items()) for sample in family.samples}) == len(
                family.samples
            )
    samples = {
        sample.name: sample.value for family in families.values() for sample in family.samples
    }
    assert samples["kestrelmq_added_items_total"] == 4
    assert samples["kestrelmq_commands_total"] == 0


async def test_a_limit_that_is_not_set_is_not_there(context: ServerContext) -> None:
    """No number means "no limit" in any of the renderings."""
    queue = context.collection.queues["jobs"]
    queue.configure(QueueConfig(keep_journal=False))
    unset = {"max_items", "max_size", "max_item_size"}
    assert not unset & dict(read_numbers(queue)).keys()
    sections = json.loads(b"".join(await Ostrich(context).rendered(None, as_json)))
    gauges = sections["gauges"]
    assert not {f"q/jobs/{name}" for name in unset} & gauges.keys()
    assert gauges["q/jobs+audit/max_items"] == 9
    text = b"".join(await Exposition(context).render()).decode()
    assert re.findall(r"^kestrelmq_queue_max_items\{(.*)\} (.*)$", text, re.MULTILINE) == [
        ('queue="jobs+audit"', "9.0")
    ]


def test_every_reason_for_a_refusal_is_a_statistic() -> None:
    """Of one family, with the reason as its label."""
    declared = {
        stat.label: stat.source
        for stat in QUEUE_STATS
        if stat.metric is not None and stat.metric.name == "queue_refusals"
    }
    assert declared == {reason: f"refusals.{reason}" for reason in get_args(RefusalReason)}


def names_without_metric(stats: tuple[Statistic, ...]) -> set[str]:
    """Return those that `/metrics` leaves out."""
    return {stat.name for stat in stats if stat.metric is None}


def test_what_prometheus_leaves_out() -> None:
    """Second names, sums that Prometheus makes itself, texts, and what has a form of its own."""
    left_out = {"total_items", "age", "children", "paused", "failure"}
    assert names_without_metric(QUEUE_STATS) == left_out
    sums = {"curr_items", "bytes", "reserved_memory_ratio"}
    assert names_without_metric(SERVER_STATS) == sums | {"time", "version", "queues_loading"}


def test_names_are_declared_once() -> None:
    """Neither a name nor a metric appears twice."""
    for stats in (QUEUE_STATS, SERVER_STATS):
        names = [stat.name for stat in stats]
        assert len(names) == len(set(names))
        metrics = [(stat.metric.name, stat.label) for stat in stats if stat.metric is not None]
        assert len(metrics) == len(set(metrics))


def test_what_the_server_counts_is_a_statistic() -> None:
    """A counter that nothing shows would be forgotten."""
    sources = {stat.source for stat in SERVER_STATS}
    assert set(vars(Counters())) == {
        source.split(".")[1] for source in sources if source.startswith("counters.")
    }


def test_a_name_in_stats_is_no_other_queues_statistic() -> None:
    """No new name ends like another; these few are older than the rule."""
    old = {"total_items", "expired_items", "mem_items", "mem_bytes", "open_transactions"}
    old.add("canceled_transactions")
    for name in OWN:
        assert name in old or not any(name.endswith(f"_{other}") for other in OWN)


def test_times_do_not_add_up() -> None:
    """Over several servers a number is the sum, a time the longest."""
    same = [QueueStats(server, "q", {"items": n, "age_msec": n}) for server, n in ("a3", "b4")]
    assert over_servers("items", same) == 7
    assert over_servers("age_msec", same) == 4


def test_the_table_of_queues_shows_statistics() -> None:
    """Every column of `kestrelmq queues` is one."""
    assert set(tables.COLUMNS) <= set(OWN)


def test_the_console_reads_rows_as_they_are_sent() -> None:
    """The stream's rows, the list of queues and the console have the same fields."""
    short = {"put": "put_rate", "get": "get_rate", "open": "open_reads"}
    script = files("kestrelmq.admin").joinpath("static/store.js").read_text()
    (fields,) = re.findall(r"set\(\[, ([\w, ]+)\], time\)", script)
    assert [short.get(name, name) for name in fields.split(", ")] == list(QueueSnapshot._fields)
    assert {"name", *QueueSnapshot._fields} == set(QueueSummary.model_fields)


def test_the_console_knows_every_state_and_latency() -> None:
    """One that it did not know would show as nothing."""
    known = {}
    for name, module in (("STATES", "format.js"), ("LATENCIES", "queue.js")):
        script = files("kestrelmq.admin").joinpath("static", module).read_text()
        pattern = rf"^(?:export )?const {name} = \{{(.*?)^\}};$"
        (table,) = re.findall(pattern, script, re.MULTILINE | re.DOTALL)
        known[name] = set(re.findall(r"(\w+): \"", table))
    assert known["STATES"] == set(get_args(State))
    assert known["LATENCIES"] == {latency.value for latency in Latency}
