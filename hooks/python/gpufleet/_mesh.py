"""Where this rank stands in the mesh: dp, pp, tp, cp, ep."""

import sys

AXES = ("dp", "pp", "tp", "cp", "ep")

#: What people call the dimensions of a DeviceMesh.
_NAMES = {
    "dp": "dp", "data": "dp", "data_parallel": "dp", "fsdp": "dp", "dp_shard": "dp", "dp_replicate": "dp", "ddp": "dp",
    "hsdp": "dp", "replicate": "dp", "shard": "dp", "pp": "pp", "pipe": "pp", "pipeline": "pp", "stage": "pp",
    "tp": "tp", "model": "tp", "tensor": "tp", "cp": "cp", "context": "cp", "sp": "cp",
    "ep": "ep", "expert": "ep",
}


#: Dimensions that torch's users join into one: what of it is dp and what is cp only the mesh that it was made of says.
_JOINED = {"dp_shard_cp", "dp_cp"}


def axis_of(name):
    """The axis that a dimension of a DeviceMesh is, by its name; None where no one says it."""
    return _NAMES.get(name.lower())


def find(given=None, model=None):
    """The mesh as names for Recorder.identity, with its source; empty where nobody knows."""
    if given is not None:
        names = getattr(given, "mesh_dim_names", None)
        if names is not None or hasattr(given, "get_coordinate"):
            return _of_device_mesh(given)
        return _given(given)
    for source in (_megatron, _deepspeed):
        found = source()
        if found:
            return found
    mesh = _mesh_of(model)
    return _of_device_mesh(mesh) if mesh is not None else {}


def _given(given):
    """A dict: `{"dp": (3, 8)}` is coordinate 3 of 8."""
    found = {axis: (int(given[axis][0]), int(given[axis][1])) for axis in AXES if axis in given}
    return {**found, "mesh_source": "given"} if found else {}


def _of_device_mesh(mesh):
    if _JOINED.intersection(mesh.mesh_dim_names or ()):
        mesh = _root_of(mesh) or mesh
    names = mesh.mesh_dim_names
    coordinates = mesh.get_coordinate()
    if not names or coordinates is None:
        return {}
    found = {}
    for name, coordinate, size in zip(names, coordinates, mesh.mesh.shape):
        axis = axis_of(name)
        if axis is None:
            continue
        # Replicas of shards (HSDP) are two dimensions of one axis: the later runs faster.
        before, sizes = found.get(axis, (0, 1))
        found[axis] = (before * int(size) + int(coordinate), sizes * int(size))
    if _JOINED.intersection(names):
        # The rest of dp is in the joined one.
        found.pop("dp", None)
    return {**found, "mesh_source": "device_mesh"} if found else {}


def _root_of(mesh):
    """The mesh of which this one is a part; none where this torch does not say."""
    device_mesh = sys.modules.get("torch.distributed.device_mesh")
    asked = (
        lambda: mesh._get_root_mesh(),
        lambda: device_mesh._mesh_resources.get_root_mesh(mesh),
    )
    for ask in asked:
        try:
            root = ask()
            if root.mesh_dim_names and not _JOINED.intersection(root.mesh_dim_names):
                return root
        except Exception:  # a version without it
            continue
    return None


def _mesh_of(model):
    """The DeviceMesh of a model whose parameters are DTensors."""
    if model is None or "torch.distributed.tensor" not in sys.modules:
        return None
    mesh = None
    for parameter in model.parameters():
        of_parameter = getattr(parameter, "device_mesh", None)
        if of_parameter is not None and (mesh is None or of_parameter.ndim > mesh.ndim):
            mesh = of_parameter
    return mesh


def _megatron():
    state = sys.modules.get("megatron.core.parallel_state")
    if state is None or not state.model_parallel_is_initialized():
        return {}
    calls = {
        "dp": ("get_data_parallel_rank", "get_data_parallel_world_size"),
        "pp": ("get_pipeline_model_parallel_rank", "get_pipeline_model_parallel_world_size"),
        "tp": ("get_tensor_model_parallel_rank", "get_tensor_model_parallel_world_size"),
        "cp": ("get_context_parallel_rank", "get_context_parallel_world_size"),
        "ep": ("get_expert_model_parallel_rank", "get_expert_model_parallel_world_size"),
    }
    return _asked(state, calls, "megatron")


def _deepspeed():
    groups = sys.modules.get("deepspeed.utils.groups")
    # Before an engine has its groups a question would make them: a collective to which the other ranks do
    # not come.
    if all(getattr(groups, name, None) is None for name in ("_WORLD_GROUP", "mpu", "mesh_device")):
        return {}
    calls = {
        "dp": ("_get_data_parallel_rank", "_get_data_parallel_world_size"),
        "tp": ("get_model_parallel_rank", "get_model_parallel_world_size"),
        "cp": ("_get_sequence_parallel_rank", "_get_sequence_parallel_world_size"),
    }
    return _asked(groups, calls, "deepspeed")


def _asked(module, calls, source):
    found = {}
    for axis, (rank, size) in calls.items():
        try:
            found[axis] = (int(getattr(module, rank)()), int(getattr(module, size)()))
        except Exception:  # a version without it, or a dimension that was not set up
            continue
    return {**found, "mesh_source": source} if found else {}
