"""DeepSpeed's adapter under a stand-in for its engine; the real one is in adapters/test_deepspeed.py."""

import sys
import types
import unittest
from unittest import mock

import torch

import gpufleet.deepspeed
from gpufleet import _mesh
from gpufleet._run import Run


class StandIn(torch.nn.Module):
    """What the adapter knows of DeepSpeedEngine: the same names, a boundary each second micro-batch."""

    def __init__(self, module, optimizer):
        super().__init__()
        self.module = module
        self.optimizer = optimizer
        self.global_steps = 0
        self.micro_steps = 0
        self.applied = True

    def forward(self, *given):
        return self.module(*given)

    def backward(self, loss):
        loss.backward()

    def is_gradient_accumulation_boundary(self):
        return self.micro_steps % 2 == 1

    def step(self):
        if self.is_gradient_accumulation_boundary():
            self.optimizer.step()
            self.global_steps += 1
        self.micro_steps += 1

    def was_step_applied(self):
        return self.applied

    def get_global_grad_norm(self):
        return 0.5

    def zero_optimization_stage(self):
        return 2

    def save_checkpoint(self, folder):
        if folder is None:
            raise OSError("there is no folder")
        return True

    def load_checkpoint(self, folder):
        self.global_steps = 40
        return folder, {}


class Groups(unittest.TestCase):
    def test_the_mesh_is_asked_for_once_the_engine_has_its_groups_and_never_before(self):
        asked = []

        def world_size():
            asked.append("size")
            return 8

        def no_group():
            raise AssertionError("tensor model parallel group is not initialized")

        groups = types.SimpleNamespace(
            _WORLD_GROUP=None, mpu=None, mesh_device=None,
            _get_data_parallel_rank=lambda: 3, _get_data_parallel_world_size=world_size,
            _get_sequence_parallel_rank=lambda: 0, _get_sequence_parallel_world_size=lambda: 1,
            get_model_parallel_rank=no_group, get_model_parallel_world_size=no_group,
        )  # fmt: skip
        with mock.patch.dict(sys.modules, {"deepspeed.utils.groups": groups}):
            self.assertEqual(_mesh.find(None, None), {})
            self.assertEqual(asked, [], "it would make a group")
            groups._WORLD_GROUP = object()
            found = _mesh.find(None, None)
        self.assertEqual(found, {"dp": (3, 8), "cp": (0, 1), "mesh_source": "deepspeed"})


class DeepSpeed(unittest.TestCase):
    def setUp(self):
        model = torch.nn.Linear(4, 2)
        self.engine = StandIn(model, torch.optim.SGD(model.parameters(), lr=0.1))
        # A run without hooks into this interpreter.
        gpufleet._current, before = Run("/nowhere/hooks.sock"), gpufleet._current
        self.addCleanup(setattr, gpufleet, "_current", before)
        self.run_of_test = gpufleet.deepspeed.watch(self.engine)

    def train(self, batches):
        for _ in range(batches):
            loss = self.engine(torch.ones(3, 4)).sum()
            self.engine.backward(loss)
            self.engine.step()
        return self.run_of_test.snapshot()

    def test_a_step_is_one_that_reached_the_boundary_and_micro_batches_are_timed(self):
        said = self.train(4)
        self.assertEqual([step["step"] for step in said["steps"]], [1, 2])
        self.assertEqual([step["samples"] for step in said["steps"]], [6, 6])
        counts = {name: count for name, (_, count) in said["phases"].items()}
        self.assertEqual((counts["forward"], counts["backward"], counts["optimizer"]), (4, 4, 4))
        self.assertEqual(said["learning"]["loss"][1], 2)
        self.assertEqual(said["learning"]["gradient_norm"], (0.5, 2))
        self.assertEqual(said["fingerprint"]["deepspeed.zero_stage"], "2")

    def test_a_step_that_was_not_applied_is_a_skip_of_the_scaler(self):
        self.engine.applied = False
        self.assertEqual(self.train(2)["learning"]["scaler_skips"], 1)

    def test_checkpoints_are_counted_and_steps_go_on_behind_one_that_was_loaded(self):
        self.engine.save_checkpoint("folder")
        with self.assertRaises(OSError):
            self.engine.save_checkpoint(None)
        self.engine.load_checkpoint("folder")
        said = self.train(2)
        self.assertEqual((said["checkpoint_saved"]["count"], said["checkpoint_saved"]["failures"]), (1, 1))
        self.assertEqual(said["checkpoint_restored"]["last_step"], 40)
        self.assertEqual([step["step"] for step in said["steps"]], [41])


if __name__ == "__main__":
    unittest.main()
