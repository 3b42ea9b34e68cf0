"""Lightning, with its callback, and Accelerate, which is watched."""

import unittest

from support import Agent

MODULE = """
import lightning.pytorch as pl
from gpufleet.lightning import GpufleetCallback

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = model
    def training_step(self, batch, index):
        (ids,) = batch
        return torch.nn.functional.cross_entropy(self.model(ids).flatten(0, 1), ids.flatten())
    def validation_step(self, batch, index):
        time.sleep(0.02)
        self.training_step(batch, index)
    def configure_optimizers(self):
        return optimizer
"""


class Lightning(unittest.TestCase):
    def test_a_trainers_steps_phases_evaluations_and_checkpoints_are_recorded(self):
        with Agent() as agent:
            said = agent.run_one(MODULE + """
trainer = pl.Trainer(max_steps=4, accumulate_grad_batches=2, val_check_interval=4, accelerator="cpu", devices=1,
                     default_root_dir=sys.argv[0] + ".out", logger=False, enable_progress_bar=False,
                     precision="bf16-mixed",
                     callbacks=[GpufleetCallback(), pl.callbacks.ModelCheckpoint(every_n_train_steps=4)])
trainer.fit(Module(), loader(8), loader(2))
""")
            code, _, standard_error = agent.endings[0]
            self.assertEqual(code, 0, standard_error)
            self.assertNotIn("gpufleet: ", standard_error)
        self.assertEqual([step["step"] for step in said["steps"]], [1, 2, 3, 4])
        # Two batches of 4 texts of 6 tokens a step.
        self.assertEqual([step["tokens"] for step in said["steps"]], [48] * 4)
        counts = {name: count for name, (_, count) in said["phases"].items()}
        self.assertEqual((counts["forward"], counts["backward"], counts["optimizer"]), (8, 8, 4))
        # Each of two evaluations sleeps twice; the sanity check is none.
        self.assertEqual(said["evaluation"]["count"], 2)
        self.assertGreater(said["evaluation"]["total_ns"], 4 * 20_000_000)
        self.assertEqual(said["checkpoint_saved"]["last_step"], 4)
        self.assertEqual((said["learning"]["loss"][1], said["plan"]["total_steps"]), (4, 4))
        self.assertEqual(said["plan"]["dtype"], "bf16")
        self.assertEqual((said["end"][0], said["refused"]), ("finished", []))

    def test_a_trainer_that_stops_early_has_made_all_the_steps_of_its_plan(self):
        with Agent() as agent:
            said = agent.run_one(MODULE + """
class Enough(pl.Callback):
    def on_train_batch_end(self, trainer, *given):
        trainer.should_stop = trainer.global_step >= 2

trainer = pl.Trainer(max_steps=4, accelerator="cpu", devices=1, default_root_dir=sys.argv[0] + ".out", logger=False,
                     enable_progress_bar=False, enable_checkpointing=False, callbacks=[GpufleetCallback(), Enough()])
trainer.fit(Module(), loader(8))
""")
            self.assertEqual(agent.endings[0][0], 0, agent.endings)
        self.assertEqual([step["step"] for step in said["steps"]], [1, 2])
        self.assertEqual(said["plan"]["total_steps"], 2)


class Accelerate(unittest.TestCase):
    def test_what_accelerate_prepared_is_watched_like_torchs_own(self):
        with Agent() as agent:
            said = agent.run_one("""
                from accelerate import Accelerator
                accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, mixed_precision="bf16")
                model, optimizer, data = accelerator.prepare(model, optimizer, loader(8))
                gpufleet.watch(model, optimizer, data)
                for (ids,) in data:
                    with accelerator.accumulate(model):
                        loss = torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
                        accelerator.backward(loss)
                        optimizer.step()
                        optimizer.zero_grad()
            """)
            self.assertEqual(agent.endings[0][0], 0, agent.endings)
        self.assertEqual([step["tokens"] for step in said["steps"]], [48] * 4)
        counts = {name: count for name, (_, count) in said["phases"].items()}
        self.assertEqual((counts["forward"], counts["backward"], counts["optimizer"]), (8, 8, 4))
        self.assertGreaterEqual(counts["data_wait"], 8)
        # Which it switches on inside the model's own forward.
        self.assertEqual(said["fingerprint"]["accelerate.precision"], "bf16")
        self.assertEqual(said["plan"]["dtype"], "bf16")


if __name__ == "__main__":
    unittest.main()
