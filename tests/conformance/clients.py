"""Memcached clients as they are published, behind one small interface."""

import asyncio
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

import aiomcache
import memcache
import pylibmc
import pymemcache

from tests.support.patience import PATIENCE

NODE: Final = Path(__file__).parent / "node"


class Client(Protocol):
    """What the tests ask of a client."""

    def set(self, key: str, data: bytes) -> bool:
        """Store `data`; False when the server did not."""

    def get(self, key: str) -> bytes | None:
        """Return what the server has for `key`."""

    def get_many(self, keys: list[str]) -> dict[str, bytes]:
        """Return what the server has for several keys, in one request."""

    def delete(self, key: str) -> None:
        """Delete `key`."""

    def flush_all(self) -> None:
        """Drop everything."""

    def version(self) -> str:
        """Return the server's version."""

    def stats(self) -> dict[str, str]:
        """Return the server's statistics."""

    def increment(self, key: str) -> None:
        """Send a command that a queue does not know; raise, or do nothing."""

    def close(self) -> None:
        """End the connection."""


class Pymemcache:
    """pymemcache."""

    def __init__(self, port: int) -> None:
        self._client = pymemcache.Client(
            ("127.0.0.1", port), default_noreply=False, timeout=PATIENCE
        )

    def set(self, key: str, data: bytes) -> bool:
        """Store `data`."""
        return bool(self._client.set(key, data))

    def get(self, key: str) -> bytes | None:
        """Return the item."""
        found: bytes | None = self._client.get(key)
        return found

    def get_many(self, keys: list[str]) -> dict[str, bytes]:
        """Return the items."""
        return dict(self._client.get_many(keys))

    def delete(self, key: str) -> None:
        """Delete the queue."""
        self._client.delete(key)

    def flush_all(self) -> None:
        """Drop everything."""
        assert self._client.flush_all()

    def version(self) -> str:
        """Return the version."""
        return str(self._client.version().decode())

    def stats(self) -> dict[str, str]:
        """Return the statistics."""
        return {
            name.decode(): value.decode() if isinstance(value, bytes) else str(value)
            for name, value in self._client.stats().items()
        }

    def increment(self, key: str) -> None:
        """Send `incr`."""
        self._client.incr(key, 1)

    def close(self) -> None:
        """Hang up."""
        self._client.close()


class PythonMemcached:
    """python-memcached."""

    def __init__(self, port: int) -> None:
        self._client = memcache.Client([f"127.0.0.1:{port}"], socket_timeout=PATIENCE)

    def set(self, key: str, data: bytes) -> bool:
        """Store `data`."""
        return bool(self._client.set(key, data))

    def get(self, key: str) -> bytes | None:
        """Return the item."""
        found = self._client.get(key)
        return found.encode() if isinstance(found, str) else found

    def get_many(self, keys: list[str]) -> dict[str, bytes]:
        """Return the items."""
        return dict(self._client.get_multi(keys))

    def delete(self, key: str) -> None:
        """Delete the queue."""
        self._client.delete(key)

    def flush_all(self) -> None:
        """Drop everything."""
        self._client.flush_all()

    def version(self) -> str:
        """Return the version, which this client does not ask for; statistics have it."""
        return self.stats()["version"]

    def stats(self) -> dict[str, str]:
        """Return the statistics."""
        ((_, found),) = self._client.get_stats()
        return {str(name): str(value) for name, value in found.items()}

    def increment(self, key: str) -> None:
        """Send `incr`."""
        assert self._client.incr(key) is None

    def close(self) -> None:
        """Hang up."""
        self._client.disconnect_all()


class Pylibmc:
    """pylibmc, which is libmemcached."""

    def __init__(self, port: int) -> None:
        self._client = pylibmc.Client([f"127.0.0.1:{port}"], behaviors={"receive_timeout": 30})

    def set(self, key: str, data: bytes) -> bool:
        """Store `data`."""
        return bool(self._client.set(key, data))

    def get(self, key: str) -> bytes | None:
        """Return the item."""
        found: bytes | None = self._client.get(key)
        return found

    def get_many(self, keys: list[str]) -> dict[str, bytes]:
        """Return the items."""
        return dict(self._client.get_multi(keys))

    def delete(self, key: str) -> None:
        """Delete the queue."""
        self._client.delete(key)

    def flush_all(self) -> None:
        """Drop everything."""
        assert self._client.flush_all()

    def version(self) -> str:
        """Return the version, which this client does not ask for; statistics have it."""
        return self.stats()["version"]

    def stats(self) -> dict[str, str]:
        """Return the statistics."""
        ((_, found),) = self._client.get_stats()
        return {
            str(name): value.decode() if isinstance(value, bytes) else str(value)
            for name, value in found.items()
        }

    def increment(self, key: str) -> None:
        """Send `incr`."""
        self._client.incr(key)

    def close(self) -> None:
        """Hang up."""
        self._client.disconnect_all()


class Aiomcache:
    """aiomcache, on a loop of its own."""

    def __init__(self, port: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._client = aiomcache.Client("127.0.0.1", port, pool_size=1)

    def _run(self, method: Callable[..., Any], *args: Any) -> Any:
        return self._loop.run_until_complete(method(*args))

    def set(self, key: str, data: bytes) -> bool:
        """Store `data`."""
        return bool(self._run(self._client.set, key.encode(), data))

    def get(self, key: str) -> bytes | None:
        """Return the item."""
        found: bytes | None = self._run(self._client.get, key.encode())
        return found

    def get_many(self, keys: list[str]) -> dict[str, bytes]:
        """Return the items."""
        found = self._run(self._client.multi_get, *(key.encode() for key in keys))
        return {key: data for key, data in zip(keys, found, strict=True) if data is not None}

    def delete(self, key: str) -> None:
        """Delete the queue."""
        self._run(self._client.delete, key.encode())

    def flush_all(self) -> None:
        """Drop everything."""
        self._run(self._client.flush_all)

    def version(self) -> str:
        """Return the version."""
        return str(self._run(self._client.version).decode())

    def stats(self) -> dict[str, str]:
        """Return the statistics."""
        found = self._run(self._client.stats)
        return {name.decode(): (value or b"").decode() for name, value in found.items()}

    def increment(self, key: str) -> None:
        """Send `incr`."""
        self._run(self._client.incr, key.encode(), 1)

    def close(self) -> None:
        """Hang up."""
        if not self._loop.is_closed():
            self._run(self._client.close)
            self._run(asyncio.sleep, 0)  # its transports close in the turn after
            self._loop.close()


class NodeMemcached:
    """The npm package `memcached`, in a process of its own."""

    def __init__(self, port: int) -> None:
        self._process = subprocess.Popen(
            ["node", str(NODE / "agent.js"), f"127.0.0.1:{port}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _call(self, *command: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if answer["error"] is not None:
            raise RuntimeError(answer["error"])
        return answer["result"]

    def set(self, key: str, data: bytes) -> bool:
        """Store `data`; this client reports NOT_STORED as an error."""
        try:
            return bool(self._call("set", key, data.decode(), 0))
        except RuntimeError as error:
            if "not stored" not in str(error).lower():
                raise
            return False

    def get(self, key: str) -> bytes | None:
        """Return the item."""
        found = self._call("get", key)
        return None if found is None else str(found).encode()

    def get_many(self, keys: list[str]) -> dict[str, bytes]:
        """Return the items."""
        found = self._call("getMulti", keys)
        return {key: str(data).encode() for key, data in found.items() if data is not None}

    def delete(self, key: str) -> None:
        """Delete the queue."""
        self._call("del", key)

    def flush_all(self) -> None:
        """Drop everything."""
        self._call("flush")

    def version(self) -> str:
        """Return the version."""
        ((found),) = self._call("version")
        return str(found["version"])

    def stats(self) -> dict[str, str]:
        """Return the statistics."""
        (found,) = self._call("stats")
        return {name: str(value) for name, value in found.items()}

    def increment(self, key: str) -> None:
        """Send `incr`."""
        self._call("incr", key, 1)

    def close(self) -> None:
        """Hang up."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(30)
        if self._process.stdout is not None:
            self._process.stdout.close()


CLIENTS: Final[dict[str, Callable[[int], Client]]] = {
    "pymemcache": Pymemcache,
    "python-memcached": PythonMemcached,
    "pylibmc": Pylibmc,
    "aiomcache": Aiomcache,
    "npm memcached": NodeMemcached,
}
