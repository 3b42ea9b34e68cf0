//! Who uses a GPU: processes with a compute context, their memory and their share of SM time.
#![expect(
    unsafe_code,
    reason = "process lists are bare arrays with a negotiated size"
)]

use std::collections::BTreeMap;

use gpufleet_telemetry::catalog::gpu;
use gpufleet_telemetry::identity::{Part, PartKind};
use gpufleet_telemetry::sample::{Missing, Reading};
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlProcessInfo_t, nvmlProcessUtilizationSample_t};

use super::function::Function;
use super::library::{INSUFFICIENT_SIZE, Library, NOT_FOUND, missing};
use super::values::Samples;

/// Most processes of one GPU that are told one by one; the count is exact beyond it. Busy shared
/// cards hold some dozens; each is a series in every scrape.
pub(crate) const MAX_PROCESSES: usize = 256;

/// Room for so many at first; it grows when the driver asks for more.
const FIRST_ROOM: usize = 16;

/// The process lists of one GPU, with their room kept from round to round.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    list: Vec<nvmlProcessInfo_t>,
    samples: Vec<nvmlProcessUtilizationSample_t>,
    /// The driver's time stamp of the newest utilisation sample.
    newest: u64,
}

impl Processes {
    /// Asks who is there.
    pub(crate) fn fetch(
        &mut self,
        library: &Library,
        index: u32,
        device: nvmlDevice_t,
    ) -> Result<(), Missing> {
        let nobody = nvmlProcessInfo_t {
            pid: 0,
            usedGpuMemory: 0,
            gpuInstanceId: u32::MAX,
            computeInstanceId: u32::MAX,
        };
        negotiate(&mut self.list, nobody, |list, count| {
            library.ask_code(Some(index), Function::ComputeProcesses, |lib| {
                let get = lib.nvmlDeviceGetComputeRunningProcesses_v3.as_ref().ok()?;
                // SAFETY: the handle came from this library; `count` holds the length of `list`,
                // which is ours alone during the call.
                Some(unsafe { get(device, count, list.as_mut_ptr()) })
            })
        })
        .inspect_err(|_| self.list.clear())
    }

    /// Tells of the processes on the whole GPU, or of those in one of its instances.
    pub(crate) fn tell(&self, instance: Option<u32>, to: &mut Samples) {
        let here = |process: &&nvmlProcessInfo_t| {
            instance.is_none_or(|instance| process.gpuInstanceId == instance)
        };
        let mut by_pid: BTreeMap<u32, Reading> = BTreeMap::new();
        for process in self.list.iter().filter(here) {
            let used = memory(process.usedGpuMemory);
            // Under MIG one process can be listed once per compute instance.
            by_pid
                .entry(process.pid)
                .and_modify(|sum| *sum = sum.and_then(|sum| used.map(|used| sum + used)))
                .or_insert(used);
        }
        to.push(&gpu::PROCESSES, Ok(by_pid.len() as f64));
        for (pid, used) in by_pid.into_iter().take(MAX_PROCESSES) {
            to.push_part(&gpu::PROCESS_MEMORY, part(pid), used);
        }
    }

    /// How much SM time each process had since the last time this was asked.
    pub(crate) fn utilization(
        &mut self,
        library: &Library,
        index: u32,
        device: nvmlDevice_t,
        to: &mut Samples,
    ) -> Result<(), Missing> {
        let nothing = nvmlProcessUtilizationSample_t {
            pid: 0,
            timeStamp: 0,
            smUtil: 0,
            memUtil: 0,
            encUtil: 0,
            decUtil: 0,
        };
        let since = self.newest;
        let asked = negotiate(&mut self.samples, nothing, |samples, count| {
            library.ask_code(Some(index), Function::ProcessUtilization, |lib| {
                let get = lib.nvmlDeviceGetProcessUtilization.as_ref().ok()?;
                // SAFETY: as above, with the array of utilisation samples.
                Some(unsafe { get(device, samples.as_mut_ptr(), count, since) })
            })
        });
        asked.inspect_err(|_| self.samples.clear())?;
        let mut newest: BTreeMap<u32, (u64, u32)> = BTreeMap::new();
        for sample in &self.samples {
            let entry = newest.entry(sample.pid).or_default();
            *entry = (*entry).max((sample.timeStamp, sample.smUtil));
            self.newest = self.newest.max(sample.timeStamp);
        }
        for (pid, (_, percent)) in newest.into_iter().take(MAX_PROCESSES) {
            let share = f64::from(percent) / 100.0;
            to.push_part(&gpu::PROCESS_SM_UTILIZATION, part(pid), Ok(share));
        }
        Ok(())
    }
}

fn part(pid: u32) -> Part {
    Part::new(PartKind::Process, pid.to_string())
}

/// NVML writes all ones where it does not know (without the right, or under some drivers).
fn memory(bytes: u64) -> Reading {
    if bytes == u64::MAX {
        Err(Missing::NotSupported)
    } else {
        Ok(bytes as f64)
    }
}

/// Fetches a list whose length only the driver knows: once when there is room, twice when not.
fn negotiate<T: Copy>(
    list: &mut Vec<T>,
    empty: T,
    mut get: impl FnMut(&mut [T], &mut u32) -> u32,
) -> Result<(), Missing> {
    list.resize(list.capacity().max(FIRST_ROOM), empty);
    for _ in 0..2 {
        let mut count = list.len() as u32;
        match get(list, &mut count) {
            0 => {
                list.truncate(count as usize);
                return Ok(());
            }
            // Nobody there is an answer.
            NOT_FOUND => {
                list.clear();
                return Ok(());
            }
            INSUFFICIENT_SIZE => {
                // Some more may start before the second try.
                let room = (count as usize + FIRST_ROOM).min(MAX_PROCESSES * 4);
                list.resize(room.max(list.len()), empty);
            }
            code => return Err(missing(code)),
        }
    }
    Err(missing(INSUFFICIENT_SIZE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_longer_than_its_room_is_fetched_again_with_more() {
        let mut list: Vec<u8> = Vec::new();
        let mut calls = 0;
        let fetched = negotiate(&mut list, 0, |room, count| {
            calls += 1;
            if room.len() < 40 {
                *count = 40;
                return INSUFFICIENT_SIZE;
            }
            room[..40].fill(7);
            *count = 40;
            0
        });
        assert_eq!((fetched, list.len(), calls), (Ok(()), 40, 2));
        assert!(list.iter().all(|it| *it == 7));
    }

    #[test]
    fn a_driver_that_never_has_enough_room_is_not_asked_for_ever() {
        let mut list: Vec<u8> = Vec::new();
        let fetched = negotiate(&mut list, 0, |_, count| {
            *count = u32::MAX;
            INSUFFICIENT_SIZE
        });
        assert_eq!(fetched, Err(Missing::Unknown));
        assert!(list.len() <= MAX_PROCESSES * 4);
    }

    #[test]
    fn a_process_listed_twice_is_one_process_with_both_memories() {
        let process = |pid, mib: u64, instance| nvmlProcessInfo_t {
            pid,
            usedGpuMemory: mib,
            gpuInstanceId: instance,
            computeInstanceId: 0,
        };
        let processes = Processes {
            list: vec![
                process(5, 10, 7),
                process(5, 20, 7),
                process(6, u64::MAX, 8),
            ],
            ..Processes::default()
        };
        let told = |instance| {
            let mut samples = Samples::default();
            processes.tell(instance, &mut samples);
            let readings: Vec<_> = samples.0.iter().map(|it| it.reading).collect();
            readings
        };
        assert_eq!(told(Some(7)), [Ok(1.0), Ok(30.0)]);
        assert_eq!(told(None), [Ok(2.0), Ok(30.0), Err(Missing::NotSupported)]);
    }
}
