//! A day of a card, as the tests of months have it.

use std::sync::Arc;

use gpufleet_telemetry::identity::Origin;

use crate::store::model::{DayFacts, DayOf, DayTime, LedgerDay};

/// A day of a whole card of cluster `lab`: when it was there, Unix milliseconds, and what that time was.
pub(super) fn day_of_card(
    id: &str,
    facts: DayFacts,
    (day, span): (i64, (i64, i64)),
    times: Vec<DayTime>,
) -> LedgerDay {
    let of = DayOf {
        cluster: "lab".to_owned(),
        id: id.to_owned(),
        is_share: false,
        facts: DayFacts {
            origin: Origin::Live,
            slices: 1,
            of: 1,
            ..facts
        },
    };
    LedgerDay {
        day,
        of: Arc::new(of),
        spans: vec![span],
        times,
    }
}
