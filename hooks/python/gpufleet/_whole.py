"""The whole of a model of which this rank may hold a part, and how many ranks are given the same batch.

What is told of each rank is its share of a batch's FLOPs: ranks that have batches of their own (DDP, FSDP, ZeRO) do all
of the model for theirs, those that share one (tensor parallelism) a part each.
"""

import math
from collections import namedtuple

from gpufleet import _mesh

#: A parameter: how many numbers the whole of it has, whether it is trained, and whether it is an embedding in which
#: tokens are looked up and that none is multiplied with.
Weight = namedtuple("Weight", "name numel is_trained is_lookup")

#: What FSDP's first version, fairscale's and DDP over tensor parallelism leave at a parameter that may be a part.
_MARKS = ("_fsdp_flattened", "_is_flat_param", "_is_sharded", "_st_info")

_HIDDEN = (
    "not known: FSDP holds parts of the model, and their whole size is not seen from the module that is watched;"
    " watch the one that FSDP returned"
)

_PACKED = (
    "not known: a parameter holds several weights of few bits in one number, and how many there are is not seen;"
    " run.flops(per_token=…) tells them"
)

#: What layers with packed weights call what they keep as a buffer: GPTQ's and AWQ's, BitNet's, compressed-tensors'.
_BUFFERS = ("qweight", "weight", "weight_packed")


class Unknown(ValueError):
    """FLOPs are not told, because of what the model or its mesh does not say: a sentence."""


def weights(model, tp=1):
    """The parameters of the whole model, each once. `tp`: over how many ranks Megatron's and DeepSpeed's are cut."""
    flats = _flats(model)
    within = {id(it) for _, flat in flats for it in (flat, *_originals(flat))}
    is_lookup = _lookups(model)
    _refuse_packed(model)
    found = []
    for name, parameter in model.named_parameters():
        if id(parameter) in within:
            continue
        if any(getattr(parameter, mark, False) for mark in _MARKS):
            raise Unknown(_HIDDEN)
        cut = tp if _is_cut_by_hand(parameter) else 1
        found.append(Weight(name, _numel(parameter) * cut, parameter.requires_grad, is_lookup(parameter)))
    for where, flat in flats:
        found.extend(_within(where, flat))
    _refuse_hidden(model, flats)
    return found


def _is_cut_by_hand(parameter):
    """Whether it is a part that Megatron or DeepSpeed made: of a DTensor the whole is known."""
    return getattr(parameter, "tensor_model_parallel", False) and not hasattr(parameter, "device_mesh")


def _numel(parameter):
    # bitsandbytes packs weights of 4 bits, and keeps the shape of what it packed.
    packed = getattr(parameter, "quant_state", None)
    if packed is not None:
        return math.prod(packed.shape)
    # DeepSpeed's ZeRO 3 leaves an empty tensor here and its size beside it. A DTensor's is that of the whole.
    return int(getattr(parameter, "ds_numel", 0) or parameter.numel())


def _refuse_packed(model):
    """Weights of few bits are several to a number. Those of bitsandbytes are known, unless FSDP has them."""
    for module in model.modules():
        own = getattr(module, "_parameters", {})
        buffers = getattr(module, "_buffers", {})
        kept = [*own.values(), *(buffers.get(name) for name in _BUFFERS)]
        if any(_is_packed(it) for it in kept):
            raise Unknown(_PACKED)
        if vars(module).get("quant_state") is not None and not _has_shape_of_packed(own.get("weight")):
            raise Unknown(_PACKED)


def _is_packed(tensor):
    """Whether it is one of integers as weights are packed into; those of 8 bits are a weight each, and masks and indices none."""
    data_type = getattr(tensor, "dtype", None)
    is_of_numbers = getattr(data_type, "is_floating_point", True) or getattr(data_type, "is_complex", False)
    is_packed = not is_of_numbers and str(data_type) not in ("torch.int8", "torch.int64", "torch.bool")
    return is_packed and not _has_shape_of_packed(tensor)


def _has_shape_of_packed(parameter):
    return getattr(parameter, "quant_state", None) is not None


def _lookups(model):
    """Whether tokens are only looked up in a parameter: it is an embedding's and no other module's."""
    lookups, multiplied = set(), set()
    for module in model.modules():
        # Not as an attribute: FSDP's wrapper passes on the one of what it wraps.
        weight = getattr(module, "_parameters", {}).get("weight")
        if weight is not None:
            (lookups if _is_embedding(module) else multiplied).add(id(weight))
    return lambda parameter: id(parameter) in lookups and id(parameter) not in multiplied


def _is_embedding(module):
    return type(module).__name__.endswith("Embedding")


# FSDP's first version: several parameters in one, of which each rank holds a part. What they were stands beside it.


def _flats(model):
    """Its flat parameters, each with the name of the module that it is of."""
    found = {}
    for name, module in model.named_modules():
        own = vars(module)
        several = own.get("_handles")  # torch before 2.1
        several = several if isinstance(several, (list, tuple)) else ()
        for handle in (*several, own.get("_handle"), own.get("_flat_param_handle")):
            flat = getattr(handle, "flat_param", None)
            if _is_described(flat):
                found.setdefault(id(flat), (name, flat))
    for name, parameter in model.named_parameters():
        if _is_described(parameter):
            found.setdefault(id(parameter), (name.rpartition(".")[0], parameter))
    return list(found.values())


def _is_described(flat):
    return all(getattr(flat, name, None) is not None for name in ("_numels", "_param_infos"))


def _originals(flat):
    """The parameters that `use_orig_params=True` keeps: parts of them, and empty where another rank has them."""
    return (*(getattr(flat, "_params", None) or ()), *(getattr(flat, "_shared_params", None) or ()))


def _owners(flat):
    """For each parameter in it the modules that have it, with its name there."""
    infos, shared = flat._param_infos, getattr(flat, "_shared_param_infos", None) or ()
    for info in infos:
        same = [it for it in shared if it.prim_module is info.module and it.prim_param_name == info.param_name]
        yield [(it.module, it.param_name) for it in (info, *same)]


def _within(where, flat):
    count = len(flat._param_infos)
    kept = getattr(flat, "_params", None) or [flat] * count
    specs = getattr(flat, "_param_extensions", None) or [None] * count
    if not len(flat._numels) == len(kept) == len(specs) == count:
        raise Unknown("not known: this torch describes FSDP's parameters in another way")
    described = zip(flat._param_infos, flat._numels, kept, specs, _owners(flat))
    for info, numel, parameter, spec, owners in described:
        if spec is not None:  # what is flattened is a part of a DTensor
            numel = math.prod(_shape_of(spec))
        name = ".".join(part for part in (where, info.module_name, info.param_name) if part)
        kinds = {_is_embedding(module) for module, of_module in owners if of_module == "weight"}
        yield Weight(name, int(numel), parameter.requires_grad, kinds == {True})


def _shape_of(spec):
    shape = getattr(getattr(spec, "tensor_meta", None), "shape", None)
    if shape is None:
        raise Unknown("not known: FSDP holds parts of parameters that were parts before, and their whole is not said")
    return shape


def _refuse_hidden(model, flats):
    """Inside FSDP's own forward its parameters are plain tensors: modules that have a weight and no parameter."""
    known = {owner for _, flat in flats for owners in _owners(flat) for owner in owners}
    for module in model.modules():
        is_tensor = hasattr(vars(module).get("weight"), "numel")
        has_parameters = any(it is not None for it in getattr(module, "_parameters", {}).values())
        if is_tensor and not has_parameters and (module, "weight") not in known:
            raise Unknown(_HIDDEN)


# The mesh.


def ranks_of_a_batch(model, mesh):
    """How many ranks are given the same batch and share its FLOPs; `mesh`: what is known of this rank's place."""
    meshes = _meshes(model)
    sizes = {axis: mesh[axis][1] for axis in _mesh.AXES if axis in mesh}
    is_cut = any(map(_is_cut_by_hand, model.parameters()))
    for one in meshes:
        own = _sizes(one, _is_fsdp2(model))
        is_cut = is_cut or own.get("tp", 1) > 1
        root = _mesh._root_of(one)
        for axis, size in (*own.items(), *_known(root).items()):
            sizes[axis] = max(size, sizes.get(axis, 1))
    _refuse(sizes)
    tp = sizes.get("tp", 1)
    if tp > 1 and not is_cut:
        raise Unknown(f"not known: {tp} ranks share a batch (tp), and no parameter says how it is cut over them")
    return tp


def _refuse(sizes):
    """Of what these dimensions leave with a rank neither the model nor its input says how much it is."""
    reasons = {
        "pp": "a stage of a pipeline does not say how many of the layers it has",
        "cp": "a part of a sequence does not say how long all of it is",
        "ep": "a rank's experts do not say how many tokens come to them",
    }
    for axis, reason in reasons.items():
        if sizes.get(axis, 1) > 1:
            raise Unknown(f"not known: {reason} ({axis} is {sizes[axis]}); run.flops(per_token=…) tells them")


def _meshes(model):
    """The DeviceMeshes of its DTensors, each once."""
    flats = _flats(model)
    specs = [spec for _, flat in flats for spec in getattr(flat, "_param_extensions", None) or () if spec is not None]
    found = [getattr(it, "device_mesh", None) for it in model.parameters()] + [getattr(it, "mesh", None) for it in specs]
    return list({id(it): it for it in found if it is not None}.values())


def _is_fsdp2(model):
    return any(kind.__name__ == "FSDPModule" for module in model.modules() for kind in type(module).__mro__)


def _sizes(mesh, is_fsdp2):
    """Its axes and their sizes.

    Raises Unknown where a dimension's name does not say whether its ranks share a batch. Without names FSDP's second
    version has its own; with tensor parallelism it asks for them."""
    found = {}
    names = mesh.mesh_dim_names or ["fsdp" if is_fsdp2 else ""] * len(mesh.mesh.shape)
    for name, size in zip(names, mesh.mesh.shape):
        axis = _mesh.axis_of(name)
        if axis is None and size > 1 and not (name.lower() in _mesh._JOINED and _mesh._root_of(mesh)):
            said = f"a dimension `{name}`" if name else "a dimension without a name"
            raise Unknown(f"not known: nobody says whether ranks share a batch along {said} of the model's mesh")
        if axis is not None:
            found[axis] = found.get(axis, 1) * int(size)
    return found


def _known(root):
    """The axes of a mesh of which this model's is a part."""
    if root is None:
        return {}
    sizes = zip(map(_mesh.axis_of, root.mesh_dim_names), root.mesh.shape)
    return {axis: int(size) for axis, size in sizes if axis is not None}
