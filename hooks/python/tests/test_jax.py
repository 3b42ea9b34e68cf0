"""JAX's adapter without JAX; with it: adapters/test_jax.py."""

import unittest

import gpufleet.jax
from gpufleet._run import Run


class Jax(unittest.TestCase):
    def test_a_step_is_what_ends_well_and_its_loss_is_read_when_it_is_there(self):
        run = Run("/nowhere/hooks.sock")

        class Array:
            is_there = False

            def is_ready(self):
                return self.is_there

            def __float__(self):
                return 2.5

        loss = Array()
        with gpufleet.jax.step(run, tokens=8) as step:
            step.loss = loss
            step.samples = 2
        with self.assertRaises(ValueError), gpufleet.jax.step(run):
            raise ValueError("a batch that is none")
        said = run.snapshot()
        self.assertEqual([(it["tokens"], it["samples"]) for it in said["steps"]], [(8, 2)])
        self.assertIsNone(said["learning"]["loss"])
        loss.is_there = True
        run._readings.drain()
        self.assertEqual(run.snapshot()["learning"]["loss"], (2.5, 1))

    def test_compilations_are_counted_and_other_events_are_not(self):
        run = Run("/nowhere/hooks.sock")
        compilations = gpufleet.jax.Compilations(run)
        for _ in range(3):
            compilations.compiled("/jax/core/compile/backend_compile_duration", 0.5, fun_name="step")
        compilations.compiled("/jax/core/compile/jaxpr_trace_duration", 9.0)
        said = run.snapshot()
        self.assertEqual(said["phases"]["other"], (1_500_000_000, 3))
        self.assertEqual(said["fingerprint"]["jax.compilations_at_least"], "2")


if __name__ == "__main__":
    unittest.main()
