"""Connections to the database for tasks, by the project's own psycopg. The worker has resolved all settings."""

import importlib
import inspect
import os
import queue
import select
import sys

from .jobs import Record
from .logger import current_run, log
from .transport import worker


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


def connection_options():
    """The options of a connection, by libpq's names. The worker has resolved them."""
    if worker.connection is None:
        raise RuntimeError("the worker has no settings for a connection: set DATABASE_URL")
    # The name that the server shows for a connection for which the user has set none: the worker's id.
    return {"fallback_application_name": worker.id or "atta", **worker.connection["libpq"]}


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
        connection = driver.connect(**connection_options())
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
        connection = await driver.AsyncConnection.connect(autocommit=True, **connection_options())
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
