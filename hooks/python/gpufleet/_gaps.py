"""Why the GPU stands still in the steps of a profile: it waits for data, the host waits for it, or the host launches
too slowly. Worked out of the profile's events in the process, and never from its file.

A gap in the loader's wait is data's. Another that begins while the host waits for the GPU is a synchronisation's: the
host could launch nothing ahead. All others are launching's. Gaps under `_LEAST_GAP_NS` are how GPUs are.

Limits: more than `_MOST_EVENTS` events are not looked at. A synchronisation counts whatever thread is in it. torch's
profiler slows the host, so that launching takes less when nobody records.
"""

import bisect
import collections
import math
import statistics
import sys

from gpufleet._safe import FAILURES, failed

#: Most events of a profile that are looked at: some 2 s, in which training stands still.
_MOST_EVENTS = 500_000

#: From one kernel to the next on a GPU that always has the next one, nanoseconds.
_LEAST_GAP_NS = 2_000

#: What marks a step.
_STEP = "ProfilerStep#"

#: How the loader's wait begins.
_LOADER = "enumerate(DataLoader)"

#: Calls of CUDA's and HIP's runtime in which the host waits for the GPU.
_SYNCHRONISING = frozenset(
    prefix + call
    for prefix in ("cuda", "hip")
    for call in ("StreamSynchronize", "DeviceSynchronize", "EventSynchronize", "Memcpy", "Memcpy2D")
)

#: A copy that the host waits for though its call is not named so: torch asks for the synchronisation after it.
_WAITED_COPY = "-> Pageable"

#: What a GPU does beside kernels.
_NO_KERNEL = ("Memcpy", "Memset")

#: Events on a GPU that are waits of its streams.
_NO_WORK = frozenset(("Stream Sync", "Event Sync", "Context Sync", "Stream Wait Event"))

#: One event: `device` is None on the CPU.
Event = collections.namedtuple("Event", "name device start_ns end_ns")

#: What was found in the window from the first step's mark to the last one's end, in the order of the region's words.
#: `kernel_ns` is the median kernel.
Gaps = collections.namedtuple(
    "Gaps", "window_ns data_ns synchronisation_ns launch_ns synchronisations kernels kernel_ns"
)


def read(profile, device, steps):
    """The gaps of a profile that was stopped; None where they cannot be told, and without a GPU."""
    if device is None or not steps:
        return None
    try:
        events = profile.profiler.kineto_results.events()
        if len(events) > _MOST_EVENTS:
            return None
        return of((_event(it) for it in events), device, steps)
    except FAILURES as error:
        # Versions of torch differ in what an event has.
        failed("gaps", error)
        return None


def _event(event):
    """An event of torch's, before 2.3 in whole microseconds."""
    if hasattr(event, "start_ns"):
        start, duration = event.start_ns(), event.duration_ns()
    else:
        start, duration = event.start_us() * 1_000, event.duration_us() * 1_000
    on_cpu = event.device_type() == sys.modules["torch"].autograd.DeviceType.CPU
    return Event(event.name(), None if on_cpu else event.device_index(), start, start + duration)


def of(events, device, steps):
    """The gaps of this GPU in the first `steps` steps; None where no step is marked or the GPU did nothing in them."""
    marks, loading, waits, calls, work, on_cpu = [], [], [], [], [], set()
    for event in events:
        name, interval = event.name, (event.start_ns, event.end_ns)
        if event.device is None:
            on_cpu.add(name)
            if name.startswith(_STEP):
                marks.append(interval)
            elif name.startswith(_LOADER):
                loading.append(interval)
            elif name in _SYNCHRONISING:
                waits.append(interval)
                calls.append(event.start_ns)
        elif event.device == device and name not in _NO_WORK:
            work.append(event)
            if _WAITED_COPY in name:
                waits.append(interval)
    marks = sorted(marks)[:steps]
    # What has the name of something on the CPU is its mark on the GPU, gaps and all.
    work = [it for it in work if it.name not in on_cpu]
    if not marks:
        return None
    start, end = marks[0][0], max(it[1] for it in marks)
    busy = _union([(it.start_ns, it.end_ns) for it in work], (start, end))
    if not busy:
        return None
    waits, loading = _union(waits, (start, end)), _union(loading, (start, end))
    data = synchronisation = launch = 0
    for gap in _between(busy, (start, end)):
        loaded = _overlap(gap, loading)
        data += loaded
        if _is_in(gap[0], waits):
            synchronisation += gap[1] - gap[0] - loaded
        else:
            launch += gap[1] - gap[0] - loaded

    def is_within(at):
        return start <= at < end

    kernels = [it.end_ns - it.start_ns for it in work if is_within(it.start_ns) and not it.name.startswith(_NO_KERNEL)]
    return Gaps(
        window_ns=end - start,
        data_ns=data,
        synchronisation_ns=synchronisation,
        launch_ns=launch,
        synchronisations=sum(map(is_within, calls)),
        kernels=len(kernels),
        kernel_ns=int(statistics.median(kernels)) if kernels else 0,
    )


def _union(intervals, window):
    """What of these intervals lies in the window, in order, joined where they overlap."""
    joined = []
    for start, end in sorted(intervals):
        start, end = max(start, window[0]), min(end, window[1])
        if start >= end:
            continue
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def _between(busy, window):
    """What of the window is between these intervals, but for what is how GPUs are."""
    edges = [window[0], *(edge for interval in busy for edge in interval), window[1]]
    return [(start, end) for start, end in zip(edges[::2], edges[1::2]) if end - start >= _LEAST_GAP_NS]


def _before(at, intervals):
    """The place of the last of these, in order and apart, that began by this moment; -1 where none did."""
    return bisect.bisect_right(intervals, (at, math.inf)) - 1


def _is_in(at, intervals):
    place = _before(at, intervals)
    return place >= 0 and intervals[place][1] >= at


def _overlap(gap, intervals):
    """How much of a gap lies in these."""
    shared = 0
    for place in range(max(_before(gap[0], intervals), 0), len(intervals)):
        start, end = intervals[place]
        if start >= gap[1]:
            break
        shared += max(0, min(end, gap[1]) - max(start, gap[0]))
    return shared
