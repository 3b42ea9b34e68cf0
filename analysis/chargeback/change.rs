//! What some days cost against earlier ones, and whose cost moved most.
//!
//! Sums are of the days' lines, so they are what is charged of these days, to the nano-unit. Time without a price is in no
//! money, and is counted beside it.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

use super::{Chargeback, Sum};
use crate::money::ratio;

/// Days against earlier ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// What the days came to.
    pub now: Sum,
    /// What the earlier ones came to.
    pub before: Sum,
    /// Whose cost moved most, a team, `unowned` or `nobody`, and by how much, nano-units; none where nobody's did.
    pub most: Option<(String, i128)>,
}

impl Change {
    /// What the days cost more than the earlier ones, nano-units.
    pub const fn cost(&self) -> i128 {
        self.now.cost - self.before.cost
    }

    /// The same in per cent of the earlier ones, to the nearest; none where these cost nothing.
    pub fn percent(&self) -> Option<i128> {
        ratio(self.cost(), 100, self.before.cost)
    }
}

impl Chargeback {
    /// What these days of it came to, since the Unix epoch, against those of an earlier month.
    pub fn change(&self, days: &Range<i64>, before: &Self, theirs: &Range<i64>) -> Change {
        let (now, before) = (self.paid(days), before.paid(theirs));
        let total = |of: &BTreeMap<&str, Sum>| {
            let mut sum = Sum::default();
            of.values().for_each(|it| sum.add(it));
            sum
        };
        let cost = |of: &BTreeMap<&str, Sum>, who: &str| of.get(who).map_or(0, |it| it.cost);
        let payers = now.keys().chain(before.keys());
        let moved = payers.map(|who| (*who, cost(&now, who) - cost(&before, who)));
        // Of those that moved as far, the first by name.
        let most = moved
            .filter(|it| it.1 != 0)
            .max_by_key(|it| (it.1.abs(), Reverse(it.0)));
        Change {
            now: total(&now),
            before: total(&before),
            most: most.map(|(who, by)| (who.to_owned(), by)),
        }
    }

    /// What these days came to, by the name of who pays.
    fn paid(&self, days: &Range<i64>) -> BTreeMap<&str, Sum> {
        let mut paid: BTreeMap<&str, Sum> = BTreeMap::new();
        for (day, sum) in self.days.iter().filter(|it| days.contains(&it.0.day)) {
            let who = self.payers[day.payer].name();
            paid.entry(who).or_default().add(sum);
        }
        paid
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chargeback::fixture::{FIRST_HOUR, HOUR, RATES, book, fleet, october, part, period};
    use crate::ledger::State;

    const USD: i128 = 1_000_000_000;

    #[test]
    fn days_are_compared_with_as_many_and_who_moved_most_is_named() {
        let (fleet, book) = (fleet(2), book(RATES, ""));
        let busy = |holder| [part(Some(holder), State::ActiveUnrated, HOUR)];
        let (science, money) = (busy(0), busy(1));
        // An hour of a node costs 80; what comes on the second day is in neither sum.
        let before = october(
            &fleet,
            &[period(0, 0, &science), period(1, 24, &science)],
            &book,
        );
        let now = october(
            &fleet,
            &[
                period(0, 0, &science),
                period(1, 0, &money),
                period(1, 1, &money),
                period(0, 24, &science),
            ],
            &book,
        );
        let first = FIRST_HOUR / 24;
        let day = first..first + 1;
        let change = now.change(&day, &before, &day);
        assert_eq!((change.now.cost, change.before.cost), (240 * USD, 80 * USD));
        assert_eq!(change.cost(), 160 * USD);
        assert_eq!(change.percent(), Some(200));
        assert_eq!(change.most, Some(("money".to_owned(), 160 * USD)));
        let back = before.change(&day, &now, &day);
        assert_eq!(back.percent(), Some(-67));
        assert_eq!(back.most, Some(("money".to_owned(), -160 * USD)));
        // The same is no change of anybody's, and more than nothing no share of it.
        assert_eq!(now.change(&day, &now, &day).most, None);
        let of_nothing = now.change(&day, &Chargeback::default(), &day);
        assert_eq!(of_nothing.percent(), None);
    }
}
