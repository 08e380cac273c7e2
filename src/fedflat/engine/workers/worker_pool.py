"""A pool of worker processes, which replaces those that end."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

from .process import GRACE, Event, Outcome, WorkerProcess

CHECK_INTERVAL = 1.0  # seconds between checks whether a worker is suspended


class WorkerError(RuntimeError):
    """A worker process has ended and is not replaced; the message says how it ended, and which task it ran."""


@dataclass(eq=False)
class WorkItem:
    """A task submitted to a pool, and its outcome; or the setup of a worker, whose task is None."""

    task: Any = None
    is_finished: bool = False
    value: Any = None  # the result of the task
    error: Exception | None = None  # raised by the task, or a WorkerError
    attempts: int = 0  # failed attempts: the worker ended

    def finish(self, value: Any = None, error: Exception | None = None) -> None:
        """Store the outcome."""
        self.is_finished, self.value, self.error = True, value, error

    def result(self) -> Any:
        """Return the value of a finished item. Raises its error if it has one."""
        if self.error is not None:
            raise self.error
        return self.value


class WorkerPool:
    """At most `size` worker processes. They end when the pool is closed or deleted, and when this process ends.

    If a worker ends while it runs a task, another worker runs that task again; a task is run at most `attempts` times.
    """

    def __init__(
        self,
        size: int,
        new_worker: Callable[[], WorkerProcess],
        attempts: int,
        on_event: Callable[[Any, Any], None] = lambda task, event: None,
    ) -> None:
        """Make a pool without workers; `on_event(task, event)` is called for every event that a task reports."""
        self._size, self._new_worker, self._attempts, self._on_event = size, new_worker, attempts, on_event
        self._waiting: deque[WorkItem] = deque()
        self._workers: dict[WorkerProcess, WorkItem | None] = {}  # the item that each worker runs
        self._finalizer = weakref.finalize(self, _end_all, self._workers)

    @property
    def is_running(self) -> bool:
        """Whether a task is running or waiting for a worker."""
        return bool(self._waiting) or any(item and item.task for item in self._workers.values())

    def start(self, number: int) -> None:
        """Start workers until there are `number`, and wait until one is ready. Raises the same errors as `wait`."""
        try:
            for _ in range(min(number, self._size) - len(self._workers)):
                self._workers[self._new_worker()] = WorkItem()
            while None not in self._workers.values():
                self.wait()
        except BaseException:
            self.close()
            raise

    def submit(self, task: Any) -> WorkItem:
        """Let the next idle worker run `task`, which is pickled. Call `wait` until the returned item has an outcome.

        If a worker ends in the last attempt, the outcome is a WorkerError with the message
        `task.failure_message(pid, how)`: the worker's process id, and how it ended, in words.
        """
        item = WorkItem(task)
        self._waiting.append(item)
        self._assign()
        return item

    def wait(self, timeout: float = CHECK_INTERVAL) -> list[WorkItem]:
        """Process the next messages of the workers, and return the items that they finished.

        Returns an empty list if no message comes within `timeout` seconds. Raises the error of a worker that cannot be
        set up, or WorkerError if it ends before it is set up.
        """
        busy: dict[Any, tuple[WorkerProcess, WorkItem]]
        busy = {worker.connection: (worker, item) for worker, item in self._workers.items() if item}
        for worker, _ in busy.values():
            worker.kill_if_suspended()
        items = [self._receive(*busy[connection]) for connection in wait(list(busy), timeout)]
        self._assign()
        return [item for item in items if item.is_finished]

    def stop(self, signal_number: int) -> None:
        """Drop the tasks that wait for a worker, and send a signal to the workers that run a task."""
        self._waiting.clear()
        for worker, item in self._workers.items():
            if item and item.task:
                worker.send_signal(signal_number)

    def end_idle(self) -> None:
        """End idle workers to free their memory."""
        for worker in [worker for worker, item in self._workers.items() if item is None]:
            self._end(worker)

    def close(self) -> None:
        """End all workers at once; the tasks that they run are lost."""
        self._waiting.clear()
        _end_all(self._workers)

    def _assign(self) -> None:
        """Give waiting tasks to idle workers, and start a worker for each task that is left, up to the pool's size."""
        idle = [worker for worker, item in self._workers.items() if item is None]
        while self._waiting and idle:
            worker = idle.pop()
            if worker.is_alive:
                self._workers[worker] = item = self._waiting.popleft()
                worker.send(item.task)
            else:  # it ended after its last task, so the next task is not to blame
                self._end(worker)
        starting = sum(item is not None and item.task is None for item in self._workers.values())
        for _ in range(min(len(self._waiting) - starting, self._size - len(self._workers))):
            self._workers[self._new_worker()] = WorkItem()

    def _receive(self, worker: WorkerProcess, item: WorkItem) -> WorkItem:
        """Process a message of a worker that runs `item`, or the end of the worker; return `item`."""
        try:
            message: Event | Outcome = worker.connection.recv()
        except (EOFError, OSError):
            self._recover(item, worker.pid, self._end(worker, GRACE))
            return item
        if isinstance(message, Event):
            self._on_event(item.task, message.content)
            return item
        self._workers[worker] = None
        item.finish(message.result, message.error)
        if item.task is None:
            item.result()
        return item

    def _recover(self, item: WorkItem, pid: int, how: str) -> None:
        """Let another worker repeat the item of an ended worker, unless that was the item's last attempt."""
        if item.task is None:
            raise WorkerError(f"worker process {pid} {how} before it was ready")
        item.attempts += 1
        if item.attempts < self._attempts:
            self._waiting.appendleft(item)
        else:
            item.finish(error=WorkerError(item.task.failure_message(pid, how)))

    def _end(self, worker: WorkerProcess, grace: float = 0.0) -> str:
        del self._workers[worker]
        return worker.end(grace)


def _end_all(workers: dict[WorkerProcess, WorkItem | None]) -> None:
    """End all workers."""
    while workers:
        workers.popitem()[0].end()
