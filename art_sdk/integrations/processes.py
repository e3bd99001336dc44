"""Child processes: what runs there belongs to the trajectory, under the span where it was handed over.

The place travels as our header's text with the process object or with each item of a pool, so a child that is
spawned finds it as one that is forked does. A pool's worker has no place of its own, whatever it was forked from.
A child writes to a journal of its own; the trajectory is its parent's to end.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import wrapt

from ..capture import redaction, spans
from ..capture.guard import guarded
from ..capture.spans import Place
from ..errors import ConfigError
from . import switch, threads

_OTHER_POOLS = ("loky.", "joblib.")  # their processes are workers, whose items we don't see


def install_process(module: Any) -> None:
    """Wrap `multiprocessing.Process` of every start method."""
    wrapt.wrap_function_wrapper(module, "BaseProcess.start", _start)
    os.register_at_fork(after_in_child=_after_fork_in_child)


def install_executor(module: Any) -> None:
    """Wrap `concurrent.futures.ProcessPoolExecutor`; its `map` goes through `submit`."""
    wrapt.wrap_function_wrapper(module, "ProcessPoolExecutor.submit", _submit)


def install_pools(module: Any) -> None:
    """Wrap `multiprocessing.pool`: the pools of threads and those of processes."""
    threads.install_pool(module)
    wrapt.wrap_function_wrapper(module, "Pool.__init__", threads.start_workers)
    for method in threads.POOL_METHODS:
        if hasattr(module.Pool, method):
            wrapt.wrap_function_wrapper(module, f"Pool.{method}", _pool_method)


@dataclass(frozen=True)
class Mark:
    """A place, for a child process: our header's text, None in a trajectory that is not captured.

    `masked` says that the program has a mask, which the child can't be sent.
    """

    header: str | None
    masked: bool


def mark() -> Mark | None:
    """This place. None outside a trajectory."""
    at = threads.portable()
    if at is None or (at.live.captured and not at.live.open):
        return None
    header = spans.header(at) if at.live.open else None
    return Mark(header, redaction.get_mask() is not None)


class Joined:
    """A function that runs, in another process, at the place where it was handed over. It is pickled with both."""

    def __init__(self, function: Callable[..., Any], mark: Mark) -> None:
        self._function = function
        self._mark = mark

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        with _placed(self._mark):
            return self._function(*args, **kwargs)


class _Run:
    """Stands before a process object's own `run`, and is pickled with it where the child is spawned."""

    def __init__(self, process: Any, mark: Mark) -> None:
        self._process = process
        self._own = vars(process).get("run")
        self._mark = mark

    def __call__(self) -> None:
        process = self._process
        self.restore()
        if spans.current_trajectory() is not None:  # forked: it is still where the start was
            process.run()
            return
        with _placed(self._mark):
            process.run()

    def restore(self) -> None:
        if self._own is None:
            vars(self._process).pop("run", None)
        else:
            self._process.run = self._own


@contextmanager
def _placed(mark: Mark) -> Iterator[None]:
    guarded(_capture, mark)
    if mark.header is None:
        live = spans.lost_root("")
        with spans.carried(Place(live, live.root)):
            yield
    else:
        with spans.joined(mark.header):
            yield


def _capture(mark: Mark) -> None:
    """A spawned child may have imported nothing of ours but this."""
    from .. import lifecycle as lifecycle  # whoever captures also drains
    from . import instrument_once

    instrument_once()
    if mark.masked and redaction.get_mask() is None:
        redaction.set_mask(_withhold)


def _withhold(value: Any) -> Any:
    raise ConfigError(
        "this process was started by one that masks what it keeps, so nothing is kept here: call art.init(mask=...) "
        "where a spawned process calls it too, at the top of a module that it imports"
    )


def _start(wrapped: Callable[..., Any], process: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if threads.are_workers_starting() or type(process).__module__.startswith(_OTHER_POOLS):
        return wrapped(*args, **kwargs)
    place = guarded(mark)
    if place is None:
        return wrapped(*args, **kwargs)
    run = _Run(process, place)
    vars(process)["run"] = run
    try:
        return wrapped(*args, **kwargs)
    finally:
        run.restore()


def _submit(wrapped: Callable[..., Any], executor: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if not args or not switch.is_on():
        return wrapped(*args, **kwargs)
    function, *rest = args
    place = guarded(mark)
    joined = function if place is None else Joined(function, place)
    with threads.workers_starting():
        return wrapped(joined, *rest, **kwargs)


def _pool_method(wrapped: Callable[..., Any], pool: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    from multiprocessing.pool import ThreadPool

    place = None if isinstance(pool, ThreadPool) else guarded(mark)
    if place is not None:
        args, kwargs = threads.with_function(args, kwargs, lambda function: Joined(function, place))
    return wrapped(*args, **kwargs)


def _after_fork_in_child() -> None:
    """A pool's worker is in no trajectory, though a framework's own context, copied by the fork, still says so."""
    if threads.are_workers_starting():
        guarded(_leave)


def _leave() -> None:
    while (at := spans.place()) is not None:
        at.live.open = False
