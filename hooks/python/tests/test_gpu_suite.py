"""tests/gpu/step.py, dry: what it says of the probe inside the process, against the stand-in for CUDA's driver. The
figures of a step only a GPU can show."""

import contextlib
import io
import json
import os
import pathlib
import runpy
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import torch

import gpufleet
from gpufleet import _probe
from test_probe import Cuda

ROOT = pathlib.Path(__file__).resolve().parents[3]
STEP = ROOT / "tests/gpu/step.py"


class Dry(unittest.TestCase):
    def rows(self, *faults):
        """The table's rows by name, on a card that has these faults."""
        cuda, randn = Cuda(), torch.randn
        cuda.now(*faults)
        said = io.StringIO()
        with contextlib.ExitStack() as patches:
            patches.enter_context(cuda)
            for what, name, value in (
                (torch.cuda, "is_available", lambda: True),
                (torch.cuda, "synchronize", lambda: None),
                (torch.nn.Module, "cuda", lambda module: module),
                (torch, "randn", lambda *shape, device: randn(*shape)),
                (gpufleet, "_current", None),
                (sys, "argv", [str(STEP), "--small", "--socket", "/nowhere/hooks.sock"]),
                (_probe, "_RETRY_SECONDS", 0.0),
            ):
                patches.enter_context(mock.patch.object(what, name, value))
            patches.enter_context(mock.patch.dict(os.environ))
            patches.enter_context(contextlib.redirect_stdout(said))
            runpy.run_path(str(STEP))
        rows = json.loads(said.getvalue().splitlines()[-1])
        return {name: (verdict, says) for name, verdict, says in rows}

    def test_a_healthy_card_passes_and_each_work_can_fail(self):
        rows = self.rows()
        self.assertEqual(rows["probe inside the process"][0], "ok", rows)
        self.assertIn("6 of 6 SMs", rows["probe inside the process"][1])
        spoilt = {name: row for name, row in rows.items() if "is spoilt" in name}
        self.assertEqual(len(spoilt), 7)
        self.assertEqual({verdict for verdict, _ in spoilt.values()}, {"ok"}, spoilt)
        self.assertIn("from first to last kernel", rows["probe inside: what training slows"][1])

    def test_a_card_with_a_wrong_sm_is_found(self):
        rows = self.rows('{ wrong = ["gpufleet_tensor_fp16", 2] }')
        verdict, says = rows["probe inside the process"]
        self.assertEqual(verdict, "FAILED")
        self.assertIn("fp16 on SM 2", says)


class Ranks(unittest.TestCase):
    """What tests/gpu/ranks.py wants to hear from the agent of ranks that wait for one that stopped."""

    TOLD = """gpufleet_training_collectives_from_code{node="n",job="j",rank="0"} 1
gpufleet_training_collectives_from_code{node="n",job="j",rank="1"} 1
gpufleet_training_collective_calls_total{job="j",rank="0",collective="AllReduce"} 50
gpufleet_training_collective_calls_total{job="j",rank="1",collective="AllReduce"} 50
gpufleet_training_collectives_in_flight{job="j",rank="0"} 1
gpufleet_training_collectives_in_flight{job="j",rank="1"} 0
gpufleet_training_collectives_in_flight{job="another",rank="1"} 1
"""

    def test_only_a_plugin_that_tells_of_every_rank_is_enough(self):
        missing = runpy.run_path(str(ROOT / "tests/gpu/ranks.py"))["missing"]
        self.assertEqual(missing(self.TOLD, "j", 2), "")
        for what, instead, says in (
            ('job="j",rank="1"} 1', 'job="j",rank="1"} 3', "ranks [1] are not told by our plugin"),
            ('collective="AllReduce"} 50', 'collective="AllReduce"} 49', "ranks [0, 1] have not 50 collectives"),
            ('rank="0"} 1\ngpufleet_training_collectives_in_flight', 'rank="0"} 0\ngpufleet_training_collectives_in_flight',
             "ranks [0] are not told to wait"),
            ('in_flight{job="j",rank="1"} 0', 'in_flight{job="j",rank="1"} 1', "ranks [1] are told to wait and do not"),
        ):
            self.assertIn(what, self.TOLD)
            self.assertEqual(missing(self.TOLD.replace(what, instead), "j", 2), says)
        self.assertIn("ranks [0, 1] are not told by our plugin", missing("", "j", 2))


class Packed(unittest.TestCase):
    def test_the_package_is_found_where_it_is_unpacked(self):
        wheel = sorted((ROOT / "target/hooks/wheels").glob("*.whl"))[-1]
        with tempfile.TemporaryDirectory() as folder:
            pack = pathlib.Path(folder, "gpu-pack")
            agent = pathlib.Path(folder, "agent")
            agent.touch()
            subprocess.run([ROOT / "tests/gpu/pack.sh", "lay", pack, agent, "-", wheel], check=True)
            # Of all that Python finds only torch is taken from where it is installed.
            found = {"PYTHONPATH": str(pack / "wheels")}
            command = [sys.executable, pack / "tests/gpu/step.py", "--socket", "/nowhere/hooks.sock"]
            done = subprocess.run(command, env={**os.environ, **found}, capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr.splitlines()[-1:]), (3, ["PyTorch is here and has no CUDA"]))
            named = [sys.executable, "-c", "import gpufleet; print(gpufleet.__file__)"]
            said = subprocess.run(named, env={**os.environ, **found}, capture_output=True, text=True, check=True)
            self.assertTrue(said.stdout.startswith(str(pack)), said.stdout)


if __name__ == "__main__":
    unittest.main()
