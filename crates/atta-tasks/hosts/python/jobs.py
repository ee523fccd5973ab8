"""Jobs as tasks see them, and calls to the worker that add jobs."""

import queue
import threading
from datetime import datetime, timedelta, timezone

from .transport import process, put_message, worker


class Record(dict):
    """A row, such as a job: its columns are both items and attributes."""

    __getattr__ = dict.get


EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def to_time(micros):
    return EPOCH + timedelta(microseconds=micros)


def make_own_job(columns, task, payload):
    """The running job: it counts as locked by this worker, whatever its row contains."""
    job = make_job(columns, task, payload)
    job.update(locked_at=datetime.now(timezone.utc), locked_by=worker.id)
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


class Calls:
    """Calls that wait for the worker's reply."""

    def __init__(self):
        self._lock = threading.Lock()
        self._waiting = {}
        self._next = 1

    def call(self, add, preserve_run_at, loop=None):
        """Asks the worker to add jobs. Returns a Reply, or a future of the loop."""
        if process.is_forked:
            raise RuntimeError("jobs can't be added in a forked process: let the task add them")
        reply = loop.create_future() if loop else Reply()
        with self._lock:
            number = self._next
            self._next += 1
            self._waiting[number] = reply
        put_message({"call": number, "add": add, "preserve_run_at": preserve_run_at})
        return reply

    def reply(self, message):
        """The worker has replied."""
        with self._lock:
            reply = self._waiting.pop(message["reply"], None)
        if isinstance(reply, Reply):
            reply.put(message)
        elif reply is not None:
            reply.get_loop().call_soon_threadsafe(lambda: reply.done() or reply.set_result(message))


calls = Calls()
