"""Real training loops in processes of their own, read as the agent reads them."""

import unittest

from support import Agent, free_port


class Training(unittest.TestCase):
    def test_three_lines_record_steps_tokens_waits_and_the_end(self):
        with Agent() as agent:
            said = agent.run_one("""
                run = gpufleet.init(total_steps=4, tags={"experiment": "a"}, deadline="2026-12-01T00:00:00Z",
                                    peak_flops=6e10)
                for (ids,) in run.data(loader()):
                    run.step(tokens=ids.numel(), samples=len(ids), loss=learn(ids))
            """)
            self.assertEqual(agent.endings[0][0], 0, agent.endings)
            # Nothing of ours failed on the way.
            self.assertEqual(agent.endings[0][2], "")
        self.assertEqual((said["steps_total"], said["tokens_total"], said["samples_total"]), (4, 96, 16))
        self.assertEqual([step["step"] for step in said["steps"]], [1, 2, 3, 4])
        self.assertEqual(said["phases"]["data_wait"][1], 5, "four batches and the end of the data")
        self.assertEqual(said["phases"]["startup"][1], 1)
        for step in said["steps"]:
            self.assertGreater(step["data_wait_ns"], 0)
            self.assertEqual(step["busy_ns"] + step["data_wait_ns"], step["wall_ns"])
        self.assertEqual(said["learning"]["loss"][1], 4)
        self.assertEqual(said["plan"]["total_steps"], 4)
        self.assertEqual(said["plan"]["deadline_at"], 1_796_083_200_000_000_000)
        self.assertEqual(said["tags"], {"experiment": "a"})
        self.assertEqual(said["fingerprint"]["peak_flops_per_second"], "60000000000.0")
        self.assertEqual(said["end"], ("finished", -1, 4), "what it returns it does not know")
        self.assertEqual(said["identity"]["rank"], 0, "the only process of its run")
        self.assertEqual((said["exception"], said["refused"], said["now"]), (None, [], None))

    def test_watching_records_the_same_without_a_change_in_the_loop(self):
        with Agent() as agent:
            said = agent.run_one("""
                data = loader(num_workers=1)
                gpufleet.watch(model, optimizer, data)
                scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
                for (ids,) in data:
                    learn(ids)
                    scheduler.step()
                with torch.no_grad():
                    model(ids)
            """)
            self.assertEqual(agent.endings[0][0], 0, agent.endings)
            self.assertNotIn("Detected call of `lr_scheduler", agent.endings[0][2])
        self.assertEqual((said["steps_total"], said["tokens_total"], said["samples_total"]), (4, 96, 16))
        counts = {name: count for name, (_, count) in said["phases"].items()}
        self.assertEqual(
            counts, {"data_wait": 5, "forward": 4, "backward": 4, "optimizer": 4, "startup": 1}
        )
        inside = sum(said["phases"][name][0] for name in ("forward", "backward", "optimizer"))
        self.assertLess(inside, said["busy_ns"])
        self.assertEqual(said["fingerprint"]["loader.num_workers"], "1")
        self.assertEqual(said["fingerprint"]["optimizer"], "SGD")

    def test_two_ranks_say_who_they_are_and_a_slow_one_shows(self):
        script = """
            import os
            torch.distributed.init_process_group("gloo")
            parallel = torch.nn.parallel.DistributedDataParallel(model)
            rank = torch.distributed.get_rank()
            run = gpufleet.init(mesh={"dp": (rank, 2)})
            for (ids,) in run.data(loader()):
                if rank == 1:
                    time.sleep(0.1)
                run.step(tokens=ids.numel(), loss=learn(ids, parallel))
        """
        port = str(free_port())
        ranks = [
            (script, {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2",
                      "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "pretrain",
                      "TORCHELASTIC_RESTART_COUNT": "3"})
            for rank in range(2)
        ]  # fmt: skip
        with Agent() as agent:
            said = agent.run(*ranks)
            self.assertEqual([ending[0] for ending in agent.endings], [0, 0], agent.endings)
        self.assertEqual(len(said), 2)
        for rank, one in enumerate(said):
            identity = one["identity"]
            self.assertEqual((identity["rank"], identity["world"], identity["local_rank"]), (rank, 2, rank))
            self.assertEqual((identity["launcher"], identity["attempt"]), ("torchrun", 3))
            self.assertEqual((identity["job_uid"], identity["dp"]), ("pretrain", (rank, 2)))
            self.assertEqual((one["steps_total"], one["end"][0]), (4, "finished"))
        self.assertGreaterEqual(said[1]["wall_ns"], 4 * 100_000_000)

    def test_an_exception_is_kept_with_its_rank_step_and_traceback(self):
        with Agent() as agent:
            said = agent.run_one("""
                run = gpufleet.init(rank=3, world=8)
                def broken():
                    raise RuntimeError("CUDA error: device-side assert\\nmore lines")
                for (ids,) in run.data(loader()):
                    run.step()
                broken()
            """)
            code, _, standard_error = agent.endings[0]
        kind, message, traceback, rank, step = said["exception"]
        self.assertEqual((kind, message), ("RuntimeError", "CUDA error: device-side assert"))
        self.assertIn("in broken", traceback)
        self.assertEqual((rank, step, said["end"]), (3, 4, ("exception", 1, 4)))
        self.assertEqual(code, 1)
        self.assertIn("Traceback", standard_error, "Python's own message is still printed")

    def test_a_threads_exception_is_kept_and_is_not_the_end(self):
        with Agent() as agent:
            said = agent.run_one("""
                import threading
                gpufleet.init()
                thread = threading.Thread(target=lambda: 1 / 0)
                thread.start()
                thread.join()
                gpufleet.current().step()
            """)
        self.assertEqual(said["exception"][0], "ZeroDivisionError")
        self.assertEqual(said["end"], ("finished", -1, 1))

    def test_an_exit_status_is_kept(self):
        with Agent() as agent:
            said = agent.run_one("gpufleet.init()\nsys.exit(7)")
            self.assertEqual(agent.endings[0][0], 7)
        self.assertEqual(said["end"], ("stopped", 7, 0))

    def test_of_an_exit_that_passes_by_every_hook_no_status_is_made_up(self):
        with Agent() as agent:
            said = agent.run_one("gpufleet.init()\nraise SystemExit(3)")
            self.assertEqual(agent.endings[0][0], 3)
        self.assertEqual(said["end"], ("finished", -1, 0), "the agent asks the kernel")

    def test_what_a_killed_process_said_can_still_be_read(self):
        with Agent() as agent:
            process = agent.start("""
                run = gpufleet.init()
                run.step(tokens=10)
                with run.phase("communication"):
                    print("inside", flush=True)
                    time.sleep(1000)
            """)
            agent.turn_until(lambda: agent.snapshots() and agent.snapshots()[0]["now"] is not None
                             and agent.snapshots()[0]["now"][0] == "communication")  # fmt: skip
            process.kill()
            process.communicate()
            agent.turn_until(lambda: not agent.snapshots()[0]["is_there"])
            said = agent.snapshots()[0]
        self.assertEqual((said["steps_total"], said["tokens_total"], said["end"]), (1, 10, None))
        self.assertEqual(said["now"][0], "communication")

    def test_a_loaders_workers_leave_the_regions_of_their_parent_alone(self):
        with Agent() as agent:
            said = agent.run_one("""
                run = gpufleet.init()
                class Meddling(torch.utils.data.Dataset):
                    def __len__(self):
                        return 8
                    def __getitem__(self, index):
                        run.step(tokens=1000)
                        gpufleet.init().step(tokens=1000)
                        with run.evaluation():
                            pass
                        return torch.tensor(index)
                for _ in run.data(DataLoader(Meddling(), batch_size=4, num_workers=2)):
                    run.step(tokens=1)
            """)
            self.assertEqual(agent.endings[0][0], 0, agent.endings)
        self.assertEqual((said["steps_total"], said["tokens_total"]), (2, 2))
        self.assertEqual((said["evaluation"]["count"] if said["evaluation"] else 0, said["end"][0]), (0, "finished"))


if __name__ == "__main__":
    unittest.main()
