"""Why a GPU stands still, by timelines made by hand, microseconds, and what of torch's events they are made of."""

import itertools
import sys
import unittest
from types import SimpleNamespace
from unittest import mock

from gpufleet import _gaps

GPU, ELSEWHERE = 0, 1

#: Of calls and what they give the GPU.
NUMBERS = itertools.count(1)


def event(name, start, end, device=None, correlation=0):
    return _gaps.Event(name, device, start * 1_000, end * 1_000, correlation)


def step(number, start, end):
    return event(f"ProfilerStep#{number}", start, end)


def kernel(start, end, name="gemm", device=GPU, launched=None):
    """A kernel and the call that launched it, of old when it began."""
    launched = start if launched is None else launched
    correlation = next(NUMBERS)
    call = event("cudaLaunchKernel", launched, launched + 1, None, correlation)
    return [call, event(name, start, end, device, correlation)]


def flat(events):
    return [it for one in events for it in (one if isinstance(one, list) else [one])]


def of(*events, steps=1):
    """The gaps, after a step before whose work ended at 0."""
    return _gaps.of(flat([kernel(-50, 0), *events]), GPU, steps)


def told(*events, steps=1):
    """Microseconds of data, of synchronisation, of the host after it, and of launching."""
    gaps = of(*events, steps=steps)
    parts = (gaps.data_ns, gaps.synchronisation_ns, gaps.host_ns, gaps.launch_ns)
    return tuple(it / 1_000 for it in parts)


class Gaps(unittest.TestCase):
    def test_a_gpu_that_always_has_a_kernel_has_no_gaps(self):
        kernels = [kernel(start, start + 99) for start in range(0, 1_000, 100)]
        self.assertEqual(told(step(7, 0, 1_000), *kernels), (0, 0, 0, 0), "1 µs between two is how GPUs are")

    def test_a_gap_that_begins_while_the_host_waits_is_the_synchronisations_until_it_returns_and_launches(self):
        for name in ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaMemcpy", "hipEventSynchronize"):
            waits = event(name, 200, 480)
            self.assertEqual(told(step(7, 0, 1_000), kernel(0, 400), waits, kernel(500, 1_000)), (0, 100, 0, 0), name)
        copied = event("Memcpy DtoH (Device -> Pageable)", 390, 400, GPU)
        call = event("cudaMemcpyAsync", 380, 401)
        gaps = told(step(7, 0, 1_000), kernel(0, 390), copied, call, kernel(415, 1_000))
        self.assertEqual(gaps, (0, 15, 0, 0))

    def test_what_the_host_does_after_a_wait_is_no_synchronisation(self):
        # ZeRO-Offload: the gradients are copied and waited for, and Adam runs on the CPU.
        waits = event("cudaStreamSynchronize", 30_000, 60_005)
        events = [step(7, 0, 100_000), kernel(0, 60_000), waits, kernel(99_000, 100_000, launched=98_990)]
        self.assertEqual(told(*events), (0, 25, 38_975, 0))
        # A loader that torch does not know is the host's, too; torch's own is data's.
        loads = event("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 60_010, 90_005)
        self.assertEqual(told(*events, loads), (29_995, 10, 8_995, 0))

    def test_a_gap_that_begins_before_the_host_waits_is_launchings(self):
        waits = event("cudaStreamSynchronize", 450, 452)
        self.assertEqual(told(step(7, 0, 1_000), kernel(0, 400), waits, kernel(500, 1_000)), (0, 0, 0, 100))
        copied = event("Memcpy DtoH (Device -> Pinned)", 390, 400, GPU)
        self.assertEqual(told(step(7, 0, 1_000), kernel(0, 390), copied, kernel(500, 1_000)), (0, 0, 0, 100))

    def test_small_kernels_with_nothing_between_are_launchings(self):
        kernels = [kernel(start, start + 3) for start in range(7, 1_000, 10)]
        self.assertEqual(told(step(7, 0, 1_000), *kernels), (0, 0, 0, 700))

    def test_of_a_gap_the_loaders_wait_is_datas_and_the_rest_is_what_it_began_by(self):
        loads = event("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 450, 700)
        events = [step(7, 0, 1_000), kernel(0, 400), loads, kernel(800, 1_000)]
        self.assertEqual(told(*events), (250, 0, 0, 150))
        self.assertEqual(told(*events, event("cudaStreamSynchronize", 300, 440)), (250, 50, 100, 0))
        beside = event("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 300)
        self.assertEqual(told(*events, beside), (250, 0, 0, 150), "while the GPU computes nobody waits for it")

    def test_streams_that_overlap_are_busy_once_and_other_gpus_do_not_count(self):
        events = [step(7, 0, 1_000), kernel(0, 600), kernel(100, 200), kernel(500, 800, "ncclDevKernel_AllReduce")]
        elsewhere = kernel(800, 900, device=ELSEWHERE)
        self.assertEqual(told(*events, elsewhere, kernel(900, 1_000)), (0, 0, 0, 100))

    def test_a_mark_on_the_gpu_is_no_work(self):
        named = [event("nccl:all_reduce", 10, 20), event("nccl:all_reduce", 0, 1_000, GPU)]
        on_gpu = event("ProfilerStep#7", 0, 1_000, GPU)
        waits = event("Stream Wait Event", 0, 1_000, GPU)
        events = [step(7, 0, 1_000), on_gpu, waits, *named, kernel(0, 800), kernel(900, 1_000)]
        self.assertEqual(told(*events), (0, 0, 0, 100))

    def test_a_host_that_runs_ahead_leaves_no_gap_and_a_step_has_its_own_kernels(self):
        # The host loads for 8 ms and launches for 40, the GPU computes for 100: it always has the next kernel.
        events = []
        for number in range(4):
            begins = number * 48_000
            loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
            events += [step(number, begins, begins + 48_000), event(loader, begins, begins + 8_000)]
            for place in range(800):
                start = 8_000 + number * 100_000 + place * 125
                events.append(kernel(start, start + 124, launched=begins + 8_000 + place * 50))
        # The first is the one before those that are asked for, and has no mark.
        gaps = _gaps.of(flat(events[1:]), GPU, 3)
        parts = (gaps.data_ns, gaps.synchronisation_ns, gaps.host_ns, gaps.launch_ns)
        self.assertEqual((gaps.window_ns, parts, gaps.kernels), (300_000_000, (0, 0, 0, 0), 2_400))

    def test_the_time_is_that_of_the_steps_that_ended(self):
        steps = [step(9, 500, 900), step(8, 200, 500), step(10, 900, 2_000)]
        events = [*steps, kernel(0, 300, launched=150), kernel(400, 850), kernel(1_500, 1_600)]
        gaps = of(*events, steps=2)
        self.assertEqual((gaps.window_ns, gaps.launch_ns, gaps.kernels), (550_000, 100_000, 1))

    def test_work_that_nobody_is_seen_to_launch_is_work_and_no_steps(self):
        unseen = event("triton_kernel", 400, 500, GPU, next(NUMBERS))
        gaps = of(step(7, 0, 1_000), kernel(0, 400), unseen, kernel(500, 1_000))
        self.assertEqual((gaps.launch_ns, gaps.kernels), (0, 2))

    def test_synchronisations_and_kernels_are_counted_and_the_median_kernel_is_told(self):
        calls = [event("cudaStreamSynchronize", at, at + 1) for at in (100, 200, 1_000)]
        kernels = [kernel(0, 10), kernel(20, 50), kernel(60, 900), kernel(1_100, 1_200)]
        copy = event("Memcpy HtoD (Pinned -> Device)", 910, 990, GPU)
        gaps = of(step(7, 0, 1_000), *calls, *kernels, copy)
        self.assertEqual((gaps.synchronisations, gaps.kernels, gaps.kernel_ns), (2, 3, 30_000))

    def test_nothing_is_told_of_no_step_or_of_a_gpu_that_did_nothing_in_it_or_before(self):
        before, within = kernel(-50, 0), kernel(10, 90)
        for events in ([], [within], [before, within], [step(7, 0, 100), within], [step(7, 0, 100), before]):
            self.assertIsNone(_gaps.of(flat(events), GPU, 1), events)
        self.assertIsNotNone(_gaps.of(flat([step(7, 0, 100), before, within]), GPU, 1))


class Told:
    """An event as torch tells it."""

    def __init__(self, name, device, correlation=0, **times):
        self.correlation_id = lambda: correlation
        self.name, self.device_index = lambda: name, lambda: device or 0
        self.device_type = lambda: "cpu" if device is None else "cuda"
        for key, value in times.items():
            setattr(self, key, lambda value=value: value)


class Reads(unittest.TestCase):
    def setUp(self):
        torch = SimpleNamespace(autograd=SimpleNamespace(DeviceType=SimpleNamespace(CPU="cpu")))
        patch = mock.patch.dict(sys.modules, torch=torch)
        patch.start()
        self.addCleanup(patch.stop)

    def read(self, events, device=GPU, steps=1, trace_bytes=1_000):
        results = SimpleNamespace(events=lambda: events)
        profile = SimpleNamespace(profiler=SimpleNamespace(kineto_results=results))
        return _gaps.read(profile, device, steps, trace_bytes)

    def test_older_and_newer_versions_tell_times_in_their_own_units(self):
        timeline = [
            ("cudaLaunchKernel", None, 1, 0, 1),
            ("gemm", GPU, 1, 1, 4),
            ("ProfilerStep#7", None, 0, 5, 100),
            ("cudaLaunchKernel", None, 2, 6, 1),
            ("gemm", GPU, 2, 45, 60),
        ]
        newer = [
            Told(name, device, number, start_ns=start * 1_000, duration_ns=duration * 1_000)
            for name, device, number, start, duration in timeline
        ]
        older = [
            Told(name, device, number, start_us=start, duration_us=duration)
            for name, device, number, start, duration in timeline
        ]
        for events in (newer, older):
            gaps, untold = self.read(events)
            self.assertEqual((gaps.window_ns, gaps.launch_ns, gaps.kernel_ns), (100_000, 40_000, 60_000))
            self.assertIsNone(untold)
        self.assertEqual(self.read(newer, device=None), (None, None), "CUDA is not recorded")
        self.assertEqual(self.read(newer, steps=0), (None, "no_work"), "no step ended")

    def test_what_cannot_be_read_and_what_is_too_much_says_so(self):
        self.assertEqual(self.read([Told("ProfilerStep#7", None)]), (None, "unreadable"))
        self.assertEqual(_gaps.read(SimpleNamespace(), GPU, 1, 1_000), (None, "unreadable"))
        self.assertEqual(self.read([]), (None, "no_work"))
        # The events are not even copied.
        too_large = _gaps.read(SimpleNamespace(), GPU, 1, _gaps.MOST_TRACE_BYTES + 1)
        self.assertEqual(too_large, (None, "too_many"))


if __name__ == "__main__":
    unittest.main()
