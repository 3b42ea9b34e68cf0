//! Cards and machines that break again and again: the hardware incidents that the store has of the last
//! month, put together once an hour, by the card's serial number where it tells one.
//!
//! Limits: the last [`MOST`] incidents of each kind that are over; a card that is no longer there is told
//! no more.

use std::collections::HashMap;

use gpufleet_analysis::cause::{Cause, Reading};
use gpufleet_analysis::incident::{Family, Place, Signal, State};
use gpufleet_analysis::lost::Losing;
use gpufleet_analysis::offender::{CARD_FAULTS, Fault, NODE_FAULTS, Offender, WINDOW_NS, judge};
use gpufleet_telemetry::catalog::Unit;
use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::identity::{ResourceKind, attribute};
use gpufleet_telemetry::time::Timestamp;

use crate::App;
use crate::store::StoreError;
use crate::store::model::IncidentFilter;

/// Incidents of a kind that are read: as many as the store hands out at a time.
const MOST: usize = 1_000;

/// Kinds of trouble that are a card's, a link's or a slot's.
const HARDWARE: [Family; 3] = [Family::GpuFault, Family::Memory, Family::Link];

/// Who breaks again and again, as of the last look.
#[derive(Debug, Default)]
pub(super) struct Offenders {
    found: Vec<Offender>,
    /// Where each card is, by cluster and serial number or id.
    places: HashMap<(String, String), Place>,
}

impl Offenders {
    /// Looks at what the store has.
    ///
    /// # Errors
    /// When it does not answer: what was known before stands.
    pub(super) async fn look(&mut self, app: &App) -> Result<(), StoreError> {
        let now = app.clock.now();
        let (places, serials) = cards(app);
        let mut faults = Vec::new();
        for family in HARDWARE {
            let filter = IncidentFilter {
                family: Some(family),
                state: Some(State::Resolved),
                resolved_since: Some(now.shifted(-WINDOW_NS)),
                ..IncidentFilter::default()
            };
            for incident in app.store.incidents(&filter, None, MOST).await? {
                let place = incident.place;
                let (Some(node), Some(gpu)) = (place.node, place.gpu) else {
                    continue;
                };
                let key = (place.cluster.clone(), gpu.clone());
                faults.push(Fault {
                    cluster: place.cluster,
                    node,
                    card: serials.get(&key).cloned().unwrap_or(gpu),
                    at: incident.since,
                });
            }
        }
        self.found = judge(&faults, now);
        self.places = places;
        Ok(())
    }

    /// They as signals; of cards that are there.
    pub(super) fn signals(&self, is_there: impl Fn(&Place) -> bool) -> Vec<Signal> {
        let of = |it: &Offender| match it {
            Offender::Card(cluster, card, faults) => {
                let place = self.places.get(&(cluster.clone(), card.clone()))?.clone();
                let what = "it breaks again and again";
                let action = "Have the card replaced: resets do not mend it.";
                let readings = vec![faults_read(*faults, CARD_FAULTS)];
                Some(signal(place, what, action, readings))
            }
            Offender::Node(cluster, node, faults, cards) => {
                let what = "card after card breaks in it";
                let action =
                    "Have the machine looked at: board, riser, power, cooling; not the cards.";
                let cards = Reading::new("cards", *cards as f64, None, Unit::Count);
                let readings = vec![faults_read(*faults, NODE_FAULTS), cards];
                Some(signal(Place::node(cluster, node), what, action, readings))
            }
        };
        let found = self.found.iter().filter_map(of);
        found.filter(|it| is_there(&it.place)).collect()
    }
}

type Cards = (
    HashMap<(String, String), Place>,
    HashMap<(String, String), String>,
);

/// Where each card is by its serial number or id, and the serial number of each id.
fn cards(app: &App) -> Cards {
    let (mut places, mut serials) = Cards::default();
    app.fleet.visit(|live| {
        if live.key.kind != ResourceKind::Gpu {
            return;
        }
        let (cluster, id) = (live.key.cluster.to_string(), live.key.id.to_string());
        let serial = live.resource.attribute(attribute::SERIAL);
        let serial = serial.filter(|it| !it.is_empty()).map(str::to_owned);
        let place = Place::gpu(&cluster, &live.node, &id);
        let card = serial.clone().unwrap_or_else(|| id.clone());
        places.insert((cluster.clone(), card), place);
        serials.extend(serial.map(|serial| ((cluster, id), serial)));
    });
    (places, serials)
}

fn faults_read(faults: usize, most: usize) -> Reading {
    let (faults, usual) = (faults as f64, Some(most as f64));
    Reading::new("faults in 30 days", faults, usual, Unit::Count)
}

fn signal(place: Place, what: &str, action: &str, readings: Vec<Reading>) -> Signal {
    Signal {
        family: Family::Offender,
        place,
        severity: Severity::Warning,
        what: what.to_owned(),
        action: action.to_owned(),
        cause: Cause::GpuFault,
        since: None::<Timestamp>,
        readings,
        losing: Losing::default(),
        booted_at: None,
    }
}
