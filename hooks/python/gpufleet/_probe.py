"""The probe inside the process: does this GPU still compute right? Small kernels with known answers, launched
on a stream of the lowest priority between steps, on memory that is borrowed from PyTorch's allocator. Nothing
waits for the GPU: what was launched is looked at some steps later."""

import atexit
import os
import sys
import threading
import time

from gpufleet import _gpu
from gpufleet._safe import FAILURES, Nothing, debug, failed

#: Least seconds between two probes: each keeps the GPU busy for some milliseconds, beside the step.
_LEAST_SECONDS = 30.0

#: Seconds until what cannot be now (the driver compiles, a graph is captured) is tried again.
_RETRY_SECONDS = 1.0

#: Why a process that JAX fills is not probed. Nobody but JAX may write into what it has handed out.
_NO_JAX = "JAX lends no memory, and PyTorch computes on no GPU in this process: the agent probes the GPU while it is idle"

#: More steps than any run has: probes at checkpoints and evaluations only.
_NEVER = 1 << 62


def is_switched_off():
    """Whether GPUFLEET_PROBE says that there is to be no probe."""
    return os.environ.get("GPUFLEET_PROBE", "").lower() in ("0", "off", "false", "no")


class Probe:
    """What `gpufleet.probe` returns: the last verdict and its reason, as they come.

    verdict: "none" so far; "pass", "fail", "could not measure"; "off" where it is switched off.
    reason: why, in words. sm: the SM that is to blame, or None. runs: how many were over.
    """

    def __init__(self, run, every=None, least_seconds=None, spoil=None):
        self._run = run
        self._native = None
        self._lent = None
        self._kept = []
        self._is_due = False
        self._not_before = 0.0
        self._thread = threading.get_ident()
        self._why_off = ""
        self.every(every, least_seconds)
        if isinstance(run._recorder, Nothing):
            self._why_off = "gpufleet does nothing here: run with GPUFLEET_DEBUG=1, it says why"
        elif is_switched_off():
            self._why_off = "GPUFLEET_PROBE switches it off"
        else:
            from gpufleet import _native

            self._native = _native.Prober(run._recorder, spoil)
            atexit.register(self._finish)

    def every(self, every=None, least_seconds=None):
        """Other times: every so many steps beside checkpoints and evaluations, or None."""
        self._every = _NEVER if every is None else max(int(every), 1)
        self._left = self._every
        self._least_seconds = _LEAST_SECONDS if least_seconds is None else float(least_seconds)

    def _last(self):
        return self._native.last() if self._native is not None else ("off", self._why_off, None, 0.0, 0, 0)

    @property
    def verdict(self):
        return self._last()[0] or "none"

    @property
    def reason(self):
        return self._last()[1]

    @property
    def sm(self):
        return self._last()[2]

    @property
    def gpu_seconds(self):
        """From its first kernel to its last, beside what training had there."""
        return self._last()[3]

    @property
    def checked_bytes(self):
        """Bytes of memory that were written and read back."""
        return self._last()[4]

    @property
    def runs(self):
        return self._last()[5]

    def __repr__(self):
        verdict, reason = self.verdict, self.reason
        return f"Probe({verdict}: {reason})" if reason else f"Probe({verdict})"

    # Called by the run.

    def stepped(self):
        """A step ended."""
        self._left -= 1
        if self._left <= 0:
            self._left = self._every
            self._is_due = True
        if self._is_due:
            self._go_on()

    def boundary(self):
        """A checkpoint or an evaluation is over."""
        self._is_due = True
        # An asynchronous checkpoint ends in a thread of its own, whose context and stream may be others.
        if threading.get_ident() == self._thread:
            self._go_on()

    def drain(self):
        """Looks at what was launched, without waiting for it. Whether nothing is on its way."""
        if self._lent is None:
            return True
        if _gpu.is_captured():
            return False
        try:
            state = self._native.poll()
            if state == "running":
                return False
            if state == "lost":
                # Kernels that are there may still write to it.
                self._kept.append(self._lent)
                self._give_up()
            self._lent = None
        except FAILURES as error:
            failed("probe", error)
            self._kept.append(self._lent)
            self._lent = None
            self._give_up()
        return True

    def _give_up(self):
        """There will be no other."""
        self._is_due = False
        self._every = self._left = _NEVER
        self._not_before = float("inf")

    def _go_on(self):
        now = time.monotonic()
        if now < self._not_before or self._native is None:
            return
        self._not_before = now + _RETRY_SECONDS
        try:
            if os.getpid() == self._run._pid and self.drain() and self._attempt():
                self._is_due = False
                self._not_before = max(self._not_before, now + self._least_seconds)
        except FAILURES as error:
            self._could_not(f"{type(error).__name__}: {error}")
            self._is_due = False
            self._not_before = now + max(self._least_seconds, _RETRY_SECONDS)

    def _attempt(self):
        """One probe, as far as it comes; false where it is to be tried again soon."""
        native = self._native
        if native.is_off():
            debug("probe: probe.enabled is false on this node's agent")
            return True
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return self._could_not(_NO_JAX if "jax" in sys.modules else "PyTorch computes on no GPU in this process")
        if os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING", "") not in ("", "0"):
            return self._could_not("PyTorch caches no memory (PYTORCH_NO_CUDA_MEMORY_CACHING): to borrow some would wait")
        if torch.cuda.is_current_stream_capturing():
            return False
        device = _gpu.of_model(self._run._model)
        if device is not None and device != torch.cuda.current_device():
            return self._could_not("the model is on another GPU than CUDA's current one: torch.cuda.set_device(…)")
        state = native.prepare()
        if state == "never":
            self._give_up()
        if state != "ready":
            return state != "waits"
        stream = torch.cuda.current_stream().cuda_stream
        count = native.room(stream)
        if count <= 0:
            return count == 0
        try:
            lent = torch.empty(count, dtype=torch.uint8, device="cuda")
        except RuntimeError as error:
            return self._could_not(f"PyTorch lends no memory: {str(error).splitlines()[0]}")
        if native.start(lent.data_ptr(), count, stream):
            self._lent = lent
        return True

    def _could_not(self, reason):
        self._native.could_not(reason)
        return True

    def _finish(self):
        """The script ends."""
        try:
            if os.getpid() == self._run._pid:
                self.drain()
                self._native.finish()
        except FAILURES as error:
            failed("probe", error)


def of_nothing(reason):
    """A probe that is off."""
    from gpufleet._run import Run

    probe = Probe(Run.of_nothing())
    probe._why_off = reason
    return probe
