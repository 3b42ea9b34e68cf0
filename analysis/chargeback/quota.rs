//! Quotas of teams in GPUs: how many a team may hold, how many it held on average, and what the month will come to.
//!
//! Method. Held is the time of everything that the team's jobs had in their hands, in whatever state; the mean is
//! that over the time of the month that has passed, a share of a GPU as its share. The forecast goes as that of
//! [`budget`](super::budget): what was held, and for each day to come the mean of the last whole days.
//!
//! Numbers. Thousandths of GPUs (i128), each rounded once.
//!
//! Limits. A quota is of a month's mean: a team that held twice as many for half the month is within it, so the day on
//! which it held most is told beside. Time that nobody is known to have held is nobody's.

use std::collections::BTreeMap;

use super::{Chargeback, MILLIS_PER_DAY};
use crate::money::ratio;
use crate::owner::Payer;

/// Thousandths of a GPU.
const MILLI: i128 = 1_000;

/// Where a team stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// The team.
    pub team: String,
    /// GPUs that it may hold.
    pub quota: i64,
    /// Thousandths of GPUs that it held on average; none before any time has passed.
    pub mean: Option<i128>,
    /// The same on the whole day on which it held most; none without a whole day.
    pub most_of_a_day: Option<i128>,
    /// The mean that the month will come to; none without a whole day.
    pub forecast: Option<i128>,
}

impl Standing {
    /// Whether it held more than it may, or will.
    pub fn is_over(&self) -> bool {
        let quota = i128::from(self.quota) * MILLI;
        [self.mean, self.forecast]
            .into_iter()
            .flatten()
            .any(|it| it > quota)
    }
}

impl Chargeback {
    /// From when on there is a record in the time asked for: before it nobody knows what was held.
    pub fn begun_ms(&self) -> i64 {
        let held = self.days.keys();
        let mut held = held.filter(|it| !self.pools[it.pool].is_empty());
        let first = held.next().map(|it| it.day * MILLIS_PER_DAY);
        first.map_or(self.from_ms, |it| it.max(self.from_ms))
    }

    /// Where teams stand at a moment in a month that ends at `end_ms`, in the order of their names.
    pub fn quotas(
        &self,
        quotas: &BTreeMap<String, i64>,
        now_ms: i64,
        end_ms: i64,
    ) -> Vec<Standing> {
        let begun = self.begun_ms();
        let passed = now_ms.clamp(begun, end_ms) - begun;
        let mean = |gpu_millis: i128, millis: i64| ratio(gpu_millis, MILLI, millis.into());
        let standing = |(team, quota): (&String, &i64)| {
            let payer = Payer::Team(team.clone());
            let held = self.held_course(&payer, now_ms, end_ms);
            let most = held.whole_days().max();
            Standing {
                team: team.clone(),
                quota: *quota,
                mean: mean(held.spent(), passed),
                most_of_a_day: most.and_then(|it| mean(it, MILLIS_PER_DAY)),
                forecast: held.forecast().and_then(|it| mean(it, end_ms - begun)),
            }
        };
        quotas.iter().map(standing).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{FIRST_HOUR, HOUR, RATES, book, fleet, october, part, period};
    use super::*;
    use crate::ledger::State;

    const FROM: i64 = FIRST_HOUR * HOUR;
    const END: i64 = FROM + 744 * HOUR;

    /// Half of eight GPUs for ten days from the first on, on the last of them all eight; commitments beside.
    fn standing(now_day: i64, quota: i64) -> Standing {
        let half = [
            part(Some(0), State::Parked, HOUR / 2),
            part(None, State::Unallocated, HOUR / 2),
        ];
        let whole = [part(Some(0), State::ActiveUnrated, HOUR)];
        let hours = 0..240_i64;
        let periods: Vec<_> = hours
            .map(|hour| match hour < 216 {
                true => period(0, hour, &half),
                false => period(0, hour, &whole),
            })
            .collect();
        let unused = "c1,box-8g,there,4,commitment_3y,USD,32,2026-10-01,2026-11-01,science\n";
        let made = october(&fleet(1), &periods, &book(RATES, unused));
        let quotas = BTreeMap::from([("science".to_owned(), quota)]);
        made.quotas(&quotas, FROM + now_day * MILLIS_PER_DAY, END)
            .remove(0)
    }

    #[test]
    fn a_team_stands_by_what_it_held_on_average_and_what_the_month_will_come_to() {
        let found = standing(10, 4);
        // Nine days of four GPUs and one of eight; then 21 days as the last seven: six of four and one of eight.
        assert_eq!(found.mean, Some(4_400));
        assert_eq!(found.most_of_a_day, Some(8_000));
        assert_eq!(found.forecast, Some(4_516), "(44 + 21 × 32 / 7) ÷ 31");
        assert!(found.is_over());
        assert!(!standing(10, 5).is_over(), "the mean counts, not the day");
    }

    #[test]
    fn days_before_the_record_are_in_no_forecast_though_a_commitment_was_paid_in_them() {
        // Four GPUs from the sixth day on, of which the first is not taken for a whole one.
        let half = [
            part(Some(0), State::Parked, HOUR / 2),
            part(None, State::Unallocated, HOUR / 2),
        ];
        let periods: Vec<_> = (120..240_i64).map(|hour| period(0, hour, &half)).collect();
        let unused = "c1,box-8g,there,4,commitment_3y,USD,32,2026-10-01,2026-11-01,science\n";
        let made = october(&fleet(1), &periods, &book(RATES, unused));
        let quotas = BTreeMap::from([("science".to_owned(), 4)]);
        let found = made.quotas(&quotas, FROM + 10 * MILLIS_PER_DAY, END);
        assert_eq!(
            (found[0].mean, found[0].forecast),
            (Some(4_000), Some(4_000))
        );
    }

    #[test]
    fn what_a_team_pays_and_nobody_holds_is_not_held() {
        let mut found = standing(0, 4);
        assert_eq!(
            (found.mean, found.forecast),
            (None, None),
            "nothing has passed"
        );
        found.mean = Some(4_000);
        assert!(!found.is_over(), "as many as it may");
        found.forecast = Some(4_001);
        assert!(found.is_over());
    }
}
