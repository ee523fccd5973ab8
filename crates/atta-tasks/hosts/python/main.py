"""The host of Python tasks: docs/guides/hosts.md describes the messages, docs/guides/tasks-in-python.md what tasks get.

The main thread runs an asyncio loop for tasks that are coroutines. Other tasks run in threads, each in an idle one or a
new one, so that a task that hangs does not delay others. One thread reads the socket, another one writes to it.

This file runs jobs and distributes the messages. transport.py has the socket, tasks.py loads tasks, helpers.py and
jobs.py have what tasks get, logger.py has the log, database.py the connections.
"""

import asyncio
import contextvars
import inspect
import os
import queue
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from .errors import LONGEST_ERROR, cut, error_text, message_of
from .helpers import AsyncHelpers, Helpers, signals
from .jobs import calls
from .logger import current_run, end_lines, log, take_over_output
from .tasks import Unloaded, call_task, check_result, is_coroutine_function, load_task, settle
from .transport import process, put_done, put_message, receive, send_started, start_sending, worker

# The worker kills a host in which more runs than this hang.
LOST_THREADS = 256


class Threads:
    """Runs functions in threads: each in an idle thread, or in a new one if none is idle."""

    def __init__(self):
        self._lock = threading.Lock()
        self._work = queue.SimpleQueue()
        self._idle = 0

    def submit(self, function, *arguments):
        with self._lock:
            is_idle = self._idle > 0
            if is_idle:
                self._idle -= 1
        if not is_idle:
            # If no more threads can be started, this raises an error, and nothing is queued that would start later.
            threading.Thread(target=self._run, name="task", daemon=True).start()
        self._work.put((function, arguments))

    def _run(self):
        while True:
            function, arguments = self._work.get()
            function(*arguments)
            del function, arguments
            with self._lock:
                self._idle += 1


class Host:
    def __init__(self, loop):
        self.loop = loop
        self._tasks = {}
        self._lock = threading.Lock()
        self._threads = Threads()
        # Runs that have not started. A run that is aborted before it starts is removed from this set and never starts.
        self._pending = set()
        # Runs that have started and have not ended.
        self._started = set()
        # Runs that need the event loop.
        self._coroutines = set()
        # Keeps references, because a task that nothing refers to may be garbage-collected while it runs.
        self._running = set()

    def hello(self, message):
        worker.id = message.get("worker")
        worker.connection = message.get("connection")
        concurrency = max(message.get("concurrency", 1), 1)
        # For functions that coroutines run in threads. Threads are started as needed, and some may hang.
        self.loop.set_default_executor(ThreadPoolExecutor(max(concurrency, 10) + LOST_THREADS, "helper"))
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        if message["tasks"]:
            # At the end: a task may have the name of one of Python's modules.
            sys.path.append(os.path.dirname(message["tasks"][0]["path"]))
        for task in message["tasks"]:
            try:
                self._tasks[task["identifier"]] = load_task(task["identifier"], task["path"])
            except BaseException as error:
                text = error_text(error)
                self._tasks[task["identifier"]] = Unloaded(text)
                put_message({"unloaded": task["identifier"], "error": text})
        put_message({"ready": "python " + ".".join(map(str, sys.version_info[:3])), "reports_start": True})

    def run(self, message):
        task = self._tasks.get(message["task"])
        if task is None or isinstance(task, Unloaded):
            error = task.error if task else f"this host has no task {message['task']}"
            put_message({"failed": message["run"], "error": error})
        elif is_coroutine_function(task):
            with self._lock:
                self._pending.add(message["run"])
                self._coroutines.add(message["run"])
            self.loop.call_soon_threadsafe(self._start, task, message)
        else:
            with self._lock:
                self._pending.add(message["run"])
            try:
                self._threads.submit(self._run_in_thread, task, message)
            except (RuntimeError, MemoryError) as error:
                with self._lock:
                    self._pending.discard(message["run"])
                why = f"can't start a thread for the task: {message_of(error)}"
                put_message({"failed": message["run"], "error": why})

    def _begin(self, message):
        """Whether the run may start. If the worker asked for a report of the start, it is sent before the task runs."""
        with self._lock:
            if message["run"] not in self._pending:
                return False
            self._pending.discard(message["run"])
            self._started.add(message["run"])
        if message.get("report_start"):
            send_started(message["run"])
        return True

    def _run_in_thread(self, task, message):
        if not self._begin(message):
            return
        run, payload = message["run"], message.get("payload")
        context = contextvars.copy_context()
        context.run(current_run.set, run)
        try:
            result = context.run(call_task, task, payload, Helpers(run, message["task"], message["job"], payload))
            check_result(result)
        except BaseException as error:
            return self._end(run, error)
        self._succeed(run, payload, result)

    def _start(self, task, message):
        if not self._begin(message):
            return
        context = contextvars.copy_context()
        context.run(current_run.set, message["run"])
        running = context.run(self.loop.create_task, self._run_coroutine(task, message))
        self._running.add(running)
        running.add_done_callback(self._running.discard)

    async def _run_coroutine(self, task, message):
        run, payload = message["run"], message.get("payload")
        try:
            result = await call_task(task, payload, AsyncHelpers(run, message["task"], message["job"], payload))
            if isinstance(payload, list) and isinstance(result, (list, tuple)):
                awaited = [settle(one) for one in result]
                result = await asyncio.gather(*awaited)
            check_result(result)
        except BaseException as error:
            return self._end(run, error)
        self._succeed(run, payload, result)

    def _succeed(self, run, payload, result):
        """An item of a batch has failed if its result is an exception."""
        if process.is_forked:
            end_fork()
        if not isinstance(payload, list) or not isinstance(result, (list, tuple)):
            return self._end(run)
        if len(result) != len(payload):
            counts = f"{len(result)} results for {len(payload)} items"
            log("warn", run, f"the task returned {counts}, so all items count as completed")
            return self._end(run)
        failed = [(index, one) for index, one in enumerate(result) if isinstance(one, BaseException)]
        if not failed:
            return self._end(run)
        left = LONGEST_ERROR
        items = []
        for index, one in failed:
            # All texts together become the error of the job.
            text = cut(message_of(one), left) if left > 0 else ""
            left -= len(text)
            items.append({"index": index, "error": text})
        self._forget(run)
        put_message({"failed": run, "error": "some items of the batch failed", "items": items})

    def _end(self, run, error=None):
        if process.is_forked:
            end_fork(error)
        self._forget(run)
        if error is None:
            put_done(run)
        else:
            put_message({"failed": run, "error": error_text(error)})

    def _forget(self, run):
        end_lines(run)
        with self._lock:
            self._started.discard(run)
            self._coroutines.discard(run)
        signals.forget(run)

    def abort(self, runs):
        if runs is True:
            return signals.abort_all()
        with self._lock:
            dropped = [run for run in runs if run in self._pending]
            self._pending.difference_update(dropped)
            self._coroutines.difference_update(dropped)
            started = [run for run in runs if run in self._started]
            # Within the lock, so that a run that ends now is forgotten after this.
            signals.abort(started)
        for run in dropped:
            put_message({"failed": run, "error": "the run was given up before it started"})

    def ping(self, message):
        """If the run needs the event loop, the loop answers: a coroutine that does not yield blocks all others."""
        answer = {"pong": message["ping"]}
        with self._lock:
            needs_loop = message.get("run") in self._coroutines
        if needs_loop:
            self.loop.call_soon_threadsafe(put_message, answer)
        else:
            put_message(answer)

    def soon(self, function, *arguments):
        self.loop.call_soon_threadsafe(self.loop.call_later, 0.1, function, *arguments)

    def refuse(self, line, error):
        """Handles a message that Python can't parse: nested too deeply, or with a number of too many digits.

        A run or a call that waits for the message gets an error.
        """
        begin = re.match(rb'\{"(run|reply)":(\d+),', line)
        why = f"Python can't parse the JSON: {message_of(error)}"
        if begin is None:
            log("error", None, f"ignored an invalid message of the worker: {error_text(error)}")
        elif begin[1] == b"run":
            put_message({"failed": int(begin[2]), "error": f"the payload is invalid: {why}"})
        else:
            calls.reply({"reply": int(begin[2]), "error": f"the jobs were added, but {why}"})

    def handle(self, message):
        if "ping" in message:
            self.ping(message)
        elif "run" in message:
            self.run(message)
        elif "reply" in message:
            calls.reply(message)
        elif "abort" in message:
            self.abort(message["abort"])
        elif "hello" in message:
            self.hello(message)
        elif "worker" in message:
            worker.id = message["worker"]


def run():
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    host = Host(loop)
    take_over_output(host.soon)
    sys.argv = ["atta-host"]
    start_sending()
    threading.Thread(target=receive, args=(host.handle, host.refuse), name="receive", daemon=True).start()
    run_loop(loop)


def end_fork(error=None):
    """Ends a process that a task has made by os.fork, as Python ends a program. The run goes on in the host."""
    code = 0
    if isinstance(error, SystemExit):
        code = error.code
    elif error is not None:
        code = error_text(error)
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit((code or 0) & 0xFF)


def run_loop(loop):
    """Runs the event loop for as long as the process lives. A task can end the loop, but not for the other tasks."""
    while not loop.is_closed():
        try:
            loop.run_forever()
            log("warn", None, "a task stopped the event loop, which all coroutines share; it goes on")
        except KeyboardInterrupt:
            break
        except SystemExit as error:
            # asyncio raises it here and also where the task that has called sys.exit is awaited.
            log("warn", None, f"a coroutine called sys.exit, which ends only this coroutine: {message_of(error)}")
    # Not by sys.exit, which would wait for all threads.
    os._exit(1)
