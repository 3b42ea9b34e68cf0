"""JAX itself on the CPU."""

import unittest

from support import Agent, free_port


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
        self.assertTrue(said["identity"]["framework"].startswith("jax "))

    def test_processes_of_a_job_say_what_jax_distributed_was_told_and_start_no_back_end_for_it(self):
        script = """
            import os, jax
            rank, port = os.environ["PROCESS"], os.environ["PORT"]
            jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=int(rank))
            run = gpufleet.init()
            from jax._src import xla_bridge
            print("started", xla_bridge.backends_are_initialized())
            run.step()
            print("is", jax.process_index(), jax.process_count())
        """
        port = str(free_port())
        with Agent() as agent:
            said = agent.run(*((script, {"PROCESS": str(rank), "PORT": port}) for rank in range(2)))
            for rank, (code, output, standard_error) in enumerate(agent.endings):
                self.assertEqual(code, 0, standard_error)
                self.assertEqual(output, f"started False\nis {rank} 2\n")
        self.assertEqual([(it["identity"]["rank"], it["identity"]["world"]) for it in said], [(0, 2), (1, 2)])
        for one in said:
            self.assertTrue(one["identity"]["framework"].startswith("jax "), "torch is loaded beside it")


if __name__ == "__main__":
    unittest.main()
