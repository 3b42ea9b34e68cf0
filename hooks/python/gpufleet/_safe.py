"""Fail open: what goes wrong in this package never reaches the training script."""

import functools
import os
import sys

try:
    from gpufleet import _native
except Exception as error:  # an architecture without a wheel: everything becomes a no-op
    _native = None
    _why_not = f"the native module cannot be loaded: {error}"
else:
    _why_not = ""

#: Raised by Rust where it panics; no Exception, so that it has to be named.
_PANIC = _native.PanicException if _native else ValueError

#: What may be dropped: never KeyboardInterrupt and SystemExit, which are the script's.
FAILURES = (Exception, _PANIC)

#: Different debug lines at most: one that is written at every step would fill the script's log.
_MOST_LINES = 50

_said = set()


def is_debug():
    """Whether GPUFLEET_DEBUG asks for debug lines."""
    return os.environ.get("GPUFLEET_DEBUG", "") not in ("", "0")


def debug(message):
    """One line on stderr with GPUFLEET_DEBUG=1, each text once."""
    try:
        if not is_debug() or message in _said or len(_said) >= _MOST_LINES:
            return
        _said.add(message)
        print(f"gpufleet: {message}", file=sys.stderr, flush=True)
    except Exception:  # stderr may be closed
        pass


def failed(what, error):
    """Says that something of ours did not work."""
    debug(f"{what} did nothing: {type(error).__name__}: {error}")


def fail_open(function):
    """The function, whose failures become None and a debug line."""

    @functools.wraps(function)
    def safe(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except FAILURES as error:
            failed(function.__qualname__, error)
            return None

    return safe


class Nothing:
    """Stands for a recorder, span or phase where there is none: takes every call, does nothing."""

    step = 0
    loss = None

    def __enter__(self):
        return self

    def __exit__(self, *_raised):
        return False

    def end(self):
        return 0

    def last_step(self):
        return 0

    def is_stalled(self):
        return False

    def state(self):
        return "off"

    def batches(self, inner, _on_batch=None):
        return inner

    def snapshot(self):
        return {}

    def span(self, _phase):
        return self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_args, **_kwargs: None


def why_off():
    """Why nothing can be recorded here; empty when it can."""
    if _native is None:
        return _why_not
    if os.environ.get("GPUFLEET_DISABLE", "") not in ("", "0"):
        return "GPUFLEET_DISABLE is set"
    import multiprocessing

    # DataLoader workers are daemons; ranks of torch.multiprocessing.spawn are not.
    if multiprocessing.current_process().daemon:
        return "this is a daemon process, a data loader's worker"
    return ""
