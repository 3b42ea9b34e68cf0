"""Why a GPU stands still, by timelines made by hand, microseconds, and what of torch's events they are made of."""

import sys
import unittest
from types import SimpleNamespace
from unittest import mock

from gpufleet import _gaps

GPU, ELSEWHERE = 0, 1


def event(name, start, end, device=None):
    return _gaps.Event(name, device, start * 1_000, end * 1_000)


def step(number, start, end):
    return event(f"ProfilerStep#{number}", start, end)


def kernel(start, end, name="gemm", device=GPU):
    return event(name, start, end, device)


def told(*events, steps=1):
    """Microseconds of data, synchronisation and launching."""
    gaps = _gaps.of(events, GPU, steps)
    return tuple(it / 1_000 for it in gaps[1:4])


class Gaps(unittest.TestCase):
    def test_a_gpu_that_always_has_a_kernel_has_no_gaps(self):
        kernels = [kernel(start, start + 99) for start in range(0, 1_000, 100)]
        self.assertEqual(told(step(7, 0, 1_000), *kernels), (0, 0, 0), "1 µs between two is how GPUs are")

    def test_a_gap_that_begins_while_the_host_waits_is_the_synchronisations(self):
        for name in ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaMemcpy", "hipEventSynchronize"):
            waits = event(name, 200, 405)
            self.assertEqual(told(step(7, 0, 1_000), kernel(0, 400), waits, kernel(500, 1_000)), (0, 100, 0), name)
        copied = event("Memcpy DtoH (Device -> Pageable)", 390, 400, GPU)
        call = event("cudaMemcpyAsync", 380, 401)
        self.assertEqual(told(step(7, 0, 1_000), kernel(0, 390), copied, call, kernel(500, 1_000)), (0, 100, 0))

    def test_a_gap_that_begins_before_the_host_waits_is_launchings(self):
        waits = event("cudaStreamSynchronize", 450, 452)
        self.assertEqual(told(step(7, 0, 1_000), kernel(0, 400), waits, kernel(500, 1_000)), (0, 0, 100))
        copied = event("Memcpy DtoH (Device -> Pinned)", 390, 400, GPU)
        self.assertEqual(told(step(7, 0, 1_000), kernel(0, 390), copied, kernel(500, 1_000)), (0, 0, 100))

    def test_small_kernels_with_nothing_between_are_launchings(self):
        kernels = [kernel(start, start + 3) for start in range(0, 1_000, 10)]
        self.assertEqual(told(step(7, 0, 1_000), *kernels), (0, 0, 700))

    def test_of_a_gap_the_loaders_wait_is_datas_and_the_rest_is_what_it_began_by(self):
        loads = event("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 450, 700)
        events = [step(7, 0, 1_000), kernel(0, 400), loads, kernel(800, 1_000)]
        self.assertEqual(told(*events), (250, 0, 150))
        self.assertEqual(told(*events, event("cudaStreamSynchronize", 300, 410)), (250, 150, 0))
        beside = event("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 300)
        self.assertEqual(told(*events, beside), (250, 0, 150), "while the GPU computes nobody waits for it")

    def test_streams_that_overlap_are_busy_once_and_other_gpus_do_not_count(self):
        events = [step(7, 0, 1_000), kernel(0, 600), kernel(100, 200), kernel(500, 900, "ncclDevKernel_AllReduce")]
        elsewhere = kernel(900, 1_000, device=ELSEWHERE)
        self.assertEqual(told(*events, elsewhere), (0, 0, 100))

    def test_a_mark_on_the_gpu_is_no_work(self):
        named = [event("nccl:all_reduce", 10, 20), event("nccl:all_reduce", 0, 1_000, GPU)]
        on_gpu = event("ProfilerStep#7", 0, 1_000, GPU)
        waits = event("Stream Wait Event", 0, 1_000, GPU)
        self.assertEqual(told(step(7, 0, 1_000), on_gpu, waits, *named, kernel(0, 900)), (0, 0, 100))

    def test_the_window_is_that_of_the_steps_that_ended(self):
        steps = [step(9, 500, 900), step(8, 200, 500), step(10, 900, 2_000)]
        events = [*steps, kernel(0, 300), kernel(400, 850), kernel(1_500, 1_600)]
        gaps = _gaps.of(events, GPU, 2)
        self.assertEqual((gaps.window_ns, gaps.launch_ns), (700_000, 150_000))

    def test_synchronisations_and_kernels_are_counted_and_the_median_kernel_is_told(self):
        calls = [event("cudaStreamSynchronize", at, at + 1) for at in (100, 200, 1_000)]
        kernels = [kernel(0, 10), kernel(20, 50), kernel(60, 900), kernel(1_100, 1_200)]
        copy = event("Memcpy HtoD (Pinned -> Device)", 910, 990, GPU)
        gaps = _gaps.of([step(7, 0, 1_000), *calls, *kernels, copy], GPU, 1)
        self.assertEqual((gaps.synchronisations, gaps.kernels, gaps.kernel_ns), (2, 3, 30_000))

    def test_nothing_is_told_of_no_step_or_of_a_gpu_that_did_nothing(self):
        for events in ([], [kernel(0, 100)], [step(7, 0, 100)], [step(7, 0, 100), kernel(200, 300)]):
            self.assertIsNone(_gaps.of(events, GPU, 1), events)


class Told:
    """An event as torch tells it."""

    def __init__(self, name, device, **times):
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

    def read(self, events, device=GPU, steps=1):
        results = SimpleNamespace(events=lambda: events)
        return _gaps.read(SimpleNamespace(profiler=SimpleNamespace(kineto_results=results)), device, steps)

    def test_older_and_newer_versions_tell_times_in_their_own_units(self):
        newer = [
            Told("ProfilerStep#7", None, start_ns=5_000, duration_ns=100_000),
            Told("gemm", GPU, start_ns=5_000, duration_ns=60_000),
        ]
        older = [
            Told("ProfilerStep#7", None, start_us=5, duration_us=100),
            Told("gemm", GPU, start_us=5, duration_us=60),
        ]
        for events in (newer, older):
            gaps = self.read(events)
            self.assertEqual((gaps.window_ns, gaps.launch_ns, gaps.kernel_ns), (100_000, 40_000, 60_000))
        self.assertIsNone(self.read(newer, device=None), "CUDA is not recorded")
        self.assertIsNone(self.read(newer, steps=0), "no step ended")

    def test_what_cannot_be_read_and_what_is_too_much_is_not_told(self):
        self.assertIsNone(self.read([Told("ProfilerStep#7", None)]))
        self.assertIsNone(_gaps.read(SimpleNamespace(), GPU, 1))
        many = [Told("gemm", GPU, start_ns=0, duration_ns=9), Told("ProfilerStep#7", None, start_ns=0, duration_ns=9)]
        with mock.patch.object(_gaps, "_MOST_EVENTS", 1):
            self.assertIsNone(self.read(many))
        self.assertIsNotNone(self.read(many))


if __name__ == "__main__":
    unittest.main()
