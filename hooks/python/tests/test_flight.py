"""What is made of torch's flight recorder when training stands still."""

import ctypes
import os
import threading
import time
import unittest
from unittest import mock

import torch
import torch.distributed

from gpufleet import _flight
from support import run_of_test
from test_probe import Cuda

NOW = 1_790_000_000_000_000_000


def entry(number, state="scheduled", group="0", name="nccl:all_reduce", **more):
    return {"process_group": [group, ""], "collective_seq_id": number, "state": state, "profiling_name": name,
            "time_created_ns": NOW, "is_p2p": False, **more}  # fmt: skip


def dumped(*entries):
    config = {
        "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"},
        "1": {"name": "1", "desc": "mesh_tp", "ranks": "[2, 3]"},
    }
    return {"pg_config": config, "entries": list(entries)}


class Flight(unittest.TestCase):
    def test_a_group_waits_in_its_oldest_collective_that_has_not_ended(self):
        found = dumped(entry(9), entry(8), entry(7, "completed"), entry(1, is_p2p=True), entry(2, group="1"))
        groups = _flight.groups_of(found, 1)
        self.assertEqual(len(groups), 1, "rank 1 is in one of the two")
        self.assertEqual((groups[0]["name"], groups[0]["ranks"], groups[0]["rank"]), ("default_pg", 2, 1))
        self.assertEqual(groups[0]["collective"], ("AllReduce", 8, NOW))

    def test_what_gloo_says_is_understood_as_it_says_it(self):
        # Of torch 2.15: what has ended is `scheduled` still, and the group has no name where it is described.
        entries = [entry(3, retired=True, name="gloo:all_reduce"), entry(4, retired=False, name="gloo:all_reduce")]
        found = {"pg_config": {"": {"name": "", "desc": "", "ranks": "[0, 1]"}}, "entries": entries}
        (group,) = _flight.groups_of(found, 0)
        self.assertEqual((group["name"], group["collective"]), ("0", ("AllReduce", 4, NOW)))
        # Of two groups it is not known which is meant.
        found["entries"].append(entry(1, group="1"))
        (group,) = _flight.groups_of(found, 0)
        self.assertIsNone(group["collective"])

    def test_a_group_is_the_same_on_all_its_ranks_and_no_other_is(self):
        first, second = (_flight.groups_of(dumped(), rank)[0] for rank in (0, 1))
        other = _flight.groups_of(dumped(), 2)[0]
        self.assertEqual(first["hash"], second["hash"])
        self.assertNotEqual(first["hash"], other["hash"])
        self.assertIsNone(first["collective"], "it waits in none")

    def test_the_recorder_is_asked_only_while_no_step_ends(self):
        run = run_of_test()
        run.step()
        recorder = mock.Mock(wraps=run._recorder)
        flight = _flight.Flight(recorder, 0, stands_after=60.0)
        with mock.patch.object(_flight, "dump", return_value=dumped(entry(8))) as dump:
            for _ in range(4):
                flight.look(15.0)
            dump.assert_not_called()
            flight.look(15.0)
            dump.assert_called_once()
            told = recorder.in_flight.call_args[0][0]
            self.assertEqual(told[0]["collective"], ("AllReduce", 8, NOW))
            run.step()
            flight.look(15.0)
            recorder.in_flight.assert_called_with([])
            dump.reset_mock()
            for _ in range(4):
                flight.look(15.0)
            dump.assert_called_once()

    def test_the_longer_it_stands_the_more_seldom_it_is_asked(self):
        run = run_of_test()
        run.step()
        flight = _flight.Flight(run._recorder, 0, stands_after=60.0)
        asked_at = []
        with mock.patch.object(_flight, "dump", return_value=None) as dump:
            flight.look(15.0)
            for look in range(1, 241):
                dump.reset_mock()
                flight.look(15.0)
                if dump.called:
                    asked_at.append(15 * look)
        self.assertEqual(asked_at, [60, 120, 240, 480, 960, 1440, 1920, 2400, 2880, 3360])

    def test_before_the_first_step_has_ended_and_where_it_is_not_wanted_it_is_not_asked(self):
        run = run_of_test()
        flight = _flight.Flight(run._recorder, 0, stands_after=60.0)
        with mock.patch.object(_flight, "dump", return_value=dumped(entry(8))) as dump:
            for _ in range(100):
                flight.look(15.0)
            dump.assert_not_called()
        self.assertTrue(_flight.is_wanted({}))
        self.assertFalse(_flight.is_wanted({"GPUFLEET_FLIGHT": "0"}))
        self.assertFalse(_flight.is_wanted({"NCCL_PROFILER_PLUGIN": "/opt/libgpufleet-nccl-profiler.so"}))
        self.assertTrue(_flight.is_wanted({"NCCL_PROFILER_PLUGIN": "/opt/libnccl-profiler-other.so"}))

    def test_a_dump_that_is_none_or_broken_harms_nothing(self):
        run = run_of_test()
        run.step()
        for broken in (None, {}, {"pg_config": {"0": {"ranks": "no"}}}, dumped({})):
            flight = _flight.Flight(run._recorder, 0, stands_after=0.0)
            with mock.patch.object(_flight, "dump", return_value=broken):
                flight.look(1.0)
                flight.look(1.0)
        self.assertEqual(run.snapshot()["in_flight"], [])

    def cuda(self):
        """A device, in use."""
        cuda = Cuda()
        cuda.__enter__()
        self.addCleanup(cuda.__exit__, None, None, None)
        self.addCleanup(cuda.now)
        return cuda

    def standing(self):
        """A run that has made a step, and stands."""
        run = run_of_test()
        run.step()
        flight = _flight.Flight(run._recorder, 0, stands_after=0.0)
        flight.look(1.0)
        return run, flight

    def test_on_a_device_that_does_not_answer_torch_is_not_asked(self):
        cuda = self.cuda()
        _, flight = self.standing()
        within = mock.patch.object(_flight, "_ANSWERS_WITHIN", 0.2)
        with within, mock.patch.object(_flight, "dump", return_value=dumped(entry(8))) as dump:
            flight.look(1.0)
            dump.assert_not_called()
            flight.meet_device()
            cuda.now('{ hang = "cuEventQuery" }')
            for _ in range(20):
                flight.look(1.0)
            dump.assert_not_called()
        until = time.monotonic() + 120
        while not cuda.calls("hangs"):
            self.assertLess(time.monotonic(), until, "the thread never comes to it")
        self.assertEqual(cuda.calls("hangs"), 1, "a question that has not come back is not put again")
        # A context that is broken answers, with an error.
        cuda.now('{ error = ["cuEventQuery", 700] }')
        _, other = self.standing()
        other.meet_device()
        with mock.patch.object(_flight, "dump", return_value=None) as dump:
            other.look(1.0)
            dump.assert_called_once()

    def test_it_is_followed_where_ranks_work_together_and_knows_their_device(self):
        self.cuda()
        together = mock.patch.multiple(torch.distributed, is_initialized=lambda: True, get_rank=lambda: 3)
        for variables, is_followed in [({"GPUFLEET_FLIGHT": "0"}, False), ({}, True)]:
            run = run_of_test()
            run._follow_flight()
            self.assertIsNone(run._flight, "this process is alone")
            with together, mock.patch.dict(os.environ, variables), mock.patch.object(_flight.Flight, "start") as start:
                run._follow_flight()
                run._follow_flight()
                self.assertEqual(start.call_count, int(is_followed))
            if is_followed:
                self.assertEqual(run._flight._rank, 3)
                self.assertTrue(run._flight._device.answers(60.0))

    def test_a_graph_that_another_thread_captures_is_left_alone(self):
        cuda = self.cuda()
        run, flight = self.standing()
        flight.meet_device()
        cuda.now(capture='"other"')

        def asks_the_device():
            event = ctypes.c_uint64()
            cuda.library.cuEventCreate(ctypes.byref(event), 0)
            self.assertEqual(cuda.library.cuEventQuery(event), 0)
            return dumped(entry(8))

        with mock.patch.object(_flight, "dump", side_effect=asks_the_device) as dump:
            # In a thread of its own, as it is: what holds there holds for nobody else.
            thread = threading.Thread(target=flight.look, args=(1.0,))
            thread.start()
            thread.join()
            dump.assert_called_once()
        self.assertEqual(cuda.calls("captures ended"), 0)
        self.assertEqual(run.snapshot()["in_flight"], [("default_pg", "AllReduce", 8, NOW)])
        self.assertNotEqual(cuda.library.cuEventQuery(ctypes.c_uint64(1)), 0)
        self.assertEqual(cuda.calls("captures ended"), 1)

    def test_what_waits_is_in_the_memory_until_it_does_not(self):
        run = run_of_test()
        groups = _flight.groups_of(dumped(entry(8)), 0)
        for _ in range(3):
            run._recorder.in_flight(groups)
        self.assertEqual(run.snapshot()["in_flight"], [("default_pg", "AllReduce", 8, NOW)])
        run._recorder.in_flight([])
        self.assertEqual(run.snapshot()["in_flight"], [])


if __name__ == "__main__":
    unittest.main()
