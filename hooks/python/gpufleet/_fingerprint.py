"""What a run is made of: versions, settings, an allow-list of the environment. Never a secret."""

import os
import platform
import re
import sys

from gpufleet import _gpu, _identity

#: Packages whose versions change how fast a run is.
_PACKAGES = (
    "torch", "transformers", "accelerate", "deepspeed", "lightning", "pytorch-lightning", "megatron-core",
    "transformer-engine", "flash-attn", "xformers", "triton", "jax", "jaxlib", "numpy", "ray",
)

#: Variables that are told. Whatever is not here is not read: a prefix would let tokens through.
_VARIABLES = (
    "NCCL_ALGO", "NCCL_PROTO", "NCCL_DEBUG", "NCCL_BUFFSIZE", "NCCL_NTHREADS", "NCCL_MIN_NCHANNELS",
    "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_CROSS_NIC", "NCCL_IB_DISABLE", "NCCL_IB_HCA",
    "NCCL_IB_GID_INDEX", "NCCL_IB_TC", "NCCL_IB_SL", "NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT",
    "NCCL_IB_QPS_PER_CONNECTION", "NCCL_IB_SPLIT_DATA_ON_QPS", "NCCL_IB_ADAPTIVE_ROUTING", "NCCL_SOCKET_IFNAME",
    "NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD", "NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_NET_GDR_LEVEL",
    "NCCL_NET_GDR_READ", "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_P2P_NET_CHUNKSIZE", "NCCL_SHM_DISABLE",
    "NCCL_NVLS_ENABLE", "NCCL_CUMEM_ENABLE", "NCCL_COLLNET_ENABLE", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN",
    "NCCL_DMABUF_ENABLE", "NCCL_LAUNCH_MODE", "NCCL_WORK_FIFO_DEPTH", "NCCL_RAS_ENABLE",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_BLOCKING_WAIT", "TORCH_NCCL_AVOID_RECORD_STREAMS",
    "TORCH_NCCL_HIGH_PRIORITY", "TORCH_FR_BUFFER_SIZE", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF",
    "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING", "CUBLAS_WORKSPACE_CONFIG",
    "NVIDIA_TF32_OVERRIDE", "TORCHDYNAMO_DISABLE", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "TOKENIZERS_PARALLELISM",
    "NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "XLA_FLAGS",
)  # fmt: skip


def of_process():
    """Versions and environment."""
    found = {"python": platform.python_version(), "kernel": platform.release()}
    for name in _PACKAGES:
        version = _version(name)
        if version:
            found[name] = version
    found["driver"] = _driver()
    for name in _VARIABLES:
        found[name] = os.environ.get(name, "")
    found.update(_try(of_cpus) or {})
    return _cleaned(found)


def of_cpus(root="/sys/fs/cgroup", groups="/proc/self/cgroup"):
    """How many CPUs the process may use, by its affinity and its cgroups' quotas, and how many ranks share these."""
    allowed = _try(lambda: len(os.sched_getaffinity(0)))
    if allowed is None:  # no Linux
        return {}
    folders = _try(lambda: _cgroups(root, groups)) or {}
    quotas = [quota for quota in map(_quota, folders.get("cpu", [])) if quota]
    identity = _identity.from_environment()
    ranks = identity.get("local_world")
    # Children of torchrun have its affinity; others are each bound to their own where that is less than the group's.
    group = _of_group(folders.get("cpuset", []))
    is_bound = identity.get("launcher") != "torchrun" and allowed < group and allowed * (ranks or 1) <= group
    if is_bound and (not quotas or allowed * (ranks or 1) <= min(quotas)):
        ranks = 1
    return _cleaned({"cpus": min([allowed, *quotas]), "cpus.ranks": ranks})


def _cgroups(root, groups):
    """Folders of the process' cgroups by controller, the innermost first, as far as they are seen from here: a
    container sees its own as the root."""
    found = {}
    with open(groups, encoding="utf-8", errors="replace") as file:
        for line in file:
            _, names, path = line.rstrip("\n").split(":", 2)
            names = names.split(",")
            for name in ("cpu", "cpuset"):
                # Version 2 names none. Where both are there it has no controller that version 1 has.
                if name not in names and (names != [""] or name in found):
                    continue
                top = os.path.join(root, name) if name in names else root
                parts = [part for part in path.split("/") if part not in ("", "..")]
                all_of = [os.path.join(top, *parts[:count]) for count in range(len(parts), -1, -1)]
                found[name] = [folder for folder in all_of if os.path.isdir(folder)]
    return found


def _quota(folder):
    """CPUs that a cgroup may use at most, rounded up; None where it has no limit."""
    words = (_read(folder, "cpu.max") or "").split()
    if not words:
        words = [_read(folder, f"cpu.cfs_{name}_us") or "" for name in ("quota", "period")]
    # "max" and -1 are no limit.
    if len(words) != 2 or not all(word.isdigit() for word in words) or int(words[1]) == 0:
        return None
    return max(1, -(-int(words[0]) // int(words[1])))


def _of_group(folders):
    """How many CPUs the innermost cgroup that says it is on; all of the machine where none does."""
    for folder in folders:
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus"):
            text = _read(folder, name)
            if text:
                ends = [part.split("-") for part in text.split(",")]
                return sum(int(end[-1]) - int(end[0]) + 1 for end in ends)
    return os.cpu_count() or 0


def _read(folder, name):
    try:
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return None


def _version(package):
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _driver(path="/proc/driver/nvidia/version"):
    try:
        with open(path, encoding="utf-8") as file:
            words = file.readline().split()
        return next((word for word in words if word[:1].isdigit() and "." in word), "")
    except OSError:
        return ""


def of_torch(trains=False):
    """How torch is set up now; empty where it is not loaded. `trains`: it has made steps, so that what compiles has."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    found = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "matmul_precision": _try(torch.get_float32_matmul_precision),
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "deterministic": _try(torch.are_deterministic_algorithms_enabled),
    }
    if torch.cuda.is_initialized():
        found["gpu"] = torch.cuda.get_device_name()
        found["nccl"] = ".".join(str(it) for it in _try(torch.cuda.nccl.version) or ())
        found["cudnn"] = _try(torch.backends.cudnn.version)
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    if counters:
        found["graph_breaks"] = sum(counters.get("graph_break", {}).values())
    if trains:
        # Of a piece of the model as of all of it; a compiler that is not loaded has compiled nothing.
        found["compiles"] = bool(counters and counters.get("stats", {}).get("unique_graphs"))
    return _cleaned(found)


def of_loader(loader):
    """The settings of a torch DataLoader."""
    names = ("batch_size", "num_workers", "pin_memory", "prefetch_factor", "persistent_workers", "drop_last")
    found = {f"loader.{name}": getattr(loader, name, None) for name in names}
    found["loader.storage"] = _try(lambda: _filesystem(_place(loader.dataset)))
    return _cleaned(found)


#: Where data sets note what they read from: those of torchvision, and as people name it.
_PLACES = ("root", "data_dir", "data_path", "path", "folder", "filename")


def _place(dataset):
    """A path that a data set, or the one inside it, reads from; None where it notes none that is there."""
    for _ in range(4):
        # What it holds and not what it would work out: a property of a stranger may read all data.
        held = vars(dataset)
        noted = [held.get(name) for name in _PLACES]
        if type(dataset).__module__.startswith("datasets."):
            cached = _try(lambda: dataset.cache_files[:1]) or []
            noted += [file["filename"] for file in cached]
        for path in noted:
            if isinstance(path, (str, os.PathLike)) and os.path.exists(path):
                return os.path.realpath(path)
        dataset = held.get("dataset")
        if dataset is None:
            return None
    return None


def _filesystem(path, mounts="/proc/self/mountinfo"):
    """The kind of file system that a path is on, as the kernel names it: `ext4`, `nfs4`, `fuse.gcsfuse`."""
    if path is None:
        return None
    kind, longest = None, 0
    with open(mounts, encoding="utf-8", errors="replace") as file:
        for line in file:
            mount, _, source = line.partition(" - ")
            point = re.sub(r"\\([0-7]{3})", lambda it: chr(int(it[1], 8)), mount.split(" ")[4])
            is_above = path == point or path.startswith(point.rstrip("/") + "/")
            # Of two on one point the later one hides the earlier.
            if is_above and len(point) >= longest:
                kind, longest = source.split(" ")[0], len(point)
    return kind


def of_optimizer(optimizer):
    """An optimizer and how its kernels are chosen."""
    defaults = getattr(optimizer, "defaults", None) or {}
    found = {"optimizer": type(optimizer).__name__}
    for name in ("lr", "fused", "foreach", "capturable"):
        found[f"optimizer.{name}"] = defaults.get(name)
    return _cleaned(found)


def of_model(model):
    """A model: its class, how it is wrapped, compiled and sharded, the types of its parameters."""
    found = {}
    wrappers = []
    inner = model
    for _ in range(8):
        name = type(inner).__name__
        if name == "OptimizedModule":
            found.update(_of_compiled(inner))
            inner = inner._orig_mod
        elif name in ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "DeepSpeedEngine"):
            wrappers.append(name)
            strategy = getattr(inner, "sharding_strategy", None)
            if strategy is not None:
                found["fsdp.strategy"] = getattr(strategy, "name", strategy)
            if name == "DistributedDataParallel":
                found["ddp.bucket_cap_mb"] = _try(lambda: inner.bucket_bytes_cap // 2**20)
            if name == "DeepSpeedEngine":
                found["zero_stage"] = _try(inner.zero_optimization_stage)
            inner = inner.module
        else:
            break
    name = type(inner).__name__
    # FSDP marks what is inside its wrapper in the same way as `fully_shard` its model.
    is_marked = getattr(inner, "_is_fsdp_managed_module", False) and "FullyShardedDataParallel" not in wrappers
    if is_marked or name.startswith("FSDP"):
        wrappers.append("fully_shard")
        # It makes a class of its own of the model's.
        name = name[4:] if name.startswith("FSDP") else name
    # `model.compile()` leaves a model what it is, and keeps what calls it.
    in_place = getattr(inner, "_compiled_call_impl", None)
    if in_place is not None:
        found.update(_of_compiled(in_place))
    found["model"] = name
    found["wrappers"] = " ".join(wrappers)
    types = {str(parameter.dtype).replace("torch.", "") for parameter in inner.parameters()}
    gpus = _gpu.count(model)
    found["gpus_per_process"] = gpus if gpus > 1 else None
    found["parameter_types"] = " ".join(sorted(types))
    found["gradient_checkpointing"] = getattr(inner, "is_gradient_checkpointing", None)
    # How many blocks are computed again: of a script that wraps some of them nothing follows for the whole.
    found["checkpointed_modules"] = sum(type(it).__name__ == "CheckpointWrapper" for it in inner.modules()) or None
    attention = getattr(getattr(inner, "config", None), "_attn_implementation", None)
    found["attention"] = attention
    return _cleaned(found)


#: What the modes of torch.compile stand for: they differ in these settings of its compiler.
_OF_MODES = ("max_autotune", "triton.cudagraphs", "coordinate_descent_tuning")


def _of_compiled(compiled):
    """How torch.compile was told to compile; what another compiler than its own is told is not known."""
    settings = _try(lambda: compiled.get_compiler_config()) or {}
    return {"compiled": True, **{f"compiled.{name}": settings.get(name) for name in _OF_MODES}}


def of_autocast():
    """The type that autocast computes in now; the GPU's, where it is on for both."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    for device in ("cuda", "cpu"):
        data_type = autocast_on(torch, device)
        if data_type is not None:
            return {"autocast": str(data_type).replace("torch.", "")}
    return {}


def autocast_on(torch, device):
    """The type of autocast on this kind of device; None while it is off."""
    # The names by device came with torch 2.4, which warns whoever uses those before.
    if hasattr(torch, "get_autocast_dtype"):
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    if device == "cuda":
        return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None
    return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None


def of_accelerate():
    """The precision that Accelerate runs a model in: it switches autocast on inside the model's own forward."""
    state = getattr(sys.modules.get("accelerate.state"), "AcceleratorState", None)
    # Where nobody has made one, a question would make it.
    if not getattr(state, "_shared_state", None):
        return {}
    found = {"accelerate.precision": _try(lambda: str(state().mixed_precision))}
    gradients = getattr(sys.modules.get("accelerate.state"), "GradientState", None)
    if getattr(gradients, "_shared_state", None):
        found["accelerate.gradient_accumulation_steps"] = _try(lambda: gradients().num_steps)
    return _cleaned(found)


def of_megatron():
    """Micro-batches of a step, pieces of the model on each stage that takes them by turns, and what is computed again,
    as Megatron's own globals have them; empty without it."""
    batches = sys.modules.get("megatron.core.num_microbatches_calculator")
    known = sys.modules.get("megatron.training.global_vars")
    found = {
        "megatron.micro_batches": _try(lambda: batches.get_num_microbatches()),
        "megatron.virtual_stages": _try(lambda: known.get_args().virtual_pipeline_model_parallel_size),
        "megatron.recompute": _try(lambda: known.get_args().recompute_granularity),
    }
    return _cleaned(found)


def _try(function):
    try:
        return function()
    except Exception:
        return None


def _cleaned(found):
    return {key: str(value) for key, value in found.items() if value is not None and value != ""}
