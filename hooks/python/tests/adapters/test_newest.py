"""What only a new torch has: torch.compile, fully_shard, and FSDP without a GPU."""

import unittest

import torch

from gpufleet import _fingerprint
from gpufleet._run import Run
from support import Agent, free_port


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

    def test_the_type_of_what_is_compiled_is_that_of_autocast_around_it_or_left_open(self):
        for is_on, expected in [(True, "bf16"), (False, "")]:
            model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
            compiled = torch.compile(model, backend="eager", fullgraph=True)
            run = Run("/nowhere/hooks.sock")
            run.watch(compiled)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_on):
                compiled(torch.ones(2, 4)).float().sum().backward()
            said = run.snapshot()["plan"]
            self.assertEqual((said or {}).get("dtype", ""), expected)
            self.assertEqual(len(model[0]._forward_hooks), 0)

    def test_what_fully_shard_made_of_a_model_is_told_with_the_models_name(self):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        self.addCleanup(torch.distributed.destroy_process_group)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
        in_bf16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)), mp_policy=in_bf16)
        found = _fingerprint.of_model(model)
        self.assertEqual((found["model"], found["wrappers"]), ("Sequential", "fully_shard"))
        run = Run("/nowhere/hooks.sock")
        run.watch(model)
        model(torch.ones(2, 4))
        self.assertEqual(run.snapshot()["plan"]["dtype"], "bf16")

    def test_flops_are_of_the_whole_model_where_the_first_fsdp_left_a_rank_a_part(self):
        script = """
            import types
            from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
            torch.distributed.init_process_group("gloo")
            for keeps in (False, True):
                model = torch.nn.Sequential(torch.nn.Embedding(50, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 50))
                model.config = types.SimpleNamespace(num_hidden_layers=1, num_attention_heads=2, hidden_size=8)
                model[1] = FSDP(model[1], use_orig_params=keeps, device_id=torch.device("cpu"))
                model = FSDP(model, use_orig_params=keeps, device_id=torch.device("cpu"))
                held = sum(it.numel() for it in model.parameters())
                run = gpufleet.watch(model)
                run._plan.clear()
                model(torch.zeros(4, 6, dtype=torch.long)).sum().backward()
                print(held < 600, run._plan.get("flops_per_token"), run._plan.get("parameters"))
        """
        port = str(free_port())
        shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        with Agent() as agent:
            agent.run(*((script, {"RANK": str(rank), "LOCAL_RANK": str(rank), **shared}) for rank in range(2)))
            endings = agent.endings
        multiplied = 8 * 8 + 8 + 8 * 50 + 50
        expected = f"True {6.0 * multiplied + 12 * 8 * 6} {50 * 8 + multiplied}\n"
        for code, said, standard_error in endings:
            self.assertEqual((code, said), (0, 2 * expected), standard_error)


if __name__ == "__main__":
    unittest.main()
