//! How good the detectors are in this server: every kind of finding that one of them says it has
//! ([`Detectors::finds`]) put into made fleets and looked at through all of it, from what resources read to what is said.
//! The last part of docs/detection.md is the report; the test that finds it stale says how to write it anew.
//!
//! A finding that is added has no row here and fails; a detector that is disabled fails the rows of all it finds.
//! What single judgements are worth at many sizes, and in 10,000 GPU-days that are well, is measured in `analysis/quality/`.
//!
//! Limits: fleets of two nodes at most, but for ports; one hour that is well.

mod budgets;
mod gpus;
mod limits;
mod numbers;
mod runs;
mod world;

use std::collections::BTreeSet;
use std::fmt::Write;

use gpufleet_analysis::incident::Family;
use gpufleet_analysis::price::Basis;
use gpufleet_telemetry::catalog::node;
use gpufleet_telemetry::identity::ResourceKind;

use super::Detectors;
use crate::fleet::{Live, LiveValue};
use crate::runs::watch::FIRST_STEPS;
use world::{Happens, Made, NOTHING, Now, Said, Server};

/// Worlds of a fault, and of one that takes long to make.
const SEEDS: u32 = 3;
const FEW: u32 = 2;

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/detection.md");
/// Where the part begins; it is the page's last.
const PART: &str = "## Found by the server";

/// A made world with this seed, looked at by such a server; how the fault is told.
type Told = dyn Fn(u64, Server) -> Option<Said>;

/// A fault of one size.
struct Fault {
    /// As its detector names what it finds.
    finding: &'static str,
    fault: String,
    of: u32,
    /// Fewest that have to be found; 0 where it is not to be found.
    least: u32,
    /// What a figure above 0 is reckoned by that it has to have, where it has to have one.
    priced: Option<Basis>,
    told: Box<Told>,
}

/// How often one was found.
#[derive(Clone)]
struct Row {
    finding: &'static str,
    fault: String,
    of: u32,
    least: u32,
    delays: Vec<i64>,
    /// How often it was told before it was there, and without the price that it has to have.
    early: usize,
    unpriced: usize,
}

impl Fault {
    fn of(
        finding: &'static str,
        fault: &str,
        least: u32,
        told: impl Fn(u64, Server) -> Option<Said> + 'static,
    ) -> Self {
        Self {
            finding,
            fault: fault.to_owned(),
            of: SEEDS,
            least,
            priced: None,
            told: Box::new(told),
        }
    }

    /// One that takes long to make.
    fn few(
        finding: &'static str,
        fault: &str,
        least: u32,
        told: impl Fn(u64, Server) -> Option<Said> + 'static,
    ) -> Self {
        Self {
            of: FEW,
            ..Self::of(finding, fault, least, told)
        }
    }

    /// What the detector looks up in the store is handed to it, as it would be found there.
    fn injected(self) -> Self {
        Self {
            fault: format!("{} (injected)", self.fault),
            ..self
        }
    }

    /// What it costs has to be told, by this.
    fn priced(self, basis: Basis) -> Self {
        Self {
            priced: Some(basis),
            ..self
        }
    }

    fn row(&self) -> Row {
        let whole = Server::default();
        let told = (0..self.of).filter_map(|seed| (self.told)(seed.into(), whole));
        self.row_of(&told.collect::<Vec<_>>())
    }

    /// How often it was found, of what was said of it.
    fn row_of(&self, said: &[Said]) -> Row {
        let (told, early): (Vec<&Said>, Vec<&Said>) = said.iter().partition(|it| it.is_of_fault());
        let mut delays: Vec<i64> = told.iter().map(|it| it.after_s).collect();
        delays.sort_unstable();
        let is_unpriced = |it: &&&Said| {
            self.priced
                .is_some_and(|basis| it.basis != basis || it.milli_gpus == 0)
        };
        Row {
            finding: self.finding,
            fault: self.fault.clone(),
            of: self.of,
            least: self.least,
            delays,
            early: early.len(),
            unpriced: told.iter().filter(is_unpriced).count(),
        }
    }
}

impl Row {
    fn found(&self) -> u32 {
        u32::try_from(self.delays.len()).unwrap_or(u32::MAX)
    }
}

fn faults() -> Vec<Fault> {
    let mut all = gpus::faults();
    all.extend(runs::faults());
    all.extend(limits::faults());
    all.extend(budgets::faults());
    all
}

/// What is wrong with the rows: below their least or beyond what they promise, told too early or without a price, or of a
/// finding that has none.
fn wrong(rows: &[Row]) -> Vec<String> {
    let is_wrong = |it: &&Row| match it.least {
        0 => it.found() > 0,
        least => it.found() < least,
    };
    let wrong = rows.iter().filter(is_wrong);
    let wrong = wrong.map(|it| {
        let (found, of, least) = (it.found(), it.of, it.least);
        let (finding, fault) = (it.finding, &it.fault);
        format!("{finding}, {fault}: {found} of {of}, and {least} are promised")
    });
    let told_wrong = rows.iter().filter(|it| it.early + it.unpriced > 0);
    let told_wrong = told_wrong.map(|it| {
        let (finding, fault) = (it.finding, &it.fault);
        let (early, unpriced) = (it.early, it.unpriced);
        format!("{finding}, {fault}: told before it was there {early} times, without its price {unpriced} times")
    });
    let finds = Detectors::default().finds();
    let finds: BTreeSet<&str> = finds.iter().map(|it| it.name).collect();
    let promised = rows.iter().filter(|it| it.least > 0);
    let promised: BTreeSet<&str> = promised.map(|it| it.finding).collect();
    let missing = finds.symmetric_difference(&promised);
    let missing =
        missing.map(|it| format!("{it}: a finding without a row, or a row without a finding"));
    wrong.chain(told_wrong).chain(missing).collect()
}

/// Signals of worlds that are well, each counted while it lasts as one, and how many steps and GPU-hours there were.
fn wrongly() -> (Vec<String>, u64, f64) {
    const WORLDS: u64 = 2;
    const TICKS: u64 = 180;
    let (mut told, mut gpus) = (Vec::new(), 0);
    for seed in 100..100 + WORLDS {
        let mut made = Made::new(seed, (2, 8), Server::default());
        gpus += 16;
        let happens = Happens {
            reads: &runs::reads_well,
            ranks: Some(&runs::trains_well),
            says: Some(&runs::says_well),
            ..NOTHING
        };
        let mut last: BTreeSet<String> = BTreeSet::new();
        for _ in 0..TICKS {
            let said = made.tick(happens).into_iter();
            let said: BTreeSet<String> = said
                .map(|it| format!("{}: {:?}", it.what, it.place))
                .collect();
            told.extend(said.difference(&last).cloned());
            last = said;
        }
    }
    let hours = TICKS as f64 / 360.0;
    (told, WORLDS * TICKS * 10, f64::from(gpus) * hours)
}

/// The 95 % interval of a share (Wilson), percent.
fn interval(found: u32, of: u32) -> (f64, f64) {
    const Z: f64 = 1.96;
    let (n, p) = (f64::from(of), f64::from(found) / f64::from(of));
    let scale = 1.0 + Z * Z / n;
    let middle = (p + Z * Z / (2.0 * n)) / scale;
    let half = Z / scale * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt();
    (
        100.0 * (middle - half).max(0.0),
        100.0 * (middle + half).min(1.0),
    )
}

fn section(rows: &[Row], (alarms, steps, gpu_hours): (usize, u64, f64)) -> String {
    let mut text = format!(
        "{PART}\n\n\
         Every kind of finding of every detector, put into made fleets of one or two nodes and told by all of the server:\n\
         from what resources read, slow readings once a minute, to what is said at a tick. CI fails when a detector is\n\
         disabled, and when one has a finding without a row. A dash: too small to be found, and it must not be.\n\n\
         Injected is what a detector looks up in the store: the faults of a month, the runs before a run, the month's money.\n\
         It is handed over as it would be found there, and the delay is from then to the tick at which it is said. When it is\n\
         looked up comes before that: faults once an hour, runs after {FIRST_STEPS} steps, money whenever the month is made.\n\n\
         | finding | fault | found | interval | least | delay |\n|---|---|---|---|---|---|\n"
    );
    let mut line =
        |it: std::fmt::Arguments<'_>| writeln!(text, "{it}").expect("a string takes all");
    for row in rows {
        let (found, of) = (row.found(), row.of);
        let (low, high) = interval(found, of);
        let least = match row.least {
            0 => "–".to_owned(),
            least => least.to_string(),
        };
        let delay = row.delays.get(row.delays.len() / 2);
        let delay = delay.map_or(String::new(), |it| format!("{it} s"));
        let (finding, fault) = (row.finding, &row.fault);
        line(format_args!(
            "| {finding} | {fault} | {found} of {of} | {low:.0}-{high:.0} % | {least} | {delay} |"
        ));
    }
    // One-sided 95 % of Poisson for none.
    let below = |exposure: f64| 3.0 / exposure;
    line(format_args!(
        "\nNothing wrong: 16 GPUs and a run that saves checkpoints, all detectors together: {alarms} alarms in {steps} steps \
         and {gpu_hours:.0} GPU-hours, below {:.2} per 1,000 steps and {:.3} per GPU-hour.",
        below(steps as f64 / 1_000.0),
        below(gpu_hours)
    ));
    text
}

/// One test, because the worlds take a while to make.
#[test]
fn every_finding_of_every_detector_is_found_as_the_report_says_and_nothing_is_where_all_is_well() {
    let rows: Vec<Row> = faults().iter().map(Fault::row).collect();
    let wrong = wrong(&rows);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let (alarms, steps, gpu_hours) = wrongly();
    assert_eq!(alarms, [""; 0], "nothing is wrong");
    let report = section(&rows, (alarms.len(), steps, gpu_hours));
    let written = std::fs::read_to_string(PATH).unwrap_or_default();
    let at = written.find(PART).unwrap_or(written.len());
    if std::env::var_os("GPUFLEET_BLESS").is_some_and(|it| it == "1") {
        let before = written[..at].trim_end();
        std::fs::write(PATH, format!("{before}\n\n{report}")).expect("docs is there");
        return;
    }
    assert!(
        written[at..] == report,
        "docs/detection.md is stale: make detection-report"
    );
}

/// Of each finding a fault that is promised is looked at without its detector: nobody else finds it.
#[test]
fn every_detector_that_is_disabled_fails_the_rows_of_all_it_finds() {
    let faults = faults();
    let all = Detectors::default().all().map(|it| it.finds());
    for (place, finds) in all.into_iter().enumerate() {
        let without = Server {
            off: Some(place),
            ..Server::default()
        };
        for found in finds {
            let mut promised = faults.iter().filter(|it| it.least > 0);
            let fault = promised.find(|it| it.finding == found.name);
            let fault = fault.unwrap_or_else(|| panic!("{} has no row", found.name));
            let row = Row {
                of: 1,
                least: 1,
                ..fault.row_of(&(fault.told)(0, without).into_iter().collect::<Vec<_>>())
            };
            let says = format!("{}, {}: 0 of 1", row.finding, row.fault);
            let wrong = wrong(&[row]);
            assert!(wrong.iter().any(|it| it.starts_with(&says)), "{says}");
        }
    }
}

#[test]
fn what_is_told_too_early_or_without_its_price_fails_its_row_however_often_it_is_found() {
    let fault = Fault::of("a run that stands still", "made", 1, |_, _| None);
    let fault = fault.priced(Basis::RunStands);
    let well = Said {
        after_s: 30,
        basis: Basis::RunStands,
        milli_gpus: 16_000,
    };
    let fails = |said: Said| {
        let wrong = wrong(&[fault.row_of(&[well, said])]);
        let says = "a run that stands still, made: ";
        wrong.iter().any(|it| it.starts_with(says))
    };
    assert!(!fails(well));
    let (after_s, milli_gpus, basis) = (0, 0, Basis::NoSteps);
    assert!(fails(Said { after_s, ..well }), "in the tick before");
    assert!(fails(Said { milli_gpus, ..well }), "a loss of 0");
    assert!(fails(Said { basis, ..well }));
}

/// A script that marks no communication tells waits of 0, as most do. Nothing is wrong with it, and what is has no figure.
#[test]
fn a_run_that_tells_no_waits_is_well_or_has_a_slow_link_without_a_figure() {
    let mut made = Made::new(200, (2, 8), Server::default());
    let happens = Happens {
        reads: &runs::reads_well,
        ranks: Some(&runs::marks_nothing),
        says: Some(&runs::says_no_waits),
        ..NOTHING
    };
    // Up to where it would begin to save.
    for _ in 0..40 {
        let said = made.tick(happens).into_iter();
        let said: Vec<String> = said.map(|it| it.what).collect();
        assert_eq!(said, [""; 0], "nothing is wrong");
    }
    let said = runs::slow_link_without_waits(0).expect("it is found all the same");
    assert_eq!((said.basis, said.milli_gpus), (Basis::NoSteps, 0));
}

/// What is known of before in each way that there is: at least one finding of each family.
const RESTARTED: [&str; 27] = [
    "XIDs and what the driver tells",
    "memory errors that could not be corrected",
    "many corrected memory errors",
    "slowed down by heat",
    "slowed down by the power brake",
    "PCIe below what it was",
    "NVLinks down",
    "held and idle",
    "busy without work",
    "a node that nothing is heard from",
    "a reader that fails",
    "readings that the driver refuses",
    "GPU memory that grows",
    "a machine's memory that grows",
    "cards, machines and parts of a cluster that break again and again",
    "a rank that makes the others wait",
    "a run that became slower",
    "a run that stands still",
    "numbers of training that go wrong",
    "a run on the wrong network",
    "node_oom_kill",
    "node_cpu_stolen",
    "nic_down",
    "link_flaps",
    "nic_errors",
    "low_use",
    "a team over its budget",
];

/// The server starts anew while something is wrong, and its incident goes on: for longer than one does of which its
/// detector, that knows nothing any more, says nothing.
#[test]
fn what_is_wrong_goes_on_over_a_restart_of_the_server_whatever_it_is() {
    let restarted = Server {
        restarts: true,
        ..Server::default()
    };
    let faults = faults();
    let is_looked_at = |it: &&Fault| it.least > 0 && RESTARTED.contains(&it.finding);
    for fault in faults.iter().filter(is_looked_at) {
        let (finding, what) = (fault.finding, &fault.fault);
        let said = (fault.told)(0, restarted);
        assert!(said.is_some_and(|it| it.is_of_fault()), "{finding}, {what}");
    }
    let finds = Detectors::default().finds();
    for family in Family::ALL {
        let mut own = finds.iter().filter(|it| it.family == family);
        assert!(own.any(|it| RESTARTED.contains(&it.name)), "{family:?}");
    }
    for name in RESTARTED {
        assert!(faults.iter().any(|it| it.finding == name), "{name}");
    }
}

/// The agent goes on and its machine's memory is not read any more: whether it leaks on nobody knows.
#[test]
fn a_machine_whose_memory_is_read_no_more_leaks_on() {
    let keeps_incidents = Server {
        restarts: true,
        ..Server::default()
    };
    let mut made = Made::new(0, (1, 1), keeps_incidents).ticking(60, 2);
    let says = "the machine's memory grows";
    let grows = |live: &mut Live, now: &Now| {
        if live.key.kind == ResourceKind::Node {
            let hours = now.seconds.max(0) as f64 / 3_600.0;
            now.put(live, &node::MEMORY_AVAILABLE, (0.7 - 0.05 * hours) * 2e12);
        }
    };
    let mut ticks = 0..8 * 60;
    while made.open(says).is_none() && ticks.next().is_some() {
        made.tick(Happens {
            reads: &grows,
            ..NOTHING
        });
    }
    let open = made.open(says);
    assert!(open.is_some(), "it leaks");
    for _ in 0..12 {
        made.tick(Happens {
            reads: &|live, _| {
                let is_it = |it: &LiveValue| it.metric == node::MEMORY_AVAILABLE.id;
                live.values.retain(|it| !is_it(it));
            },
            ..NOTHING
        });
    }
    assert_eq!(
        made.open(says),
        open,
        "its other readings say nothing of it"
    );
}
