"""Profiles that an agent asks for: the trace, its file, its bounds, and every way in which there is none."""

import atexit
import gzip
import json
import os
import tempfile
import textwrap
import threading
import time
import unittest
from unittest import mock

from gpufleet import _profile
from support import Agent

#: A script that trains until it is told to stop; what it says last are the files that it sees.
LOOP = """
import os
{before}
run = gpufleet.init(rank=3)
data = list(loader())
while not os.path.exists("stop"):
    for (ids,) in data:
        {during}
        run.step(tokens=ids.numel(), loss=learn(ids))
    time.sleep(0.01)
"""


def script(before="", during="pass"):
    return LOOP.format(before=before, during=during)


class Asked:
    """A script that trains, in a working folder of its own, and an agent that asks it."""

    def __init__(self, text, **environment):
        self._script, self._environment = text, environment

    def __enter__(self):
        self._temporary = tempfile.TemporaryDirectory()
        self.folder = self._temporary.name
        self._agent = Agent().__enter__()
        enter = f"import os; os.chdir({self.folder!r})\n"
        self._process = self._agent.start(enter + self._script, **self._environment)
        self._agent.turn_until(lambda: self.said() and self.said()["steps_total"] > 0)
        return self

    def __exit__(self, *_raised):
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        if self._process.pid in self._agent._said:
            self._agent.ending(self._process)
        self._agent.__exit__()
        self._temporary.cleanup()

    def said(self):
        return next(iter(self._agent.snapshots()), None)

    def ask(self, number, steps=2):
        """Asks as the agent does, until it is begun; what became of it."""
        became = lambda: self.said()["profile"]

        def is_over():
            # Looked at before what it said: what it says last is there when it has ended.
            has_ended = self._process.poll() is not None
            is_begun = became() and became()[0] == number
            if is_begun and became()[1] != "running":
                return True
            if has_ended:
                raise AssertionError(self._agent.ending(self._process))
            if not is_begun:
                self._agent._listener.ask(number, steps)
            return False

        self._agent.turn_until(is_over)
        return became()

    def stop(self):
        open(os.path.join(self.folder, "stop"), "w").close()
        self._agent.turn_until(lambda: self._process.poll() is not None)
        return self._agent.ending(self._process)


def trace(path):
    """Its events. A torch that is built without Kineto, as Debian's, writes them as a list."""
    with gzip.open(path, "rt") as file:
        whole = json.load(file)
    return whole if isinstance(whole, list) else whole["traceEvents"]


class Profiles(unittest.TestCase):
    def test_the_steps_that_are_asked_for_become_a_trace_one_after_the_other(self):
        with Asked(script()) as asked:
            number, state, step, steps, size, path = asked.ask(7, 2)
            self.assertEqual((number, state, steps), (7, "done", 2), path)
            self.assertGreater(step, 0)
            folder = os.path.join(os.path.realpath(asked.folder), "gpufleet-profiles")
            self.assertEqual(os.path.dirname(os.path.realpath(path)), folder)
            self.assertEqual(size, os.path.getsize(path))
            events = trace(path)
            names = {str(event.get("name")) for event in events}
            marked = {name for name in names if name.startswith("ProfilerStep#")}
            self.assertEqual(marked, {f"ProfilerStep#{step + 1}", f"ProfilerStep#{step + 2}"})
            self.assertTrue(any(name.startswith("aten::") for name in names), names)
            again = asked.ask(8, 1)
            self.assertEqual(again[1:2] + again[3:4], ("done", 1), again)
            self.assertEqual(len(os.listdir(folder)), 2, "the files, and nothing that was on the way to them")
            status, _out, error = asked.stop()
            self.assertEqual(status, 0, error)
            self.assertNotIn("did nothing", error)

    def test_why_the_gpu_stood_still_is_told_with_what_became_of_it_and_not_without_a_gpu(self):
        with Asked(script()) as asked:
            asked.ask(7, 2)
            self.assertIsNone(asked.said()["profile_gaps"], "there is no GPU here")
        before = "from gpufleet import _gaps\n_gaps.read = lambda _profile, _device, steps, _bytes: "
        found = "(_gaps.Gaps(1_000_000, 100_000, 200_000, 50_000, 12 * steps, 4_300, 3_000, 90_000), None)"
        with Asked(script(before + found)) as asked:
            asked.ask(7, 2)
            gaps = asked.said()["profile_gaps"]
            self.assertEqual(gaps, (1_000_000, (100_000, 200_000, 90_000, 50_000), (24, 4_300, 3_000)))
        with Asked(script(before + "(None, _gaps.TOO_MANY)")) as asked:
            asked.ask(7, 2)
            self.assertEqual((asked.said()["profile_gaps"], asked.said()["profile_untold"]), (None, "too_many"))

    def test_with_watch_steps_are_the_optimizers_and_the_folder_is_the_one_that_is_named(self):
        text = """
            gpufleet.watch(model, optimizer)
            import os
            data = list(loader())
            while not os.path.exists("stop"):
                for (ids,) in data:
                    learn(ids)
                time.sleep(0.01)
        """
        with Asked(textwrap.dedent(text), GPUFLEET_PROFILE_DIR="traces/here") as asked:
            _number, state, _step, steps, _size, path = asked.ask(7, 3)
            self.assertEqual((state, steps), ("done", 3), path)
            self.assertTrue(path.endswith(".json.gz") and "/traces/here/" in path, path)
            self.assertGreater(len(trace(path)), 100)
            status, _out, error = asked.stop()
            self.assertEqual(status, 0, error)
            self.assertNotIn("did nothing", error)

    def test_a_script_that_profiles_itself_is_left_alone(self):
        before = "from torch.profiler import profile, ProfilerActivity\nown = profile(activities=[ProfilerActivity.CPU])"
        # It stops its own in the end: torch 2.15 dies of one that is open then, with and without us.
        with Asked(script(before + "\nown.start()") + "own.stop()\n") as asked:
            _number, state, *_rest, why = asked.ask(7, 1)
            self.assertEqual((state, why), ("failed", "another profiler records this thread"))
            self.assertEqual(asked.stop()[0], 0)
        # Its own begins while ours records: it gets what it asked for.
        during = "if run.snapshot()['profile']: (own.start(), own.stop()) if not done else None; done = True"
        with Asked(script(before + "\ndone = False", during)) as asked:
            _number, state, *_rest, why = asked.ask(7, 10)
            self.assertEqual((state, why), ("failed", "the script began a profiler of its own"))
            _number, state, *_rest, why = asked.ask(8, 1)
            self.assertEqual(state, "done", why)
            status, _out, error = asked.stop()
            self.assertEqual(status, 0, error)

    def test_a_process_that_is_to_take_none_is_not_asked(self):
        with Asked(script(), GPUFLEET_PROFILE="0") as asked:
            self.assertEqual(asked._agent._listener.ask(7, 1), 0)
            self.assertEqual(asked.stop()[0], 0)
            self.assertIsNone(asked.said()["profile"])

    def test_what_is_recorded_when_the_script_ends_is_written_unless_no_step_ended(self):
        during = "seen += run.snapshot()['profile'] is not None; seen == {} and sys.exit(0)"
        with Asked(script("seen = 0", during.format(1))) as asked:
            _number, state, *_rest, why = asked.ask(7, 10)
            self.assertEqual((state, why), ("failed", "the script ended before a step did"))
        with Asked(script("seen = 0", during.format(3))) as asked:
            _number, state, _step, steps, size, path = asked.ask(7, 10)
            self.assertEqual((state, steps), ("done", 1), path)
            self.assertEqual(size, os.path.getsize(path))
            self.assertGreater(len(trace(path)), 10)

    def test_without_torch_that_is_the_reason(self):
        recorder = mock.Mock()
        recorder.last_step.return_value = 4
        recording = _profile._Recording(recorder, 7, 2)
        with mock.patch.dict("sys.modules"), self.assertRaisesRegex(_profile.CannotBe, "PyTorch is not loaded"):
            import sys

            sys.modules.pop("torch", None)
            recording.start(lambda: None)

    def test_steps_that_take_too_long_end_the_profile_early(self):
        recording = _profile._Recording(mock.Mock(**{"last_step.return_value": 4}), 7, 10)
        recording._mark = lambda _step: None
        recording._until = time.monotonic()
        self.assertFalse(recording.stepped(5), "it is the one before those that are asked for")
        recording._until = time.monotonic() + 60.0
        self.assertFalse(recording.stepped(6))
        recording._until = time.monotonic()
        self.assertTrue(recording.stepped(7))
        self.assertEqual((recording._first, recording.steps), (5, 2))


class Folder(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = temporary.name

    def file(self, number, size=10, name="gpufleet-profile-rank0-step5-20260101T000000Z-{:014x}.json.gz"):
        path = os.path.join(self.folder, name.format(number))
        with open(path, "wb") as file:
            file.truncate(size)
        os.utime(path, (1_000 + number, 1_000 + number))
        return path

    def left(self):
        return sorted(os.listdir(self.folder))

    def test_the_oldest_files_of_ours_make_room_and_no_other(self):
        ours = [self.file(number) for number in range(12)]
        others = [self.file(0, name="notes.json.gz"), self.file(0, name="gpufleet-profile-mine.json.gz")]
        os.mkdir(os.path.join(self.folder, "gpufleet-profile-rank0-step5-20260101T000000Z-00000000000099.json.gz"))
        _profile.make_room(self.folder, 10)
        kept = [path for path in ours if os.path.exists(path)]
        self.assertEqual(kept, ours[3:], "nine, and the one that comes")
        self.assertTrue(all(os.path.exists(path) for path in others))
        self.assertEqual(len(self.left()), 9 + 2 + 1)

    def test_files_make_room_for_a_large_one(self):
        ours = [self.file(number, 60_000_000) for number in range(3)]
        _profile.make_room(self.folder, 100_000_000)
        self.assertEqual([os.path.exists(path) for path in ours], [False, False, True])
        _profile.make_room(self.folder, _profile._MOST_BYTES)
        self.assertEqual(self.left(), [])

    def test_a_file_that_becomes_too_large_is_none(self):
        path = os.path.join(self.folder, "trace.json")
        with open(path, "wb") as file:
            file.write(os.urandom(3 << 20))
        with mock.patch.object(_profile, "_MOST_BYTES", 1 << 20), self.assertRaisesRegex(_profile.CannotBe, "fewer"):
            _profile._pack(path, path + ".gz")

    def test_a_trace_without_its_end_is_known(self):
        path = os.path.join(self.folder, "trace.json")
        for text, is_whole in [(b'{"traceEvents": []}\n', True), (b"[{}]\n", True), (b'{"traceEvents": [{"na', False), (b"", False)]:
            with open(path, "wb") as file:
                file.write(text)
            self.assertEqual(_profile._is_whole(path, len(text)), is_whole, text)

    def test_what_a_killed_process_left_is_removed_and_what_is_being_written_is_not(self):
        for name, modified in [("old", time.time() - 7_200), ("new", time.time())]:
            path = os.path.join(self.folder, _profile._TEMPORARY + name)
            os.mkdir(path)
            os.utime(path, (modified, modified))
        _profile._remove_left_behind(self.folder)
        self.assertEqual(self.left(), [_profile._TEMPORARY + "new"])

    def test_little_room_and_a_long_path_are_reasons(self):
        recording = _profile._Recording(mock.Mock(**{"last_step.return_value": 4}), 7, 2)
        with mock.patch.dict("os.environ", GPUFLEET_PROFILE_DIR=self.folder):
            with mock.patch.object(_profile, "_LEAST_FREE_BYTES", 1 << 62):
                self.assertRaisesRegex(_profile.CannotBe, "are free in", _profile._place, recording, 0)
            path = _profile._place(recording, 3)
            self.assertTrue(_profile._OURS.fullmatch(os.path.basename(path)), path)
        with mock.patch.dict("os.environ", GPUFLEET_PROFILE_DIR=os.path.join(self.folder, "x" * 500)):
            self.assertRaisesRegex(_profile.CannotBe, "too long", _profile._place, recording, 0)

    def test_a_folder_that_cannot_be_made_is_said_and_nothing_is_raised(self):
        run = mock.Mock(_pid=os.getpid(), _identity={"rank": 0})
        run._recorder.last_step.return_value = 4
        run._recorder.profile_begin.return_value = (7, 2)
        profiler = _profile.Profiler(run)
        self.addCleanup(atexit.unregister, profiler._finish)
        with mock.patch.dict("os.environ", GPUFLEET_PROFILE_DIR="/dev/null/no"):
            profiler.stepped()
        number, state, why, _counts, _gaps, _untold = run._recorder.profile_is.call_args.args
        self.assertEqual((number, state), (7, "failed"))
        self.assertIn("/dev/null/no", why)
        run._recorder.profile_end.assert_called_once_with()


class Guards(unittest.TestCase):
    def test_only_the_own_thread_ends_ours_and_what_was_replaced_comes_back(self):
        class Kind:
            def _start_trace(self):
                return "began"

        original, ended = Kind._start_trace, []
        guard = _profile._Guard(Kind, threading.get_ident(), lambda: ended.append(1))
        said = []
        other = threading.Thread(target=lambda: said.append(Kind()._start_trace()))
        other.start()
        other.join()
        self.assertEqual((said, ended), (["began"], []))
        self.assertEqual((Kind()._start_trace(), ended), ("began", [1]))
        guard.remove()
        self.assertIs(Kind._start_trace, original)


if __name__ == "__main__":
    unittest.main()
