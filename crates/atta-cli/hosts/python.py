"""The host of Python tasks: docs/guides/hosts.md describes the messages, docs/guides/tasks-in-python.md what tasks get.

The main thread runs an asyncio loop for tasks that are coroutines. Other tasks run in threads, each in an idle one or a
new one, so that a task that hangs does not delay others. One thread reads the socket (file descriptor 3), another
one writes to it: all waiting messages are sent in one write.
"""

import asyncio
import contextvars
import importlib
import importlib.util
import inspect
import json
import os
import queue
import re
import select
import socket as sockets
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from uuid import UUID

LONGEST_LOG = 8 * 1024
LONGEST_ERROR = 32 * 1024
# The worker kills a host in which more runs than this hang.
LOST_THREADS = 256

socket = sockets.socket(fileno=3)
# Processes that a task starts must not inherit the socket.
os.set_inheritable(3, False)

current_run = contextvars.ContextVar("current_run", default=None)
outgoing = queue.SimpleQueue()
send_lock = threading.Lock()

# Sending messages.


def put_message(message):
    # The worker rejects NaN and Infinity, which are not valid JSON.
    outgoing.put(json.dumps(message, default=encode, allow_nan=False) + "\n")


def encode(value):
    """Encodes types that JSON does not have."""
    if isinstance(value, datetime):
        # A time without a zone is in the machine's local time, as everywhere in Python.
        return (value if value.tzinfo else value.astimezone()).isoformat()
    if isinstance(value, (date, UUID, Decimal)):
        return str(value)
    if isinstance(value, (set, frozenset, tuple)):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def send_messages():
    while True:
        text = outgoing.get()
        done = []
        parts = []
        while True:
            if isinstance(text, int):
                done.append(text)
            else:
                if done:
                    parts.append('{"done":%s}\n' % json.dumps(done))
                    done = []
                parts.append(text)
            try:
                text = outgoing.get_nowait()
            except queue.Empty:
                break
        if done:
            parts.append('{"done":%s}\n' % json.dumps(done))
        send("".join(parts))


def send(text):
    try:
        with send_lock:
            socket.sendall(text.encode("utf-8", "replace"))
    except OSError:
        os._exit(0)


def cut(text, longest):
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text) - longest} more characters)"


def message_of(error):
    try:
        text = str(error)
    except Exception as read_error:
        text = f"(its text can't be read because of {type(read_error).__name__})"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def code_of(error):
    """The SQLSTATE of a database error, or another code that the error has."""
    for name in ("sqlstate", "pgcode", "code", "errno"):
        try:
            code = getattr(error, name, None)
        except Exception:
            continue
        if isinstance(code, (str, int)) and not isinstance(code, bool):
            return code
    return None


def error_text(error):
    """The message of an error, then its stack frames, without those of the host."""
    start = error.__traceback__
    while start and start.tb_frame.f_code.co_filename.startswith(("atta-host.py", "<frozen importlib")):
        start = start.tb_next
    try:
        frames = traceback.format_exception(type(error), error, start)
    except Exception:
        frames = traceback.format_tb(start)
    code = code_of(error)
    kind = "" if code is None else f"code: {code}\n"
    return cut(message_of(error) + "\n" + kind + "".join(frames).rstrip(), LONGEST_ERROR)


# Logs.


def log(level, run, message, meta=None):
    entry = {"log": level, "message": cut(str(message), LONGEST_LOG)}
    if run is not None:
        entry["run"] = run
    if meta is not None:
        entry["meta"] = meta
    try:
        put_message(entry)
    except (TypeError, ValueError):
        entry["meta"] = repr(meta)
        put_message(entry)


class Logger:
    def __init__(self, run, scope=None):
        self._run = run
        self._scope = scope or {}

    def _log(self, level, message, meta):
        if self._scope and (meta is None or isinstance(meta, dict)):
            meta = {**self._scope, **(meta or {})}
        log(level, self._run, message, meta)

    def error(self, message, meta=None):
        self._log("error", message, meta)

    def warn(self, message, meta=None):
        self._log("warn", message, meta)

    warning = warn

    def info(self, message, meta=None):
        self._log("info", message, meta)

    def debug(self, message, meta=None):
        self._log("debug", message, meta)

    def scope(self, more):
        return Logger(self._run, {**self._scope, **more})


class Printed:
    """Sends what tasks print to the log, line by line, with the job if it is known."""

    encoding = "utf-8"
    errors = "replace"

    def __init__(self, stream, level):
        self._stream = stream
        self._level = level
        self._rest = {}
        self._lock = threading.Lock()

    def write(self, text):
        run = current_run.get()
        with self._lock:
            *lines, rest = (self._rest.pop(run, "") + str(text)).split("\n")
            if len(rest) > LONGEST_LOG:
                lines.append(rest)
            elif rest:
                self._rest[run] = rest
        for line in lines:
            log(self._level, run, line[:-1] if line.endswith("\r") else line)
        if rest and run is None:
            # This line belongs to no run whose end could end it, so it ends after a moment.
            host.soon(self.end, None)
        return len(text)

    def writelines(self, lines):
        for line in lines:
            self.write(line)

    def end(self, run):
        with self._lock:
            rest = self._rest.pop(run, "")
        if rest:
            log(self._level, run, rest)

    def flush(self):
        pass

    def isatty(self):
        return False

    def writable(self):
        return True

    def readable(self):
        return False

    def fileno(self):
        return self._stream.fileno()

    @property
    def buffer(self):
        return self._stream.buffer


# Helpers.


class Record(dict):
    """A row, such as a job: its columns are both items and attributes."""

    __getattr__ = dict.get


EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def to_time(micros):
    return EPOCH + timedelta(microseconds=micros)


def make_own_job(columns, task, payload):
    """The running job: it counts as locked by this worker, whatever its row contains."""
    job = make_job(columns, task, payload)
    job.update(locked_at=datetime.now(timezone.utc), locked_by=host.worker)
    return job


def make_job(columns, task, payload):
    locked_at = columns.get("locked_at")
    created = columns.get("created_at", columns["run_at"])
    flags = columns.get("flags")
    return Record(
        id=columns["id"],
        task_id=columns.get("task_id"),
        job_queue_id=columns.get("job_queue_id"),
        queue_name=columns.get("queue_name"),
        payload=payload,
        priority=columns.get("priority", 0),
        run_at=to_time(columns["run_at"]),
        attempts=columns["attempts"],
        max_attempts=columns.get("max_attempts", 25),
        last_error=columns.get("last_error"),
        created_at=to_time(created),
        updated_at=to_time(columns.get("updated_at", created)),
        key=columns.get("key"),
        revision=columns.get("revision", 0),
        flags={flag: True for flag in flags} if flags else None,
        locked_at=None if locked_at is None else to_time(locked_at),
        locked_by=columns.get("locked_by"),
        task_identifier=task,
    )


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


SPEC_NAMES = frozenset(
    "identifier payload priority flags queue_name queueName run_at runAt max_attempts maxAttempts job_key jobKey "
    "job_key_mode jobKeyMode".split()
)


def spec_of(identifier, payload, spec, more):
    spec = {**(spec or {}), **more, "identifier": identifier, "payload": {} if payload is None else payload}
    return checked_spec(spec)


def checked_spec(spec):
    """A misspelt option would be ignored, and the job would run at once, or without its queue."""
    unknown = [name for name in spec if name not in SPEC_NAMES] if isinstance(spec, dict) else []
    if unknown:
        names = ", ".join(sorted(name for name in SPEC_NAMES if name == name.lower()))
        raise TypeError(f"a job has no option {unknown[0]!r}; the options are {names}")
    return spec


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
        return host.abort_signal(self._run)

    abortSignal = abort_signal

    def get_queue_name(self, queue_id=None):
        if queue_id is None or queue_id == self._columns.get("job_queue_id"):
            return self._columns.get("queue_name")
        raise LookupError("get_queue_name can return only the queue of the running job")

    getQueueName = get_queue_name

    def add_job(self, identifier, payload=None, spec=None, **more):
        reply = host.call([spec_of(identifier, payload, spec, more)], False)
        return added_jobs(reply.get())[0]

    def addJob(self, *args, **more):
        return self.add_job(*args, **more)

    def add_jobs(self, specs, preserve_run_at=False):
        return added_jobs(host.call([checked_spec(spec) for spec in specs], preserve_run_at).get())

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
        reply = host.call([spec_of(identifier, payload, spec, more)], False, asyncio.get_running_loop())
        return added_jobs(await reply)[0]

    async def add_jobs(self, specs, preserve_run_at=False):
        specs = [checked_spec(spec) for spec in specs]
        return added_jobs(await host.call(specs, preserve_run_at, asyncio.get_running_loop()))

    async def with_pg_client(self, callback):
        if inspect.iscoroutinefunction(callback):
            return await database.lend_async(callback)
        return await asyncio.to_thread(database.lend, callback)

    async def query(self, sql, values=None):
        if hasattr(find_driver(), "AsyncConnection"):
            return await database.lend_async(lambda connection: run_query_async(connection, sql, values))
        return await asyncio.to_thread(Helpers.query, self, sql, values)


class Reply:
    """The reply to a call, for a thread that waits for it."""

    def __init__(self):
        self._answer = queue.SimpleQueue()

    def put(self, message):
        self._answer.put(message)

    def get(self):
        return self._answer.get()


class AddJobError(RuntimeError):
    """Jobs could not be added. `code` is the SQLSTATE, if the database rejected them."""

    def __init__(self, message, code=None):
        super().__init__(message)
        self.code = code


def added_jobs(message):
    if "error" in message:
        raise AddJobError(message["error"], message.get("code"))
    return [make_job(one["job"], one["job"]["task_identifier"], one["payload"]) for one in message["result"]]


# Connections, by the project's own psycopg.


def rows_of(description, rows):
    names = [column[0] for column in description]
    return [Record(zip(names, row)) for row in rows]


def run_query(connection, sql, values):
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return [] if cursor.description is None else rows_of(cursor.description, cursor.fetchall())


async def run_query_async(connection, sql, values):
    async with connection.cursor() as cursor:
        await cursor.execute(sql, values)
        return [] if cursor.description is None else rows_of(cursor.description, await cursor.fetchall())


def find_driver():
    for name in ("psycopg", "psycopg2"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
        except ImportError as error:
            # It needs libpq, which may not be installed on the machine.
            hint = f"run {sys.executable} -m pip install '{name}{'[binary]' if name == 'psycopg' else '-binary'}'"
            raise ImportError(f"{name} is installed but can't be loaded: {hint}") from error
    need = "helpers.query and helpers.with_pg_client need psycopg"
    local = os.path.abspath(os.path.join(".venv", "bin", "python"))
    if os.path.exists(local) and os.path.dirname(local) != os.path.dirname(sys.executable):
        raise ImportError(f"{need}, and this Python is not that of .venv: activate .venv, or set ATTA_PYTHON={local}")
    raise ImportError(f"{need}: run {sys.executable} -m pip install 'psycopg[binary]'")


def connection_text():
    text = host.connection or os.environ.get("DATABASE_URL", "")
    # Node's name for an sslmode, which the worker accepts as well.
    if "sslmode='no-verify'" in text:
        text = re.sub(r"sslrootcert='(?:[^'\\]|\\.)*'", "", text.replace("sslmode='no-verify'", "sslmode='require'"))
    return text


def application_name():
    """The name that the server shows for a connection for which the user has set none: the worker's id."""
    return host.worker or "atta"


def is_usable(connection):
    """Whether an idle connection is still open: if it can be read from, the server has closed it."""
    if connection.closed:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)


def is_in_transaction(connection):
    return connection.info.transaction_status != 0


TRANSACTION = "a callback of helpers.with_pg_client left a transaction open, which was rolled back: commit it there"


class Database:
    """The connections of tasks: as many as are used at the same time."""

    def __init__(self):
        self._idle = queue.SimpleQueue()
        self._idle_async = []

    def _borrow(self):
        while True:
            try:
                connection = self._idle.get_nowait()
            except queue.Empty:
                break
            if is_usable(connection):
                return connection
            connection.close()
        driver = find_driver()
        connection = driver.connect(connection_text(), fallback_application_name=application_name())
        connection.autocommit = True
        # Behind a pooler, a prepared statement may belong to another client.
        connection.prepare_threshold = None
        return connection

    def lend(self, callback):
        if inspect.iscoroutinefunction(callback):
            raise TypeError("a coroutine as callback needs a coroutine as task: async def task(payload, helpers)")
        connection = self._borrow()
        try:
            result = callback(connection)
        except BaseException:
            # Closing the connection rolls back an open transaction, whatever state it is in.
            connection.close()
            raise
        if is_in_transaction(connection):
            log("warn", current_run.get(), TRANSACTION)
            connection.close()
        else:
            self._idle.put(connection)
        return result

    async def _borrow_async(self):
        while self._idle_async:
            connection = self._idle_async.pop()
            if is_usable(connection):
                return connection
            await connection.close()
        driver = find_driver()
        if not hasattr(driver, "AsyncConnection"):
            raise TypeError("a coroutine as callback needs psycopg 3; with psycopg2, use a plain function")
        connection = await driver.AsyncConnection.connect(
            connection_text(), autocommit=True, fallback_application_name=application_name()
        )
        connection.prepare_threshold = None
        return connection

    async def lend_async(self, callback):
        connection = await self._borrow_async()
        try:
            result = await callback(connection)
        except BaseException:
            await connection.close()
            raise
        if is_in_transaction(connection):
            log("warn", current_run.get(), TRANSACTION)
            await connection.close()
        else:
            self._idle_async.append(connection)
        return result


database = Database()

# Running jobs.


class Unloaded:
    def __init__(self, error):
        self.error = error


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
        self.worker = None
        self.connection = ""
        self._tasks = {}
        self._signals = {}
        self._calls = {}
        self._next_call = 1
        self._is_aborted = False
        self._lock = threading.Lock()
        self._threads = Threads()
        # Runs that have not started. A run that is aborted before it starts is removed from this set and never starts.
        self._pending = set()
        # Runs that need the event loop.
        self._coroutines = set()
        # Keeps references, because a task that nothing refers to may be garbage-collected while it runs.
        self._running = set()

    def hello(self, message):
        self.worker = message.get("worker")
        self.connection = message.get("connection", "")
        concurrency = max(message.get("concurrency", 1), 1)
        # For functions that coroutines run in threads. Threads are started as needed, and some may hang.
        self.loop.set_default_executor(ThreadPoolExecutor(max(concurrency, 10) + LOST_THREADS, "helper"))
        if message["tasks"]:
            for place in (os.path.dirname(message["tasks"][0]["path"]), os.getcwd()):
                if place not in sys.path:
                    sys.path.insert(0, place)
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
        if message.get("report_start"):
            send('{"started":[%d]}\n' % message["run"])
        return True

    def _run_in_thread(self, task, message):
        if not self._begin(message):
            return
        run, payload = message["run"], message.get("payload")
        context = contextvars.copy_context()
        context.run(current_run.set, run)
        try:
            result = context.run(call_task, task, payload, Helpers(run, message["task"], message["job"], payload))
            if inspect.isawaitable(result):
                if inspect.iscoroutine(result):
                    result.close()
                raise TypeError("the task returned a coroutine that is not awaited: make it an async function")
            if inspect.isgenerator(result) or inspect.isasyncgen(result):
                raise TypeError("the task is a generator, so its body did not run: remove yield from it")
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
        except BaseException as error:
            return self._end(run, error)
        self._succeed(run, payload, result)

    def _succeed(self, run, payload, result):
        """An item of a batch has failed if its result is an exception."""
        if not isinstance(payload, list) or not isinstance(result, (list, tuple)):
            return self._end(run)
        if len(result) != len(payload):
            counts = f"{len(result)} results for {len(payload)} items"
            log("warn", run, f"the task returned {counts}, so all items count as completed")
            return self._end(run)
        items = [
            {"index": index, "error": cut(message_of(one), LONGEST_ERROR)}
            for index, one in enumerate(result)
            if isinstance(one, BaseException)
        ]
        if not items:
            return self._end(run)
        self._forget(run)
        put_message({"failed": run, "error": "some items of the batch failed", "items": items})

    def _end(self, run, error=None):
        self._forget(run)
        if error is None:
            outgoing.put(run)
        else:
            put_message({"failed": run, "error": error_text(error)})

    def _forget(self, run):
        sys.stdout.end(run)
        sys.stderr.end(run)
        with self._lock:
            self._signals.pop(run, None)
            self._coroutines.discard(run)

    def abort_signal(self, run):
        with self._lock:
            signal = self._signals.get(run)
            if signal is None:
                signal = self._signals[run] = AbortSignal()
                if self._is_aborted:
                    signal.set()
        return signal

    def abort(self, runs):
        dropped = []
        with self._lock:
            if runs is True:
                self._is_aborted = True
                signals = list(self._signals.values())
            else:
                dropped = [run for run in runs if run in self._pending]
                self._pending.difference_update(dropped)
                self._coroutines.difference_update(dropped)
                signals = [self._signals[run] for run in runs if run in self._signals]
        for signal in signals:
            signal.set()
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

    def call(self, add, preserve_run_at, loop=None):
        reply = loop.create_future() if loop else Reply()
        with self._lock:
            number = self._next_call
            self._next_call += 1
            self._calls[number] = reply
        put_message({"call": number, "add": add, "preserve_run_at": preserve_run_at})
        return reply

    def reply(self, message):
        with self._lock:
            reply = self._calls.pop(message["reply"], None)
        if isinstance(reply, Reply):
            reply.put(message)
        elif reply is not None:
            reply.get_loop().call_soon_threadsafe(lambda: reply.done() or reply.set_result(message))

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
            self.reply({"reply": int(begin[2]), "error": f"the jobs were added, but {why}"})

    def handle(self, message):
        if "ping" in message:
            self.ping(message)
        elif "run" in message:
            self.run(message)
        elif "reply" in message:
            self.reply(message)
        elif "abort" in message:
            self.abort(message["abort"])
        elif "hello" in message:
            self.hello(message)
        elif "worker" in message:
            self.worker = message["worker"]


async def settle(one):
    if not inspect.isawaitable(one):
        return one
    try:
        return await one
    except Exception as error:
        return error


def load_task(identifier, path):
    name = "atta_tasks." + identifier.replace("/", ".")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    # Code that pickles or inspects the types of a task needs its module in sys.modules.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    task = getattr(module, "task", None)
    if not callable(task):
        raise TypeError(f"{path} has no function named task: def task(payload, helpers)")
    return task


def is_coroutine_function(task):
    """Whether a task is a coroutine function, also if a decorator wraps it with functools.wraps."""
    known = [task, getattr(task, "__call__", None)]
    try:
        known.append(inspect.unwrap(task))
    except ValueError:
        pass
    return any(inspect.iscoroutinefunction(one) for one in known)


def call_task(task, payload, helpers):
    return task(payload, helpers) if takes_helpers(task) else task(payload)


def takes_helpers(task):
    """Whether a task accepts helpers: its second parameter is optional."""
    known = takes_helpers.known.get(task)
    if known is None:
        try:
            inspect.signature(task).bind(None, None)
            known = True
        except (TypeError, ValueError):
            known = False
        takes_helpers.known[task] = known
    return known


takes_helpers.known = {}


def listen():
    with socket.makefile("rb", 1 << 16) as lines:
        for line in lines:
            try:
                host.handle(json.loads(line))
            except Exception as error:
                host.refuse(line, error)
    # The worker has ended, or has closed the socket to end this host. Running tasks are not waited for.
    os._exit(0)


sys.stdout = Printed(sys.stdout, "info")
sys.stderr = Printed(sys.stderr, "warn")
sys.argv = ["atta-host"]
loop = asyncio.new_event_loop()
asyncio.set_event_loop(loop)
host = Host(loop)
threading.Thread(target=send_messages, name="send_messages", daemon=True).start()
threading.Thread(target=listen, name="listen", daemon=True).start()
loop.run_forever()
