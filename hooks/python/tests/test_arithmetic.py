"""The type that a model computes in, where the script does not say it."""

import copy
import pickle
import unittest
from unittest import mock

import torch

from gpufleet import _arithmetic, _fingerprint
from support import run_of_test


class Inner(torch.nn.Module):
    """A model that computes its layers in bf16, whatever it is given and kept in."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, values):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.layer(values).float()


class Linear8bitLt(torch.nn.Linear):
    """Named as bitsandbytes' is."""


def small():
    return torch.nn.Sequential(torch.nn.Linear(4, 4))


def told(model, dtype=torch.float32, autocast=None, said=None):
    """What a run says of itself after a forward pass of a watched model: the type, and by what."""
    run = run_of_test()
    run.plan(dtype=said)
    run.watch(model)
    with torch.autocast("cpu", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
        model(torch.ones(2, 4, dtype=dtype))
    found = run.snapshot()
    return (found["plan"] or {}).get("dtype", ""), found["fingerprint"].get("dtype_by")


class Arithmetic(unittest.TestCase):
    def test_it_is_that_of_autocast_of_the_parameters_or_of_what_a_layer_puts_out(self):
        self.assertEqual(told(small(), autocast=torch.bfloat16), ("bf16", "autocast"))
        self.assertEqual(told(small().to(torch.bfloat16), torch.bfloat16), ("bf16", "parameters"))
        self.assertEqual(told(small()), ("fp32", "output"))
        self.assertEqual(told(Inner()), ("bf16", "output"))
        with mock.patch.object(torch, "get_float32_matmul_precision", lambda: "high"):
            self.assertEqual(told(small()), ("tf32", "output"))

    def test_what_the_script_says_goes_before(self):
        self.assertEqual(told(small(), said="fp8"), ("fp8", None))

    def test_what_is_not_sure_is_left_open(self):
        of_eight_bits = torch.nn.Sequential(torch.nn.Linear(4, 4), Linear8bitLt(4, 4))
        self.assertEqual(told(of_eight_bits, autocast=torch.bfloat16), ("", None))
        with mock.patch.object(torch.nn.Linear, "__module__", "transformer_engine.pytorch.module.linear"):
            self.assertEqual(told(small(), autocast=torch.bfloat16), ("", None))

        class Convolutions(torch.nn.Sequential):
            def forward(self, values):
                return self[1](values)

        # Which convolutions torch computes in TF32 unless somebody forbids it.
        self.assertEqual(told(Convolutions(torch.nn.Conv2d(1, 1, 1), torch.nn.Linear(4, 4))), ("", None))
        with mock.patch.object(torch, "get_float32_matmul_precision", lambda: "as nobody knows it"):
            self.assertEqual(told(small()), ("", None))

    def test_the_layers_that_do_most_of_the_work_are_looked_at(self):
        head, blocks = torch.nn.Linear(4, 10), [torch.nn.Linear(4, 4) for _ in range(3)]
        self.assertIs(_arithmetic._typical([torch.nn.ReLU(), head, *blocks]), blocks[0])
        self.assertIsNone(_arithmetic._typical([torch.nn.ReLU()]))

    def test_no_hook_is_left_on_a_layer_and_one_of_a_pass_that_raised_harms_nobody(self):
        model = Inner()
        told(model)
        self.assertEqual(len(model.layer._forward_hooks), 0)
        model = Inner()
        run = run_of_test()
        run.watch(model)
        with self.assertRaises(RuntimeError):
            model(torch.ones(2, 5))
        for same in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            same(torch.ones(2, 4))
        model(torch.ones(2, 4))
        self.assertEqual(len(model.layer._forward_hooks), 0)
        self.assertEqual(run.snapshot()["plan"]["dtype"], "bf16")

    def test_the_precision_of_accelerate_is_told_where_somebody_made_one(self):
        state = mock.Mock(**{"return_value.mixed_precision": "bf16"})
        gradients = mock.Mock(**{"return_value.num_steps": 4})
        accelerate = mock.Mock(AcceleratorState=state, GradientState=gradients)
        with mock.patch.dict("sys.modules", {"accelerate.state": accelerate}):
            state._shared_state = {}
            gradients._shared_state = {}
            self.assertEqual(_fingerprint.of_accelerate(), {})
            state.assert_not_called()
            state._shared_state = {"_mixed_precision": "bf16"}
            self.assertEqual(_fingerprint.of_accelerate(), {"accelerate.precision": "bf16"})
            gradients.assert_not_called()
            self.assertEqual(told(small()), ("bf16", "accelerate"))
            gradients._shared_state = {"plugin_kwargs": {}}
            both = {"accelerate.precision": "bf16", "accelerate.gradient_accumulation_steps": "4"}
            self.assertEqual(_fingerprint.of_accelerate(), both)


if __name__ == "__main__":
    unittest.main()
