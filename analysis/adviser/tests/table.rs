//! The adviser's table in docs/detection.md: each bottleneck with what it is measured from, the knob, the arithmetic of its
//! gain, and when nothing is said. A match over all of them; the numbers are the code's.

use std::fmt::Write;

use super::*;

/// How the part of docs/detection.md begins.
pub(crate) const HEADING: &str = "## What the adviser says";

/// What the table says of a bottleneck.
struct Row {
    measured: String,
    /// What is turned, by the names that advices have.
    knob: String,
    removed: String,
    silent: &'static str,
}

/// Whether the table names this knob of a bottleneck.
pub(crate) fn names(bottleneck: Bottleneck, knob: &str) -> bool {
    row(bottleneck).knob.contains(knob)
}

/// The part of docs/detection.md.
pub(crate) fn section() -> String {
    let mut text = format!(
        "{HEADING}\n\n\
         Of each thing that limits a run: what it is measured from, what to change, and which part of today's time that\n\
         removes. A run is 1 ÷ (1 − what is removed) times as fast; of several on one part of the step the greatest counts, those\n\
         of different parts add up and never multiply. What is removed of a step counts for the part of the time that steps\n\
         take, without saves, going back and evaluations. A part under {} of a step is left alone, and so is what removes under {}.\n\
         Without a reading that a row needs nothing is said.\n\n\
         | limit | measured from | to change | removes | silent where |\n|---|---|---|---|---|\n",
        percent(LEAST_SHARE),
        percent(LEAST_SHARE / 2.0),
    );
    for it in Bottleneck::ALL {
        let Row {
            measured,
            knob,
            removed,
            silent,
        } = row(*it);
        let name = it.name();
        writeln!(
            text,
            "| `{name}` | {measured} | {knob} | {removed} | {silent} |"
        )
        .expect("a string takes all");
    }
    text.push('\n');
    text
}

fn row(bottleneck: Bottleneck) -> Row {
    use Bottleneck as Of;
    match bottleneck {
        Of::DataWorkers
        | Of::DataCpu
        | Of::DataDisk
        | Of::DataNetwork
        | Of::DataStorage
        | Of::DataUnknown => of_data(bottleneck),
        Of::DataNotPinned => Row {
            measured: "the wait for data, with a rank's workers and CPUs; or what a GPU receives over PCIe ÷ what \
                       its link could move"
                .to_owned(),
            knob: "pin_memory".to_owned(),
            removed: "unknown: no reading tells how much pinned memory would hide".to_owned(),
            silent: "it is on or not told; a rank has fewer workers than CPUs (then it stands beside `num_workers`) or \
                     the CPUs or the storage are why; of PCIe: the run is on several nodes, or on cards without NVLink \
                     whose collectives come the same way",
        },
        Of::HostSync => Row {
            measured: "gaps after synchronisations in a profile, no more of them than the GPUs' own readings have"
                .to_owned(),
            knob: "synchronisations".to_owned(),
            removed: format!("{} of these gaps", percent(host::OF_WAITS)),
            silent: "no profile was taken",
        },
        Of::HostWork => Row {
            measured: "gaps of a profile while the host works, cut alike".to_owned(),
            knob: "what the host does after a synchronisation".to_owned(),
            removed: format!("{} of these gaps", percent(host::OF_WORK)),
            silent: "no profile was taken",
        },
        Of::Launch => Row {
            measured: "gaps of a profile that nothing else explains, cut alike".to_owned(),
            knob: "compile".to_owned(),
            removed: format!("{} of these gaps", percent(launch::OF_LAUNCHES)),
            silent: "no profile was taken",
        },
        Of::Communication => Row {
            measured: format!(
                "the phase of communication of the rank that waits least; else NCCL's times, at most \
                 (1 − SMs active) ÷ (1 − {}) of the step without its other waits",
                percent(communication::OF_SMS)
            ),
            knob: format!(
                "{}, ZeRO stage, FSDP sharding, tp_comm_overlap, micro batch, accumulation: the first that the run \
                 allows",
                closing().join(", ")
            ),
            removed: format!(
                "{} of it; {} where weights are sharded no more",
                percent(communication::HALF),
                percent(communication::OF_GATHERS)
            ),
            silent: "neither is told, or nothing tells how much of NCCL's times computing hides",
        },
        Of::MemoryBandwidth | Of::TensorCoresUnused | Of::Recomputation => of_computing(bottleneck),
        Of::PipelineBubble => Row {
            measured: "stages p, micro-batches m and pieces v of the model on each: bubble b(m) = (p − 1) ÷ (v·m + p − 1)"
                .to_owned(),
            knob: "micro_batches".to_owned(),
            removed: "1 − (1 − b(m)) ÷ (1 − b(2m))".to_owned(),
            silent: "stages or micro-batches are not told",
        },
        Of::Checkpoint => Row {
            measured: "a save δ, the time t from the begin of one to that of the next, and M between two failures where that is known".to_owned(),
            knob: "checkpoint interval, checkpoint saves".to_owned(),
            removed: format!(
                "δ ÷ t + t ÷ 2M less the same at t = √(2δM); or {} of δ ÷ t by asynchronous saves; the greater \
                 comes first",
                percent(1.0 - checkpoint::LEFT)
            ),
            silent: "no checkpoint was saved",
        },
    }
}

/// What makes data come late: the wait is the same, and the host says of what.
fn of_data(bottleneck: Bottleneck) -> Row {
    let (cpu, io) = (percent(data::CPU_FULL), percent(data::IO_PRESSED));
    let is_of_workers = matches!(
        bottleneck,
        Bottleneck::DataWorkers | Bottleneck::DataUnknown
    );
    let most = match bottleneck {
        Bottleneck::DataCpu => {
            "; unknown where the node has CPU to spare and no limit of the container is told"
        }
        _ if is_of_workers => ", 1 − workers ÷ those advised at most",
        _ => "",
    };
    let (why, knob, silent) = match bottleneck {
        Bottleneck::DataCpu => (
            format!(
                "CPU busy {cpu} and more, or as many workers as CPUs; I/O pressure under {io}, or not read"
            ),
            "CPUs of the node, CPUs that a rank may use",
            "the CPUs are not read; workers have all of them and batches are not pinned, which comes first",
        ),
        Bottleneck::DataDisk => (
            format!("I/O pressure (PSI, some) {io} and more; the file system is a disk's"),
            "storage",
            "the node tells no PSI",
        ),
        Bottleneck::DataNetwork => (
            format!("I/O pressure (PSI, some) {io} and more; the file system is a network's"),
            "storage",
            "the node tells no PSI",
        ),
        Bottleneck::DataStorage => (
            format!("I/O pressure (PSI, some) {io} and more; the file system is not told"),
            "storage",
            "the node tells no PSI",
        ),
        Bottleneck::DataUnknown => (
            "I/O pressure or CPU is not read".to_owned(),
            "num_workers",
            "a rank has as many workers as CPUs, or nearly",
        ),
        _ => (
            format!("I/O pressure under {io} and CPU busy under {cpu}"),
            "num_workers",
            "a rank has as many workers as CPUs, or nearly",
        ),
    };
    Row {
        measured: format!("the wait for data of the median rank; {why}"),
        knob: knob.to_owned(),
        removed: format!("the wait above {} of a step{most}", percent(data::LEFT)),
        silent,
    }
}

/// What makes computing itself slow.
fn of_computing(bottleneck: Bottleneck) -> Row {
    match bottleneck {
        Bottleneck::MemoryBandwidth => Row {
            measured: format!(
                "FLOPs ÷ bytes of device memory below peak FLOP/s ÷ peak bytes/s (the ridge), the memory interface busy \
                 {} and more",
                percent(bandwidth::BUSY)
            ),
            knob: "compile".to_owned(),
            removed: format!(
                "1 − 1 ÷ f of the computing, f = ridge ÷ FLOPs a byte, {} at most",
                bandwidth::FUSED
            ),
            silent: "the run tells no FLOPs, or the card's peaks are not known",
        },
        Bottleneck::TensorCoresUnused => Row {
            measured: format!(
                "tensor cores active under {}, SMs active {} and more, 32-bit floats",
                percent(tensor::UNUSED),
                percent(tensor::AT_WORK)
            ),
            knob: "autocast".to_owned(),
            removed: format!(
                "1 − 1 ÷ f of {} of the computing, f = {} of peak of tensor cores ÷ peak of the others",
                percent(tensor::PRODUCTS),
                percent(tensor::REACHED)
            ),
            silent: "the type is not told, or the card's peaks are not known",
        },
        _ => Row {
            measured: format!(
                "every activation recomputed, memory at its peak under {}",
                percent(recompute::SPARE)
            ),
            knob: "activation checkpointing".to_owned(),
            removed: format!(
                "{} of {} of the computing",
                percent(recompute::SELECTIVE),
                percent(recompute::RECOMPUTED)
            ),
            silent: "it is not told whether it recomputes, or how full the memory is",
        },
    }
}

/// Variables that close a way of NCCL.
fn closing() -> Vec<&'static str> {
    let closes = HELD_BACK.iter().filter(|it| it.2);
    closes.map(|it| it.0).collect()
}

fn percent(part: f64) -> String {
    let percent = 100.0 * part;
    match (percent - percent.round()).abs() < 0.05 {
        true => format!("{percent:.0} %"),
        false => format!("{percent:.1} %"),
    }
}

#[test]
fn every_bottleneck_has_a_line_and_each_cell_of_it_says_something() {
    let text = section();
    for it in Bottleneck::ALL {
        let begins = format!("| `{}` | ", it.name());
        let lines = text.lines().filter_map(|line| line.strip_prefix(&*begins));
        let lines: Vec<&str> = lines.collect();
        let [line] = lines[..] else {
            panic!("{}: not one line", it.name());
        };
        let cells: Vec<&str> = line.trim_end_matches(" |").split(" | ").collect();
        assert_eq!(cells.len(), 4, "{line}");
        assert!(cells.iter().all(|it| it.len() > 3), "{line}");
    }
}
