"""Waits that a framework does not bracket: it only says when a step ends and when the next begins."""

import time


class Waits:
    """The time since the last thing that happened is a wait for data, unless it turns out to have
    been an evaluation or a checkpoint."""

    def __init__(self, recorder):
        self._recorder = recorder
        self._mark = time.monotonic_ns()

    def begin(self):
        """From now on it waits."""
        self._mark = time.monotonic_ns()
        self._recorder.now_in("data_wait")

    def end(self, phase="data_wait"):
        """What it was; how long, nanoseconds."""
        now = time.monotonic_ns()
        duration_ns, self._mark = now - self._mark, now
        self._recorder.stood_still(phase, duration_ns)
        self._recorder.now_in()
        return duration_ns
