"""Trains nothing, and probes from inside at every step, against the stand-in for CUDA's driver: what a file says is
wrong with the GPU now. Says on each line how many probes were over, and what the last came to."""

import sys
import time
from unittest import mock

import gpufleet
from gpufleet import _probe
from test_probe import Cuda

run = gpufleet.init(job_namespace="demo", job_name="probed", job_uid="1", attempt=0, rank=0, world=1)
cuda, now = Cuda(), None
with cuda, mock.patch.object(_probe, "_RETRY_SECONDS", 0.05):
    probe = gpufleet.probe(every=1, least_seconds=0.5)
    while True:
        with open(sys.argv[1], encoding="utf-8") as file:
            faults = file.read()
        if faults != now:
            now = faults
            cuda.now(*filter(None, [now]))
        time.sleep(0.1)
        run.step(tokens=1)
        print(probe.runs, probe.verdict, flush=True)
