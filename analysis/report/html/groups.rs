//! The page's tables of who cost and who owes what: every row adds up, and the last is all of them.

use super::super::Report;
use super::{MAX_ROWS, Row, bearer_words, hours, money, or_dash, states, terms};
use crate::chargeback::Sum;
use crate::chargeback::view::{By, Group};
use crate::ledger::State;
use crate::owner::Payer;

/// The columns of the table of groups that are only there where something is known in them.
#[derive(Clone, Copy)]
pub(super) struct Columns {
    pub(super) has_gpu_only: bool,
    pub(super) has_unpriced: bool,
    pub(super) has_energy: bool,
}

impl Columns {
    pub(super) fn of(whole: &Sum) -> Self {
        Self {
            has_gpu_only: whole.gpu_unpriced_millis < whole.gpu_millis,
            has_unpriced: whole.unpriced_millis > 0,
            has_energy: whole.energy.told().is_some(),
        }
    }

    pub(super) fn names(&self) -> Vec<&'static str> {
        self.known(["GPUs alone", "hours unpriced", "kWh"])
    }

    /// Those of three that are shown.
    fn known<T>(&self, [gpu_only, unpriced, energy]: [T; 3]) -> Vec<T> {
        let gpu_only = self.has_gpu_only.then_some(gpu_only);
        let unpriced = self.has_unpriced.then_some(unpriced);
        let energy = self.has_energy.then_some(energy);
        [gpu_only, unpriced, energy].into_iter().flatten().collect()
    }

    /// The row of a group: active, idle, stalled and other add up to its cost.
    pub(super) fn row(&self, group: &Group) -> Row {
        let of = |is_in: fn(State) -> bool| {
            let states = group.states.iter().filter(|it| is_in(*it.0));
            states.map(|it| it.1.cost).sum::<i128>()
        };
        let (active, idle) = (of(State::is_active), of(State::is_idle));
        let stalled = of(|it| it == State::Stalled);
        let sum = &group.sum;
        let mut numbers = vec![
            hours(sum.gpu_millis),
            money(active),
            money(idle),
            money(stalled),
            money(sum.cost - active - idle - stalled),
            money(sum.cost),
        ];
        numbers.extend(self.known([
            states::gpu_only(sum),
            hours(sum.unpriced_millis),
            terms::energy(sum),
        ]));
        Row {
            words: group.words.iter().map(|it| or_dash(it)).collect(),
            numbers,
            is_bad: false,
        }
    }
}

/// What the table leaves out, as one row; none when it leaves nothing out.
pub(super) fn left_out(groups: &[Group], words: usize, columns: Columns) -> Option<Row> {
    let rest = groups.get(MAX_ROWS..).filter(|it| !it.is_empty())?;
    let mut all = Group::default();
    rest.iter().for_each(|it| all.add(it));
    all.words = vec![String::new(); words];
    let mut row = columns.row(&all);
    row.words[0] = format!("{} more, in the CSV", rest.len());
    Some(row)
}

/// All groups as one row, the last.
pub(super) fn all(whole: &Group, words: usize, columns: Columns) -> Row {
    let mut row = columns.row(whole);
    row.words = vec![String::new(); words];
    row.words[0] = "all".to_owned();
    row
}

/// What each payer owes, the dearest first, and all of it: what it held, and what it bears of what was free.
pub(super) fn borne(report: &Report<'_>) -> Vec<Row> {
    let held = report.chargeback.grouped(report.fleet, &[By::Team]);
    let held = |who: &Payer| {
        let its = held.iter().find(|it| it.words[0] == who.name());
        its.filter(|_| *who != Payer::Nobody)
            .map_or(0, |it| it.sum.cost)
    };
    let mut all: Vec<(String, i128, i128)> = report
        .borne
        .iter()
        .map(|(who, cost)| (bearer_words(who), held(who), *cost))
        .collect();
    all.sort_by(|a, b| b.2.cmp(&a.2).then_with(|| a.0.cmp(&b.0)));
    let sum = |of: fn(&(String, i128, i128)) -> i128| all.iter().map(of).sum();
    let total = ("all".to_owned(), sum(|it| it.1), sum(|it| it.2));
    let row = |(who, held, owes): (String, i128, i128)| Row {
        words: vec![who],
        numbers: vec![money(held), money(owes - held), money(owes)],
        is_bad: false,
    };
    all.into_iter().chain([total]).map(row).collect()
}
