"""Who this rank is, from what its launcher left in the environment."""

import os
import sys

from gpufleet import _gpu

#: Where Kubernetes puts the namespace of a pod.
_NAMESPACE_FILE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

#: Launchers in the order of trust: name, then the variables of rank, world, local rank, local world.
_LAUNCHERS = (
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("mpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("mpi", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("mpi", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    # Not SLURM_NTASKS: a batch script has it, and a SLURM_PROCID of 0, and is no task of a step.
    ("slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""),
)


def _number(environ, name):
    try:
        return int(environ.get(name, ""))
    except ValueError:
        return None


def _first(environ, *names):
    for name in names:
        if environ.get(name):
            return environ[name]
    return ""


def from_environment(environ=None):
    """What the environment says: a dict for Recorder.identity, without what is not known."""
    environ = os.environ if environ is None else environ
    found = {}
    for launcher, rank, world, local_rank, local_world in _LAUNCHERS:
        if _number(environ, rank) is None or _number(environ, world) is None:
            continue
        # Jobs of one process have SLURM_PROCID too, also under torchrun, which came first.
        if launcher == "torchrun" and not environ.get("TORCHELASTIC_RUN_ID"):
            launcher = "jobset" if environ.get("JOBSET_NAME") else "environment"
        found = {
            "launcher": launcher,
            "rank": _number(environ, rank),
            "world": _number(environ, world),
            "local_rank": _number(environ, local_rank),
            "local_world": _number(environ, local_world) if local_world else _slurm_local(environ),
        }
        break
    found.update(_job(environ))
    return {key: value for key, value in found.items() if value not in (None, "")}


def _slurm_local(environ):
    # "8", or "8(x4)" on four nodes; "8(x2),4" says different things of different nodes.
    text = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_NTASKS_PER_NODE", "")
    text = text.split("(")[0]
    return int(text) if text.isdigit() else None


def _job(environ):
    """The job: what was given, then Kubernetes, then Slurm, then torchrun, then the script's name."""
    job = {
        "cluster": _first(environ, "GPUFLEET_CLUSTER", "SLURM_CLUSTER_NAME"),
        "job_namespace": environ.get("GPUFLEET_JOB_NAMESPACE", ""),
        "job_name": environ.get("GPUFLEET_JOB_NAME", ""),
        "job_uid": environ.get("GPUFLEET_JOB_UID", ""),
        "attempt": _number(environ, "GPUFLEET_ATTEMPT"),
    }
    if environ.get("KUBERNETES_SERVICE_HOST") or environ.get("JOBSET_NAME"):
        job["job_namespace"] = job["job_namespace"] or _first(environ, "POD_NAMESPACE", "NAMESPACE") or _pod_namespace()
        job["job_name"] = job["job_name"] or _first(environ, "JOBSET_NAME", "JOB_NAME", "PET_RDZV_ID")
        job["job_uid"] = job["job_uid"] or _first(environ, "JOBSET_UID", "JOB_UID")
        attempt = _number(environ, "JOBSET_RESTART_ATTEMPT")
        job["attempt"] = attempt if job["attempt"] is None else job["attempt"]
    if environ.get("SLURM_JOB_ID"):
        job["job_name"] = job["job_name"] or environ.get("SLURM_JOB_NAME", "")
        job["job_uid"] = job["job_uid"] or _slurm_id(environ)
        restarts = _number(environ, "SLURM_RESTART_COUNT")
        job["attempt"] = restarts if job["attempt"] is None else job["attempt"]
    run = environ.get("TORCHELASTIC_RUN_ID", "")
    # torchrun calls a run "none" where nobody named it.
    job["job_uid"] = job["job_uid"] or ("" if run == "none" else run)
    if job["attempt"] is None:
        job["attempt"] = _number(environ, "TORCHELASTIC_RESTART_COUNT")
    job["job_name"] = job["job_name"] or _script()
    return job


def _slurm_id(environ):
    array = environ.get("SLURM_ARRAY_JOB_ID")
    return f"{array}_{environ.get('SLURM_ARRAY_TASK_ID', '')}" if array else environ["SLURM_JOB_ID"]


def _pod_namespace():
    try:
        with open(_NAMESPACE_FILE, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""


def _script():
    name = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else ""
    return name[:-3] if name.endswith(".py") else name


def from_frameworks(model=None):
    """What frameworks that are loaded already say: torch.distributed, JAX, Ray. Loads and starts none itself. `model`:
    that which is trained, whose GPU is this rank's."""
    found = {}
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is not None:
        found["framework"] = f"pytorch {torch.__version__}"
        distributed = getattr(torch, "distributed", None)
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            found["rank"] = distributed.get_rank()
            found["world"] = distributed.get_world_size()
        found.update(_device(torch, model))
    if jax is not None and "rank" not in found:
        said = _jax()
        # A job of JAX may have torch for its loaders.
        if said or torch is None:
            found.update(said, framework=f"jax {jax.__version__}")
    found.update(_ray())
    return found


def _jax():
    """Process and world of a job of several, where jax.distributed was started, or JAX found them by itself."""
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    if getattr(state, "client", None) is not None:
        found = {"rank": getattr(state, "process_id", None), "world": getattr(state, "num_processes", None)}
        if None not in found.values():
            return found
    if _has_jax_begun() is not True:
        return {}
    jax = sys.modules["jax"]
    found = {"rank": jax.process_index(), "world": jax.process_count()}
    return found if found["world"] > 1 else {}


def _has_jax_begun():
    """Whether JAX's back end is there; None where JAX does not say. Asking anything of it would start it, and before the
    script has set it up."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    begun = getattr(bridge, "backends_are_initialized", None)
    return None if begun is None else bool(begun())


def may_learn_more():
    """Whether JAX may still find that this process is one of several."""
    return "jax" in sys.modules and _has_jax_begun() is False


def is_child():
    """Whether another process of Python started this one to work for it, as mp.spawn does."""
    parent = getattr(sys.modules.get("multiprocessing.process"), "parent_process", None)
    return parent is not None and parent() is not None


#: What says that there are several processes without saying which of them this is.
_WORLDS = (*(world for _, _, world, _, _ in _LAUNCHERS), "PET_NNODES")


def is_one_of_several(environ=None):
    """Whether the environment says that there are others, or that this is not the first."""
    environ = os.environ if environ is None else environ
    if any((_number(environ, name) or 0) > 1 for name in _WORLDS):
        return True
    hosts = environ.get("TPU_WORKER_HOSTNAMES", "")
    return "," in hosts or (_number(environ, "JOB_COMPLETION_INDEX") or 0) > 0


def _device(torch, model):
    # Looking at a device makes a context on it: only where the script has one.
    if not torch.cuda.is_initialized():
        return {}
    index = _gpu.index(torch, model)
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    found = {"cuda_device": index}
    if uuid is not None:
        uuid = str(uuid)
        found["gpu_uuid"] = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    return found


def _ray():
    train = sys.modules.get("ray.train")
    if train is None:
        return {}
    try:
        context = train.get_context()
        found = {
            "launcher": "ray",
            "rank": context.get_world_rank(),
            "world": context.get_world_size(),
            "local_rank": context.get_local_rank(),
            "local_world": context.get_local_world_size(),
            "job_name": context.get_experiment_name(),
            "job_uid": sys.modules["ray"].get_runtime_context().get_job_id(),
        }
    except Exception:  # outside of a Ray Train worker
        return {}
    return {key: value for key, value in found.items() if value not in (None, "")}


def process_age_ns():
    """How long ago this process began; 0 where that cannot be read."""
    import time

    try:
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
            ticks = int(file.read().rsplit(")", 1)[1].split()[19])
        began = ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
        return max(0, time.clock_gettime_ns(time.CLOCK_BOOTTIME) - began)
    except (OSError, ValueError, IndexError, AttributeError):
        return 0
