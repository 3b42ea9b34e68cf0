"""The probe inside the process, against a stand-in for CUDA's driver: PyTorch without a GPU plays the framework
that has one, and its allocator is a piece of this process's memory."""

import contextlib
import ctypes
import os
import subprocess
import sys
import time
import types
import unittest
from unittest import mock

import torch

import gpufleet
from gpufleet import _native, _probe
from gpufleet._run import Run

#: scripts/hooks.sh builds it and says where it is.
STANDIN = os.environ.get("GPUFLEET_STANDIN_CUDA", "")

#: How long anything may take before it has failed.
LONGEST = 120

#: What CUDA's allocator says when there is nothing left.
OUT_OF_MEMORY = "CUDA out of memory. Tried to allocate 64.00 MiB\nmore words"

MIB = 1 << 20

EMPTY = torch.empty


class Cuda:
    """CUDA as far as the probe meets it."""

    def __init__(self):
        # As PyTorch has loaded the driver by the time that it computes.
        self.library = ctypes.CDLL(STANDIN)
        self.library.gpufleet_standin_calls.restype = ctypes.c_uint64
        self.is_captured = False
        self.is_full = False
        self.lent = []
        self.now()

    def now(self, *faults, **scenario):
        """From now on this holds: faults as TOML, scenario by name."""
        lines = [f"{name} = {value}" for name, value in scenario.items()]
        lines.append(f"faults = [{', '.join(faults)}]")
        self.library.gpufleet_standin_scenario("\n".join(lines).encode())

    def calls(self, name):
        return self.library.gpufleet_standin_calls(name.encode())

    def empty(self, count, *more, dtype=None, device=None, **named):
        if device != "cuda":
            return EMPTY(count, *more, dtype=dtype, device=device, **named)
        assert dtype == torch.uint8
        if self.is_full:
            raise RuntimeError(OUT_OF_MEMORY)
        self.lent.append(count)
        memory = (ctypes.c_uint64 * (count // 8))()
        return types.SimpleNamespace(memory=memory, data_ptr=lambda: ctypes.addressof(memory))

    def __enter__(self):
        stream = types.SimpleNamespace(cuda_stream=0)
        self._patches = contextlib.ExitStack()
        for name, value in {
            "is_initialized": lambda: True,
            "is_current_stream_capturing": lambda: self.is_captured,
            "current_stream": lambda: stream,
        }.items():
            self._patches.enter_context(mock.patch.object(torch.cuda, name, value))
        self._patches.enter_context(mock.patch.object(torch, "empty", self.empty))
        return self

    def __exit__(self, *_raised):
        self._patches.close()


class Probing(unittest.TestCase):
    def setUp(self):
        self.assertTrue(os.path.exists(STANDIN), "GPUFLEET_STANDIN_CUDA names no file: scripts/hooks.sh test sets it")
        self.cuda = Cuda()
        self._enter(self.cuda)
        self._enter(mock.patch.object(_probe, "_RETRY_SECONDS", 0.0))
        self.run_of_test = Run("/nowhere/hooks.sock")

    def _enter(self, context):
        context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)

    def probe(self, **settings):
        return self.run_of_test.probe(every=1, least_seconds=0, **settings)

    def until(self, is_so, act=None):
        """Steps, until something is so."""
        until = time.monotonic() + LONGEST
        while not is_so():
            self.assertLess(time.monotonic(), until, f"it is not so: {self.run_of_test._probe!r}")
            (act or self.run_of_test.step)()

    def said(self):
        """What an agent would read."""
        return self.run_of_test.snapshot()["probe"]

    def test_a_gpu_that_is_right_passes_and_gives_the_memory_back(self):
        probe = self.probe()
        self.assertEqual((probe.verdict, probe.runs), ("none", 0))
        self.until(lambda: probe.runs > 0)
        self.assertEqual(probe.verdict, "pass", probe.reason)
        self.assertIn("6 of 6 SMs", probe.reason)
        verdict, reason, sm, step, runs = self.said()
        self.assertEqual((verdict, reason, sm), ("passed", probe.reason, None))
        self.assertGreater(step, 0)
        self.assertEqual(set(self.cuda.lent), {64 * MIB})
        self.assertGreaterEqual(probe.checked_bytes, 63 * MIB)
        self.assertGreater(probe.gpu_seconds, 0)
        self.until(lambda: probe.drain())
        self.assertIsNone(probe._lent)
        for forbidden in ("cuCtxSynchronize", "cuEventSynchronize", "cuMemAlloc_v2", "launches elsewhere",
                          "launches without order"):  # fmt: skip
            self.assertEqual(self.cuda.calls(forbidden), 0, forbidden)

    def test_a_wrong_sm_is_named_and_stays_named_until_a_probe_passes(self):
        self.cuda.now('{ wrong = ["gpufleet_tensor_bf16", 4] }')
        probe = self.probe()
        self.until(lambda: probe.runs > 0)
        self.assertEqual((probe.verdict, probe.sm), ("fail", 4), probe.reason)
        self.assertEqual(self.said()[:3], ("failed", probe.reason, 4))
        self.assertIn("bf16 on SM 4", probe.reason)
        self.cuda.is_full = True
        seen = probe.runs
        self.until(lambda: probe.runs > seen + 2)
        self.assertEqual((probe.verdict, self.said()[0]), ("fail", "failed"), "nothing is known that is newer")
        self.cuda.is_full = False
        self.cuda.now("{ absent = 4 }")
        seen = probe.runs
        self.until(lambda: probe.runs > seen + 2)
        self.assertEqual((probe.verdict, self.said()[0]), ("fail", "failed"), "the SM that was wrong took no part")
        self.assertEqual(probe.sm, 4)
        self.cuda.now()
        self.until(lambda: probe.verdict != "fail")
        self.assertEqual((probe.verdict, self.said()[0]), ("pass", "passed"), probe.reason)

    def test_wrong_memory_stays_wrong_until_as_much_of_it_was_gone_through_again(self):
        self.cuda.now('{ wrong = ["gpufleet_verify", 2] }')
        probe = self.probe()
        self.until(lambda: probe.verdict == "fail")
        self.assertIn("memory on SM 2", probe.reason)
        self.cuda.now(free_mib=200)
        seen = probe.runs
        self.until(lambda: probe.runs > seen + 2)
        self.assertEqual(self.cuda.lent[-1], MIB, "there was no room to go through memory")
        self.assertEqual((probe.verdict, self.said()[0]), ("fail", "failed"))
        self.cuda.now()
        self.until(lambda: probe.verdict != "fail")
        self.assertEqual((probe.verdict, self.said()[0]), ("pass", "passed"), probe.reason)

    def test_without_an_agent_a_failure_and_its_end_are_events_of_the_rank(self):
        run = self.run_of_test
        run._recorder.identity(rank=3, world=8, job_name="llama", job_uid="u", attempt=1)
        teller = _native.Teller(run._recorder)

        def told():
            events = teller.batch("node-1")["events"]
            teller.sent()
            return [it["attributes"] for it in events if it["name"] == "gpufleet.probed"]

        probe = self.probe()
        self.until(lambda: probe.runs > 0)
        self.assertEqual([it["verdict"] for it in told()], ["pass"])
        self.cuda.now(free_mib=2)
        self.until(lambda: probe.verdict == "could not measure")
        self.assertEqual(told(), [], "it changes every half minute")
        self.cuda.now('{ wrong = ["gpufleet_tensor_bf16", 4] }')
        self.until(lambda: probe.verdict == "fail")
        self.assertEqual([(it["verdict"], it["sm"]) for it in told()], [("fail", "4")])
        self.cuda.now("{ absent = 4 }")
        seen = probe.runs
        self.until(lambda: probe.runs > seen + 2)
        self.assertEqual(told(), [], "a pass without that SM is not the end of it")
        self.cuda.now()
        self.until(lambda: probe.verdict == "pass")
        self.assertEqual([it["verdict"] for it in told()], ["pass"])
        self.assertEqual(told(), [])

    def test_a_spoilt_expectation_fails_and_is_told_to_nobody_else(self):
        probe = self.probe(spoil="arithmetic")
        self.until(lambda: probe.runs > 0)
        self.assertEqual(probe.verdict, "fail")
        self.assertIsNone(self.said())
        other = Run("/nowhere/hooks.sock").probe(spoil="everything")
        self.assertEqual(other.verdict, "off")
        self.assertIn("fp8", other.reason)

    def test_a_run_that_is_on_its_way_is_looked_at_later_and_its_memory_kept(self):
        self.cuda.now(ready_after=3)
        probe = self.probe()
        self.until(lambda: probe._lent is not None)
        lent = probe._lent
        self.assertFalse(probe.drain())
        self.assertIs(probe._lent, lent)
        self.assertEqual(probe.verdict, "none")
        self.until(lambda: probe.runs > 0)
        self.assertEqual(probe.verdict, "pass", probe.reason)

    def test_kernels_that_break_or_are_refused_are_reasons_and_training_goes_on(self):
        self.cuda.now('{ error = ["cuLaunchKernel", 701] }')
        probe = self.probe()
        self.until(lambda: probe.runs > 0)
        self.assertEqual((probe.verdict, probe.reason), ("could not measure", "CUDA error 701 while launching a kernel"))
        self.cuda.now('{ breaks = ["gpufleet_arithmetic", 700] }')
        self.until(lambda: "700" in probe.reason)
        seen = probe.runs
        self.cuda.now()
        for _ in range(50):
            self.run_of_test.step()
        self.assertEqual(probe.runs, seen, "a context that is broken is asked no more")
        self.assertEqual(len(probe._kept), 1, "what kernels may still write to is nobody else's")
        self.assertEqual(self.run_of_test.snapshot()["last_step"], self.run_of_test._recorder.last_step())

    def test_while_a_graph_is_captured_nothing_happens_and_it_is_made_up_for(self):
        self.cuda.is_captured = True
        probe = self.probe()
        for _ in range(20):
            self.run_of_test.step()
        self.assertEqual((probe.verdict, self.cuda.lent), ("none", []))
        self.assertEqual(self.cuda.calls("cuModuleLoadData"), 0)
        self.cuda.is_captured = False
        self.cuda.now(capture='"own"')
        for _ in range(20):
            self.run_of_test.step()
        self.assertEqual(self.cuda.calls("cuLaunchKernel"), 0, "the driver knows of it as well")
        self.assertEqual(self.cuda.calls("captures ended"), 0)
        self.cuda.now()
        self.until(lambda: probe.runs > 0)
        self.assertEqual(probe.verdict, "pass", probe.reason)

    def test_an_allocator_that_has_nothing_is_left_alone(self):
        probe = self.probe()
        self.cuda.is_full = True
        self.until(lambda: probe.runs > 0)
        self.assertEqual(probe.verdict, "could not measure")
        self.assertEqual(probe.reason, "PyTorch lends no memory: CUDA out of memory. Tried to allocate 64.00 MiB")
        self.cuda.is_full = False
        self.cuda.now(free_mib=200)
        self.until(lambda: probe.verdict == "pass")
        self.assertEqual(set(self.cuda.lent), {MIB}, "the region is left out")
        self.assertIn("left out: memory", probe.reason)
        self.cuda.now(free_mib=2)
        self.until(lambda: probe.verdict != "pass")
        self.assertIn("2 MiB are free", probe.reason)
        with mock.patch.dict(os.environ, {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}):
            self.until(lambda: "caches no memory" in probe.reason)

    def test_it_runs_at_the_ends_of_checkpoints_and_evaluations_and_not_more_often_than_asked(self):
        run = self.run_of_test
        probe = run.probe(least_seconds=0)
        for _ in range(20):
            run.step()
        self.assertEqual((probe.verdict, self.cuda.lent), ("none", []), "nobody asked for steps")

        def saves():
            with run.checkpoint():
                pass

        def evaluates():
            with run.evaluation():
                pass

        self.until(lambda: probe.drain() and probe.runs > 0, saves)
        seen = len(self.cuda.lent)
        self.until(lambda: len(self.cuda.lent) > seen, evaluates)
        run.probe(every=1, least_seconds=1_000)
        self.until(lambda: probe.drain())
        seen = len(self.cuda.lent)
        self.until(lambda: len(self.cuda.lent) > seen)
        for _ in range(20):
            run.step()
        self.assertEqual(len(self.cuda.lent), seen + 1, "one in a thousand seconds")

    def test_a_checkpoint_that_ends_in_another_thread_is_waited_for_there(self):
        import threading

        run = self.run_of_test
        probe = run.probe(least_seconds=0)
        thread = threading.Thread(target=lambda: run.checkpoint_saved(step=1))
        thread.start()
        thread.join()
        self.assertEqual(self.cuda.calls("cuCtxGetCurrent"), 0, "its context is another")
        self.until(lambda: probe.runs > 0)
        self.assertEqual(probe.verdict, "pass", probe.reason)

    def test_without_pytorch_on_a_gpu_there_is_a_reason_and_jax_is_named_where_it_is_there(self):
        with mock.patch.object(torch.cuda, "is_initialized", lambda: False):
            with mock.patch.dict(sys.modules):
                sys.modules.pop("jax", None)
                probe = self.probe()
                self.until(lambda: probe.runs > 0)
                self.assertEqual(probe.reason, "PyTorch computes on no GPU in this process")
            with mock.patch.dict(sys.modules, jax=types.ModuleType("jax")):
                self.until(lambda: "JAX" in probe.reason)
        self.assertEqual(probe.verdict, "could not measure")
        self.assertIn("JAX lends no memory", probe.reason)
        self.assertEqual(self.said()[:2], ("could_not_run", probe.reason), "an agent reads the same")
        self.assertEqual(self.cuda.calls("cuCtxGetCurrent"), 0, "no driver is asked")

    def test_a_model_on_another_gpu_than_the_current_one_is_a_reason(self):
        probe = self.probe()
        on_3 = types.SimpleNamespace(device=torch.device("cuda:3"))
        self.run_of_test._model = mock.Mock(**{"parameters.side_effect": lambda: iter([on_3])})
        with mock.patch.object(torch.cuda, "current_device", lambda: 0):
            self.until(lambda: probe.runs > 0)
        self.assertEqual(probe.verdict, "could not measure")
        self.assertIn("on another GPU", probe.reason)
        self.assertEqual(self.cuda.calls("cuCtxGetCurrent"), 0, "no driver is asked")

    def test_an_error_of_the_framework_is_a_reason(self):
        probe = self.probe()
        with mock.patch.object(torch.cuda, "current_stream", side_effect=AttributeError("no streams here")):
            self.until(lambda: probe.runs > 0)
        self.assertEqual((probe.verdict, probe.reason), ("could not measure", "AttributeError: no streams here"))

    def test_a_switch_turns_it_off(self):
        with mock.patch.dict(os.environ, {"GPUFLEET_PROBE": "0"}):
            probe = self.probe()
        for _ in range(5):
            self.run_of_test.step()
        self.assertEqual((probe.verdict, probe.reason), ("off", "GPUFLEET_PROBE switches it off"))
        self.assertEqual(self.cuda.calls("cuCtxGetCurrent"), 0)
        self.assertIsNone(self.said())

    def test_an_agent_that_wants_none_gets_none(self):
        probe = self.probe()
        with mock.patch.object(probe, "_native", mock.Mock(wraps=probe._native, is_off=lambda: True)):
            for _ in range(5):
                self.run_of_test.step()
        self.assertEqual(self.cuda.calls("cuCtxGetCurrent"), 0)


class Alone(unittest.TestCase):
    def test_a_process_without_the_driver_says_so_and_loads_none(self):
        script = """
import os, gpufleet
from gpufleet import _native
from gpufleet._run import Run
run = Run("/nowhere/hooks.sock")
prober = _native.Prober(run._recorder)
print(prober.prepare(), prober.last()[1], "libcuda" in open("/proc/self/maps").read())
"""
        said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=LONGEST, check=True)
        expected = "told this process has not loaded CUDA's driver (libcuda.so.1) False"
        self.assertEqual(said.stdout.strip(), expected)

    def test_without_a_run_it_is_off(self):
        with mock.patch.dict(os.environ, {"GPUFLEET_DISABLE": "1"}), mock.patch.object(gpufleet, "_current", None):
            probe = gpufleet.probe(every=100)
        self.assertEqual(probe.verdict, "off")
        self.assertIn("does nothing here", probe.reason)
        self.assertTrue(hasattr(_native, "Prober"))
