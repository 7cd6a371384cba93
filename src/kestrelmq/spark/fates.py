"""What became of items: for each file, its items, and what its records did to items of any file.

Removes carry no time. What is known is that one happened between the add before it and the add
after it, so an event has the add times of its neighbours in the file as bounds; null when the
file has no such neighbour close by.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kestrelmq.spark import columns
from kestrelmq.spark.scanning import Chunk, FileView, events, open_view
from kestrelmq.spark.segments import State
from kestrelmq.spark.spool import SpoolFile
from kestrelmq.spark.summarising import Fate, Summariser

ITEM_SCHEMA: Final = pa.schema(
    [
        ("spool", pa.string()),
        ("queue", pa.string()),
        ("ordinal", pa.int64()),
        ("file", pa.string()),
        ("position", pa.int64()),
        ("add_time", pa.int64()),
        ("expiry", pa.int64()),
        ("size", pa.int32()),
        ("data", pa.binary()),
    ]
)
EVENT_SCHEMA: Final = pa.schema(
    [
        ("spool", pa.string()),
        ("queue", pa.string()),
        ("ordinal", pa.int64()),
        ("fate", pa.int32()),
        ("not_before", pa.int64()),
        ("not_after", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class Tracing:
    """A file to trace, and the state of its queue at its start."""

    file: SpoolFile
    state: State


def items(tracing: Tracing, *, with_data: bool, rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the items a file adds, with their ordinals."""
    file = tracing.file
    ordinal = tracing.state.adds
    view = open_view(file.path, file.size, file.inode)
    for chunk in view.chunks(tail_may_be_torn=file.last):
        for batch in columns.batches(chunk.part(chunk.adds), rows):
            count = len(batch)
            yield pa.RecordBatch.from_arrays(
                [
                    columns.constant(file.spool, count),
                    columns.constant(file.queue, count),
                    pa.array(np.arange(ordinal, ordinal + count)),
                    columns.constant(file.name, count),
                    pa.array(batch.starts),
                    columns.add_times(view, batch).fill_null(0),
                    columns.expiries(view, batch),
                    columns.sizes(batch),
                    columns.data(view, batch) if with_data else pa.nulls(count, pa.binary()),
                ],
                schema=ITEM_SCHEMA,
            )
            ordinal += count


def happenings(tracing: Tracing) -> Iterator[pa.RecordBatch]:
    """Yield what a file's records do to items, those of earlier files among them."""
    file, state = tracing.file, tracing.state
    told: list[tuple[int, int, int]] = []
    summariser = Summariser(state.start(), trace=lambda *event: told.append(event))
    view = open_view(file.path, file.size, file.inode)
    before: int | None = None
    for chunk in view.chunks(tail_may_be_torn=file.last):
        run = events(view, chunk)
        summariser.feed(run)
        times = _add_times(view, chunk)
        if told:
            yield _batch(tracing, told, run.adds_before, times, before)
            told.clear()
        before = int(times[-1]) if len(times) else before


def _add_times(view: FileView, chunk: Chunk) -> NDArray[np.int64]:
    adds = chunk.part(chunk.adds)
    found: NDArray[np.int64] = (
        columns.add_times(view, adds).fill_null(0).to_numpy(zero_copy_only=False)
    )
    return found


def _batch(
    tracing: Tracing,
    told: list[tuple[int, int, int]],
    adds_before: NDArray[np.int64],
    times: NDArray[np.int64],
    before: int | None,
) -> pa.RecordBatch:
    count = len(told)
    fates = np.fromiter((fate for fate, _, _ in told), dtype=np.int32, count=count)
    ordinals = [tracing.state.ordinal(reference) for _, reference, _ in told]
    places = adds_before[np.fromiter((index for _, _, index in told), np.int64, count)]
    # An ADD has no add time, so its neighbours learn nothing from it.
    padded = np.concatenate([[before or 0], times, [0]])
    earlier, later = padded[places], padded[places + 1]
    return pa.RecordBatch.from_arrays(
        [
            columns.constant(tracing.file.spool, count),
            columns.constant(tracing.file.queue, count),
            pa.array(ordinals, pa.int64()),
            pa.array(fates),
            pa.array(earlier, mask=earlier == 0),
            pa.array(later, mask=later == 0),
        ],
        schema=EVENT_SCHEMA,
    )


TERMINAL: Final = (int(Fate.REMOVED), int(Fate.CONFIRMED))
"""Fates after which an item is gone."""
