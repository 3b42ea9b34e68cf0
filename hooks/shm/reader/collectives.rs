//! Collectives: in flight, totals per communicator, and the records since the last snapshot.

use std::sync::atomic::Ordering;

use crate::cell::{get, get_signed, read};
use crate::layout::{self, COMMUNICATORS, Word};
use crate::records::{Collective, Communicator, CommunicatorIndex};
use crate::words::{Collecting, DataType, Function};

use super::ReadError;
use super::check::{Check, Reason};
use super::ring::{self, Record};

/// Bits of a function, a data type, a number of channels in their common word.
const BYTE: u64 = 0xff;

/// Totals of one function on one communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FunctionTotal {
    /// Which function.
    pub function: Function,
    /// Collectives ended.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those whose duration is known.
    pub timed: u64,
    /// Time those took on the GPU.
    pub duration_ns: u64,
    /// Time waited for other ranks, where the writer knows it.
    pub wait_ns: u64,
}

/// One communicator with its totals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommunicatorTotals {
    /// Its number, which collectives name it by.
    pub index: CommunicatorIndex,
    /// The communicator.
    pub communicator: Communicator,
    /// Functions that were used at least once.
    pub functions: Vec<FunctionTotal>,
}

/// What the ranks do together.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Together {
    /// Begun and not ended.
    pub in_flight: Vec<Collective>,
    /// Collectives for which the table had no place.
    pub in_flight_left_out: u64,
    /// Communicators.
    pub communicators: Vec<CommunicatorTotals>,
    /// Communicators for which the table had no place.
    pub communicators_left_out: u64,
    /// Collectives that ended since the snapshot before, in order.
    pub recent: Vec<Collective>,
    /// Those that the ring no longer has: they are in the totals.
    pub recent_missed: u64,
    /// How they are counted; `None`: in a way that a newer plugin has.
    pub collecting: Option<Collecting>,
    /// Version of NCCL, 22809 for 2.28.9; 0 unknown.
    pub nccl_version: u64,
    /// Version of NCCL's profiler interface in use; 0 none.
    pub profiler_interface: u64,
    /// Collectives whose end was never reported in full.
    pub given_up: u64,
    /// Reports about collectives that were no longer known.
    pub reports_late: u64,
    /// Durations that cannot be, which count as unknown.
    pub durations_refused: u64,
}

/// Everything, and the last record looked at.
pub(super) fn together(
    section: &layout::Collectives,
    read_upto: u64,
    check: &mut Check,
) -> Result<(Together, u64), ReadError> {
    let (recent, recent_missed, upto) = since(section, read_upto, check)?;
    let together = Together {
        in_flight: in_flight(section, check),
        in_flight_left_out: get(&section.in_flight_left_out),
        communicators: communicators(section, check),
        communicators_left_out: get(&section.communicators_left_out),
        recent,
        recent_missed,
        collecting: Collecting::from_number(get(&section.collecting)),
        nccl_version: get(&section.nccl_version),
        profiler_interface: get(&section.profiler_interface),
        given_up: get(&section.given_up),
        reports_late: get(&section.reports_late),
        durations_refused: get(&section.durations_refused),
    };
    Ok((together, upto))
}

fn in_flight(section: &layout::Collectives, check: &mut Check) -> Vec<Collective> {
    let taken = section.in_flight_taken.load(Ordering::Acquire);
    let mut found = Vec::new();
    for (place, entry) in section.in_flight.iter().enumerate() {
        if taken >> place & 1 == 0 {
            continue;
        }
        let copied = read(&entry.sequence, || {
            let words = [
                &entry.communicator,
                &entry.what,
                &entry.number,
                &entry.bytes,
            ]
            .map(get);
            (words, [&entry.started_at, &entry.peer].map(get_signed))
        });
        let Some((words, [started_at, peer])) = check.whole("in_flight", copied) else {
            continue;
        };
        // 0: taken a moment ago, or given back a moment ago.
        if started_at != 0
            && let Some(collective) = collective("in_flight", words, started_at, check)
        {
            found.push(Collective { peer, ..collective });
        }
    }
    found
}

fn communicators(section: &layout::Collectives, check: &mut Check) -> Vec<CommunicatorTotals> {
    let taken = get(&section.communicators_taken).min(COMMUNICATORS as u64);
    let mut found = Vec::new();
    for (index, entry) in (0..).zip(&section.communicators).take(taken as usize) {
        let copied = read(&entry.sequence, || {
            let words = [&entry.hash, &entry.ranks, &entry.rank, &entry.nodes].map(get);
            (words, crate::cell::get_bytes(&entry.name))
        });
        let Some(([hash, ranks, rank, nodes], name)) = check.whole("communicator", copied) else {
            continue;
        };
        if rank >= ranks {
            check.refuse("communicator", Reason::Number);
            continue;
        }
        found.push(CommunicatorTotals {
            index: CommunicatorIndex(index),
            communicator: Communicator {
                hash,
                ranks,
                rank,
                nodes,
                name: check.text("communicator", &name, |_| false),
            },
            functions: functions(entry),
        });
    }
    found
}

fn functions(entry: &layout::Communicator) -> Vec<FunctionTotal> {
    let total = |function: &Function| {
        let total = entry.totals.get(*function as usize)?;
        let count = get(&total.count);
        (count != 0).then(|| FunctionTotal {
            function: *function,
            count,
            bytes: get(&total.bytes),
            timed: get(&total.timed),
            duration_ns: get(&total.duration_ns),
            wait_ns: get(&total.wait_ns),
        })
    };
    Function::ALL.iter().filter_map(total).collect()
}

/// The collectives after record `read_upto`, how many of them are gone, and the last one looked at.
fn since(
    section: &layout::Collectives,
    read_upto: u64,
    check: &mut Check,
) -> Result<(Vec<Collective>, u64, u64), ReadError> {
    let found = ring::since(&section.recent, &section.started, read_upto)?;
    let mut ended = Vec::new();
    for (_, (words, started_at, durations)) in found.records {
        if let Some(collective) = collective("collectives", words, started_at, check)
            && let [Some(duration_ns), Some(wait_ns)] =
                durations.map(|it| check.duration("collectives", it))
        {
            ended.push(Collective {
                duration_ns,
                wait_ns,
                ..collective
            });
        }
    }
    Ok((ended, found.missed, found.upto))
}

impl Record for layout::Collective {
    /// As [`collective`] takes them, and how long it took and waited.
    type Copied = ([u64; 4], i64, [u64; 2]);

    fn state(&self) -> &Word {
        &self.state
    }

    fn copied(&self) -> Self::Copied {
        let words = [&self.communicator, &self.what, &self.number, &self.bytes].map(get);
        let durations = [&self.duration_ns, &self.wait_ns].map(get);
        (words, get_signed(&self.started_at), durations)
    }
}

fn collective(
    section: &'static str,
    [communicator, what, number, bytes]: [u64; 4],
    started_at: i64,
    check: &mut Check,
) -> Option<Collective> {
    let is_place = communicator < COMMUNICATORS as u64;
    check.only_if(is_place, section, Reason::Number, ())?;
    check.time(section, started_at)?;
    Some(Collective {
        communicator: CommunicatorIndex(communicator as u8),
        number,
        function: Function::from_number(what & BYTE).unwrap_or(Function::Other),
        data_type: DataType::from_number(what >> 8 & BYTE).unwrap_or(DataType::Unknown),
        channels: (what >> 16 & BYTE) as u8,
        bytes,
        started_at,
        peer: -1,
        duration_ns: 0,
        wait_ns: 0,
    })
}
