"""The socket to the worker (file descriptor 3): each line is a message. One thread writes to it: all waiting messages
are sent in one write.
"""

import json
import os
import queue
import socket as sockets
from datetime import date, datetime
from decimal import Decimal
from threading import Lock, Thread
from time import sleep
from uuid import UUID

socket = sockets.socket(fileno=3)
# Processes that a task starts must not inherit the socket.
os.set_inheritable(3, False)

outgoing = queue.SimpleQueue()
# How many messages may wait when the next line is logged. A line has at most 8 Ki characters.
MOST_WAITING = 4096
send_lock = Lock()


class Worker:
    """What is known about the worker: its id, and the settings for connections from its first message."""

    id = None
    connection = None


worker = Worker()


class Process:
    """Whether this process is a copy of the host, which a task has made by os.fork: it has no socket."""

    is_forked = False


process = Process()


def leave_host():
    process.is_forked = True
    try:
        os.close(3)
    except OSError:
        # A task has closed it.
        pass


os.register_at_fork(after_in_child=leave_host)


def put_message(message):
    # The worker rejects NaN and Infinity, which are not valid JSON.
    outgoing.put(json.dumps(message, default=encode, allow_nan=False) + "\n")


def wait_for_room():
    """Waits while very many messages are unsent: a task that logs faster than the worker reads must wait."""
    while outgoing.qsize() > MOST_WAITING and not process.is_forked:
        sleep(0.001)


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


def put_done(run):
    """Reports that a run has succeeded. Many of them become one message."""
    outgoing.put(run)


def send_started(run):
    """Sends the message at once: nothing that a task does after this can prevent that."""
    send('{"started":[%d]}\n' % run)


def start_sending():
    Thread(target=send_messages, name="send_messages", daemon=True).start()


def receive(handle, refuse):
    """Calls a function with each message from the worker, and another one with each line that can't be handled."""
    with socket.makefile("rb", 1 << 16) as lines:
        for line in lines:
            try:
                handle(json.loads(line))
            except Exception as error:
                refuse(line, error)
    # The worker has ended, or has closed the socket to end this host. Running tasks are not waited for.
    os._exit(0)
