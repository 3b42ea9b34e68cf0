"""A run in this process: every call with right and with wrong arguments."""

import copy
import os
import pickle
import unittest
from types import SimpleNamespace
from unittest import mock

import torch

import gpufleet
from gpufleet import _identity, _mesh
from gpufleet._ending import Ending, exit_status
from gpufleet._run import Run
from gpufleet._timing import HostClock, NoClock, clock_for
from support import run_of_test


class Recording(unittest.TestCase):
    def test_an_evaluation_takes_its_loader_with_it(self):
        run = run_of_test()
        for _ in run.data([1]):
            with run.evaluation() as evaluation:
                for _ in run.data([1, 2, 3]):
                    pass
                evaluation.loss = 2.5
            run.step()
        said = run.snapshot()
        self.assertEqual(said["phases"]["data_wait"][1], 2, "the training loader's batch and its end")
        self.assertEqual(said["evaluation"]["count"], 1)
        self.assertEqual(said["steps"][0]["evaluation_ns"], said["evaluation_ns"])
        self.assertLessEqual(said["evaluation"]["total_ns"], said["wall_ns"])
        self.assertEqual(said["learning"]["evaluation_loss"], (2.5, 0))

    def test_checkpoints_are_counted_by_how_they_ended(self):
        run = run_of_test()
        with run.restoring() as restored:
            restored.step = 500
        run.step()
        with run.checkpoint():
            pass
        with self.assertRaises(OSError), run.checkpoint():
            raise OSError("the disk is full")
        run.checkpoint_saved(step=501, seconds=2.0)
        said = run.snapshot()
        self.assertEqual(said["last_step"], 501)
        self.assertEqual((said["checkpoint_restored"]["count"], said["checkpoint_restored"]["last_step"]), (1, 500))
        saved = said["checkpoint_saved"]
        self.assertEqual((saved["count"], saved["failures"], saved["last_step"]), (2, 1, 501))
        self.assertEqual(saved["last_ns"], 2_000_000_000)

    def test_micro_batches_add_up_to_their_step(self):
        run = run_of_test()
        for _ in range(3):
            run.add(tokens=10, samples=2)
        run.step(tokens=1)
        run.step(tokens=5, flops=1e12)
        steps = run.snapshot()["steps"]
        self.assertEqual([(step["tokens"], step["samples"]) for step in steps], [(31, 6), (5, 0)])
        self.assertEqual(steps[1]["model_flops"], 1e12)

    def test_values_are_kept_and_those_that_are_no_numbers_counted(self):
        run = run_of_test()
        run.step(loss=torch.tensor(float("nan")), gradient_norm=1.5, learning_rate=1e-4)
        run.step(loss=torch.tensor(0.25, dtype=torch.bfloat16, requires_grad=True))
        run.scaler_skipped()
        learning = run.snapshot()["learning"]
        self.assertEqual((learning["loss"], learning["gradient_norm"]), ((0.25, 2), (1.5, 1)))
        self.assertEqual((learning["non_finite_losses"], learning["scaler_skips"]), (1, 1))

    def test_an_array_of_jax_is_read_when_it_is_there(self):
        class Array:
            """An array that is computed when the test says so."""

            is_there = False

            def is_ready(self):
                return self.is_there

            def __float__(self):
                assert self.is_there, "looking at it now would wait"
                return 0.75

        run, array = run_of_test(), Array()
        run.step(loss=array)
        run.log(gradient_norm=1.0)
        self.assertIsNone(run.snapshot()["learning"]["loss"])
        array.is_there = True
        run.finish()
        self.assertEqual(run.snapshot()["learning"]["loss"], (0.75, 1))

    def test_the_loader_stays_what_it_was(self):
        run = run_of_test()
        loader = torch.utils.data.DataLoader(list(range(10)), batch_size=2)
        data = run.data(loader, tokens=lambda batch: int(batch.sum()))
        self.assertEqual((len(data), data.batch_size, data.dataset), (5, 2, loader.dataset))
        self.assertEqual([batch.tolist() for batch in data], [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]])
        run.step()
        self.assertEqual(run.snapshot()["tokens_total"], 45)

    def test_a_loader_that_iterates_in_its_own_way_is_waited_for_in_measured_time(self):
        class Own(torch.utils.data.DataLoader):
            def __iter__(self):
                yield from self.dataset

        class Through(torch.utils.data.DataLoader):
            def __iter__(self):
                return super().__iter__()

        for kind in (torch.utils.data.DataLoader, Own, Through):
            run = run_of_test()
            watched, other = kind([1, 2]), kind([1, 2])
            run.watch(loader=watched)
            self.assertEqual([int(it) for it in watched], [1, 2])
            self.assertEqual([int(it) for it in other], [1, 2])
            self.assertEqual(run.snapshot()["phases"]["data_wait"][1], 3, f"{kind}: two batches and the end")

    def test_what_is_iterated_over_says_how_many_batches_as_the_loaders_own_does(self):
        run = run_of_test()
        batches = iter(run.data(torch.utils.data.DataLoader(list(range(10)), batch_size=2)))
        self.assertEqual((len(batches), bool(batches)), (5, True))
        endless = iter(run.data(it for it in [1]))
        with self.assertRaises(TypeError):
            len(endless)
        self.assertTrue(endless)
        self.assertEqual(list(endless), [1])

    def test_what_the_loader_raises_reaches_the_script(self):
        def broken():
            yield 1
            raise ValueError("a broken file")

        run = run_of_test()
        with self.assertRaisesRegex(ValueError, "a broken file"):
            list(run.data(broken()))
        self.assertFalse(run._recorder.is_stalled())

    def test_a_scalers_skip_is_seen_and_its_step_is_not_one(self):
        class Scaler:
            def step(self, optimizer, skip):
                if not skip:
                    optimizer.step()

        parameter = torch.nn.Parameter(torch.ones(1))
        optimizer, scaler = torch.optim.SGD([parameter], lr=0.1), Scaler()
        run = run_of_test().watch(optimizer=optimizer, scaler=scaler)
        for skip in (False, True, False):
            scaler.step(optimizer, skip)
        said = run.snapshot()
        self.assertEqual((said["steps_total"], said["learning"]["scaler_skips"]), (2, 1))

    def test_a_script_that_says_its_steps_goes_before_the_optimizer(self):
        parameter = torch.nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        run = run_of_test().watch(optimizer=optimizer)
        for _ in range(3):
            optimizer.step()
            run.step(tokens=10)
        self.assertEqual(run.snapshot()["steps_total"], 3)


class Hooks(unittest.TestCase):
    def test_a_watched_model_can_be_copied_and_saved(self):
        model = torch.nn.Linear(2, 2)
        run = run_of_test().watch(model)
        copied = copy.deepcopy(model)
        loaded = pickle.loads(pickle.dumps(model))
        loaded(torch.ones(1, 2)).sum().backward()
        self.assertNotIn("forward", run.snapshot()["phases"], "a loaded model is no longer watched")
        copied(torch.ones(1, 2)).sum().backward()
        self.assertEqual(run.snapshot()["phases"]["forward"][1], 1)

    def test_a_forward_that_raises_leaves_nothing_behind(self):
        model = torch.nn.Linear(2, 2)
        run = run_of_test().watch(model)
        for _ in range(3):
            with self.assertRaises(RuntimeError):
                model(torch.ones(1, 3))
        model(torch.ones(1, 2)).sum().backward()
        phases = run.snapshot()["phases"]
        self.assertEqual((phases["forward"][1], phases["backward"][1]), (1, 1))
        self.assertEqual(run._watch._open, {})

    def test_what_is_evaluated_is_no_forward_pass(self):
        model = torch.nn.Linear(2, 2)
        run = run_of_test().watch(model)
        with run.evaluation():
            model(torch.ones(1, 2))
        with torch.no_grad():
            model(torch.ones(1, 2))
        self.assertNotIn("forward", run.snapshot()["phases"])

    def test_the_gpus_clock_counts_what_the_gpu_is_through_with(self):
        class Event:
            """A CUDA event that is through when the test says so."""

            through = set()

            def record(self, stream):
                assert stream == "the stream of GPU 3", "the model is there, whichever is CUDA's current one"

            def query(self):
                assert not cuda.is_capturing, "asked now, CUDA ends the capture"
                return self in self.through

            def elapsed_time(self, _end):
                return 2.5

        class Cuda:
            is_capturing = False
            made = []

            def is_current_stream_capturing(self):
                return self.is_capturing

            def current_stream(self, device):
                return f"the stream of GPU {device}"

            def Event(self, enable_timing):
                assert enable_timing
                self.made.append(Event())
                return self.made[-1]

        run = run_of_test()
        cuda = Cuda()
        parameters = [SimpleNamespace(device=torch.device(it)) for it in ("cuda:3", "cpu", "cuda:3")]
        clock = clock_for(parameters, run._recorder, mock.Mock(cuda=cuda))
        for _ in range(3):
            clock.end(clock.begin("forward"))
        clock.drain()
        self.assertEqual(run.snapshot()["phases"], {}, "nothing is waited for")
        Event.through.update(cuda.made[:4])
        clock.drain()
        self.assertEqual(run.snapshot()["phases"]["forward"], (5_000_000, 2))
        self.assertEqual(run.snapshot()["now"], None)
        clock.end(clock.begin("backward"))
        self.assertEqual(len(cuda.made), 6, "events are used again")
        cuda.is_capturing = True
        clock.end(clock.begin("optimizer"))
        self.assertEqual(len(clock._on_the_way), 2, "nothing goes into a graph that is captured")
        clock.drain()
        cuda.is_capturing = False
        begun = clock.begin("forward")
        cuda.is_capturing = True
        clock.end(begun)
        cuda.is_capturing = False
        self.assertIn(begun[1], clock._free, "its events are not lost to a capture that began meanwhile")


    def test_phases_on_several_gpus_are_not_timed_by_the_clock_of_one(self):
        for devices, expected in (((), HostClock), (("cpu",), HostClock), (("cuda:0", "cuda:1"), NoClock), (("meta",), NoClock)):
            parameters = (SimpleNamespace(device=torch.device(it)) for it in devices)
            self.assertIs(type(clock_for(parameters, run_of_test()._recorder, torch)), expected, devices)

    def test_what_is_on_its_way_is_not_asked_for_while_a_graph_is_captured(self):
        asked = []
        event = mock.Mock(**{"query.side_effect": lambda: asked.append("reading") or True})
        run = run_of_test()
        run.step()
        run._readings._slots, run._readings._events = torch.tensor([0.5]), [event]
        run._readings._on_the_way.append(("loss", 1, 0))
        run._watch = mock.Mock(**{"drain.side_effect": lambda: asked.append("phases")})
        capturing = {"is_initialized": lambda: True, "is_current_stream_capturing": lambda: True}
        with mock.patch.multiple(torch.cuda, **capturing):
            run._now_and_then()
            run.finish()
        self.assertEqual(asked, [])
        run._now_and_then()
        self.assertEqual(asked, ["reading", "phases"])
        self.assertEqual(run.snapshot()["learning"]["loss"], (0.5, 1))


class FailingOpen(unittest.TestCase):
    def test_no_wrong_argument_raises(self):
        run = run_of_test()
        run.step(tokens="many", samples=object())
        run.step(tokens=-5, number=2**70)
        run.step(loss="low", nonsense=1)
        run.add(tokens=None)
        run.log(loss=torch.ones(3))
        run.plan(deadline="soon", total_steps="all")
        run.flops(per_step="much")
        run.flops_of_shape(object(), 128)
        run.identify(mesh={"dp": "left"}, rank="first")
        run.tags(a=object())
        run.watch(model=1, optimizer=2, loader=3, scaler=4)
        run.resume(None)
        run.checkpoint_saved(step="last")
        with run.phase(None), run.phase("made up"):
            pass
        self.assertEqual(run.data(None).__class__.__name__, "Data")
        run.step(tokens=7)
        self.assertEqual(run.snapshot()["steps"][-1]["tokens"], 7, "and goes on recording")

    def test_a_run_that_is_off_takes_every_call(self):
        with mock.patch.dict(os.environ, GPUFLEET_DISABLE="1"):
            run = Run()
        self.assertEqual((run.state, run.snapshot()), ("off", {}))
        self.assertEqual(list(run.data([1, 2])), [1, 2])
        with run.evaluation() as evaluation, run.checkpoint(), run.restoring(), run.phase("other"):
            evaluation.loss = 1.0
        run.watch(torch.nn.Linear(1, 1))
        run.step(tokens=1, loss=1.0)
        run.finish()

    def test_what_a_script_does_wrong_stays_its_own(self):
        run = run_of_test()
        with self.assertRaises(KeyError), run.phase("other"):
            raise KeyError("of the script")
        with self.assertRaises(TypeError):
            iter(run.data(None))

    def test_a_probe_without_a_gpu_says_so_after_the_first_boundary(self):
        run = run_of_test()
        probe = run.probe(every=2)
        self.assertIs(run.probe(every=2), probe)
        run.step()
        self.assertEqual((probe.verdict, probe.reason), ("none", ""))
        run.step()
        self.assertEqual((probe.verdict, probe.reason), ("could not measure", "PyTorch computes on no GPU in this process"))
        self.assertEqual(run.snapshot()["probe"][0], "could_not_run")


class Identity(unittest.TestCase):
    def check(self, environment, **expected):
        found = _identity.from_environment(environment)
        self.assertEqual({key: found.get(key) for key in expected}, expected, environment)

    def test_every_launcher_is_understood(self):
        torchrun = {"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8"}
        self.check(torchrun, launcher="environment", rank=9, world=16, local_rank=1, local_world=8)
        elastic = {**torchrun, "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "2"}
        self.check(elastic, launcher="torchrun", attempt=2, job_uid=None)
        slurm = {"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1",
                 "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
                 "SLURM_JOB_ID": "77", "SLURM_JOB_NAME": "llama", "SLURM_RESTART_COUNT": "1",
                 "SLURM_CLUSTER_NAME": "alps"}  # fmt: skip
        self.check(slurm, launcher="slurm", rank=5, world=8, local_rank=1, local_world=4, job_name="llama",
                   job_uid="77", attempt=1, cluster="alps")  # fmt: skip
        self.check({**slurm, **elastic}, launcher="torchrun", rank=9, job_name="llama", job_uid="77", attempt=1)
        array = {**slurm, "SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "7"}
        self.check(array, job_uid="70_7")
        mpi = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
        self.check(mpi, launcher="mpi", rank=1, world=2, local_rank=1, local_world=None)
        jobset = {**torchrun, "JOBSET_NAME": "train", "JOBSET_UID": "u-1", "POD_NAMESPACE": "team",
                  "JOBSET_RESTART_ATTEMPT": "4"}  # fmt: skip
        self.check(jobset, launcher="jobset", job_name="train", job_namespace="team", job_uid="u-1", attempt=4)
        batch = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "77"}
        self.check(batch, rank=None, launcher=None, job_uid="77")
        self.check({"RANK": "x", "WORLD_SIZE": "2"}, rank=None, launcher=None)
        self.check({**slurm, "GPUFLEET_JOB_NAME": "mine", "GPUFLEET_ATTEMPT": "0"}, job_name="mine", attempt=0)

    def test_the_gpu_of_a_rank_is_that_of_its_model_and_without_one_cudas_current_one(self):
        properties = {0: mock.Mock(uuid="GPU-0"), 3: mock.Mock(uuid="GPU-3")}
        cuda = {"is_initialized": lambda: True, "current_device": lambda: 0, "get_device_properties": properties.get}
        on_3, on_none = (
            mock.Mock(**{"parameters.side_effect": lambda it=it: iter([SimpleNamespace(device=torch.device(it))])})
            for it in ("cuda:3", "cpu")
        )
        with mock.patch.multiple(torch.cuda, **cuda):
            for model, expected in ((on_3, "GPU-3"), (on_none, "GPU-0"), (None, "GPU-0")):
                self.assertEqual(_identity.from_frameworks(model)["gpu_uuid"], expected)

    def test_a_worker_of_ray_is_asked_what_its_environment_does_not_say(self):
        context = mock.Mock(**{
            "get_world_rank.return_value": 5, "get_world_size.return_value": 8, "get_local_rank.return_value": 1,
            "get_local_world_size.return_value": 4, "get_experiment_name.return_value": "llama",
        })  # fmt: skip
        ray = mock.Mock(**{"get_runtime_context.return_value.get_job_id.return_value": "02000000"})
        train = mock.Mock(**{"get_context.return_value": context})
        expected = {"launcher": "ray", "rank": 5, "world": 8, "local_rank": 1, "local_world": 4, "job_name": "llama",
                    "job_uid": "02000000"}  # fmt: skip
        with mock.patch.dict("sys.modules", {"ray": ray, "ray.train": train}):
            found = _identity.from_frameworks()
            self.assertEqual({key: found.get(key) for key in expected}, expected)
            # The script that starts the workers is no rank.
            train.get_context.side_effect = RuntimeError("not in a worker")
            self.assertNotIn("launcher", _identity.from_frameworks())

    def test_a_process_of_jax_says_what_jax_distributed_was_told_and_no_back_end_is_started_for_it(self):
        # Whatever of jax is called would start one.
        jax = mock.Mock(spec=["__version__"], __version__="0.10.2")
        state = mock.Mock(spec=["client", "process_id", "num_processes"], client=None, process_id=5, num_processes=8)
        loaded = {"jax": jax, "jax._src.distributed": mock.Mock(global_state=state)}

        def found(torch_too):
            with mock.patch.dict("sys.modules", {**loaded, "torch": torch if torch_too else None}):
                said = _identity.from_frameworks()
            return {key: said.get(key) for key in ("rank", "world", "framework")}

        nobody = {"rank": None, "world": None}
        self.assertEqual(found(False), {**nobody, "framework": "jax 0.10.2"})
        self.assertEqual(found(True), {**nobody, "framework": f"pytorch {torch.__version__}"})
        state.client = object()
        for torch_too in (False, True):
            self.assertEqual(found(torch_too), {"rank": 5, "world": 8, "framework": "jax 0.10.2"})
        with mock.patch.multiple(
            torch.distributed, is_initialized=lambda: True, get_rank=lambda: 1, get_world_size=lambda: 2
        ):
            self.assertEqual((found(True)["rank"], found(True)["world"]), (1, 2), "torch.distributed goes before")
        # A version that keeps them elsewhere.
        del state.num_processes
        self.assertEqual(found(False), {**nobody, "framework": "jax 0.10.2"})

    def test_who_knows_no_rank_says_none_before_training_begins_and_then_that_it_is_alone(self):
        run = run_of_test()
        run.identify(job_name="alone")

        def place():
            identity = run.snapshot()["identity"]
            return identity["rank"], identity["world"]

        self.assertEqual(place(), (-1, -1))
        for _ in run.data([1]):
            self.assertEqual(place(), (0, 1), "before its first step is over, so that a hang in it is seen")

    def test_who_is_one_of_several_and_knows_no_rank_is_never_rank_0(self):
        for several in (
            {"WORLD_SIZE": "4"}, {"TPU_WORKER_HOSTNAMES": "host-0,host-1"}, {"JOB_COMPLETION_INDEX": "2"},
        ):  # fmt: skip
            with mock.patch.dict(os.environ, several):
                run = run_of_test()
                for _ in run.data([1]):
                    run.step()
                run._settle_at_end()
            self.assertEqual(run.snapshot()["identity"]["rank"], -1, several)
            run.identify(rank=3, world=4)
            self.assertEqual(run.snapshot()["identity"]["rank"], 3, several)
        for one in ({"WORLD_SIZE": "1"}, {"JOB_COMPLETION_INDEX": "0"}, {"TPU_WORKER_HOSTNAMES": "host-0"}):
            self.assertFalse(_identity.is_one_of_several(one), one)

    def test_a_rank_is_found_when_training_begins_and_kept_when_its_process_group_is_gone(self):
        run = run_of_test()
        run.identify(job_name="spawned")
        self.assertEqual(run.snapshot()["identity"]["rank"], -1)
        with mock.patch.multiple(
            torch.distributed, is_initialized=lambda: True, get_rank=lambda: 1, get_world_size=lambda: 2
        ):
            run.watch(torch.nn.Linear(1, 1))._model(torch.ones(1, 1))
        run.step()
        run._identify()
        identity = run.snapshot()["identity"]
        self.assertEqual((identity["rank"], identity["world"]), (1, 2))

    def test_who_ends_before_it_trained_is_alone_unless_another_process_began_it_beside_others(self):
        for is_child, expected in ((False, 0), (True, -1)):
            run = run_of_test()
            with mock.patch.object(_identity, "is_child", lambda is_child=is_child: is_child):
                Ending(run._recorder, lambda: -1, run._settle_at_end).say("stopped", 1)
            said = run.snapshot()
            self.assertEqual((said["identity"] or {"rank": -1})["rank"], expected)
            self.assertEqual(said["end"][0], "stopped")

    def test_what_a_process_returns_is_what_the_kernel_keeps_of_it(self):
        for given, expected in ((None, 0), (0, 0), (3, 3), (True, 1), (-1, 255), (256, 0), ("no space left", 1)):
            self.assertEqual(exit_status(given), expected, given)

    def test_who_ends_before_jax_that_some_library_imported_has_begun_is_alone(self):
        run = run_of_test()
        bridge = mock.Mock(spec=["backends_are_initialized"])
        bridge.backends_are_initialized.return_value = False
        jax = mock.Mock(spec=["__version__"], __version__="0.10.2")
        with mock.patch.dict("sys.modules", {"jax": jax, "jax._src.xla_bridge": bridge}):
            for _ in run.data([1]):
                self.assertEqual((run.snapshot()["identity"] or {"rank": -1})["rank"], -1, "JAX may still find others")
            run._settle_at_end()
        self.assertEqual(run.snapshot()["identity"]["rank"], 0)

    def test_jax_is_asked_which_process_this_is_once_it_has_begun_by_itself(self):
        jax = mock.Mock(spec=["__version__", "process_index", "process_count"], __version__="0.10.2")
        jax.process_index.return_value, jax.process_count.return_value = 3, 4
        bridge = mock.Mock(spec=["backends_are_initialized"])
        bridge.backends_are_initialized.return_value = False
        with mock.patch.dict("sys.modules", {"jax": jax, "jax._src.xla_bridge": bridge}):
            run = run_of_test()
            for _ in run.data([1]):
                jax.process_index.assert_not_called()
                self.assertFalse(run._is_settled, "it may be any of several")
                bridge.backends_are_initialized.return_value = True
                run.step()
            identity = run.snapshot()["identity"]
            self.assertEqual((identity["rank"], identity["world"]), (3, 4))
            jax.process_count.return_value = 1
            self.assertEqual(_identity._jax(), {}, "the launcher knows better")

    def test_the_mesh_comes_from_a_device_mesh_by_its_names(self):
        class DeviceMesh:
            mesh_dim_names = ("dp_replicate", "dp_shard", "tp")
            mesh = torch.zeros(2, 4, 8)

            def get_coordinate(self):
                return [1, 2, 3]

        found = _mesh.find(DeviceMesh())
        self.assertEqual(found, {"dp": (6, 8), "tp": (3, 8), "mesh_source": "device_mesh"})

    def test_dp_and_cp_joined_are_told_apart_by_the_mesh_they_were_made_of_or_not_at_all(self):
        class Root:
            mesh_dim_names = ("pp", "dp_replicate", "dp_shard", "cp")
            mesh = torch.zeros(1, 2, 4, 2)

            def get_coordinate(self):
                return [0, 1, 3, 1]

        class Joined:
            mesh_dim_names = ("dp_replicate", "dp_shard_cp")
            mesh = torch.zeros(2, 8)

            def get_coordinate(self):
                return [1, 7]

        alone = _mesh.find(Joined())
        self.assertNotIn("cp", alone)
        self.assertNotIn("dp", alone, "dp_replicate alone is not all of it")
        told = {"pp": (0, 1), "dp": (7, 8), "cp": (1, 2), "mesh_source": "device_mesh"}
        newer = Joined()
        newer._get_root_mesh = Root
        self.assertEqual(_mesh.find(newer), told)
        older = mock.Mock(spec=["_mesh_resources"])
        older._mesh_resources.get_root_mesh.return_value = Root()
        with mock.patch.dict("sys.modules", {"torch.distributed.device_mesh": older}):
            self.assertEqual(_mesh.find(Joined()), told)

    def test_the_mesh_comes_from_megatron_where_it_is_loaded(self):
        state = mock.Mock(spec=["model_parallel_is_initialized", "get_tensor_model_parallel_rank",
                                "get_tensor_model_parallel_world_size"])  # fmt: skip
        state.get_tensor_model_parallel_rank.return_value = 1
        state.get_tensor_model_parallel_world_size.return_value = 2
        with mock.patch.dict("sys.modules", {"megatron.core.parallel_state": state}):
            self.assertEqual(_mesh.find(), {"tp": (1, 2), "mesh_source": "megatron"})


if __name__ == "__main__":
    unittest.main()
