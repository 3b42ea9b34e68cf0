"""What only a new torch has: torch.compile and counted FLOPs."""

import unittest

import torch

from gpufleet import _fingerprint
from gpufleet._run import Run


class Newest(unittest.TestCase):
    def check(self, watch_first):
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
        run = Run("/nowhere/hooks.sock")
        if watch_first:
            run.watch(model)
        # A break in the graph, which a hook could make, would raise here.
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        if not watch_first:
            run.watch(compiled)
        for _ in range(3):
            compiled(torch.ones(2, 4)).sum().backward()
        return run.snapshot()["phases"]

    def test_a_compiled_model_stays_whole_and_is_timed_from_outside(self):
        phases = self.check(watch_first=False)
        self.assertEqual((phases["forward"][1], phases["backward"][1]), (3, 3))

    def test_a_model_that_is_compiled_after_it_was_watched_stays_whole(self):
        self.check(watch_first=True)

    def test_the_mode_of_a_compiled_model_is_in_its_fingerprint(self):
        in_place = torch.nn.Linear(4, 4)
        in_place.compile(mode="max-autotune")
        for model in (torch.compile(torch.nn.Linear(4, 4), mode="max-autotune"), in_place):
            found = _fingerprint.of_model(model)
            self.assertEqual((found["compiled"], found["compiled.max_autotune"]), ("True", "True"), found)
        usual = _fingerprint.of_model(torch.compile(torch.nn.Linear(4, 4)))
        self.assertEqual((usual["compiled"], usual["compiled.max_autotune"]), ("True", "False"), usual)


if __name__ == "__main__":
    unittest.main()
