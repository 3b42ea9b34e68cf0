//! What Spot saved: what the same time costs on demand, less what was paid, less what preemptions lost.
//!
//! Method. By pool, zone and machine type:
//!
//! - saved = Σ over the billed time of nodes that are paid at Spot of (on-demand rate − Spot rate) × time,
//!   each period rounded once. Both rates are those that hold at that time, after discounts. Time for which
//!   one of them is not known is counted apart and in no sum.
//! - lost = what preempted runs did in vain (steps since their last checkpoint) and what the attempt after
//!   took until its first step again, × the mean Spot price of a GPU-hour of that place.
//! - net = saved − lost. It may be below 0.
//! - preemptions per 1,000 GPU-hours at Spot, as counted for saved.
//!
//! A preemption is of a machine, counted once whatever told it and however many runs ended with it ([`TakenBack`]); the
//! runs are counted beside. It counts where its node was paid at Spot: what ended so on nodes on demand, or on nodes that
//! are not known, is no price of Spot, and is counted as elsewhere.
//!
//! Numbers. Nano-units (i128), GPU-milliseconds (i64); rates of preemptions in thousandths.
//!
//! Limits. Of a run whose lost steps or whose way back nobody told, that part is not known: it is in
//! no sum and counted, so a net saving beside such a count is the most that it can be. What else than runs that tell
//! their steps was on machines that were taken back nobody knows: it is in no loss, and those machines are counted. Where
//! the runs of that time are not known, neither is how often there were preemptions: that is said, and is not none.
//!
//! Source: the rule is that of the cloud's own calculators, with losses taken off; the published shares
//! (“60 to 91 %”) are not used, because they do not hold for GPU machines.

use std::collections::BTreeMap;

mod taken_back;

pub use taken_back::{Life, Machine, Notice, Preempted, TakenBack, WITHIN_MS};

use super::{Chargeback, Fleet, Node};
use crate::money::ratio;
use crate::price_book::Basis;

/// Milliseconds of a thousand hours.
const THOUSAND_HOURS_MS: i128 = 3_600_000_000;

/// Where Spot was bought.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The pool.
    pub pool: String,
    /// The zone; empty when not known.
    pub zone: String,
    /// The machine type.
    pub machine_type: String,
}

/// Time at Spot and what it cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bought {
    /// GPU-milliseconds of which both rates are known.
    pub gpu_millis: i64,
    /// What they cost, nano-units.
    pub spot: i128,
    /// What they would have cost on demand.
    pub on_demand: i128,
    /// GPU-milliseconds of which one of the two is not known.
    pub unknown_gpu_millis: i64,
}

/// What Spot came to in one place, or in all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outcome {
    /// Time and money.
    pub bought: Bought,
    /// Machines that were taken back.
    pub preemptions: u64,
    /// Those on which no run told its steps.
    pub without_runs: u64,
    /// Runs that ended with a machine that was taken back.
    pub runs: u64,
    /// Runs of which not everything that they lost is known.
    pub unknown_losses: u64,
    /// Work in vain and ways back, GPU-milliseconds, as far as they are known.
    pub lost_gpu_millis: i64,
    /// The same in nano-units.
    pub lost: i128,
    /// Whether it is not known what was preempted in all of that time: what stands here of it is the least that it can
    /// be.
    pub is_untold: bool,
}

/// What Spot came to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Spot {
    /// By place.
    pub places: BTreeMap<Place, Outcome>,
    /// Machines that were taken back and are not paid at Spot, or not known.
    pub elsewhere: u64,
    /// Runs that ended with those.
    pub elsewhere_runs: u64,
    /// Machines at Spot that went, of which nobody says whether they were taken back.
    pub unsaid: u64,
    /// Why it is not known what was preempted in all of that time; none where it is.
    pub untold: Option<String>,
}

impl Place {
    /// Where a node is.
    pub(super) fn of(node: &Node) -> Self {
        Self {
            pool: node.pool.clone(),
            zone: node.zone.clone(),
            machine_type: node.machine_type.clone(),
        }
    }
}

impl Bought {
    /// Adds another.
    pub fn add(&mut self, other: &Self) {
        self.gpu_millis += other.gpu_millis;
        self.spot += other.spot;
        self.on_demand += other.on_demand;
        self.unknown_gpu_millis += other.unknown_gpu_millis;
    }
}

impl Outcome {
    /// On demand less Spot, nano-units.
    pub const fn saved(&self) -> i128 {
        self.bought.on_demand - self.bought.spot
    }

    /// The same less what preemptions lost.
    pub const fn net(&self) -> i128 {
        self.saved() - self.lost
    }

    /// Machines that were taken back; none where that is not known.
    pub const fn known_preemptions(&self) -> Option<u64> {
        if self.is_untold {
            None
        } else {
            Some(self.preemptions)
        }
    }

    /// Preemptions per 1,000 GPU-hours, thousandths; none without time, and where they are not known.
    pub fn preemptions_per_1000_hours(&self) -> Option<i128> {
        let count = i128::from(self.known_preemptions()?) * 1_000;
        ratio(count, THOUSAND_HOURS_MS, self.bought.gpu_millis.into())
    }

    /// Takes a machine in, with its runs.
    fn take(&mut self, it: &Machine) {
        self.preemptions += u64::from(it.is_in_time);
        self.without_runs += u64::from(!it.had_run);
        it.runs.iter().for_each(|run| self.take_run(run));
    }

    /// Takes a run in, priced by the time that was bought here.
    fn take_run(&mut self, it: &Preempted) {
        self.runs += 1;
        let parts = [it.lost_gpu_millis, it.recovery_gpu_millis];
        self.unknown_losses += u64::from(parts.contains(&None));
        let lost = parts.into_iter().flatten().fold(0, i64::saturating_add);
        let all = i128::from(self.bought.gpu_millis);
        match ratio(self.bought.spot, lost.into(), all) {
            Some(cost) => {
                self.lost_gpu_millis = self.lost_gpu_millis.saturating_add(lost);
                self.lost += cost;
            }
            // Without a price of its time it is not known what was lost.
            None => self.unknown_losses += u64::from(!parts.contains(&None)),
        }
    }
}

impl Spot {
    /// What Spot came to, with what was taken back in that time, and why that may not be all.
    pub fn of(
        made: &Chargeback,
        fleet: &Fleet,
        taken_back: &TakenBack,
        untold: Option<&str>,
    ) -> Self {
        let bought = made.spot.iter();
        let outcome = |(place, bought): (&Place, &Bought)| {
            let outcome = Outcome {
                bought: *bought,
                is_untold: untold.is_some(),
                ..Outcome::default()
            };
            (place.clone(), outcome)
        };
        let mut spot = Self {
            places: bought.map(outcome).collect(),
            unsaid: taken_back.unsaid,
            untold: untold.map(str::to_owned),
            ..Self::default()
        };
        let mut nodes: BTreeMap<(&str, &str), &Node> = BTreeMap::new();
        for node in fleet.nodes.iter().filter(|it| it.basis == Basis::Spot) {
            nodes.insert((&node.cluster, &node.name), node);
        }
        for it in &taken_back.machines {
            let node = nodes.get(&(it.cluster.as_str(), it.node.as_str()));
            let place = node.map(|it| Place::of(it));
            match place.and_then(|it| spot.places.get_mut(&it)) {
                Some(outcome) => outcome.take(it),
                None => {
                    spot.elsewhere += u64::from(it.is_in_time);
                    spot.elsewhere_runs += it.runs.len() as u64;
                }
            }
        }
        spot
    }

    /// All places together.
    pub fn total(&self) -> Outcome {
        let mut total = Outcome::default();
        for it in self.places.values() {
            total.bought.add(&it.bought);
            total.preemptions += it.preemptions;
            total.without_runs += it.without_runs;
            total.runs += it.runs;
            total.unknown_losses += it.unknown_losses;
            total.lost_gpu_millis = total.lost_gpu_millis.saturating_add(it.lost_gpu_millis);
            total.lost += it.lost;
            total.is_untold |= it.is_untold;
        }
        total
    }

    /// Whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{FIRST_HOUR, HOUR, RATES, book, fleet, october, part, period};
    use super::*;
    use crate::ledger::State;

    const USD: i128 = 1_000_000_000;

    /// Two nodes, the first on Spot, of which each hour of these is charged.
    fn made(rates: &str, hours: i64) -> (Fleet, Chargeback) {
        let mut fleet = fleet(2);
        fleet.nodes[0].basis = Basis::Spot;
        let parts = [part(Some(0), State::ActiveUnrated, HOUR)];
        let hours = 0..hours;
        let periods: Vec<_> = hours
            .flat_map(|hour| [period(0, hour, &parts), period(1, hour, &parts)])
            .collect();
        let made = october(&fleet, &periods, &book(rates, ""));
        (fleet, made)
    }

    fn preempted(node: &str, lost: Option<i64>, recovery: Option<i64>) -> Preempted {
        Preempted {
            cluster: "c".to_owned(),
            nodes: vec![node.to_owned()],
            ended_ms: FIRST_HOUR * HOUR,
            lost_gpu_millis: lost,
            recovery_gpu_millis: recovery,
        }
    }

    /// A machine of this node that was taken back with these runs.
    fn machine(node: &str, runs: &[Preempted]) -> Machine {
        Machine {
            cluster: "c".to_owned(),
            node: node.to_owned(),
            at_ms: FIRST_HOUR * HOUR,
            is_in_time: true,
            had_run: !runs.is_empty(),
            runs: runs.to_vec(),
        }
    }

    fn taken_back(machines: &[Machine]) -> TakenBack {
        TakenBack {
            machines: machines.to_vec(),
            unsaid: 0,
        }
    }

    #[test]
    fn spot_saves_the_difference_of_the_rates_that_held_less_what_was_lost_to_preemptions() {
        // 100 hours at 40 instead of 80; from the 51st on at 50.
        let at = crate::table::moment_text((FIRST_HOUR + 50) * HOUR);
        let rates = format!("{RATES}box-8g,here,spot,USD,50,5,{at},,list,b\n");
        let (fleet, made) = made(&rates, 100);
        let lost = [
            preempted("node-0", Some(8 * HOUR), Some(2 * HOUR)),
            preempted("node-0", Some(6 * HOUR), Some(0)),
        ];
        // Two machines of which one had both runs, and one that is another month's.
        let mut others = machine("node-0", &[preempted("node-0", Some(0), Some(0))]);
        others.is_in_time = false;
        let all = [machine("node-0", &lost), machine("node-0", &[]), others];
        let spot = Spot::of(&made, &fleet, &taken_back(&all), None);
        assert_eq!(spot.places.len(), 1, "on demand is no place of Spot");
        let (place, outcome) = spot.places.first_key_value().expect("a place");
        assert_eq!(
            (place.zone.as_str(), place.pool.as_str()),
            ("here-a", "pool")
        );
        assert_eq!(outcome.bought.gpu_millis, 800 * HOUR);
        assert_eq!(outcome.saved(), (50 * 40 + 50 * 30) * USD);
        // 16 GPU-hours of 800 that cost 4,500.
        assert_eq!(
            (outcome.lost, outcome.lost_gpu_millis),
            (90 * USD, 16 * HOUR)
        );
        assert_eq!(outcome.net(), 3_410 * USD);
        assert_eq!(outcome.preemptions_per_1000_hours(), Some(2_500));
        assert_eq!(
            (outcome.preemptions, outcome.runs, outcome.without_runs),
            (2, 3, 1)
        );
        assert_eq!((outcome.unknown_losses, spot.elsewhere), (0, 0));
        assert_eq!(spot.total(), *outcome);
        let paid = made.lines.iter().filter(|it| it.0.node == Some(0));
        let paid: i128 = paid.map(|it| it.1.cost).sum();
        assert_eq!(outcome.bought.spot, paid, "as the lines have it");
    }

    #[test]
    fn what_is_not_known_of_a_loss_is_counted_and_makes_no_saving() {
        let (fleet, made) = made(RATES, 10);
        let told = preempted("node-0", Some(HOUR), Some(0));
        let partly = preempted("node-0", Some(HOUR), None);
        let not = preempted("node-0", None, None);
        let one = taken_back(&[machine("node-0", &[told, partly, not])]);
        let total = Spot::of(&made, &fleet, &one, None).total();
        assert_eq!(
            (total.preemptions, total.runs, total.unknown_losses),
            (1, 3, 2)
        );
        assert_eq!(total.lost, 10 * USD, "two GPU-hours of 5");
    }

    #[test]
    fn a_run_that_lost_nodes_on_demand_or_unknown_ones_is_no_price_of_spot() {
        let (fleet, made) = made(RATES, 10);
        let run = |node: &str| machine(node, &[preempted(node, Some(HOUR), Some(HOUR))]);
        let all = [run("node-1"), run(""), machine("node-9", &[])];
        let spot = Spot::of(&made, &fleet, &taken_back(&all), None);
        assert_eq!((spot.elsewhere, spot.elsewhere_runs), (3, 2));
        let total = spot.total();
        assert_eq!((total.preemptions, total.lost), (0, 0));
    }

    #[test]
    fn time_without_one_of_the_two_rates_saves_nothing_and_is_told() {
        let only_spot = "machine_type,region,basis,currency,hour,gpu_hour,from,until,quality,source\n\
            box-8g,here,spot,USD,40,4.5,2026-10-01,,list,a\n";
        let (fleet, made) = made(only_spot, 10);
        let lost = [preempted("node-0", Some(HOUR), Some(0))];
        let lost = taken_back(&[machine("node-0", &lost)]);
        let total = Spot::of(&made, &fleet, &lost, None).total();
        assert_eq!((total.bought.spot, total.saved(), total.lost), (0, 0, 0));
        assert_eq!(total.bought.unknown_gpu_millis, 80 * HOUR);
        assert_eq!(total.preemptions_per_1000_hours(), None);
        assert_eq!(total.unknown_losses, 1, "its time has no price");
        let nothing = TakenBack::default();
        assert!(Spot::of(&Chargeback::default(), &fleet, &nothing, None).is_empty());
    }

    #[test]
    fn runs_that_are_not_known_any_more_are_no_month_without_preemptions() {
        let (fleet, made) = made(RATES, 10);
        let seen = [preempted("node-0", Some(HOUR), Some(0))];
        let seen = taken_back(&[machine("node-0", &seen)]);
        let spot = Spot::of(&made, &fleet, &seen, Some("deleted"));
        let total = spot.total();
        assert_eq!(total.known_preemptions(), None);
        assert_eq!(total.preemptions_per_1000_hours(), None);
        assert_eq!(total.lost, 5 * USD, "what is known is lost all the same");
        let none = Spot::of(&made, &fleet, &TakenBack::default(), None).total();
        assert_eq!(none.known_preemptions(), Some(0));
        assert_eq!(none.preemptions_per_1000_hours(), Some(0));
    }
}
