//! Open incidents on the page of what they are about: a run, a GPU, a node.

use gpufleet_analysis::incident::{Incident, Place};
use gpufleet_telemetry::time::Timestamp;

use super::{Row, rank, row};
use crate::pages::frame::Frame;
use crate::view::FleetView;
use crate::web::Web;
use crate::words::address;

/// Most that are shown; the list has all.
const SHOWN: usize = 5;

/// The worst of them, the worst first.
#[derive(Default)]
pub(in crate::pages) struct Beside {
    pub(in crate::pages) rows: Vec<Row>,
    /// How many more there are.
    pub(in crate::pages) more: usize,
    /// The list of all of them, those that are over too.
    pub(in crate::pages) all: String,
}

impl Beside {
    /// What is shown of these, which are open at a place, with money in this currency.
    pub(in crate::pages) fn of(
        mut open: Vec<Incident>,
        place: &Place,
        view: &FleetView,
        now: Timestamp,
        currency: &str,
    ) -> Self {
        open.sort_by_key(rank);
        let rows = open.iter().take(SHOWN);
        let rows = rows.map(|it| row(it, view, now, currency));
        Self {
            rows: rows.collect(),
            more: open.len().saturating_sub(SHOWN),
            all: address::incidents(place),
        }
    }

    /// Those of a node or GPU and of what it lies in.
    pub(in crate::pages) fn of_place(
        web: &Web,
        frame: &Frame,
        view: &FleetView,
        place: &Place,
    ) -> Self {
        let mut open = web.app.incidents.open(&frame.grant);
        open.retain(|it| {
            let bare = Place {
                run: None,
                rank: None,
                ..it.place.clone()
            };
            // A run of which no node is suspected is not everywhere in its cluster.
            let is_somewhere = it.place.run.is_none() || it.place.node.is_some();
            is_somewhere && bare.overlaps(place)
        });
        Self::of(open, place, view, frame.at, web.app.currency())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notify::fixture;

    #[test]
    fn the_oldest_of_a_storm_are_shown_and_the_others_counted() {
        let open = (1..=7).rev().map(|number| {
            let mut one = fixture::incident(number);
            one.since = fixture::after(i64::try_from(number).expect("a small number"));
            one
        });
        let nowhere = FleetView::default();
        let place = Place::node("prod", "node-1");
        let beside = Beside::of(open.collect(), &place, &nowhere, fixture::after(60), "USD");
        assert_eq!((beside.rows.len(), beside.more), (5, 2));
        assert!(
            beside.rows[0].address.ends_with('1'),
            "{}",
            beside.rows[0].address
        );
    }
}
