"""JAX itself on the CPU."""

import unittest

from support import Agent


class Jax(unittest.TestCase):
    def test_steps_losses_and_compilations_are_recorded(self):
        with Agent() as agent:
            said = agent.run_one(
                """
                import jax, jax.numpy as jnp, gpufleet.jax

                run = gpufleet.jax.init(total_steps=4)

                @jax.jit
                def learn(weights, batch):
                    loss, gradient = jax.value_and_grad(lambda it: ((batch @ it) ** 2).mean())(weights)
                    return weights - 0.1 * gradient, loss

                weights = jnp.ones((8, 2))
                for number in range(4):
                    # The last batch has another shape: it is compiled again.
                    batch = jnp.ones((3 if number < 3 else 5, 8))
                    with gpufleet.jax.step(run, tokens=batch.size) as step:
                        weights, step.loss = learn(weights, batch)
                step.loss.block_until_ready()
                run._readings.drain()
                """
            )
            code, _, standard_error = agent.endings[0]
            self.assertEqual(code, 0, standard_error)
            self.assertNotIn("gpufleet: ", standard_error)
        self.assertEqual([step["tokens"] for step in said["steps"]], [24, 24, 24, 40])
        self.assertEqual(said["learning"]["loss"][1], 4)
        self.assertGreaterEqual(said["phases"]["other"][1], 2, "compiled for each shape")
        self.assertGreaterEqual(int(said["fingerprint"]["jax.compilations_at_least"]), 2)
        self.assertTrue(said["identity"]["framework"].startswith(("jax ", "pytorch ")))


if __name__ == "__main__":
    unittest.main()
