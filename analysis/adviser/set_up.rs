//! How a run is set up: its knobs, and what each reads today in the adviser's words.

use std::collections::BTreeMap;

/// Knobs, as the run tells them. None is not told.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SetUp {
    /// Workers of the data loader of one rank.
    pub num_workers: Option<u32>,
    /// Batches that each of them loads ahead.
    pub prefetch_factor: Option<u32>,
    /// Whether they stay from one epoch to the next.
    pub persistent_workers: Option<bool>,
    /// Whether batches are put into memory that is copied to the GPU beside what it computes.
    pub pin_memory: Option<bool>,
    /// The type of autocast, or of the weights without one.
    pub data_type: Option<String>,
    /// Whether matrices of 32-bit floats may be multiplied in TF32.
    pub uses_tf32: Option<bool>,
    /// Whether it is compiled.
    pub is_compiled: Option<bool>,
    /// Whether what is compiled is launched as CUDA graphs.
    pub uses_graphs: Option<bool>,
    /// Times that the compiler gave up and left a piece of the model to Python.
    pub graph_breaks: Option<u32>,
    /// Whether activations are recomputed in full.
    pub recomputes_all: Option<bool>,
    /// Pipeline stages.
    pub stages: Option<u32>,
    /// Pieces of the model that each stage holds by turns: more than 1 where its schedule interleaves.
    pub virtual_stages: Option<u32>,
    /// Ranks that share each tensor.
    pub tensor_ranks: Option<u32>,
    /// Micro-batches of a step, of one pipeline.
    pub micro_batches: Option<u32>,
    /// Steps of accumulation.
    pub accumulation: Option<u32>,
    /// What ZeRO shards: 1 optimizer, 2 and gradients, 3 and weights.
    pub zero_stage: Option<u32>,
    /// How FSDP shards: `FULL_SHARD`.
    pub fsdp: Option<String>,
    /// Most gradients that DDP reduces at once, MiB.
    pub bucket_mib: Option<u32>,
    /// NCCL's variables that are set, by name.
    pub nccl: BTreeMap<String, String>,
}

impl SetUp {
    /// A knob's value by its name; none where it is not told, or no run tells it.
    pub fn today(&self, knob: &str) -> Option<String> {
        let switch = |it: Option<bool>| it.map(|it| if it { "on" } else { "off" }.to_owned());
        let number = |it: Option<u32>| it.map(|it| it.to_string());
        match knob {
            "num_workers" => number(self.num_workers),
            "prefetch_factor" => number(self.prefetch_factor),
            "persistent_workers" => switch(self.persistent_workers),
            "pin_memory" => switch(self.pin_memory),
            "autocast" => self.data_type.clone(),
            "TF32" => switch(self.uses_tf32),
            "compile" if self.uses_graphs == Some(true) => Some("on, with CUDA graphs".to_owned()),
            "compile" => switch(self.is_compiled),
            "CUDA graphs" => switch(self.uses_graphs),
            "graph breaks" => number(self.graph_breaks),
            "activation checkpointing" => self
                .recomputes_all
                .map(|it| if it { "full" } else { "not full" }.to_owned()),
            "micro_batches" => number(self.micro_batches),
            "virtual stages" => number(self.virtual_stages),
            "accumulation" => number(self.accumulation),
            "ZeRO stage" => number(self.zero_stage),
            "FSDP sharding" => self.fsdp.clone(),
            "bucket_cap_mb" => number(self.bucket_mib),
            _ => self.nccl.get(knob).cloned(),
        }
    }

    /// Whether weights are sharded too, so that they are gathered for every micro-batch.
    pub(super) fn shards_weights(&self) -> bool {
        let is_full = |it: &str| matches!(it, "FULL_SHARD" | "HYBRID_SHARD");
        self.zero_stage == Some(3) || self.fsdp.as_deref().is_some_and(is_full)
    }
}
