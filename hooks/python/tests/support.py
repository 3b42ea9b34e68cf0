"""A stand-in for the agent, and scripts that train under it."""

import contextlib
import os
import random
import socket
import subprocess
import sys
import tempfile
import textwrap
import time

from gpufleet import _native
from gpufleet._run import Run

#: How long a script may take: importing torch on a busy machine takes many seconds.
SCRIPT_SECONDS = 240

#: What every script of a test begins with: a small model, its data, one training step.
BEGINNING = """
import sys, time, torch, gpufleet
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Embedding(50, 8), torch.nn.Linear(8, 50))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def loader(batches=4, **more):
    return DataLoader(TensorDataset(torch.randint(0, 50, (4 * batches, 6))), batch_size=4, **more)
def learn(ids, model=model, optimizer=optimizer):
    loss = torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss
"""


def run_of_test():
    """A run without hooks into the interpreter and without an agent."""
    return Run("/nowhere/hooks.sock")


def free_port():
    """A port that nobody has, and none of those that the system gives to who connects."""
    while True:
        port = random.randrange(12_000, 32_000)
        with socket.socket() as attempt, contextlib.suppress(OSError):
            attempt.bind(("127.0.0.1", port))
            return port


class Agent:
    """Listens where the scripts of a test look for an agent."""

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory()
        self.socket = os.path.join(self._folder.name, "hooks.sock")
        self._listener = _native.Listener(self.socket)
        self._said = {}
        return self

    def __exit__(self, *_raised):
        self._folder.cleanup()

    def start(self, script, **environment):
        """Starts a script; who calls waits for it."""
        path = os.path.join(self._folder.name, "train.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(BEGINNING + textwrap.dedent(script))
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "GPUFLEET_"))}
        environment = {**kept, "GPUFLEET_HOOKS_SOCKET": self.socket, "GPUFLEET_DEBUG": "1", **environment}
        # Files, because a pipe that nobody reads before the end holds up whoever has much to say.
        said = [tempfile.TemporaryFile("w+", dir=self._folder.name) for _ in range(2)]
        process = subprocess.Popen([sys.executable, path], env=environment, stdout=said[0], stderr=said[1], text=True)
        self._said[process.pid] = said
        return process

    def ending(self, process):
        """How an ended script ended, and what it said on both ways."""
        texts = []
        for file in self._said.pop(process.pid):
            file.seek(0)
            texts.append(file.read())
            file.close()
        return (process.wait(), *texts)

    def turn_until(self, is_over):
        """Takes regions until `is_over` says so."""
        until = time.monotonic() + SCRIPT_SECONDS
        while not is_over():
            if time.monotonic() > until:
                said = [file.seek(0) or file.read() for files in self._said.values() for file in files]
                raise AssertionError(f"not within {SCRIPT_SECONDS} s; the scripts said: {said}")
            self._listener.turn(0.05)

    def run(self, *scripts):
        """Runs scripts at once, each with its environment, to their ends: what each said, by rank."""
        processes = [self.start(script, **environment) for script, environment in scripts]
        self.turn_until(lambda: all(process.poll() is not None for process in processes))
        self.endings = [self.ending(process) for process in processes]
        return sorted(self.snapshots(), key=lambda it: it["identity"]["rank"])

    def run_one(self, script, **environment):
        """Runs one script to its end: what it said."""
        said = self.run((script, environment))
        if len(said) != 1:
            raise AssertionError(f"{len(said)} regions; the script said: {self.endings}")
        return said[0]

    def snapshots(self):
        """What the processes say now."""
        return self._listener.snapshots()
