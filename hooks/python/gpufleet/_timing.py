"""How long forward, backward and optimizer take: by the GPU's own clock, or by ours on a CPU."""

from collections import deque

from gpufleet._gpu import of_parameters
from gpufleet._safe import FAILURES, failed

#: Pairs of events that wait for the GPU at once; when all do, a phase is not timed. 64 steps of three
#: phases: more than a GPU is ever behind.
_MOST_PAIRS = 192

#: Pairs that wait before they are looked at between two ticks.
_LOOK_AT = 32


class GpuClock:
    """Pairs of CUDA events around phases, looked at later and never waited for. `device`: the number of the GPU."""

    def __init__(self, recorder, torch, device):
        self._recorder = recorder
        self._cuda = torch.cuda
        self._device = device
        self._free = []
        self._made = 0
        self._on_the_way = deque()

    def begin(self, phase):
        """What `end` is given."""
        self._recorder.now_in(phase)
        # An event recorded into a graph would belong to the graph.
        if self._cuda.is_current_stream_capturing():
            return None
        if self._free:
            pair = self._free.pop()
        elif self._made < _MOST_PAIRS:
            self._made += 1
            pair = (self._cuda.Event(enable_timing=True), self._cuda.Event(enable_timing=True))
        else:
            return None
        # On the model's device: on CUDA's current one, if that is another, there would be nothing to time.
        pair[0].record(self._cuda.current_stream(self._device))
        return phase, pair

    def end(self, begun):
        self._recorder.now_in()
        if begun is None:
            return
        if self._cuda.is_current_stream_capturing():
            self.drop(begun)
            return
        begun[1][1].record(self._cuda.current_stream(self._device))
        self._on_the_way.append(begun)
        if len(self._on_the_way) >= _LOOK_AT:
            self._count()

    def drop(self, begun):
        """It began and will not end."""
        if begun is not None:
            self._free.append(begun[1])

    def drain(self):
        """Counts the phases that the GPU is through with. Nothing while a graph is captured: see `_gpu.is_captured`."""
        if self._on_the_way and not self._cuda.is_current_stream_capturing():
            self._count()

    def _count(self):
        while self._on_the_way:
            phase, pair = self._on_the_way[0]
            if not pair[1].query():
                return
            self._on_the_way.popleft()
            try:
                self._recorder.spent(phase, int(pair[0].elapsed_time(pair[1]) * 1e6))
            except FAILURES as error:
                failed(phase, error)
            self._free.append(pair)


class HostClock:
    """For a model on the CPU: what takes time there takes it now."""

    def __init__(self, recorder):
        self._recorder = recorder

    def begin(self, phase):
        span = self._recorder.span(phase)
        span.__enter__()
        return span

    def end(self, begun):
        if begun is not None:
            begun.end()

    def drop(self, _begun):
        """It began and will not end: nothing is kept of it."""

    def drain(self):
        """Nothing is on its way."""


class NoClock:
    """For devices whose work is neither here nor timed by events: XLA, Apple, several GPUs."""

    def __init__(self, recorder):
        self._recorder = recorder

    def begin(self, phase):
        self._recorder.now_in(phase)

    def end(self, _begun):
        self._recorder.now_in()

    def drop(self, _begun):
        """It began and will not end: nothing is kept of it."""

    def drain(self):
        """Nothing is on its way."""


def clock_for(parameters, recorder, torch):
    """The clock for what these parameters are on."""
    parameters = list(parameters)
    gpus = of_parameters(parameters)
    if len(gpus) == 1:
        return GpuClock(recorder, torch, gpus.pop().index)
    is_here = all(parameter.device.type == "cpu" for parameter in parameters)
    return HostClock(recorder) if is_here else NoClock(recorder)
