"""The Hugging Face Trainer, with its callback."""

import unittest

from support import Agent

TRAINER = """
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from gpufleet.huggingface import GpufleetCallback

class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 32
    def __getitem__(self, index):
        time.sleep(0.005)
        ids = torch.randint(0, 50, (12,))
        return {"input_ids": ids, "labels": ids}

small = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=50, n_positions=12))
settings = dict(output_dir=sys.argv[0] + ".out", per_device_train_batch_size=4, max_steps=4, logging_steps=1,
                gradient_accumulation_steps=2, report_to=[], use_cpu=True, disable_tqdm=True)
"""


class HuggingFace(unittest.TestCase):
    def test_a_trainers_steps_waits_losses_and_evaluations_are_recorded(self):
        with Agent() as agent:
            said = agent.run_one(TRAINER + """
arguments = TrainingArguments(eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=4, **settings)
trainer = Trainer(small, arguments, train_dataset=Texts(), eval_dataset=Texts(), callbacks=[GpufleetCallback()])
trainer.train()
""")
            code, _, standard_error = agent.endings[0]
            self.assertEqual(code, 0, standard_error)
            self.assertNotIn("gpufleet: ", standard_error, "nothing of ours failed on the way")
        self.assertEqual([step["step"] for step in said["steps"]], [1, 2, 3, 4])
        # Two micro-batches of 4 texts of 12 tokens a step; what is evaluated is not trained on.
        self.assertEqual([step["tokens"] for step in said["steps"]], [96] * 4)
        counts = {name: count for name, (_, count) in said["phases"].items()}
        self.assertEqual((counts["forward"], counts["backward"], counts["optimizer"]), (8, 8, 4))
        self.assertEqual((said["evaluation"]["count"], said["checkpoint_saved"]["count"]), (2, 1))
        self.assertEqual(said["checkpoint_saved"]["last_step"], 4)
        # 32 texts of 5 ms are waited for in each evaluation, and belong to it.
        self.assertGreater(said["evaluation"]["total_ns"], 2 * 32 * 5_000_000)
        self.assertGreater(said["data_wait_ns"], 4 * 8 * 5_000_000)
        self.assertGreater(said["steps"][2]["evaluation_ns"], 32 * 5_000_000, "after step 2, in step 3")
        learning = said["learning"]
        self.assertEqual(learning["loss"][1], 4)
        self.assertIsNotNone(learning["gradient_norm"])
        self.assertIsNotNone(learning["evaluation_loss"])
        plan = said["plan"]
        self.assertEqual((plan["total_steps"], plan["flops_source"]), (4, "model_shape"))
        self.assertGreater(said["model_flops"], 0)
        self.assertEqual((plan["dtype"], said["fingerprint"]["dtype_by"]), ("fp32", "output"))
        self.assertEqual(said["fingerprint"]["trainer.gradient_accumulation_steps"], "2")
        self.assertEqual((said["end"][0], said["refused"]), ("finished", []))

    def test_a_trainer_that_stops_early_has_made_all_the_steps_of_its_plan(self):
        with Agent() as agent:
            said = agent.run_one(TRAINER + """
from transformers import TrainerCallback

class Enough(TrainerCallback):
    def on_step_end(self, args, state, control, **given):
        control.should_training_stop = state.global_step >= 2

arguments = TrainingArguments(save_strategy="no", **settings)
Trainer(small, arguments, train_dataset=Texts(), callbacks=[GpufleetCallback(), Enough()]).train()
""")
            self.assertEqual(agent.endings[0][0], 0, agent.endings)
        self.assertEqual([step["step"] for step in said["steps"]], [1, 2])
        self.assertEqual(said["plan"]["total_steps"], 2)

    def test_a_resumed_trainer_goes_on_with_its_numbers(self):
        with Agent() as agent:
            said = agent.run_one(TRAINER + """
arguments = TrainingArguments(save_strategy="steps", save_steps=2, **settings)
first = Trainer(small, arguments, train_dataset=Texts())
first.args.max_steps = 2
first.train()
arguments = TrainingArguments(**settings)
trainer = Trainer(small, arguments, train_dataset=Texts(), callbacks=[GpufleetCallback()])
trainer.train(resume_from_checkpoint=True)
""")
            self.assertEqual(agent.endings[0][0], 0, agent.endings)
        self.assertEqual([step["step"] for step in said["steps"]], [3, 4])


if __name__ == "__main__":
    unittest.main()
