from __future__ import annotations

import asyncio
import threading

import pytest

from looped.explorer.app import QueueFull, WorkerPool


def test_a_newcomer_is_turned_away_from_a_full_house_and_nobody_else() -> None:
    async def scene() -> None:
        turns, gate = WorkerPool(2), threading.Event()
        first = [asyncio.create_task(turns.take(gate.wait, new=True)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFull):
            await turns.take(gate.wait, new=True)
        going_on = asyncio.create_task(turns.take(gate.wait))
        await asyncio.sleep(0)
        assert turns.waiting == 3
        gate.set()
        assert await asyncio.gather(*first, going_on) == [True] * 3
        assert turns.waiting == 0

    asyncio.run(scene())


def test_whoever_is_called_off_leaves_the_queue() -> None:
    async def scene() -> None:
        turns, gate, done = WorkerPool(100), threading.Event(), []
        busy = [asyncio.create_task(turns.take(gate.wait)) for _ in range(8)]
        late = asyncio.create_task(turns.take(lambda: done.append("late")))
        await asyncio.sleep(0)
        late.cancel()
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*busy)
        await turns.take(lambda: done.append("after"))
        assert done == ["after"]

    asyncio.run(scene())


def test_an_error_reaches_who_asked() -> None:
    async def scene() -> None:
        turns = WorkerPool(1)
        with pytest.raises(ZeroDivisionError):
            await turns.take(lambda: 1 // 0)

    asyncio.run(scene())


def test_light_work_waits_for_no_question() -> None:
    async def scene() -> None:
        turns, gate = WorkerPool(10), threading.Event()
        heavy = asyncio.create_task(turns.take(gate.wait))
        await asyncio.sleep(0)
        assert await turns.take(lambda: "light", light=True) == "light"
        assert not heavy.done()
        gate.set()
        await heavy

    asyncio.run(scene())
