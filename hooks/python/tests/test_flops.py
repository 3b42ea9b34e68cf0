"""FLOPs of a run: by the shapes of its models and what they are given, as the script says them, measured."""

import unittest
from types import SimpleNamespace

import torch

from gpufleet._flops import of_shape
from support import run_of_test


class Shaped(torch.nn.Module):
    """A model whose config says its shape."""

    def __init__(self, width=32):
        super().__init__()
        self.config = SimpleNamespace(num_hidden_layers=2, num_attention_heads=4, hidden_size=16)
        self.embedding = torch.nn.Embedding(100, 16)
        self.body = torch.nn.Linear(16, width, bias=False)
        self.head = torch.nn.Linear(width, 100, bias=False)

    def forward(self, ids):
        return self.head(self.body(self.embedding(ids)))


class Flops(unittest.TestCase):
    def of_step(self, run, model, length):
        """What a step of three sequences of this length costs, as the run tells it."""
        model(torch.zeros(3, length, dtype=torch.long))
        run.step()
        return run.snapshot()["steps"][-1]["model_flops"]

    def of_shape(self, width, length):
        return 3 * length * (6 * (16 * width + width * 100) + 12 * 2 * 16 * length)

    def test_those_of_a_batch_follow_from_its_own_length(self):
        model = Shaped()
        run = run_of_test().watch(model)
        for length in (64, 8, 16):
            self.assertEqual(self.of_step(run, model, length), self.of_shape(32, length))

    def test_each_model_that_is_watched_has_its_own(self):
        first, second, neither = Shaped(), Shaped(8), Shaped()
        neither.config.is_encoder_decoder = True
        run = run_of_test()
        for model in (first, second, neither):
            run.watch(model)
        self.assertEqual(self.of_step(run, first, 64), self.of_shape(32, 64))
        self.assertEqual(self.of_step(run, second, 64), self.of_shape(8, 64))
        self.assertEqual(run.snapshot()["plan"]["flops_per_token"], self.of_shape(8, 64) / 3 / 64)
        self.assertEqual(self.of_step(run, first, 8), self.of_shape(32, 8))
        self.assertEqual(self.of_step(run, neither, 8), 0, "another's are not its own")
        said = run.snapshot()
        self.assertFalse(said["plan"]["flops_per_token"])
        self.assertIn("an encoder", said["fingerprint"]["flops_refused"])
        second.body.weight.requires_grad_(False)
        run.watch(second)
        self.assertEqual(self.of_step(run, second, 8), self.of_shape(8, 8) - 3 * 8 * 2 * 16 * 8, "it is asked again")

    def test_those_that_the_script_says_go_before(self):
        model = Shaped()
        run = run_of_test().watch(model)
        self.assertEqual(self.of_step(run, model, 8), self.of_shape(32, 8))
        run.flops(per_token=2.0)
        self.assertEqual(self.of_step(run, model, 8), 2 * 3 * 8)
        run = run_of_test().watch(model)
        run.add(flops=5.0)
        self.assertEqual(self.of_step(run, model, 8), 5)

    def test_what_is_not_given_again_stays(self):
        run = run_of_test()
        run.flops(per_token=1e9)
        run.flops(hardware_per_step=5e11, source="measured")
        run.step(tokens=100)
        said = run.snapshot()
        self.assertEqual(said["model_flops"], 1e11)
        plan = said["plan"]
        self.assertEqual((plan["flops_per_token"], plan["hardware_flops_per_step"]), (1e9, 5e11))
        self.assertEqual(plan["flops_source"], "explicit", "that is what the model's are by")
        run.flops(per_step=7.0)
        run.step(tokens=100)
        said = run.snapshot()
        self.assertEqual(said["steps"][-1]["model_flops"], 7.0)
        self.assertEqual((said["plan"]["flops_per_token"], said["plan"]["hardware_flops_per_step"]), (0.0, 5e11))
        model = Shaped()
        run = run_of_test().watch(model)
        run.flops(hardware_per_step=5e11)
        self.assertEqual(self.of_step(run, model, 8), self.of_shape(32, 8), "the model's are by its shape all the same")

    def test_by_shape_they_are_those_of_the_convention(self):
        class Config:
            num_hidden_layers, num_attention_heads, hidden_size = 2, 4, 16

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.config = Config()
                self.embedding = torch.nn.Embedding(100, 16)
                self.body = torch.nn.Linear(16, 32, bias=False)
                self.head = torch.nn.Linear(32, 100, bias=False)

        model = Model()
        attention = 12 * 2 * 16 * 64
        multiplied = 16 * 32 + 32 * 100
        per_token, parameters = of_shape(model, 64)
        self.assertEqual((per_token, parameters), (6 * multiplied + attention, 100 * 16 + multiplied))
        model.body.weight.requires_grad_(False)
        self.assertEqual(of_shape(model, 64)[0], 6 * multiplied - 2 * 16 * 32 + attention)
        # A head that is the embedding counts: a token is multiplied with it.
        model.head = torch.nn.Linear(16, 100, bias=False)
        model.head.weight = model.embedding.weight
        self.assertEqual(of_shape(model, 64)[0], 4 * 16 * 32 + 6 * 1600 + attention)

    def test_flops_follow_the_tokens(self):
        run = run_of_test()
        run.flops(per_token=1e9)
        run.step(tokens=100)
        said = run.snapshot()
        self.assertEqual(said["model_flops"], 1e11)
        self.assertEqual((said["plan"]["flops_per_token"], said["plan"]["flops_source"]), (1e9, "explicit"))

    def test_measured_flops_are_those_of_the_step(self):
        if not hasattr(torch.utils, "flop_counter") and torch.__version__ < "2.1":
            self.assertIsNone(run_of_test().measure_flops().__enter__()._counter, "it fails open")
            return
        run = run_of_test()
        with run.measure_flops():
            torch.ones(4, 8) @ torch.ones(8, 16)
        self.assertEqual(run.snapshot()["plan"]["flops_per_step"], 2 * 4 * 8 * 16)


if __name__ == "__main__":
    unittest.main()
