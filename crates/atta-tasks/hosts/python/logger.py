"""What tasks log and print."""

import contextvars
import os
import sys
import threading

from .errors import cut
from .transport import put_message, wait_for_room

LONGEST_LOG = 8 * 1024

# The number of the run whose code is executed now.
current_run = contextvars.ContextVar("current_run", default=None)


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
        wait_for_room()
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

    def __init__(self, stream, level, soon):
        self._stream = stream
        self._level = level
        self._soon = soon
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
            wait_for_room()
            log(self._level, run, line[:-1] if line.endswith("\r") else line)
        if rest and run is None:
            # This line belongs to no run whose end could end it, so it ends after a moment.
            self._soon(self.end, None)
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

    def __getattr__(self, name):
        """Everything else is as in the stream of the process: reconfigure, closed, name and so on."""
        return getattr(self._stream, name)


# Kept here, because a task may replace sys.stdout and sys.stderr.
printed = []


def take_over_output(soon):
    """From now on, what tasks print is logged."""
    sys.stdout = Printed(sys.stdout, "info", soon)
    sys.stderr = Printed(sys.stderr, "warn", soon)
    printed.extend((sys.stdout, sys.stderr))
    os.register_at_fork(after_in_child=restore_output)


def restore_output():
    """A process that a task has made by os.fork prints to the pipes of the host. The worker logs that."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, Printed):
            # The process may end without flushing its output.
            stream._stream.reconfigure(line_buffering=True)
            setattr(sys, name, stream._stream)


def end_lines(run):
    """The run has ended, and with it the lines that it has begun."""
    for stream in printed:
        stream.end(run)
