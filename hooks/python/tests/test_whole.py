"""FLOPs of models of which a rank holds a part, by what torch leaves at their modules and parameters."""

import unittest
from types import SimpleNamespace as Some
from unittest import mock

import torch

from gpufleet import _mesh
from gpufleet._flops import of_shape
from gpufleet._whole import Unknown
from support import run_of_test

#: Of the model below: the embedding, and what a token is multiplied with.
LOOKUP, BODY, HEAD = 100 * 16, 16 * 32, 32 * 100
ATTENTION = 12 * 2 * 16 * 64
WHOLE = (6 * (BODY + HEAD) + ATTENTION, LOOKUP + BODY + HEAD)


class Parameter:
    """As a rank holds it."""

    def __init__(self, numel, requires_grad=True, **more):
        self._numel, self.requires_grad = numel, requires_grad
        self.__dict__.update(more)

    def numel(self):
        return self._numel


class Module:
    """What is asked of torch's modules."""

    def __init__(self, weight=None, **children):
        self._parameters = {} if weight is None else {"weight": weight}
        self._modules = children

    def named_modules(self, before=""):
        yield before, self
        for name, child in self._modules.items():
            yield from child.named_modules(f"{before}.{name}" if before else name)

    def modules(self):
        return (module for _, module in self.named_modules())

    def named_parameters(self):
        for where, module in self.named_modules():
            for name, parameter in module._parameters.items():
                yield (f"{where}.{name}" if where else name), parameter

    def parameters(self):
        return (parameter for _, parameter in self.named_parameters())


class Embedding(Module):
    pass


class FSDPModule:
    pass


class Sharded(FSDPModule, Module):
    """What the second fully_shard makes of a class."""


class Model(Module):
    config = Some(num_hidden_layers=2, num_attention_heads=4, hidden_size=16)


def model_of(*parameters, kind=Model):
    embedding, body, head = parameters
    model = kind(embedding=Embedding(embedding), body=Module(body), head=Module(head))
    model.config = Model.config
    return model


def plain(**more):
    return [Parameter(numel, **more) for numel in (LOOKUP, BODY, HEAD)]


def mesh_of(**sizes):
    shape = tuple(sizes.values())
    return Some(mesh_dim_names=tuple(sizes) or None, mesh=Some(shape=shape), ndim=len(shape))


def info(module, where, name="weight"):
    return Some(param_name=name, module=module, module_name=where)


def flatten(wrapper, *infos_and_numels, ranks=8, keeps=False, handle="_handle", specs=None, shared=()):
    """What FSDP's first version does to parameters: out of their modules into one, of which this rank has a part.
    `keeps`: use_orig_params, with all in this rank's part but the last, which is another's."""
    infos, numels = zip(*infos_and_numels)
    kept = None
    for one in infos:
        one.module._parameters.pop("weight", None)
    if keeps:
        sizes = [numel // ranks for numel in numels[:-1]] + [0]
        kept = [Parameter(size, _fsdp_flattened=True) for size in sizes]
        for one, parameter in zip(infos, kept):
            one.module._parameters["weight"] = parameter
    else:
        for one, numel in infos_and_numels:
            one.module.weight = Parameter(numel)  # a view, no parameter
    flat = Parameter(sum(numels) // ranks, _fsdp_flattened=True)
    flat._numels, flat._param_infos, flat._shared_param_infos = numels, infos, shared
    flat._params, flat._param_extensions = kept, specs or [None] * len(infos)
    if not keeps:
        wrapper._parameters["flat_param"] = flat
    held = Some(flat_param=flat)
    setattr(wrapper, handle, [held] if handle == "_handles" else held)
    return flat


class OfFsdp(unittest.TestCase):
    def test_its_first_version_counts_whole_however_it_is_wrapped(self):
        for keeps in (False, True):
            for handle in ("_handle", "_handles", "_flat_param_handle"):
                model = model_of(*plain())
                parts = {name: model._modules[name] for name in ("embedding", "body", "head")}
                inner = Module(_fsdp_wrapped_module=parts["body"])
                model._modules["body"] = inner
                outer = Module(_fsdp_wrapped_module=model)
                flatten(inner, (info(parts["body"], ""), BODY), keeps=keeps, handle=handle)
                others = [(info(parts[it], it), size) for it, size in (("embedding", LOOKUP), ("head", HEAD))]
                flatten(outer, *others, keeps=keeps, handle=handle)
                self.assertEqual(of_shape(outer, 64, Model.config), WHOLE, (keeps, handle))

    def test_a_head_that_is_the_embedding_is_multiplied_with_and_counts_once(self):
        model = model_of(*plain())
        embedding, head = model._modules["embedding"], model._modules["head"]
        head._parameters.clear()
        tied = Some(param_name="weight", module=head, prim_module=embedding, prim_param_name="weight")
        flatten(model, (info(embedding, "embedding"), LOOKUP), shared=(tied,))
        self.assertEqual(of_shape(model, 64), (6 * (LOOKUP + BODY) + ATTENTION, LOOKUP + BODY))

    def test_what_is_frozen_and_what_is_an_experts_is_seen_within_it(self):
        model = model_of(*plain())
        body = model._modules["body"]
        flat = flatten(model, (info(body, "layer.experts.3"), BODY), keeps=True)
        flat._params[0].requires_grad = False
        config = Some(**vars(Model.config), num_experts=8, num_experts_per_tok=2)
        self.assertEqual(of_shape(model, 64, config)[0], 4 * BODY / 4 + 6 * HEAD + ATTENTION)

    def test_parts_whose_whole_is_not_seen_are_refused(self):
        kept = model_of(*plain())
        body = kept._modules["body"]
        flatten(Module(), (info(body, "body"), BODY), keeps=True)
        viewed = model_of(*plain())
        body = viewed._modules["body"]
        flatten(Module(), (info(body, "body"), BODY))
        older = model_of(*plain(_is_sharded=True))
        for model in (kept, viewed, older):
            with self.assertRaisesRegex(Unknown, "watch the one that FSDP returned"):
                of_shape(model, 64)

    def test_zero_3_leaves_the_size_beside_an_empty_parameter(self):
        parameters = [Parameter(0, ds_numel=numel) for numel in (LOOKUP, BODY, HEAD)]
        self.assertEqual(of_shape(model_of(*parameters), 64), WHOLE)

    def test_its_second_version_has_the_whole_size_and_a_batch_a_rank(self):
        for mesh in (mesh_of(dp=8), mesh_of(dp_replicate=2, dp_shard=4), mesh_of(replicate=2, shard=4)):
            self.assertEqual(of_shape(model_of(*plain(device_mesh=mesh)), 64), WHOLE)
        unnamed = Some(mesh_dim_names=None, mesh=Some(shape=(8,)), ndim=1)
        self.assertEqual(of_shape(model_of(*plain(device_mesh=unnamed), kind=Sharded), 64), WHOLE)


class OfTensorParallelism(unittest.TestCase):
    def half(self, model, mesh=None):
        self.assertEqual(of_shape(model, 64, Model.config, mesh), (WHOLE[0] / 2, WHOLE[1]))

    def test_ranks_that_share_a_batch_have_an_equal_part_of_its_flops(self):
        for mesh in (mesh_of(tp=2), mesh_of(dp=4, tp=2), mesh_of(data=4, model=2)):
            embedding, body, head = plain()
            cut = [Parameter(it.numel(), device_mesh=mesh) for it in (body, head)]
            self.half(model_of(embedding, *cut))

    def test_where_fsdp_flattened_its_parts_the_whole_is_beside_them(self):
        model = model_of(*plain())
        mesh = mesh_of(tp=2)
        parts = [(name, size) for name, size in (("embedding", LOOKUP), ("body", BODY), ("head", HEAD))]
        specs = [Some(mesh=mesh, tensor_meta=Some(shape=(size // 4, 4))) for _, size in parts]
        flatten(model, *[(info(model._modules[it], it), size // 2) for it, size in parts], specs=specs)
        self.half(model)
        specs[0].tensor_meta = None
        with self.assertRaisesRegex(Unknown, "were parts before"):
            of_shape(model, 64)

    def test_megatrons_parts_are_as_many_times_as_large(self):
        parts = [Parameter(numel // 2, tensor_model_parallel=True) for numel in (LOOKUP, BODY, HEAD)]
        self.half(model_of(*parts), {"tp": (1, 2), "pp": (0, 1), "mesh_source": "megatron"})

    def test_what_a_rank_has_of_the_work_is_refused_where_nobody_says(self):
        unnamed = Some(mesh_dim_names=None, mesh=Some(shape=(8,)), ndim=1)
        for of_parameters, of_rank, words in [
            (None, {"tp": (0, 2)}, "no parameter says"),
            (None, {"pp": (0, 4)}, "a stage of a pipeline"),
            (None, {"cp": (0, 2)}, "a part of a sequence"),
            (None, {"ep": (0, 2)}, "a rank's experts"),
            (unnamed, {}, "without a name"),
            (mesh_of(rows=8), {}, "`rows`"),
            (mesh_of(dp_shard_cp=8), {}, "`dp_shard_cp`"),
        ]:
            more = {"device_mesh": of_parameters} if of_parameters else {}
            with self.assertRaisesRegex(Unknown, words):
                of_shape(model_of(*plain(**more)), 64, mesh=of_rank)

    def test_dimensions_of_one_rank_leave_everything_with_it(self):
        alone = {axis: (0, 1) for axis in _mesh.AXES}
        self.assertEqual(of_shape(model_of(*plain(device_mesh=mesh_of(rows=1))), 64, mesh=alone), WHOLE)

    def test_the_rest_of_a_mesh_is_asked_of_the_one_that_it_is_a_part_of(self):
        part = mesh_of(dp_shard_cp=8)
        for sizes, refused in ((dict(dp_shard=8, cp=1), False), (dict(dp_shard=4, cp=2), True)):
            root = mesh_of(**sizes)
            part._get_root_mesh = lambda: root  # noqa: B023
            model = model_of(*plain(device_mesh=part))
            if refused:
                self.assertRaisesRegex(Unknown, "cp is 2", of_shape, model, 64)
            else:
                self.assertEqual(of_shape(model, 64), WHOLE)


class OfPackedWeights(unittest.TestCase):
    def test_those_of_4_bits_count_as_what_they_were_packed_from(self):
        embedding, _, head = plain()
        packed = Parameter(BODY // 2, requires_grad=False, dtype=torch.uint8, quant_state=Some(shape=(16, 32)))
        found = of_shape(model_of(embedding, packed, head), 64)
        self.assertEqual(found, (4 * BODY + 6 * HEAD + ATTENTION, LOOKUP + BODY + HEAD))

    def test_those_of_8_bits_are_a_number_each(self):
        self.assertEqual(of_shape(model_of(*plain(dtype=torch.int8)), 64), WHOLE)

    def test_where_nobody_says_how_many_there_are_they_are_refused(self):
        embedding, body, head = plain()
        as_parameter = model_of(embedding, Parameter(BODY // 8, dtype=torch.int32), head)
        as_buffer, within_fsdp = model_of(embedding, None, head), model_of(embedding, body, head)
        as_buffer._modules["body"]._buffers = {"qweight": torch.zeros(2, 32, dtype=torch.int32)}
        within_fsdp._modules["body"].quant_state = Some(shape=(16, 32))
        for model in (as_parameter, as_buffer, within_fsdp):
            with self.assertRaisesRegex(Unknown, "several weights of few bits"):
                of_shape(model, 64)


class OfExperts(unittest.TestCase):
    def mixture(self, **config):
        embedding, body, head = plain()
        layer = Module(experts=Module(first=Module(body)))
        model = Model(embedding=Embedding(embedding), layer=layer, head=Module(head))
        model.config = Some(**vars(Model.config), **config)
        return model

    def test_a_token_goes_through_as_many_as_the_config_says_in_whatever_words(self):
        for config in (
            dict(num_local_experts=8, num_experts_per_tok=2, top_k=50),
            dict(num_moe_experts=8, moe_router_topk=2),
            dict(ffn_config=Some(moe_num_experts=8, moe_top_k=2, top_k=50), top_k=50),
        ):
            found = of_shape(self.mixture(**config), 64)[0]
            self.assertEqual(found, 6 * (BODY / 4 + HEAD) + ATTENTION, config)

    def test_what_does_not_say_it_is_refused(self):
        for config in ({}, dict(num_experts=8), dict(num_experts=8, top_k=50), dict(num_experts=[8], moe_topk=[2])):
            with self.assertRaisesRegex(Unknown, "how many of them a token goes through"):
                of_shape(self.mixture(**config), 64)

    def test_experts_whose_parameters_are_not_told_from_others_are_refused(self):
        model = model_of(*plain())
        for config in (dict(num_local_experts=8, num_experts_per_tok=2), dict(num_local_experts=8)):
            with self.assertRaisesRegex(Unknown, "tells of 8 experts"):
                of_shape(model, 64, Some(**vars(Model.config), **config))
        one = Some(**vars(Model.config), num_experts=1)
        self.assertEqual(of_shape(model, 64, one), WHOLE)


class Told(unittest.TestCase):
    def test_a_model_on_several_gpus_is_refused(self):
        parts = [Parameter(it.numel(), device=torch.device("cuda", gpu)) for it, gpu in zip(plain(), (0, 0, 1))]

        class DataParallel(Model):
            device_ids = [0, 1]

        for model in (model_of(*parts), model_of(*plain(), kind=DataParallel)):
            with self.assertRaisesRegex(Unknown, "several GPUs"):
                of_shape(model, 64)
        parts[2].device = torch.device("cuda", 0)
        self.assertEqual(of_shape(model_of(*parts), 64), WHOLE)

    def test_a_replica_is_not_asked_for_its_shape(self):
        run = run_of_test()
        model = torch.nn.Sequential(torch.nn.Embedding(100, 16), torch.nn.Linear(16, 100, bias=False))
        model.config, model._is_replica = Model.config, True
        run.watch(model)
        model(torch.zeros(2, 64, dtype=torch.long))
        run.step()
        said = run.snapshot()
        self.assertIn("several GPUs", said["fingerprint"]["flops_refused"])
        self.assertEqual((said["model_flops"], said["tokens_total"]), (0, 128))

    def test_a_model_of_encoder_and_decoder_is_refused(self):
        config = Some(**vars(Model.config), is_encoder_decoder=True)
        with self.assertRaisesRegex(Unknown, "an encoder and a decoder"):
            of_shape(model_of(*plain()), 64, config)

    def test_a_run_says_why_it_tells_no_flops(self):
        run = run_of_test()
        with mock.patch.object(run, "_given_mesh", {"pp": (0, 2)}):
            run.flops_of_shape(model_of(*plain()), 64)
        said = run.snapshot()
        self.assertIn("a stage of a pipeline", said["fingerprint"]["flops_refused"])
        self.assertFalse(said["plan"] and said["plan"]["flops_per_token"])

    def test_a_watched_model_is_asked_with_its_wrapper(self):
        class Wrapper(torch.nn.Module):
            def __init__(self, module):
                super().__init__()
                self.module = module

            def forward(self, ids):
                return self.module(ids)

        inner = torch.nn.Sequential(torch.nn.Embedding(100, 16), torch.nn.Linear(16, 100, bias=False))
        inner.config = Model.config
        wrapper = Wrapper(inner)
        of_head = inner[1].weight
        flat = torch.nn.Parameter(of_head.detach().flatten()[:200].clone())
        flat._numels, flat._param_infos = (1600,), (info(inner[1], "1"),)
        wrapper._handle = Some(flat_param=flat)
        flat._params = [of_head]
        of_head._fsdp_flattened = True
        of_head.data = torch.empty(0)
        run = run_of_test()
        run.watch(wrapper)
        ids = torch.zeros(2, 64, dtype=torch.long)
        run._watch.count(wrapper, (ids,), {})
        self.assertEqual(run.snapshot()["plan"]["flops_per_token"], 6 * 1600 + ATTENTION)


if __name__ == "__main__":
    unittest.main()
