"""Threads: the trajectory follows work into the other threads of this process.

What is carried is the place where the work was handed over, and nothing else of the program's context: the
user's own telemetry looks the same with and without us. A thread that is started for one piece of work gets the
place of its start. A pool's worker gets none: each item brings the place of its own submission, and "none" where
that was outside any trajectory, so that a worker begun inside one trajectory is never taken for a part of it later.
"""

import sys
import threading
from collections.abc import Callable
from typing import Any

import wrapt

from ..capture import spans
from ..capture.guard import guarded
from ..capture.spans import Place
from . import switch

_WRITER = "art-writer"  # our own thread lasts as long as the process: it is no part of the trajectory that woke it
_pools = threading.local()


def install_threads(module: Any) -> None:
    """Wrap `threading.Thread`, and `Timer` with it."""
    wrapt.wrap_function_wrapper(module, "Thread.start", _start)


def install_executor(module: Any) -> None:
    """Wrap `concurrent.futures.ThreadPoolExecutor`: `map` and the loop's `run_in_executor` go through `submit`."""
    wrapt.wrap_function_wrapper(module, "ThreadPoolExecutor.submit", _submit)


def install_pool(module: Any) -> None:
    """Wrap `multiprocessing.pool.ThreadPool`."""
    wrapt.wrap_function_wrapper(module, "ThreadPool.__init__", start_workers)
    for method in POOL_METHODS:
        if hasattr(module.ThreadPool, method):
            wrapt.wrap_function_wrapper(module, f"ThreadPool.{method}", _pool_method)


POOL_METHODS = ("apply_async", "_map_async", "imap", "imap_unordered")
"""The methods of `multiprocessing.pool.Pool` that all others go through; each takes the function first."""


def portable() -> Place | None:
    """This thread's place, for work that it hands over.

    Of a trajectory that is not captured too: `art.reward` has to find it in the other thread as it does here.
    """
    if not switch.is_on():
        return None
    if (at := switch.here()) is not None:
        return at
    live = spans.current_trajectory()
    return Place(live, live.root) if live is not None and not live.open else None


class workers_starting:
    """Threads and processes that start in this block are a pool's workers: they get no place."""

    __slots__ = ("_before", "_nowhere")

    def __enter__(self) -> None:
        self._before = are_workers_starting()
        _pools.starting = True
        self._nowhere = spans.carried(None)
        self._nowhere.__enter__()

    def __exit__(self, *_: object) -> None:
        self._nowhere.__exit__()
        _pools.starting = self._before


def are_workers_starting() -> bool:
    return getattr(_pools, "starting", False)


def start_workers(wrapped: Callable[..., Any], pool: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Wraps what starts a pool's workers."""
    if not switch.is_on():
        return wrapped(*args, **kwargs)
    with workers_starting():
        return wrapped(*args, **kwargs)


class Carried:
    """A function that runs at the place where it was handed over."""

    __slots__ = ("_function", "_place")

    def __init__(self, function: Callable[..., Any], place: Place | None) -> None:
        self._function = function
        self._place = place

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        with spans.carried(self._place):
            return self._function(*args, **kwargs)


def _submit(wrapped: Callable[..., Any], executor: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if not args or not switch.is_on() or _has_interpreters(executor):
        return wrapped(*args, **kwargs)
    function, *rest = args
    carried = Carried(function, guarded(portable))
    with workers_starting():
        return wrapped(carried, *rest, **kwargs)


def _has_interpreters(executor: Any) -> bool:
    """Python 3.14's executor of that kind is a thread pool whose work leaves this interpreter."""
    module = sys.modules.get("concurrent.futures.interpreter")
    return module is not None and isinstance(executor, module.InterpreterPoolExecutor)


def _pool_method(wrapped: Callable[..., Any], pool: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if not switch.is_on():
        return wrapped(*args, **kwargs)
    place = guarded(portable)
    args, kwargs = with_function(args, kwargs, lambda function: Carried(function, place))
    return wrapped(*args, **kwargs)


def with_function(args: Any, kwargs: dict[str, Any], change: Callable[[Any], Any]) -> tuple[Any, dict[str, Any]]:
    """The arguments of one of `POOL_METHODS`, with the function changed."""
    if args:
        return (change(args[0]), *args[1:]), kwargs
    return args, {**kwargs, "func": change(kwargs["func"])} if "func" in kwargs else kwargs


def _start(wrapped: Callable[..., Any], thread: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if not switch.is_on() or are_workers_starting() or vars(thread).get("_name") == _WRITER:
        return wrapped(*args, **kwargs)
    place = guarded(portable)
    if place is None:
        return wrapped(*args, **kwargs)
    run = _Run(thread, place)
    vars(thread)["run"] = run
    try:
        return wrapped(*args, **kwargs)
    except BaseException:  # it was started before, or the system has no thread left
        run.restore()
        raise


class _Run:
    """Stands before a thread object's own `run` until the thread calls it.

    On the object, not the class: subclasses have a `run` of their own.
    """

    __slots__ = ("_own", "_place", "_thread")

    def __init__(self, thread: Any, place: Place) -> None:
        self._thread = thread
        self._own = vars(thread).get("run")
        self._place = place

    def __call__(self) -> None:
        self.restore()
        with spans.carried(self._place):
            self._thread.run()

    def restore(self) -> None:
        attributes = vars(self._thread)
        if attributes.get("run") is not self:
            return
        if self._own is None:
            del attributes["run"]
        else:
            attributes["run"] = self._own
