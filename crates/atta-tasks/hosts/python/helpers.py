"""The second argument of a task: the job, adding jobs, connections, and the abort signal."""

import asyncio
import inspect
import threading

from .database import database, find_driver, run_query, run_query_async
from .jobs import added_jobs, calls, checked_spec, make_own_job, spec_of
from .logger import Logger


class AbortSignal:
    """Set when the task must stop: the worker shuts down, or the time limit was exceeded."""

    def __init__(self):
        self._event = threading.Event()
        self._waiting = []

    @property
    def aborted(self):
        return self._event.is_set()

    def is_set(self):
        return self._event.is_set()

    def wait(self, timeout=None):
        return self._event.wait(timeout)

    async def wait_async(self):
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        if not self.is_set():
            await waiting

    def set(self):
        self._event.set()
        for waiting in self._waiting:
            waiting.get_loop().call_soon_threadsafe(lambda one=waiting: one.done() or one.set_result(None))


class Signals:
    """The abort signals of runs whose tasks asked for one."""

    def __init__(self):
        self._lock = threading.Lock()
        self._signals = {}
        # Runs that were aborted and have not ended.
        self._aborted = set()
        self._is_aborted = False

    def of(self, run):
        with self._lock:
            signal = self._signals.get(run)
            if signal is None:
                signal = self._signals[run] = AbortSignal()
                if self._is_aborted or run in self._aborted:
                    signal.set()
        return signal

    def abort(self, runs):
        """Also a signal that the task of such a run asks for later."""
        with self._lock:
            self._aborted.update(runs)
            signals = [self._signals[run] for run in runs if run in self._signals]
        for signal in signals:
            signal.set()

    def abort_all(self):
        """Also those that are asked for later."""
        with self._lock:
            self._is_aborted = True
            signals = list(self._signals.values())
        for signal in signals:
            signal.set()

    def forget(self, run):
        with self._lock:
            self._signals.pop(run, None)
            self._aborted.discard(run)


signals = Signals()


class Helpers:
    """The second argument of a task. For coroutines, AsyncHelpers has awaitable versions of the slow methods."""

    def __init__(self, run, task, columns, payload):
        self._run, self._task, self._columns, self._payload = run, task, columns, payload
        self._job = self._logger = None

    @property
    def job(self):
        if self._job is None:
            self._job = make_own_job(self._columns, self._task, self._payload)
        return self._job

    @property
    def logger(self):
        if self._logger is None:
            self._logger = Logger(self._run)
        return self._logger

    @property
    def abort_signal(self):
        return signals.of(self._run)

    abortSignal = abort_signal

    def get_queue_name(self, queue_id=None):
        if queue_id is None or queue_id == self._columns.get("job_queue_id"):
            return self._columns.get("queue_name")
        raise LookupError("get_queue_name can return only the queue of the running job")

    getQueueName = get_queue_name

    def add_job(self, identifier, payload=None, spec=None, **more):
        reply = calls.call([spec_of(identifier, payload, spec, more)], False)
        return added_jobs(reply.get())[0]

    def addJob(self, *args, **more):
        return self.add_job(*args, **more)

    def add_jobs(self, specs, preserve_run_at=False):
        return added_jobs(calls.call([checked_spec(spec) for spec in specs], preserve_run_at).get())

    def addJobs(self, *args, **more):
        return self.add_jobs(*args, **more)

    def with_pg_client(self, callback):
        return database.lend(callback)

    def withPgClient(self, callback):
        return self.with_pg_client(callback)

    def query(self, sql, values=None):
        return database.lend(lambda connection: run_query(connection, sql, values))


class AsyncHelpers(Helpers):
    async def add_job(self, identifier, payload=None, spec=None, **more):
        reply = calls.call([spec_of(identifier, payload, spec, more)], False, asyncio.get_running_loop())
        return added_jobs(await reply)[0]

    async def add_jobs(self, specs, preserve_run_at=False):
        specs = [checked_spec(spec) for spec in specs]
        return added_jobs(await calls.call(specs, preserve_run_at, asyncio.get_running_loop()))

    async def with_pg_client(self, callback):
        if inspect.iscoroutinefunction(callback):
            return await database.lend_async(callback)
        return await asyncio.to_thread(database.lend, callback)

    async def query(self, sql, values=None):
        if hasattr(find_driver(), "AsyncConnection"):
            return await database.lend_async(lambda connection: run_query_async(connection, sql, values))
        return await asyncio.to_thread(Helpers.query, self, sql, values)
