"""The suite for a machine with a GPU: tests/gpu/run.sh says what it is. Python's own library only."""

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

#: Longest one command may take, seconds: together they stay under ten minutes.
PATIENCE = 60
#: How long the agent reads before the catalog is looked at: slow metrics come once a minute.
READS = 75
#: Runs of the probe, of which the middle one counts.
PROBES = 5
#: What a probe may cost: seconds on the GPU, seconds of the wall.
MOST_GPU_SECONDS = 0.1
MOST_WALL_SECONDS = 1.5
#: Parts of a large copy and of a large matrix product that the probe must reach, the latter on
#: capability 8.0 to 9.0.
LEAST_OF_COPY = 0.85
LEAST_OF_PRODUCT = 0.60
WORKS = ("arithmetic", "memory", "fp16", "int8", "bf16", "tf32", "fp8")
#: Longest the whole suite may take, seconds.
MOST_SECONDS = 600
#: Metrics that have a series for each of what there may be none of: XIDs that came, processes on the card, links.
MAY_BE_SILENT = re.compile(r"gpufleet_gpu_(xid|process|nvlink)_")

rows = []


def row(name, verdict, says):
    """One line of the table; verdict is ok, FAILED or NOT RUN."""
    rows.append({"row": name, "verdict": verdict, "says": says})
    print(f"{name:34} {verdict:8} {says}", flush=True)


def found(*places):
    """The first file that is there."""
    return next((str(path) for path in map(Path, places) if path.exists()), None)


def agent_path():
    given = os.environ.get("GPUFLEET_AGENT")
    return given or found(ROOT / "bin/gpufleet-agent", ROOT / "target/release/gpufleet-agent",
                          ROOT / "target/debug/gpufleet-agent")


def run(command, **more):
    """A command to its end: its status and output; 124 where it took too long."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=max(more.pop("timeout", 0), PATIENCE), **more)
        return done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as late:
        return 124, str(late.stdout or ""), f"not over after {late.timeout} s"


def probe(agent, *arguments):
    """One probe of the first GPU: exit code and what it said."""
    code, out, errors = run([agent, "probe", "--json", *arguments])
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return code, (lines[0] if lines else {"reason": errors.strip()})


# The machine.


def machine(agent, into):
    code, out, _ = run(["nvidia-smi", "-q"]) if found("/usr/bin/nvidia-smi", "/usr/local/nvidia/bin/nvidia-smi") else (1, "", "")
    (into / "nvidia-smi.txt").write_text(out)
    driver = re.search(r"Driver Version\s*: (\S+)", out)
    row("driver", "ok" if driver else "NOT RUN", driver.group(1) if driver else "no nvidia-smi here")
    code, out, errors = run([agent, "doctor"])
    (into / "doctor.txt").write_text(out + errors)
    row("doctor answers", "ok" if out else "FAILED", f"exit code {code}, see doctor.txt")


# Every reading of the catalog.


def catalog():
    """Names of the GPU metrics, from the reference that is made of the catalog."""
    text = (ROOT / "docs/metrics.md").read_text()
    part = text.split("## GPUs", 1)[1].split("\n## ", 1)[0]
    return [name for name in re.findall(r"^\| `(gpufleet_gpu_\w+)` \|", part, re.M) if not name.endswith("_mask")]


class Agent:
    """A running agent that ships nothing."""

    def __init__(self, agent, into):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{port}"
        environment = dict(os.environ, GPUFLEET_LISTEN__ADDRESS=f"127.0.0.1:{port}",
                           GPUFLEET_NODE__STATE_FOLDER=str(into / "state"),
                           GPUFLEET_HOOKS__SOCKET_PATH=str(into / "hooks.sock"))
        self.log = open(into / "agent.log", "ab")
        self.process = subprocess.Popen([agent, "run"], env=environment, stdout=self.log, stderr=self.log)

    def metrics(self):
        with urllib.request.urlopen(f"{self.address}/metrics", timeout=10) as answer:
            return answer.read().decode()

    def values(self, name):
        pattern = rf"^{name}(?:{{[^\n]*}})? (\S+)"
        return [float(value) for value in re.findall(pattern, self.metrics(), re.M)]

    def __enter__(self):
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            try:
                if "gpufleet_gpu_" in self.metrics():
                    return self
            except OSError:
                pass
            time.sleep(0.5)
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.log.close()


def readings(running, into, short):
    """A value or a reason for every metric of a GPU."""
    time.sleep(5 if short else READS)
    text = running.metrics()
    (into / "metrics.txt").write_text(text)
    told, silent = [], []
    for name in catalog():
        values = re.findall(rf"^{name}(?:{{[^\n]*}})? (\S+)", text, re.M)
        reasons = sorted(set(re.findall(rf'metric="{name}"[^\n]*reason="(\w+)"', text)))
        what = values[0] if values else ", ".join(reasons)
        told.append(f"{name}\t{'value' if values else 'reason' if reasons else 'neither'}\t{what}")
        if not values and not reasons:
            silent.append(name)
    (into / "catalog.tsv").write_text("\n".join(told) + "\n")
    wrong = [name for name in silent if not MAY_BE_SILENT.match(name)]
    says = f"{len(told) - len(silent)} of {len(told)} told"
    if silent:
        says += f"; neither: {', '.join(wrong + [name for name in silent if name not in wrong])}"
    # What is read once a minute is not there yet after five seconds.
    is_right = not wrong or short and len(silent) < len(told) // 2
    row("catalog: a value or a reason each", "ok" if told and is_right else "FAILED", says)


# The probe.


def probes(agent, into, short):
    results = [probe(agent) for _ in range(1 if short else PROBES)]
    (into / "probe.json").write_text(json.dumps(results, indent=1))
    code, last = results[-1]
    measured = last.get("measured")
    row("probe of an idle GPU", "ok" if measured and code in (0, 10) else "FAILED", f"{last.get('verdict')}: {last.get('reason')}")
    if not measured:
        return None
    middle = lambda of: sorted(of(it) for _, it in results if it.get("measured"))[len(results) // 2]
    gpu, wall = middle(lambda it: it["measured"]["gpu_seconds"]), middle(lambda it: it["wall_seconds"])
    row("probe: time on the GPU", "ok" if gpu <= MOST_GPU_SECONDS else "FAILED", f"{gpu * 1e3:.1f} ms, at most {MOST_GPU_SECONDS * 1e3:.0f}")
    row("probe: wall time", "ok" if wall <= MOST_WALL_SECONDS else "FAILED", f"{wall:.2f} s, at most {MOST_WALL_SECONDS}")
    context = measured.get("context_bytes")
    row("probe: memory of its context", "ok" if context is not None else "NOT RUN",
        f"{context >> 20} MiB" if context is not None else "NVML did not say")
    pairs = [f"{it['gpu']}: {it['to'] / 1e9:.0f} GB/s, back {it['from'] / 1e9:.0f}" for it in measured["peers"]]
    why_not = [it for it in measured["left_out"] if it.startswith("cop")]
    row("probe: copies between GPUs", "ok" if pairs else "NOT RUN", "; ".join(pairs + why_not))
    return measured


def spoilt(agent, measured, short):
    done = {check["work"] for check in measured["checks"]} if measured else set()
    for work in WORKS[:2] if short else WORKS:
        if work not in done:
            row(f"probe fails when {work} is spoilt", "NOT RUN", "this card or driver cannot do it")
            continue
        code, last = probe(agent, "--spoil", work)
        is_right = code == 20 and work in last.get("reason", "")
        row(f"probe fails when {work} is spoilt", "ok" if is_right else "FAILED", f"exit code {code}: {last.get('reason')}")


def beside(measured):
    """The probe's rates beside a large copy and a large product of PyTorch's, on the same card."""
    names = ("probe: memory beside a large copy", "probe: bf16 beside a large product")
    code, out, errors = run([sys.executable, str(HERE / "peaks.py")], timeout=120)
    if code != 0 or not measured:
        why = (errors.strip().splitlines() or ["no measure"])[-1]
        return [row(name, "NOT RUN", why) for name in names]
    peaks = json.loads(out)
    part = measured["memory_rate"] / peaks["copy"]
    row(names[0], "ok" if part >= LEAST_OF_COPY else "FAILED", f"{part:.0%}, at least {LEAST_OF_COPY:.0%}")
    bf16 = next((it["rate"] for it in measured["checks"] if it["work"] == "bf16"), None)
    if bf16 is None:
        return row(names[1], "NOT RUN", "the card has no bf16")
    part = bf16 / peaks["product"]
    is_judged = 80 <= measured["capability"][0] * 10 + measured["capability"][1] <= 90
    verdict = "ok" if part >= LEAST_OF_PRODUCT or not is_judged else "FAILED"
    row(names[1], verdict, f"{part:.0%}" + (f", at least {LEAST_OF_PRODUCT:.0%}" if is_judged else ", reported only"))


# The agent under load.


def load(agent, running):
    """Work beside the agent: PyTorch's where it is there, else probes one after the other."""
    worker = subprocess.Popen([sys.executable, str(HERE / "peaks.py"), "--seconds", "15"], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
    time.sleep(10)
    if worker.poll() is not None:
        return row("agent live under load", "NOT RUN", "PyTorch with CUDA is not here to make load")
    busy, power = running.values("gpufleet_gpu_utilization_ratio"), running.values("gpufleet_gpu_power_watts")
    code, last = probe(agent)
    worker.wait(60)
    row("agent live under load", "ok" if busy and max(busy) > 0.5 else "FAILED", f"busy {busy}, {power} W")
    row("probe leaves a busy GPU alone", "ok" if code == 30 else "FAILED", f"exit code {code}: {last.get('reason')}")


# The training process.


def training(into):
    code, out, errors = run([sys.executable, str(HERE / "step.py"), "--socket", str(into / "hooks.sock")], timeout=150)
    if code != 0:
        why = (errors.strip().splitlines() or ["no word"])[-1]
        return row("hooks in a PyTorch step", "NOT RUN" if code == 3 else "FAILED", why)
    for name, verdict, says in json.loads(out):
        row(name, verdict, says)


def collectives(into, running):
    plugin = found(ROOT / "lib/libgpufleet-nccl-profiler.so", ROOT / "target/plugin/libgpufleet-nccl-profiler.so")
    for ranks in (2, 4):
        name = f"NCCL plugin, {ranks} ranks on one GPU"
        if plugin is None:
            row(name, "NOT RUN", "the plugin is not here: make nccl-plugin")
            continue
        command = [sys.executable, str(HERE / "ranks.py"), "--ranks", str(ranks), "--plugin", plugin,
                   "--socket", str(into / "hooks.sock"), "--metrics", f"{running.address}/metrics"]
        code, out, errors = run(command, timeout=150)
        said = (out.strip().splitlines() or errors.strip().splitlines() or ["no word"])[-1]
        row(name, {0: "ok", 3: "NOT RUN"}.get(code, "FAILED"), said)


def recording(agent, into, short):
    if short:
        return row("recording", "NOT RUN", "--short")
    path = into / "recording.gz"
    code, _, errors = run([agent, "record", "--output", str(path), "--seconds", "60"], timeout=100)
    row("recording", "ok" if code == 0 and path.exists() else "FAILED", errors.strip()[-80:] or f"{path.stat().st_size} bytes")


def main():
    global PATIENCE
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--into", default="gpu-results")
    arguments.add_argument("--short", action="store_true", help="a quick look: no recording, few readings")
    arguments.add_argument("--patience", type=int, default=PATIENCE, help="longest one command may take, seconds")
    given = arguments.parse_args()
    PATIENCE = given.patience
    into = Path(given.into).resolve()
    into.mkdir(parents=True, exist_ok=True)
    wheels = found(ROOT / "wheels")
    if wheels:
        # Unpacked, not installed: the package has one compiled file and nothing else that it needs.
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [wheels, os.environ.get("PYTHONPATH")]))
    agent = agent_path()
    if agent is None:
        sys.exit("no gpufleet-agent here: make gpu-pack, or GPUFLEET_AGENT=…")
    began = time.monotonic()
    machine(agent, into)
    measured = probes(agent, into, given.short)
    spoilt(agent, measured, given.short)
    beside(measured)
    with Agent(agent, into) as running:
        readings(running, into, given.short)
        load(agent, running)
        training(into)
        collectives(into, running)
    recording(agent, into, given.short)
    took = time.monotonic() - began
    row("the whole suite", "ok" if took <= MOST_SECONDS else "FAILED", f"{took:.0f} s, at most {MOST_SECONDS}")
    failed = [it["row"] for it in rows if it["verdict"] == "FAILED"]
    (into / "table.json").write_text(json.dumps({"seconds": time.monotonic() - began, "rows": rows}, indent=1))
    count = lambda verdict: sum(it["verdict"] == verdict for it in rows)
    print(f"{count('ok')} ok, {len(failed)} FAILED, {count('NOT RUN')} NOT RUN in {time.monotonic() - began:.0f} s; see {into}")
    sys.exit(1 if failed else 0)


main()
