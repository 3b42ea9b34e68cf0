//! How a run is set up, of its fingerprint: the names under which the Python package, its users and frameworks tell knobs.

use std::collections::BTreeMap;

use gpufleet_analysis::adviser::{HELD_BACK, SetUp};

/// Steps whose gradients are added up, as frameworks name them. DeepSpeed's pipelines and Megatron take them as
/// micro-batches.
const ACCUMULATION: [&str; 5] = [
    "trainer.gradient_accumulation_steps",
    "trainer.accumulate_grad_batches",
    "deepspeed.gradient_accumulation_steps",
    "accelerate.gradient_accumulation_steps",
    "megatron.micro_batches",
];

/// Names under which a knob of the adviser stands in a fingerprint, the surest first. NCCL's variables stand under their
/// own.
pub const KNOBS: [(&str, &[&str]); 16] = [
    (
        "num_workers",
        &["loader.num_workers", "trainer.dataloader_num_workers"],
    ),
    ("prefetch_factor", &["loader.prefetch_factor"]),
    ("persistent_workers", &["loader.persistent_workers"]),
    ("pin_memory", &["loader.pin_memory"]),
    ("accumulation", &ACCUMULATION),
    (
        "micro_batches",
        &[
            "micro_batches",
            "megatron.micro_batches",
            "deepspeed.gradient_accumulation_steps",
        ],
    ),
    (
        "virtual stages",
        &["virtual_stages", "megatron.virtual_stages"],
    ),
    (
        "autocast",
        &[
            "autocast",
            "accelerate.precision",
            "trainer.precision",
            "parameter_types",
        ],
    ),
    ("TF32", &["NVIDIA_TF32_OVERRIDE", "matmul_precision"]),
    (
        "compile",
        &["compiled", "trainer.torch_compile", "compiles"],
    ),
    ("CUDA graphs", &["compiled.triton.cudagraphs"]),
    ("graph breaks", &["graph_breaks"]),
    (
        "activation checkpointing",
        &[
            "gradient_checkpointing",
            "trainer.gradient_checkpointing",
            "megatron.recompute",
        ],
    ),
    ("ZeRO stage", &["zero_stage", "deepspeed.zero_stage"]),
    ("FSDP sharding", &["fsdp.strategy"]),
    ("bucket_cap_mb", &["ddp.bucket_cap_mb"]),
];

/// What a fingerprint tells.
struct Told<'a>(&'a BTreeMap<String, String>);

impl<'a> Told<'a> {
    /// Under the names of a knob, the surest first.
    fn all(&self, knob: &str) -> impl Iterator<Item = &'a str> + use<'a> {
        let told = self.0;
        let names = KNOBS.iter().find(|it| it.0 == knob).map(|it| it.1);
        let names = names.unwrap_or_default().iter();
        names.filter_map(|it| told.get(*it)).map(String::as_str)
    }

    fn number(&self, knob: &str) -> Option<u32> {
        self.all(knob).find_map(|it| it.parse().ok())
    }

    /// Whether any of them is on; off where one says so and none that it is on.
    fn flag(&self, knob: &str) -> Option<bool> {
        let said: Vec<bool> = self.all(knob).filter_map(flag).collect();
        (!said.is_empty()).then(|| said.contains(&true))
    }
}

fn flag(text: &str) -> Option<bool> {
    match text {
        // TF32 stands in the precision of products, full recomputation in Megatron's name of it.
        "True" | "true" | "1" | "high" | "medium" | "full" => Some(true),
        "False" | "false" | "0" | "highest" | "selective" => Some(false),
        _ => None,
    }
}

/// Knobs, by the names under which they are told; `data_type` where no name says the type.
pub fn set_up(told: &BTreeMap<String, String>, data_type: &str) -> SetUp {
    let it = Told(told);
    // Accelerate's "no" leaves the type to the weights.
    let data_type = it
        .all("autocast")
        .find(|it| *it != "no")
        .unwrap_or(data_type);
    let nccl = HELD_BACK.into_iter().filter_map(|(name, ..)| {
        let value = told.get(name).filter(|it| !it.is_empty())?;
        Some((name.to_owned(), value.clone()))
    });
    SetUp {
        num_workers: it.number("num_workers"),
        prefetch_factor: it.number("prefetch_factor"),
        persistent_workers: it.flag("persistent_workers"),
        pin_memory: it.flag("pin_memory"),
        data_type: Some(data_type.to_owned()).filter(|it| !it.is_empty()),
        // What the driver is told overrules what torch is.
        uses_tf32: it.all("TF32").find_map(flag),
        is_compiled: it.flag("compile"),
        uses_graphs: it.flag("CUDA graphs"),
        graph_breaks: it.number("graph breaks"),
        recomputes_all: it.all("activation checkpointing").find_map(flag),
        stages: None,
        virtual_stages: it.number("virtual stages"),
        tensor_ranks: None,
        micro_batches: it.number("micro_batches"),
        accumulation: it.number("accumulation"),
        zero_stage: it.number("ZeRO stage"),
        fsdp: it.all("FSDP sharding").next().map(str::to_owned),
        bucket_mib: it.number("bucket_cap_mb"),
        nccl: nccl.collect(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn told(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let pairs = pairs.iter();
        pairs
            .map(|(name, it)| ((*name).to_owned(), (*it).to_owned()))
            .collect()
    }

    #[test]
    fn knobs_are_read_by_the_names_under_which_they_are_told() {
        for (pair, knob, expected) in [
            (("loader.num_workers", "4"), "num_workers", "4"),
            (("loader.prefetch_factor", "2"), "prefetch_factor", "2"),
            (
                ("loader.persistent_workers", "False"),
                "persistent_workers",
                "off",
            ),
            (("loader.pin_memory", "True"), "pin_memory", "on"),
            (("autocast", "bfloat16"), "autocast", "bfloat16"),
            (("trainer.precision", "32-true"), "autocast", "32-true"),
            (("NVIDIA_TF32_OVERRIDE", "0"), "TF32", "off"),
            (("matmul_precision", "highest"), "TF32", "off"),
            (("matmul_precision", "high"), "TF32", "on"),
            (("compiled", "True"), "compile", "on"),
            (("compiles", "False"), "compile", "off"),
            (("graph_breaks", "3"), "graph breaks", "3"),
            (
                ("megatron.recompute", "full"),
                "activation checkpointing",
                "full",
            ),
            (
                ("megatron.recompute", "selective"),
                "activation checkpointing",
                "not full",
            ),
            (
                ("trainer.gradient_accumulation_steps", "8"),
                "accumulation",
                "8",
            ),
            (
                ("trainer.accumulate_grad_batches", "4"),
                "accumulation",
                "4",
            ),
            (
                ("deepspeed.gradient_accumulation_steps", "4"),
                "accumulation",
                "4",
            ),
            (
                ("accelerate.gradient_accumulation_steps", "4"),
                "accumulation",
                "4",
            ),
            (("megatron.micro_batches", "16"), "micro_batches", "16"),
            (("megatron.virtual_stages", "4"), "virtual stages", "4"),
            (("deepspeed.zero_stage", "3"), "ZeRO stage", "3"),
            (
                ("fsdp.strategy", "FULL_SHARD"),
                "FSDP sharding",
                "FULL_SHARD",
            ),
            (("ddp.bucket_cap_mb", "25"), "bucket_cap_mb", "25"),
            (("NCCL_ALGO", "Ring"), "NCCL_ALGO", "Ring"),
        ] {
            let found = set_up(&told(&[pair]), "").today(knob);
            assert_eq!(found.as_deref(), Some(expected), "{pair:?}");
        }
    }

    #[test]
    fn of_several_names_the_surest_is_believed() {
        for (pairs, data_type, knob, expected) in [
            (
                &[
                    ("accelerate.precision", "no"),
                    ("parameter_types", "float32"),
                ][..],
                "",
                "autocast",
                "float32",
            ),
            (
                &[("NVIDIA_TF32_OVERRIDE", "0"), ("matmul_precision", "high")][..],
                "",
                "TF32",
                "off",
            ),
            // What is compiled may be a part of the model that the watched one does not tell.
            (
                &[("trainer.torch_compile", "False"), ("compiles", "True")][..],
                "",
                "compile",
                "on",
            ),
            (
                &[("compiled", "True"), ("compiled.triton.cudagraphs", "True")][..],
                "",
                "compile",
                "on, with CUDA graphs",
            ),
            (&[][..], "fp32", "autocast", "fp32"),
        ] {
            let found = set_up(&told(pairs), data_type).today(knob);
            assert_eq!(found.as_deref(), Some(expected), "{pairs:?}");
        }
    }

    #[test]
    fn what_is_not_told_or_is_not_understood_is_not_known() {
        let told = told(&[("loader.num_workers", "many"), ("compiled", "perhaps")]);
        assert_eq!(set_up(&told, ""), SetUp::default());
    }
}
