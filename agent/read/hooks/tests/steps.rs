//! Steps on their way: every one once, whoever is killed, replaced or late.

use gpufleet_telemetry::identity::Epoch;
use gpufleet_telemetry::steps::StepBlock;
use tokio::sync::mpsc;

use super::*;
use crate::sample::Output;
use crate::steps::{Shipment, Spooled};

/// Places for shipments, as the agent has.
const WAITING: usize = 16;

/// A spool that takes what it is sent, when it is let.
struct Spool {
    spooled: Arc<Spooled>,
    output: mpsc::Sender<Output>,
    outputs: mpsc::Receiver<Output>,
    steps: Vec<u64>,
    blocks: Vec<StepBlock>,
}

impl Spool {
    fn new(folder: &Path) -> Self {
        let (output, outputs) = mpsc::channel(WAITING);
        let spooled = Spooled::open(folder, "boot-1", |_| 1).expect("no note yet");
        Self {
            spooled: Arc::new(spooled),
            output,
            outputs,
            steps: Vec::new(),
            blocks: Vec::new(),
        }
    }

    /// An agent that ships into it: each round, so that nothing waits for an interval.
    fn hooks(&self, folder: &Path) -> Hooks {
        let way = Way {
            spooled: Arc::clone(&self.spooled),
            output: self.output.clone(),
            interval: Duration::from_nanos(1),
        };
        Hooks {
            way: Some(way),
            ..hooks(folder)
        }
    }

    /// What was sent since the last call, without spooling it: as when the agent is killed.
    fn waiting(&mut self) -> Vec<Shipment> {
        let sent = std::iter::from_fn(|| self.outputs.try_recv().ok());
        let shipments = sent.map(|it| match it {
            Output::Steps(shipment, _) => shipment,
            other => panic!("{other:?}"),
        });
        shipments.collect()
    }

    /// Spools what was sent.
    fn take(&mut self) {
        for shipment in self.waiting() {
            let place = (Epoch(uuid::Uuid::nil()), 1);
            let noted: std::io::Result<()> =
                self.spooled
                    .around(place, &shipment.places, |error| error, || Ok(()));
            noted.expect("it can be noted");
            for block in shipment.ranks.into_iter().flat_map(|(_, blocks)| blocks) {
                self.steps.extend(block.first_step..block.next_step());
                self.blocks.push(block);
            }
        }
    }
}

/// Steps `from..=upto` as they come one after the other, `per_second` of them.
fn steps(writer: Writer, from: u64, upto: u64, per_second: u64) {
    let wall_ns = 1_000_000_000 / per_second;
    let now = unix_ns();
    for number in from..=upto {
        let ago = (upto - number) * wall_ns;
        writer.step(&Step {
            step: number,
            ended_at: now - ago.cast_signed(),
            wall_ns,
            busy_ns: wall_ns / 2,
            ..Step::default()
        });
    }
}

fn numbers(from: u64, upto: u64) -> Vec<u64> {
    (from..=upto).collect()
}

#[test]
fn an_agent_that_was_killed_leaves_no_gap_and_doubles_nothing() {
    for per_second in [1, 100] {
        let folder = folder();
        let mut spool = Spool::new(folder.path());
        let writer = Writer::create(WriterKind::Python).expect("a region");
        writer.identity(&identity(0));
        for life in 0..10_u64 {
            // An agent that was not there before, and the same process that trains on.
            let mut hooks = spool.hooks(folder.path());
            joins_with(&mut hooks, 0, "/a", writer);
            for turn in 0..3 {
                let before = life * 111 + turn * 37;
                steps(writer, before + 1, before + 37, per_second);
                round(&mut hooks);
                // It is killed with a shipment on its way, each time at another one.
                if turn < life % 3 {
                    spool.take();
                }
            }
            spool.waiting();
        }
        let mut hooks = spool.hooks(folder.path());
        joins_with(&mut hooks, 0, "/a", writer);
        hooks.clients.clear();
        round(&mut hooks);
        spool.take();
        assert_eq!(spool.steps, numbers(1, 1_110), "{per_second} a second");
        let sums = spool.blocks.iter().filter(|it| it.steps_log2 > 0).count();
        assert_eq!(sums > 0, per_second > 10, "{per_second} a second");
    }
}

#[test]
fn a_process_that_hands_its_region_over_again_is_read_on_from_where_it_was() {
    let folder = folder();
    let mut spool = Spool::new(folder.path());
    let mut hooks = spool.hooks(folder.path());
    let writer = joins(&mut hooks, 0, "/a");
    writer.identity(&identity(0));
    steps(writer, 1, 20, 1);
    round(&mut hooks);
    steps(writer, 21, 30, 1);
    joins_with(&mut hooks, 0, "/a", writer);
    round(&mut hooks);
    spool.take();
    assert_eq!(spool.steps, numbers(1, 30));
}

#[test]
fn steps_wait_in_the_ring_until_it_is_known_whose_they_are() {
    let folder = folder();
    let mut spool = Spool::new(folder.path());
    let mut hooks = spool.hooks(folder.path());
    let writer = joins(&mut hooks, 0, "/a");
    steps(writer, 1, 20, 1);
    (0..3).for_each(|_| drop(round(&mut hooks)));
    spool.take();
    assert!(spool.steps.is_empty());
    writer.identity(&identity(0));
    round(&mut hooks);
    spool.take();
    assert_eq!(spool.steps, numbers(1, 20));
}

#[test]
fn steps_wait_while_the_disk_is_slow_and_come_whole_when_it_is_not() {
    let folder = folder();
    let mut spool = Spool::new(folder.path());
    let mut hooks = spool.hooks(folder.path());
    let writer = joins(&mut hooks, 0, "/a");
    writer.identity(&identity(0));
    let turns = 2 * WAITING as u64;
    for turn in 0..turns {
        steps(writer, turn * 5 + 1, turn * 5 + 5, 1);
        round(&mut hooks);
    }
    spool.take();
    assert_eq!(spool.steps, numbers(1, 5 * WAITING as u64), "no more waits");
    round(&mut hooks);
    round(&mut hooks);
    spool.take();
    assert_eq!(spool.steps, numbers(1, 5 * turns));
}

#[test]
fn steps_that_were_written_over_are_told_and_stay_in_the_totals() {
    let folder = folder();
    let mut spool = Spool::new(folder.path());
    let mut hooks = spool.hooks(folder.path());
    let writer = joins(&mut hooks, 0, "/a");
    writer.identity(&identity(0));
    steps(writer, 1, 5_000, 1_000);
    let readings = round(&mut hooks);
    let missed = 5_000 - gpufleet_hooks_shm::layout::STEPS as u64;
    let of_kind = |it: &&Event| it.kind == EventKind::StepsMissed;
    let told = readings.events.iter().find(of_kind).expect("it is told");
    assert_eq!(told.attributes[about::STEPS], missed.to_string());
    assert_eq!(
        value(&readings, "0", &training::STEPS),
        Some(5_000.0),
        "a counter loses nothing"
    );
    hooks.clients.clear();
    let last = round(&mut hooks);
    assert!(
        !last.events.iter().any(|it| of_kind(&it)),
        "it is told once"
    );
    spool.take();
    assert_eq!(spool.steps, numbers(missed + 1, 5_000));
}
