"""Replies about all queues: however fast a client takes them, others are served meanwhile."""

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from kestrelmq.admin.large_replies import LargeReplies


def test_a_client_that_never_makes_the_server_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tasks run after each mebibyte."""
    sent: list[int] = []

    async def write(_response: web.StreamResponse, part: bytes) -> None:
        sent.append(len(part))

    async def do_nothing(_response: web.StreamResponse, *_arguments: object) -> None:
        pass

    monkeypatch.setattr(web.StreamResponse, "write", write)
    monkeypatch.setattr(web.StreamResponse, "prepare", do_nothing)
    monkeypatch.setattr(web.StreamResponse, "write_eof", do_nothing)

    async def render() -> list[bytes]:
        return [bytes(1 << 18)] * 40

    async def scenario() -> set[int]:
        replies = LargeReplies()
        sending = asyncio.create_task(
            replies.send(make_mocked_request("GET", "/"), "text/plain", render)
        )
        seen = set()
        while not sending.done():
            seen.add(len(sent))
            await asyncio.sleep(0)
        return seen

    assert asyncio.run(scenario()) >= set(range(0, 40, 4))
    assert len(sent) == 40
