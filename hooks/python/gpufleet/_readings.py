"""Loss, gradient norm and the like, read without ever waiting for the GPU."""

import sys
import time
from collections import deque

from gpufleet._gpu import is_captured
from gpufleet._safe import FAILURES, debug, failed

#: Values on their way from the GPU at once, of all kinds; when all are, a value is not read.
_SLOTS = 16

#: Least time between two values of one kind from the GPU: 10 a second cost at most 0.05 % of a core.
_EVERY_NS = 100_000_000


class Readings:
    """Hands values to the recorder: numbers at once, tensors on the GPU once they have arrived."""

    def __init__(self, recorder):
        self._recorder = recorder
        self._on_the_way = deque()
        self._arrays = deque()
        self._slots = None
        self._events = []
        self._free = []
        self._read_at = {}

    def take(self, name, value, step):
        """`value` belongs to `step`. `name` is a value of the region, or tokens or samples."""
        if isinstance(value, (int, float)):
            self._said(name, value, step)
            return
        if hasattr(value, "is_ready"):
            self._later(name, value, step)
            return
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(value, torch.Tensor):
            self._said(name, float(value), step)
            return
        # To look at a DTensor is a collective; to look at XLA's or Apple's is to wait for it.
        if type(value).__name__ == "DTensor" or value.numel() != 1 or value.device.type not in ("cpu", "cuda"):
            debug(f"{name} is not read: {type(value).__name__} on {value.device}, {value.numel()} numbers")
            return
        if value.device.type == "cpu":
            self._said(name, value.detach().item(), step)
        else:
            self._begin(torch, name, value, step)

    def _later(self, name, value, step):
        """An array of JAX, which says itself when it is there."""
        self.drain()
        if len(self._arrays) < _SLOTS:
            self._arrays.append((name, step, value))

    def _begin(self, torch, name, value, step):
        if torch.cuda.is_current_stream_capturing():
            return
        self._take_arrived()
        now = time.monotonic_ns()
        is_sum = name in ("tokens", "samples")
        if not is_sum and now - self._read_at.get(name, -_EVERY_NS) < _EVERY_NS:
            return
        if self._slots is None:
            self._slots = torch.zeros(_SLOTS, dtype=torch.float32, pin_memory=True)
            self._events = [torch.cuda.Event() for _ in range(_SLOTS)]
            self._free = list(range(_SLOTS))
        if not self._free:
            debug(f"{name} of step {step} is not read: {_SLOTS} values are still on their way")
            return
        slot = self._free.pop()
        self._read_at[name] = now
        # Made a float on the GPU: a copy that changes the type would wait.
        source = value.detach().reshape(()).to(torch.float32)
        with torch.cuda.device(value.device):
            self._slots[slot].copy_(source, non_blocking=True)
            self._events[slot].record()
        self._on_the_way.append((name, step, slot))

    def drain(self):
        """Hands over what has arrived."""
        while self._arrays and self._arrays[0][2].is_ready():
            name, step, array = self._arrays.popleft()
            self._said(name, float(array), step)
        if self._on_the_way and not is_captured():
            self._take_arrived()

    def _take_arrived(self):
        while self._on_the_way:
            name, step, slot = self._on_the_way[0]
            if not self._events[slot].query():
                return
            self._on_the_way.popleft()
            value = float(self._slots[slot])
            self._free.append(slot)
            self._said(name, value, step)

    def _said(self, name, value, step):
        try:
            if name in ("tokens", "samples"):
                self._recorder.add(**{name: int(value)})
            else:
                self._recorder.reading(name, value, step)
        except FAILURES as error:
            failed(name, error)
