"""Loading tasks and calling them."""

import importlib.util
import inspect
import sys
import types


class Unloaded:
    def __init__(self, error):
        self.error = error


async def settle(one):
    if not inspect.isawaitable(one):
        return one
    try:
        return await one
    except BaseException as error:
        # Also of sys.exit, which would end the event loop.
        return error


def check_result(result):
    """Raises an error if nobody awaits what a task has returned: its work is not done."""
    items = result if isinstance(result, (list, tuple)) else ()
    coroutines = [one for one in (result, *items) if inspect.iscoroutine(one)]
    for coroutine in coroutines:
        # Prevents Python's own warning.
        coroutine.close()
    if coroutines or inspect.isawaitable(result):
        raise TypeError("the task returned a coroutine that is not awaited: await it in an async function")
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise TypeError("the task is a generator, so its body did not run: remove yield from it")


def load_task(identifier, path):
    name = "atta_tasks." + identifier.replace("/", ".")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    # Code that pickles or inspects the types of a task needs its module in sys.modules, and the packages above it.
    sys.modules[name] = module
    while "." in name:
        name, _, child = name.rpartition(".")
        module_above = sys.modules.setdefault(name, types.ModuleType(name))
        setattr(module_above, child, sys.modules[f"{name}.{child}"])
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
