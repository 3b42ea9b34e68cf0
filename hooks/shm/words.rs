//! The numbers in the region that stand for words.

/// Declares numbers that stand for words; a number that stands for nothing is `None`.
macro_rules! words {
    ($(#[doc = $about:literal])* $name:ident {
        $($(#[doc = $help:literal])* $word:ident = $number:literal $text:literal,)*
    }) => {
        $(#[doc = $about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum $name {
            $($(#[doc = $help])* $word = $number,)*
        }

        impl $name {
            /// Each of them.
            pub const ALL: &[Self] = &[$(Self::$word),*];

            /// What the number stands for.
            pub const fn from_number(number: u64) -> Option<Self> {
                match number {
                    $($number => Some(Self::$word),)*
                    _ => None,
                }
            }

            /// The number in the region.
            pub const fn number(self) -> u64 {
                self as u64
            }

            /// The word, as pages and labels show it.
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$word => $text,)*
                }
            }

            /// The word's number, from its text.
            pub fn from_text(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|it| it.text() == text)
            }
        }
    };
}

pub(crate) use words;

words! {
    /// What writes a region.
    WriterKind {
        /// The Python package.
        Python = 1 "python",
        /// The NCCL profiler plugin.
        Nccl = 2 "nccl",
        /// A client in C.
        C = 3 "c",
        /// A client in Rust.
        Rust = 4 "rust",
    }
}

words! {
    /// What a training process spends time on.
    Phase {
        /// Waiting for the next batch.
        DataWait = 1 "data_wait",
        /// Forward pass.
        Forward = 2 "forward",
        /// Backward pass.
        Backward = 3 "backward",
        /// Optimizer step.
        Optimizer = 4 "optimizer",
        /// Waiting for other ranks.
        Communication = 5 "communication",
        /// Saving a checkpoint.
        CheckpointSave = 6 "checkpoint_save",
        /// Restoring a checkpoint.
        CheckpointRestore = 7 "checkpoint_restore",
        /// Evaluation.
        Evaluation = 8 "evaluation",
        /// From the process' start to the first step.
        Startup = 9 "startup",
        /// Anything else that has a name.
        Other = 10 "other",
    }
}

words! {
    /// Where the mesh coordinates came from.
    MeshSource {
        /// Nobody said.
        Unknown = 0 "unknown",
        /// The user gave them.
        Given = 1 "given",
        /// Megatron's parallel_state.
        Megatron = 2 "megatron",
        /// torch's DeviceMesh.
        DeviceMesh = 3 "device_mesh",
        /// DeepSpeed's groups.
        DeepSpeed = 4 "deepspeed",
        /// The members of the communicators.
        Communicators = 5 "communicators",
    }
}

words! {
    /// How the FLOPs of a step were got.
    FlopsSource {
        /// Nobody said.
        Unknown = 0 "unknown",
        /// The user gave them.
        Explicit = 1 "explicit",
        /// From the model's shape.
        ModelShape = 2 "model_shape",
        /// Counted in one step.
        Measured = 3 "measured",
    }
}

words! {
    /// How a process said that it ended.
    EndKind {
        /// It did what it was to do.
        Finished = 1 "finished",
        /// It was told to stop.
        Stopped = 2 "stopped",
        /// An exception that nobody caught.
        Exception = 3 "exception",
    }
}

words! {
    /// What a probe inside the process came to.
    ProbeVerdict {
        /// Everything that was compared was right.
        Passed = 1 "passed",
        /// Something was wrong.
        Failed = 2 "failed",
        /// Nothing is known.
        CouldNotRun = 3 "could_not_run",
    }
}

words! {
    /// What became of a profile that was asked for.
    ProfileState {
        /// Steps are being recorded, or it is being written.
        Running = 1 "running",
        /// Its file is there.
        Done = 2 "done",
        /// There is none.
        Failed = 3 "failed",
    }
}

words! {
    /// Why the gaps of a profile are not told.
    Untold {
        /// Its trace is too large to look through while training stands.
        TooMany = 1 "too_many",
        /// This version of the framework tells its events otherwise.
        Unreadable = 2 "unreadable",
        /// The GPU had no work in its steps, or none before.
        NoWork = 3 "no_work",
    }
}

words! {
    /// What a collective does.
    Function {
        /// A function that a later NCCL has.
        Other = 0 "Other",
        /// Sum (or the like) to all.
        AllReduce = 1 "AllReduce",
        /// Everything to all.
        AllGather = 2 "AllGather",
        /// Sum, a part to each.
        ReduceScatter = 3 "ReduceScatter",
        /// One to all.
        Broadcast = 4 "Broadcast",
        /// Sum to one.
        Reduce = 5 "Reduce",
        /// Each to each.
        AllToAll = 6 "AlltoAll",
        /// Send and Recv.
        PointToPoint = 7 "SendRecv",
    }
}

words! {
    /// How collectives are counted: why there are none, or none with a duration.
    Collecting {
        /// Nobody said: no plugin is loaded.
        NotSaid = 0 "not_said",
        /// With the time each took on the GPU.
        Timed = 1 "timed",
        /// Without: with this NCCL the time would cost too much, or was not asked for.
        Untimed = 2 "untimed",
        /// The user switched the plugin off.
        SwitchedOff = 3 "switched_off",
        /// So far only communicators of one rank, on which NCCL does nothing.
        OneRank = 4 "one_rank",
        /// Asked for with the time, but NCCL does not report when kernels begin and end.
        Silent = 5 "silent",
    }
}

words! {
    /// The type of a collective's elements.
    DataType {
        /// Not said, or newer than this list.
        Unknown = 0 "unknown",
        /// 8 bits, signed; also plain bytes.
        Int8 = 1 "int8",
        /// 8 bits.
        Uint8 = 2 "uint8",
        /// 32 bits, signed.
        Int32 = 3 "int32",
        /// 32 bits.
        Uint32 = 4 "uint32",
        /// 64 bits, signed.
        Int64 = 5 "int64",
        /// 64 bits.
        Uint64 = 6 "uint64",
        /// Half precision.
        Float16 = 7 "float16",
        /// Single precision.
        Float32 = 8 "float32",
        /// Double precision.
        Float64 = 9 "float64",
        /// Brain float.
        Bfloat16 = 10 "bfloat16",
        /// 8-bit float, 4 bits of exponent.
        Float8E4m3 = 11 "float8e4m3",
        /// 8-bit float, 5 bits of exponent.
        Float8E5m2 = 12 "float8e5m2",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{FUNCTIONS, PHASES};

    #[test]
    fn every_phase_and_function_has_a_place_in_its_table() {
        assert!(Phase::ALL.iter().all(|it| (*it as usize) < PHASES));
        assert!(Function::ALL.iter().all(|it| (*it as usize) < FUNCTIONS));
    }

    #[test]
    fn a_word_goes_to_its_number_and_back() {
        for phase in Phase::ALL {
            assert_eq!(Phase::from_number(phase.number()), Some(*phase));
            assert_eq!(Phase::from_text(phase.text()), Some(*phase));
        }
        assert_eq!(Phase::from_number(0), None);
        assert_eq!(Phase::from_number(u64::MAX), None);
    }
}
