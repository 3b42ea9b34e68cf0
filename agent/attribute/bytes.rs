//! What reads bytes of others here, each by itself: whether it understood them. Fuzzed by `tests/fuzz`.

pub use super::allocations::understands as scontrol_squeue;
pub use super::cluster::understands as watch_line;
pub use super::kubelet::understands as kubelet_list;
pub use super::processes::understands as process_files;
pub use super::prolog::understands as prolog_file;
pub use super::slurm::understands as scontrol;
