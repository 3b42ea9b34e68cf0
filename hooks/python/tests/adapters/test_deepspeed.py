"""DeepSpeed's real engine on the CPU, one rank over gloo."""

import unittest

from support import Agent

ENGINE = """
import os, deepspeed, gpufleet.deepspeed
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
# It would compile this for minutes, with ninja and a C++ compiler; one rank has nobody to share memory with.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False

class Batches(torch.utils.data.Dataset):
    def __len__(self):
        return 32
    def __getitem__(self, index):
        return torch.randint(0, 50, (6,))

settings = dict(train_micro_batch_size_per_gpu=4, gradient_accumulation_steps=2,
                zero_optimization=dict(stage=1), zero_allow_untested_optimizer=True, gradient_clipping=1.0)
engine, _, data, _ = deepspeed.initialize(model=model, optimizer=optimizer, training_data=Batches(), config=settings,
                                          dist_init_required=True)
"""


class DeepSpeed(unittest.TestCase):
    def test_an_engines_steps_phases_norms_and_checkpoints_are_recorded(self):
        with Agent() as agent:
            said = agent.run_one(
                ENGINE + """
run = gpufleet.deepspeed.watch(engine, total_steps=4)
for ids in run.data(data):
    loss = torch.nn.functional.cross_entropy(engine(ids).flatten(0, 1), ids.flatten())
    engine.backward(loss)
    engine.step()
engine.save_checkpoint(sys.argv[0] + ".out")
engine.load_checkpoint(sys.argv[0] + ".out")
""",
                RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", DS_ACCELERATOR="cpu",
            )  # fmt: skip
            code, _, standard_error = agent.endings[0]
            self.assertEqual(code, 0, standard_error)
            self.assertNotIn("gpufleet: ", standard_error)
        self.assertEqual([step["step"] for step in said["steps"]], [1, 2, 3, 4])
        # Two micro-batches of 4 texts of 6 tokens a step.
        self.assertEqual([step["tokens"] for step in said["steps"]], [48] * 4)
        counts = {name: count for name, (_, count) in said["phases"].items()}
        self.assertEqual((counts["forward"], counts["backward"], counts["optimizer"]), (8, 8, 8))
        self.assertEqual(said["learning"]["loss"][1], 4)
        self.assertIsNotNone(said["learning"]["gradient_norm"])
        self.assertEqual(said["fingerprint"]["deepspeed.zero_stage"], "1")
        self.assertEqual(said["fingerprint"]["deepspeed.gradient_accumulation_steps"], "2")
        self.assertEqual(said["checkpoint_saved"]["last_step"], 4)
        self.assertEqual(said["checkpoint_restored"]["last_step"], 4)
        identity = said["identity"]
        self.assertEqual((identity["mesh_source"], identity["dp"]), ("deepspeed", (0, 1)))


if __name__ == "__main__":
    unittest.main()
