"""The protocols of the load generator, each with prebuilt requests."""

from __future__ import annotations

from bench.load.wires import beanstalk, memcache, nats, resp, text, thrift
from bench.load.wires.wire import Wire
from bench.load.workload import Protocol

WIRES: dict[Protocol, Wire] = {
    Protocol.MEMCACHE: memcache.WIRE,
    Protocol.TEXT: text.WIRE,
    Protocol.THRIFT: thrift.WIRE,
    Protocol.RESP: resp.WIRE,
    Protocol.BEANSTALK: beanstalk.WIRE,
    Protocol.NATS: nats.WIRE,
}
