//! What a simulator that can be killed at any moment has made: one line before and one after each
//! request, written past the program's own memory, so that a kill -9 loses none.
//!
//! Format, one line each: `life` (a process began), `begin NODE START SECONDS` (before the spool is
//! given it; with `steps` behind it where the steps of its ranks are too), `end NODE START` (after
//! the spool has synced it). A tick that began and did not end may be there or not; no tick is ever
//! made twice.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Write as _};
use std::ops::Range;
use std::path::Path;

use gpufleet_telemetry::event::Event;
use gpufleet_telemetry::minute::MinuteRow;
use gpufleet_telemetry::steps::StepRecord;
use gpufleet_telemetry::time::{Minute, Timestamp};

use super::fleet::SimulatedFleet;
use super::node::Plan;
use super::record::{Key, Record};
use super::training::Told;

/// The writing end.
#[derive(Debug)]
pub struct Journal(File);

/// One tick of one node, as the journal has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Made {
    life: usize,
    node: usize,
    start: Timestamp,
    seconds: u32,
    has_steps: bool,
    sure: bool,
}

/// What must be in the store, and what may be.
#[derive(Debug, Clone, Default)]
pub struct Expected {
    /// Everything that was made for sure.
    pub sure: Record,
    /// Minutes with ticks that may be there: every row that is right.
    pub either: BTreeMap<Key, Vec<MinuteRow>>,
    /// How many ticks were made for sure, and how many may be there.
    pub ticks: (usize, usize),
    /// Every step that was shipped for sure, by the id of its rank and its number; one that was done
    /// again counts in its attempt.
    pub steps: BTreeMap<(String, u64), StepRecord>,
    /// Steps that may be there.
    pub either_steps: BTreeMap<(String, u64), StepRecord>,
    /// What the ranks told for sure. A process that begins anew tells again that they came up.
    pub events: Vec<Event>,
}

impl Journal {
    /// Opens the file, making it when it is not there, and notes that a process began.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut file = File::options().create(true).append(true).open(path)?;
        file.write_all(b"life\n")?;
        Ok(Self(file))
    }

    /// Before a tick goes to the spool.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn begin(
        &mut self,
        node: usize,
        start: Timestamp,
        seconds: u32,
        has_steps: bool,
    ) -> io::Result<()> {
        let steps = if has_steps { " steps" } else { "" };
        let line = format!("begin {node} {} {seconds}{steps}\n", start.seconds());
        self.0.write_all(line.as_bytes())
    }

    /// After the spool has it safe.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn end(&mut self, node: usize, start: Timestamp) -> io::Result<()> {
        let line = format!("end {node} {}\n", start.seconds());
        self.0.write_all(line.as_bytes())
    }
}

/// Where a new process goes on: the end of the last tick that any process began.
pub fn goes_on_at(text: &str) -> Option<Timestamp> {
    parse(text)
        .iter()
        .map(|made| made.start.shifted(i64::from(made.seconds) * 1_000_000_000))
        .max()
}

/// The minutes of which every tick was made.
pub fn whole_minutes(text: &str) -> Range<Minute> {
    let made = parse(text);
    let first = made.iter().map(|made| made.start).min().unwrap_or_default();
    let last = goes_on_at(text).unwrap_or(first);
    first.shifted(59_999_999_999).minute()..last.minute()
}

/// What the store must hold after everything was shipped.
pub fn expected(plan: &Plan, text: &str) -> Expected {
    expected_of(plan, text, |_| true)
}

/// The same of some nodes only.
pub fn expected_of(plan: &Plan, text: &str, is_asked: impl Fn(usize) -> bool) -> Expected {
    let mut made = parse(text);
    made.retain(|made| is_asked(made.node));
    let mut expected = Expected::default();
    let mut unsure: BTreeMap<Key, Vec<Record>> = BTreeMap::new();
    let lives: BTreeSet<usize> = made.iter().map(|it| it.life).collect();
    for life in lives {
        // Running totals begin anew with each process, so each has a fleet of its own.
        let mut fleet = SimulatedFleet::new(plan);
        for made in made.iter().filter(|it| it.life == life) {
            let node = &mut fleet.nodes[made.node];
            let ticks = node.tick(made.start, made.seconds, &fleet.faults);
            expected.told(node.take_told(), made);
            for tick in ticks {
                if made.sure {
                    expected.sure.add(&tick);
                    continue;
                }
                let key = (
                    tick.resource.kind,
                    tick.resource.id.to_string(),
                    tick.start.minute(),
                );
                let mut alone = Record::default();
                alone.add(&tick);
                unsure.entry(key).or_default().push(alone);
            }
            let count = if made.sure {
                &mut expected.ticks.0
            } else {
                &mut expected.ticks.1
            };
            *count += 1;
        }
    }
    for (key, maybe) in unsure {
        let base = expected.sure.row(&key).cloned().unwrap_or_default();
        let mut rows = vec![base];
        for record in maybe {
            let with: Vec<_> = rows
                .iter()
                .map(|row| {
                    let mut row = row.clone();
                    row.merge(record.row(&key).unwrap_or(&MinuteRow::default()));
                    row
                })
                .collect();
            rows.extend(with);
        }
        expected.either.insert(key, rows);
    }
    expected
}

impl Expected {
    fn told(&mut self, told: Told, made: &Made) {
        let steps = match made.sure {
            true => &mut self.steps,
            false => &mut self.either_steps,
        };
        let records = told.steps.iter().filter(|_| made.has_steps);
        let each = records.flat_map(|(rank, of_rank)| of_rank.iter().map(move |it| (rank, it)));
        steps.extend(each.map(|(rank, record)| ((rank.to_string(), record.step), *record)));
        if made.sure {
            self.events.extend(told.events);
        }
    }

    /// Every resource that was made.
    pub fn resources(&self) -> BTreeSet<(gpufleet_telemetry::identity::ResourceKind, String)> {
        let unsure = self.either.keys().map(|(kind, id, _)| (*kind, id.clone()));
        self.sure.resources().into_iter().chain(unsure).collect()
    }

    /// From the first minute to the last, and `margin` minutes more on both sides.
    pub fn span(&self, margin: i64) -> Range<Minute> {
        let minutes = || {
            self.sure
                .keys()
                .chain(self.either.keys())
                .map(|key| key.2.0)
        };
        let first = minutes().min().unwrap_or(0);
        let last = minutes().max().unwrap_or(0);
        Minute(first - margin)..Minute(last + margin + 1)
    }

    /// What is wrong with the rows that the store has of one resource.
    pub fn differences(
        &self,
        kind: gpufleet_telemetry::identity::ResourceKind,
        id: &str,
        found: &BTreeMap<Minute, MinuteRow>,
    ) -> Vec<String> {
        let (mut plain, mut wrong) = (found.clone(), Vec::new());
        let mut certain = self.sure.clone();
        for ((of_kind, of_id, minute), rows) in &self.either {
            if (*of_kind, of_id.as_str()) != (kind, id) {
                continue;
            }
            certain.remove(&(kind, id.to_owned(), *minute));
            let have = plain.remove(minute).unwrap_or_default();
            let is_right = rows.iter().any(|row| super::record::agree(row, &have));
            if !is_right {
                wrong.push(format!(
                    "{} {id} minute {}: {have:?} is none of the {} rows that are right",
                    kind.name(),
                    minute.0,
                    rows.len()
                ));
            }
        }
        wrong.extend(certain.differences(kind, id, &plain));
        wrong
    }
}

fn parse(text: &str) -> Vec<Made> {
    let mut made: Vec<Made> = Vec::new();
    let mut life = 0;
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |index: usize| words.get(index).and_then(|it| it.parse::<i64>().ok());
        let node = number(1).and_then(|it| usize::try_from(it).ok());
        match (words[0], node, number(2)) {
            ("life", ..) => life += 1,
            ("begin", Some(node), Some(start)) => made.push(Made {
                life,
                node,
                start: Timestamp::from_seconds(start),
                seconds: number(3).and_then(|it| u32::try_from(it).ok()).unwrap_or(0),
                has_steps: words.get(4) == Some(&"steps"),
                sure: false,
            }),
            ("end", Some(node), Some(start)) => {
                let start = Timestamp::from_seconds(start);
                let begun = made
                    .iter_mut()
                    .rev()
                    .find(|it| (it.life, it.node, it.start) == (life, node, start));
                if let Some(begun) = begun {
                    begun.sure = true;
                }
            }
            // The last line of a killed process may be cut.
            _ => {}
        }
    }
    made
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpufleet_telemetry::identity::ResourceKind;

    const START: i64 = 1_800_000_060;

    fn journal(lines: &[(&str, i64)]) -> String {
        lines
            .iter()
            .map(|(word, at)| match *word {
                "life" => "life\n".to_owned(),
                "begin" => format!("begin 0 {} 10\n", START + at),
                _ => format!("{word} 0 {}\n", START + at),
            })
            .collect()
    }

    #[test]
    fn a_tick_cut_short_by_a_kill_may_be_there_once_or_not_at_all() {
        let plan = Plan {
            nodes: 1,
            ..Plan::demo()
        };
        let text = journal(&[
            ("life", 0),
            ("begin", 0),
            ("end", 0),
            ("begin", 10),
            ("life", 0),
            ("begin", 20),
            ("end", 20),
        ]);
        let expected = expected(&plan, &text);
        assert_eq!(expected.ticks, (2, 1));
        assert_eq!(goes_on_at(&text), Some(Timestamp::from_seconds(START + 30)));
        let id = SimulatedFleet::new(&plan).nodes[0].gpu_ids()[0].clone();
        let key = (
            ResourceKind::Gpu,
            id.clone(),
            Timestamp::from_seconds(START).minute(),
        );
        let rows = &expected.either[&key];
        assert_eq!(rows.len(), 2);
        let wrong = |row: MinuteRow| {
            expected.differences(ResourceKind::Gpu, &id, &BTreeMap::from([(key.2, row)]))
        };
        assert_eq!(wrong(rows[0].clone()), Vec::<String>::new());
        assert_eq!(wrong(rows[1].clone()), Vec::<String>::new());
        let mut twice = rows[1].clone();
        twice.merge(&rows[1]);
        assert_eq!(wrong(twice).len(), 1);
        assert_eq!(wrong(MinuteRow::default()).len(), 1);
    }
}
