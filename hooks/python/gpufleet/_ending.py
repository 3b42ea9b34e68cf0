"""How the process ends: an exception that nobody caught, an exit status, the end of the script."""

import atexit
import os
import sys
import threading
import traceback

from gpufleet._safe import fail_open

#: What the region keeps of a traceback; more is not even made.
_TRACEBACK_BYTES = 2048

#: Frames from the end of a traceback: more do not fit.
_FRAMES = 24


#: What `sys.exit` was not told.
_UNKNOWN = -1


def exit_status(given):
    """What the process returns that calls `sys.exit` with this, 0-255."""
    if given is None:
        return 0
    # The kernel keeps the lowest byte. Anything else is printed.
    return given & 0xFF if isinstance(given, int) else 1


class Ending:
    """Chains itself before the hooks that are there, and writes the end at exit."""

    def __init__(self, recorder, rank, settle):
        self._recorder = recorder
        self._rank = rank
        #: Of a process whose rank is not known nothing is told.
        self._settle = settle
        self._pid = os.getpid()
        self._is_said = False
        self._status = _UNKNOWN
        self._before = (sys.excepthook, threading.excepthook, sys.exit)

    def install(self):
        """From now on this process' end is seen."""
        excepthook, of_thread, exit_before = self._before

        def on_exception(kind, error, trace):
            self._main(kind, error, trace)
            excepthook(kind, error, trace)

        def on_thread(arguments):
            self._record(arguments.exc_type, arguments.exc_value, arguments.exc_traceback)
            of_thread(arguments)

        def on_exit(status=None):
            # In another thread it ends the thread.
            if threading.current_thread() is threading.main_thread():
                self._status = exit_status(status)
            exit_before(status)

        sys.excepthook = on_exception
        threading.excepthook = on_thread
        sys.exit = on_exit
        atexit.register(self._at_exit)

    @fail_open
    def _main(self, kind, error, trace):
        if issubclass(kind, KeyboardInterrupt):
            self.say("stopped")
            return
        self._settle()
        self._record(kind, error, trace)
        self.say("exception", 1)

    @fail_open
    def _record(self, kind, error, trace):
        if kind is None or issubclass(kind, SystemExit) or os.getpid() != self._pid:
            return
        text = "".join(traceback.format_exception(kind, error, trace, limit=-_FRAMES))
        lines = str(error).strip().splitlines()
        # Of an out-of-memory error the end of the traceback names the call.
        self._recorder.exception(self._rank(), kind.__name__, lines[0] if lines else "", text[-_TRACEBACK_BYTES:])

    def say(self, kind, status=-1):
        """Writes the end once: whoever comes first knows best."""
        if not self._is_said and os.getpid() == self._pid:
            self._is_said = True
            self._settle()
            self._recorder.end(kind, status)

    @fail_open
    def _at_exit(self):
        # `raise SystemExit(3)` and `exit(3)` call no hook: whether the script came to its end the kernel knows alone, and
        # the agent asks it where no status is said here.
        self.say("stopped" if self._status > 0 else "finished", self._status)
