"""AsyncMQ's part of redis_bench.py. It runs in an environment of its own (.venv-bench) and answers on stdout,
in JSON, each line of stdin: [what, queue, count]. The answer is the seconds that it took."""

from __future__ import annotations

import asyncio
import json
import sys
import time

import asyncmq
from asyncmq.backends.redis import RedisBackend
from asyncmq.queues import Queue
from asyncmq.tasks import TASK_REGISTRY, task
from asyncmq.workers import handle_job


@task(queue="bench")
async def noop() -> None:
    return None


TASK_ID = next(name for name in TASK_REGISTRY if name.endswith("noop"))


async def answer(backend: RedisBackend, what: str, name: str, count: int) -> float:
    queue = Queue(name, backend=backend)
    begun = time.perf_counter()
    if what == "add":
        for _ in range(count):
            await queue.add(TASK_ID)
    elif what == "add_bulk":
        await queue.add_bulk([{"task_id": TASK_ID} for _ in range(count)])
    elif what == "add_delayed":
        for _ in range(0, count, 1000):
            await asyncio.gather(*(queue.add(TASK_ID, delay=3600) for _ in range(1000)))
    elif what == "add_due":
        for _ in range(count):
            await queue.add(TASK_ID, delay=0.001)
    elif what == "add_keyed":
        for number in range(count):
            await queue.add(TASK_ID, deduplication={"id": f"key{time.time()}-{number}"})
    elif what == "ping":
        for _ in range(count):
            await backend.redis.ping()
    elif what == "run":
        done = 0
        while (job := await backend.dequeue(name)) is not None:
            await handle_job(name, job, backend)
            done += 1
        assert done == count, f"ran {done} of {count}"
    elif what == "claim":
        for _ in range(count):
            job = await backend.dequeue(name)
            assert job is not None
            await backend.save_heartbeat(name, job["id"], time.time() + 3600)
    elif what == "stall":
        for _ in range(count):
            job = await backend.dequeue(name)
            assert job is not None
            await backend.save_heartbeat(name, job["id"], 1.0)
    elif what == "sweep":
        stalled = await backend.fetch_stalled_jobs(time.time() - 30)
        for entry in stalled:
            await backend.reenqueue_stalled(entry["queue_name"], entry["job_data"])
        assert len(stalled) == count, f"found {len(stalled)} of {count}"
    elif what == "promote":
        promoted = await backend.promote_due_delayed(name)
        assert len(promoted) == count, f"promoted {len(promoted)} of {count}"
    return time.perf_counter() - begun


async def main(url: str) -> None:
    backend = RedisBackend(url)
    print(json.dumps(asyncmq.__version__), flush=True)
    for line in sys.stdin:
        print(json.dumps(await answer(backend, *json.loads(line))), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
