"""Why the GPU stands still in the steps of a profile: it waits for data, for the host that waited for it, for what the
host then computes, or the host launches too slowly. Worked out of the profile's events in the process, and never from
its file.

The time is the GPU's own: from the end of what was launched before the first step to the end of what was launched in
the last. A host that runs ahead, as it should, is then not taken for a GPU that waits.

A gap in the loader's wait is data's. Another that begins while the host waits for the GPU is a synchronisation's until
that wait returns and the next kernel is launched as it usually is; what is left of it the host computes. All others are
launching's. Gaps under `_LEAST_GAP_NS` are how GPUs are.

Limits: a synchronisation counts whatever thread is in it. A loader that is none of torch's is the host's work.
torch's profiler slows the host, so that launching takes less when nobody records.
"""

import bisect
import collections
import math
import statistics
import sys

from gpufleet._safe import FAILURES, failed

#: Largest trace whose events are looked at: some 500,000, which take 2 s, in which training stands still.
MOST_TRACE_BYTES = 200_000_000

#: Why the gaps of a profile are not told, in the region's words: its trace is too large, torch's events are not as they
#: are known, or the GPU had no work in the steps and before them.
TOO_MANY, UNREADABLE, NO_WORK = "too_many", "unreadable", "no_work"

#: From one kernel to the next on a GPU that always has the next one, nanoseconds.
_LEAST_GAP_NS = 2_000

#: From the return of a wait to the next kernel of a host that does nothing else, nanoseconds.
_LAUNCH_NS = 20_000

#: What marks a step.
_STEP = "ProfilerStep#"

#: How calls that give a GPU work begin, of CUDA's runtime and driver and of HIP's.
_LAUNCHING = ("cudaLaunch", "cudaGraphLaunch", "cudaMemcpy", "cudaMemset", "cuLaunch", "hip")

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

#: One event: `device` is None on the CPU; `correlation` is that of the call and of what it gave the GPU.
Event = collections.namedtuple("Event", "name device start_ns end_ns correlation")

#: What was found, in the order of the region's words. `kernel_ns` is the median kernel.
Gaps = collections.namedtuple(
    "Gaps", "window_ns data_ns synchronisation_ns launch_ns synchronisations kernels kernel_ns host_ns"
)


def read(profile, device, steps, trace_bytes):
    """The gaps of a profile that was stopped, and why they are not told; neither without a GPU."""
    if device is None:
        return None, None
    if trace_bytes > MOST_TRACE_BYTES:
        return None, TOO_MANY
    try:
        gaps = of((_event(it) for it in profile.profiler.kineto_results.events()), device, steps)
    except FAILURES as error:
        # Versions of torch differ in what an event has.
        failed("gaps", error)
        return None, UNREADABLE
    return gaps, None if gaps else NO_WORK


def _event(event):
    """An event of torch's, before 2.3 in whole microseconds."""
    if hasattr(event, "start_ns"):
        start, duration = event.start_ns(), event.duration_ns()
    else:
        start, duration = event.start_us() * 1_000, event.duration_us() * 1_000
    on_cpu = event.device_type() == sys.modules["torch"].autograd.DeviceType.CPU
    device = None if on_cpu else event.device_index()
    return Event(event.name(), device, start, start + duration, event.correlation_id())


def of(events, device, steps):
    """The gaps of this GPU in the first `steps` marked steps; None where it had no work in them or before."""
    marks, loading, waits, calls, work, on_cpu, launched = [], [], [], [], [], set(), {}
    for event in events:
        name, interval = event.name, (event.start_ns, event.end_ns)
        if event.device is None:
            on_cpu.add(name)
            if name.startswith(_LAUNCHING):
                launched[event.correlation] = event.start_ns
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
    # What has the name of something on the CPU is its mark on the GPU, gaps and all.
    work = [it for it in work if it.name not in on_cpu]
    marks = sorted(marks)[:steps]
    if not marks:
        return None
    first, last = marks[0][0], max(it[1] for it in marks)
    # What nobody is seen to launch says of no step that it is its.
    known = [(launched[it.correlation], it) for it in work if it.correlation in launched]
    before = [it.end_ns for at, it in known if at < first]
    within = [it for at, it in known if first <= at < last]
    if not before or not within:
        return None
    window = (max(before), max(it.end_ns for it in within))
    if window[0] >= window[1]:
        return None
    busy = _union([(it.start_ns, it.end_ns) for it in work], window)
    waits, loading = _union(waits), _union(loading)
    data = synchronisation = host = launch = 0
    for start, end in _between(busy, window):
        loaded = _overlap((start, end), loading)
        data += loaded
        wait = _around(start, waits)
        if wait is None:
            launch += end - start - loaded
            continue
        returned = min(end, wait[1] + _LAUNCH_NS)
        waited = returned - start - _overlap((start, returned), loading)
        synchronisation += waited
        host += end - start - loaded - waited
    kernels = [it.end_ns - it.start_ns for it in within if not it.name.startswith(_NO_KERNEL)]
    return Gaps(
        window_ns=window[1] - window[0],
        data_ns=data,
        synchronisation_ns=synchronisation,
        launch_ns=launch,
        synchronisations=sum(first <= it < last for it in calls),
        kernels=len(kernels),
        kernel_ns=int(statistics.median(kernels)) if kernels else 0,
        host_ns=host,
    )


def _union(intervals, window=(-math.inf, math.inf)):
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


def _around(at, intervals):
    """That of these, in order and apart, in which this moment is; None where it is in none."""
    place = _before(at, intervals)
    return intervals[place] if place >= 0 and intervals[place][1] >= at else None


def _overlap(gap, intervals):
    """How much of a gap lies in these."""
    shared = 0
    for place in range(max(_before(gap[0], intervals), 0), len(intervals)):
        start, end = intervals[place]
        if start >= gap[1]:
            break
        shared += max(0, min(end, gap[1]) - max(start, gap[0]))
    return shared
