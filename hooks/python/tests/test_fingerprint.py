"""What a run is made of: versions, settings, precision, how its model is wrapped and compiled."""

import os
import tempfile
import unittest
from unittest import mock

import torch

from gpufleet import _fingerprint
from support import run_of_test


class Fingerprint(unittest.TestCase):
    def test_no_variable_outside_the_list_is_told(self):
        secrets = {"HF_TOKEN": "hf_secret", "NCCL_SECRET_KEY": "hush", "WANDB_API_KEY": "k", "NCCL_ALGO": "Ring"}
        with mock.patch.dict(os.environ, secrets):
            found = _fingerprint.of_process()
        self.assertEqual(found["NCCL_ALGO"], "Ring")
        for name, value in secrets.items():
            if name != "NCCL_ALGO":
                self.assertNotIn(name, found)
                self.assertNotIn(value, found.values())

    def test_a_compiled_model_says_what_its_mode_stands_for(self):
        settings = {"max_autotune": True, "triton.cudagraphs": False, "coordinate_descent_tuning": True, "debug": True}
        told = {"compiled": "True", "compiled.max_autotune": "True", "compiled.triton.cudagraphs": "False",
                "compiled.coordinate_descent_tuning": "True"}  # fmt: skip

        class OptimizedModule(torch.nn.Module):
            def __init__(self, model):
                super().__init__()
                self._orig_mod = model

            def get_compiler_config(self):
                return settings

        plain, in_place, other = (torch.nn.Linear(2, 2) for _ in range(3))
        wrapped = OptimizedModule(torch.nn.Linear(2, 2))
        in_place._compiled_call_impl = mock.Mock(**{"get_compiler_config.return_value": settings})
        # Another compiler than torch's own has no such settings.
        other._compiled_call_impl = lambda *_arguments: None
        for model, expected in [(plain, {}), (wrapped, told), (in_place, told), (other, {"compiled": "True"})]:
            found = _fingerprint.of_model(model)
            self.assertEqual({key: text for key, text in found.items() if key.startswith("compiled")}, expected)
            self.assertEqual(found["model"], "Linear")

    def test_breaks_of_the_graph_and_the_type_of_autocast_are_told_where_there_are_any(self):
        for counters, expected in [({}, None), ({"graph_break": {"print": 2, "item": 1}}, "3")]:
            with mock.patch.dict("sys.modules", {"torch._dynamo.utils": mock.Mock(counters=counters)}):
                self.assertEqual(_fingerprint.of_torch().get("graph_breaks"), expected)
        self.assertEqual(_fingerprint.of_autocast(), {})
        with torch.autocast("cpu", dtype=torch.bfloat16):
            self.assertEqual(_fingerprint.of_autocast(), {"autocast": "bfloat16"})
        # As the GPU's is; this machine has none to switch it on for.
        older = {"is_autocast_enabled": lambda: True, "get_autocast_gpu_dtype": lambda: torch.float16}
        newer = {"is_autocast_enabled": lambda device: device == "cuda", "get_autocast_dtype": lambda _: torch.float16}
        names = newer if hasattr(torch, "get_autocast_dtype") else older
        with mock.patch.multiple(torch, **names):
            self.assertEqual(_fingerprint.of_autocast(), {"autocast": "float16"})

    def test_whether_anything_was_compiled_is_told_once_it_trains(self):
        for counters, expected in [({}, "False"), ({"stats": {"unique_graphs": 2}}, "True")]:
            with mock.patch.dict("sys.modules", {"torch._dynamo.utils": mock.Mock(counters=counters)}):
                self.assertEqual(_fingerprint.of_torch(trains=True)["compiles"], expected)
                self.assertNotIn("compiles", _fingerprint.of_torch(), "it may compile yet")

    def test_accelerate_and_megatron_tell_how_many_batches_a_step_has(self):
        def made(state):
            return mock.Mock(_shared_state={"is": "made"}, return_value=state)

        accelerate = mock.Mock(
            AcceleratorState=made(mock.Mock(mixed_precision="no")), GradientState=made(mock.Mock(num_steps=4))
        )
        batches = mock.Mock(**{"get_num_microbatches.return_value": 16})
        arguments = mock.Mock(recompute_granularity="full", virtual_pipeline_model_parallel_size=None)
        known = mock.Mock(**{"get_args.return_value": arguments})
        modules = {
            "accelerate.state": accelerate,
            "megatron.core.num_microbatches_calculator": batches,
            "megatron.training.global_vars": known,
        }
        self.assertEqual(_fingerprint.of_megatron(), {})
        with mock.patch.dict("sys.modules", modules):
            self.assertEqual(
                _fingerprint.of_accelerate(),
                {"accelerate.precision": "no", "accelerate.gradient_accumulation_steps": "4"},
            )
            self.assertEqual(
                _fingerprint.of_megatron(), {"megatron.micro_batches": "16", "megatron.recompute": "full"}
            )
            arguments.virtual_pipeline_model_parallel_size = 4
            self.assertEqual(_fingerprint.of_megatron()["megatron.virtual_stages"], "4")
            # Arguments that nobody has parsed yet.
            known.get_args.side_effect = AssertionError("args is not initialized.")
            self.assertEqual(_fingerprint.of_megatron(), {"megatron.micro_batches": "16"})

    def test_cpus_are_those_of_affinity_and_quota_with_how_many_ranks_share_them(self):
        alone, eight = {}, {"RANK": "3", "WORLD_SIZE": "16", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8"}
        torchrun = {**eight, "TORCHELASTIC_RUN_ID": "1"}
        inside, job = "0::/\n", "0::/job_1/step_0\n"
        of_v1 = "5:cpuset:/kubepods/pod1\n4:cpu,cpuacct:/kubepods/pod1\n1:name=systemd:/kubepods\n0::/system\n"
        quota_v1 = {"cpu/cpu.cfs_quota_us": "250000", "cpu/cpu.cfs_period_us": "100000"}
        for groups, files, bound_to, environ, expected in [
            (inside, {}, 64, alone, {"cpus": "64"}),
            (inside, {"cpu.max": "max 100000"}, 64, torchrun, {"cpus": "64", "cpus.ranks": "8"}),
            # A part of a CPU is one, and three and a half are four.
            (inside, {"cpu.max": "350000 100000"}, 64, torchrun, {"cpus": "4", "cpus.ranks": "8"}),
            (inside, {"cpu.max": "20000 100000"}, 64, alone, {"cpus": "1"}),
            # What is around it counts too, and what is not seen from here does not.
            (job, {"job_1/cpu.max": "800000 100000", "job_1/step_0/cpu.max": "max 100000"}, 64, alone, {"cpus": "8"}),
            ("0::/elsewhere/pod1\n", {"cpu.max": "400000 100000"}, 64, alone, {"cpus": "4"}),
            # It is bound to CPUs of its own, beside those of the other ranks in the group.
            (job, {"job_1/cpuset.cpus.effective": "0-31,64-95"}, 8, eight, {"cpus": "8", "cpus.ranks": "1"}),
            (job, {"job_1/cpuset.cpus.effective": "0-31,64-95"}, 64, eight, {"cpus": "64", "cpus.ranks": "8"}),
            (job, {"job_1/cpuset.cpus.effective": "0-31,64-95"}, 8, torchrun, {"cpus": "8", "cpus.ranks": "8"}),
            (
                job,
                {"job_1/cpuset.cpus.effective": "0-63", "job_1/cpu.max": "1600000 100000"},
                8,
                eight,
                {"cpus": "8", "cpus.ranks": "8"},
            ),
            (
                of_v1,
                {**quota_v1, "cpuset/cpuset.effective_cpus": "0-63"},
                64,
                torchrun,
                {"cpus": "3", "cpus.ranks": "8"},
            ),
            (of_v1, {**quota_v1, "cpu/cpu.cfs_quota_us": "-1"}, 64, alone, {"cpus": "64"}),
            ("", {}, 64, alone, {"cpus": "64"}),
        ]:  # fmt: skip
            with tempfile.TemporaryDirectory() as folder:
                root, told = os.path.join(folder, "cgroup"), os.path.join(folder, "told")
                os.mkdir(root)
                for path, text in {**files, "../told": groups}.items():
                    path = os.path.join(root, path)
                    os.makedirs(os.path.dirname(path), exist_ok=True)
                    with open(path, "w", encoding="utf-8") as file:
                        file.write(text)
                affinity = mock.patch.object(os, "sched_getaffinity", lambda _: set(range(bound_to)))
                count = mock.patch.object(os, "cpu_count", lambda: 64)
                with affinity, count, mock.patch.dict(os.environ, environ, clear=True):
                    self.assertEqual(_fingerprint.of_cpus(root, told), expected, (groups, files, environ))

    def test_a_machine_that_tells_no_affinity_tells_no_cpus(self):
        with mock.patch.object(os, "sched_getaffinity", side_effect=AttributeError):
            self.assertEqual(_fingerprint.of_cpus(), {})

    def test_what_ddp_reduces_at_once_is_told(self):
        class DistributedDataParallel(torch.nn.Module):
            def __init__(self, model):
                super().__init__()
                self.module = model
                self.bucket_bytes_cap = 25 * 2**20

        found = _fingerprint.of_model(DistributedDataParallel(torch.nn.Linear(2, 2)))
        self.assertEqual(found["ddp.bucket_cap_mb"], "25")

    def test_a_watched_model_tells_the_type_of_autocast_whatever_it_is_given(self):
        run = run_of_test()
        model = torch.nn.Linear(2, 2)
        run.watch(model, tokens=False)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            model(torch.ones(1, 2))
        self.assertEqual(run.snapshot()["fingerprint"]["autocast"], "bfloat16")

    def test_the_drivers_version_is_that_of_the_kernels_module(self):
        texts = {
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\nGCC version:  x\n":
                "535.104.05",
            "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build  (dvs-builder)\n":
                "580.95.05",
            "something else\n": "",
        }  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "version")
            self.assertEqual(_fingerprint._driver(path), "", "no driver is here")
            for text, expected in texts.items():
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
                self.assertEqual(_fingerprint._driver(path), expected)

    def test_the_versions_of_nccl_and_cudnn_are_told_where_cuda_is_in_use(self):
        names = ("gpu", "nccl", "cudnn")
        told = {key: text for key, text in _fingerprint.of_torch().items() if key in names}
        self.assertEqual(told, {}, "to ask for them would load CUDA")
        in_use = mock.patch.multiple(
            torch.cuda, is_initialized=lambda: True, get_device_name=lambda: "NVIDIA H100 80GB HBM3"
        )
        # torch gives NCCL's as numbers.
        nccl = mock.patch.object(torch.cuda.nccl, "version", lambda: (2, 28, 9))
        with in_use, nccl, mock.patch.object(torch.backends.cudnn, "version", lambda: 91002):
            found = _fingerprint.of_torch()
        self.assertEqual([found[name] for name in names], ["NVIDIA H100 80GB HBM3", "2.28.9", "91002"])

    def test_a_model_says_how_it_is_wrapped_and_sharded_and_what_it_computes_again(self):
        class FullyShardedDataParallel(torch.nn.Module):
            def __init__(self, model):
                super().__init__()
                self.module = model
                self.sharding_strategy = mock.Mock()
                self.sharding_strategy.name = "HYBRID_SHARD"

        model = torch.nn.Linear(2, 2).to(torch.bfloat16)
        model.is_gradient_checkpointing = True
        model.config = mock.Mock(_attn_implementation="sdpa")
        expected = {"model": "Linear", "wrappers": "FullyShardedDataParallel", "fsdp.strategy": "HYBRID_SHARD",
                    "parameter_types": "bfloat16", "gradient_checkpointing": "True", "attention": "sdpa"}  # fmt: skip
        self.assertEqual(_fingerprint.of_model(FullyShardedDataParallel(model)), expected)
        # What it has wrapped it marks, as `fully_shard` does what it shards.
        model._is_fsdp_managed_module = True
        self.assertEqual(_fingerprint.of_model(FullyShardedDataParallel(model)), expected)

    def test_on_how_many_gpus_a_process_computes_is_told_where_they_are_several(self):
        class DataParallel(torch.nn.Module):
            def __init__(self, model, gpus):
                super().__init__()
                self.module, self.device_ids = model, list(range(gpus))

        for gpus, expected in ((0, None), (1, None), (4, "4")):
            found = _fingerprint.of_model(DataParallel(torch.nn.Linear(2, 2), gpus))
            self.assertEqual(found.get("gpus_per_process"), expected)

    def test_what_fully_shard_made_of_a_model_keeps_the_models_name(self):
        class FSDPLinear(torch.nn.Linear):
            pass

        for model in (FSDPLinear(2, 2), torch.nn.Linear(2, 2)):
            model._is_fsdp_managed_module = True
            found = _fingerprint.of_model(torch.nn.parallel.DataParallel(model))
            self.assertEqual((found["model"], found["wrappers"]), ("Linear", "DataParallel fully_shard"))

    def test_blocks_that_are_computed_again_are_counted(self):
        class CheckpointWrapper(torch.nn.Linear):
            pass

        model = torch.nn.Sequential(CheckpointWrapper(2, 2), torch.nn.Linear(2, 2), CheckpointWrapper(2, 2))
        self.assertEqual(_fingerprint.of_model(model)["checkpointed_modules"], "2")
        self.assertNotIn("checkpointed_modules", _fingerprint.of_model(torch.nn.Linear(2, 2)))

    def test_it_is_written_again_only_when_something_changed(self):
        run = run_of_test()
        written = []
        recorder = mock.Mock(wraps=run._recorder)
        recorder.fingerprint = written.append
        run._recorder = recorder
        run.fingerprint(precision="bf16")
        run.fingerprint(precision="bf16")
        run.fingerprint(precision="fp8", note=1)
        self.assertEqual(len(written), 2)
        self.assertEqual(written[-1]["precision"], "fp8")

    def test_a_loader_says_on_what_kind_of_file_system_its_data_lies(self):
        class Files:
            def __init__(self, root):
                self.root = root

        class Named(Files):
            __module__ = "datasets.of_its_own"

        class Inside:
            def __init__(self, dataset):
                self.dataset = dataset

        with tempfile.TemporaryDirectory() as folder:
            folder = os.path.realpath(folder)
            mounts = os.path.join(folder, "mountinfo")
            shared = os.path.join(folder, "a b")
            os.mkdir(shared)
            escaped = shared.replace(" ", "\\040")
            with open(mounts, "w", encoding="utf-8") as file:
                file.write("1 0 8:1 / / rw shared:1 - ext4 /dev/sda rw\n")
                file.write(f"2 1 0:50 / {escaped} rw - xfs /dev/sdb rw\n")
                file.write(f"3 1 0:51 / {escaped} rw shared:2 - nfs4 filer:/data rw\n")
            for dataset, expected in [
                (Files(shared), "nfs4"),
                (Inside(Inside(Files(shared))), "nfs4"),
                (Files(folder), "ext4"),
                (Files(os.path.join(folder, "is not there")), None),
                (Files(3), None),
                (Named(shared), "nfs4"),
                (Inside(None), None),
            ]:
                place = _fingerprint._place(dataset)
                self.assertEqual(_fingerprint._filesystem(place, mounts), expected)
            told = _fingerprint.of_loader(mock.Mock(dataset=Files(folder), batch_size=4))
        self.assertTrue(told["loader.storage"])
        # Numbers alone are on no file system.
        told = _fingerprint.of_loader(torch.utils.data.DataLoader(range(8)))
        self.assertNotIn("loader.storage", told)
        self.assertEqual(told["loader.batch_size"], "1")


if __name__ == "__main__":
    unittest.main()
