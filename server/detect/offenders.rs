//! Cards, machines and parts of a cluster that break again and again: the hardware incidents that the store has
//! of the last month, put together once an hour, by the card's serial number where it tells one, and by where
//! its machine is: the NVLink domain that its GPUs tell, the zone that its agent tells, and the block that the
//! inventory has.
//!
//! Limits: the last [`MOST`] incidents of each kind that are over; a card that is no longer there is told
//! no more.

use std::collections::{BTreeMap, HashMap};

use gpufleet_analysis::cause::{Cause, Reading};
use gpufleet_analysis::incident::{Family, Place, Signal, State};
use gpufleet_analysis::lost::Lost;
use gpufleet_analysis::offender::{
    Fault, Level, Machine, Offender, Thresholds, WINDOW_NS, judge_by,
};
use gpufleet_analysis::price::{Basis, Price};
use gpufleet_telemetry::catalog::Unit;
use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::identity::{ResourceKind, attribute, is_null_uuid};
use gpufleet_telemetry::time::Timestamp;

use super::detector::{Detector, Findings, Finds, Need, TickSnapshot};
use crate::App;
use crate::store::StoreError;
use crate::store::model::IncidentFilter;

/// Incidents of a kind that are read: as many as the store hands out at a time.
const MOST: usize = 1_000;

/// Machines of a part that are named: the rest is in the list of incidents.
const MOST_NAMED: usize = 8;

/// Kinds of trouble that are a card's, a link's or a slot's.
const HARDWARE: [Family; 3] = [Family::GpuFault, Family::Memory, Family::Link];

/// Who breaks again and again, as of the last look.
#[derive(Debug, Default)]
pub(super) struct Offenders {
    /// By what is judged from the next look on.
    pub(super) by: Thresholds,
    /// None before the first look.
    found: Option<Vec<Found>>,
    /// Where each card is, by cluster and serial number or id.
    places: HashMap<(String, String), Place>,
}

/// Who breaks again and again, and what these faults have lost.
#[derive(Debug)]
struct Found {
    who: Offender,
    price: Price,
}

impl Offenders {
    /// Looks at what the store has.
    ///
    /// # Errors
    /// When it does not answer: what was known before stands.
    pub(super) async fn look(&mut self, app: &App) -> Result<(), StoreError> {
        let now = app.clock.now();
        let (places, serials) = cards(app);
        let (mut faults, mut losses) = (Vec::new(), Vec::new());
        for family in HARDWARE {
            let filter = IncidentFilter {
                family: Some(family),
                state: Some(State::Resolved),
                resolved_since: Some(now.shifted(-WINDOW_NS)),
                ..IncidentFilter::default()
            };
            let (over, _) = app.store.incidents(&filter, None, MOST).await?;
            for incident in over {
                let lost = incident.lost_known().copied();
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
                losses.push(lost);
            }
        }
        let faults = std::iter::zip(faults, losses).collect();
        self.take(faults, &machines(app), now);
        self.places = places;
        Ok(())
    }

    /// Judges these faults of the last month, of which each has lost so much, among the machines that there are.
    fn take(&mut self, faults: Vec<(Fault, Option<Lost>)>, machines: &[Machine], now: Timestamp) {
        let all: Vec<(&Fault, Option<Lost>)> =
            faults.iter().map(|(it, lost)| (it, *lost)).collect();
        let faults: Vec<Fault> = faults.iter().map(|(it, _)| it.clone()).collect();
        let found = judge_by(&faults, machines, &self.by, now);
        let found = found.into_iter().map(|who| Found {
            price: price(&who, &all),
            who,
        });
        self.found = Some(found.collect());
    }

    /// Takes in faults that a test made of these cards and machines.
    #[cfg(test)]
    pub(super) fn take_made(
        &mut self,
        (faults, places): (Vec<Fault>, Vec<(String, Place)>),
        machines: &[Machine],
        now: Timestamp,
    ) {
        let places = places.into_iter();
        let places = places.map(|(card, place)| ((place.cluster.clone(), card), place));
        self.places = places.collect();
        let faults = faults.into_iter().map(|it| (it, None)).collect();
        self.take(faults, machines, now);
    }

    fn signal(&self, found: &Found) -> Option<Signal> {
        let price = found.price;
        let signal = match &found.who {
            Offender::Card(cluster, card, faults) => {
                let place = self.places.get(&(cluster.clone(), card.clone()))?.clone();
                let what = "it breaks again and again";
                let action = "Have the card replaced: resets do not mend it.";
                let readings = vec![faults_read(*faults, self.by.card_faults)];
                signal(place, what, action, readings, price)
            }
            Offender::Node(cluster, node, faults, cards) => {
                let what = "card after card breaks in it";
                let action =
                    "Have the machine looked at: board, riser, power, cooling; not the cards.";
                let cards = Reading::new("cards", *cards as f64, None, Unit::Count);
                let readings = vec![faults_read(*faults, self.by.node_faults), cards];
                let place = Place::node(cluster, node);
                signal(place, what, action, readings, price)
            }
            Offender::Part(part) => {
                let (level, name) = (part.level.words(), &part.name);
                let what = format!("machine after machine breaks in {level} {name}");
                let action = "Have what these machines share looked at: power, cooling, switch, firmware; have the scheduler prefer others.";
                let place = Place {
                    cluster: part.cluster.clone(),
                    ..Place::default()
                };
                let count = |it: usize| it as f64;
                let usual = count(part.faulty_elsewhere) / count(part.elsewhere);
                let share = count(part.faulty.len()) / count(part.machines);
                let mut readings = vec![
                    Reading::new(
                        "machines with a fault in 30 days",
                        count(part.faulty.len()),
                        None,
                        Unit::Count,
                    ),
                    Reading::new(
                        "share of its machines, and elsewhere",
                        share,
                        Some(usual),
                        Unit::Ratio,
                    ),
                ];
                let named = part.faulty.iter().take(MOST_NAMED);
                readings.extend(named.map(|it| Reading::new(it, 1.0, None, Unit::Count)));
                signal(place, &what, action, readings, price)
            }
        };
        Some(signal)
    }
}

impl Detector for Offenders {
    fn finds(&self) -> Vec<Finds> {
        let what = "cards, machines and parts of a cluster that break again and again";
        let prices = &[Basis::PastIncidents, Basis::PastUnmeasured];
        vec![Finds::of(what, Family::Offender, &[Need::Past], prices)]
    }

    /// Of cards those that are there.
    fn judge(&mut self, tick: &TickSnapshot<'_>, found: &mut Findings) {
        let is_there = |it: &Signal| {
            let gpu = it.place.gpu.as_deref();
            gpu.is_none_or(|gpu| tick.gpus.contains_key(&(it.place.cluster.as_str(), gpu)))
        };
        let Some(known) = &self.found else {
            found.unknown.insert(Family::Offender);
            return;
        };
        let signals = known.iter().filter_map(|it| self.signal(it));
        found.signals.extend(signals.filter(is_there));
    }
}

/// Every machine that is heard, and the parts of its cluster that it is in.
fn machines(app: &App) -> Vec<Machine> {
    let mut parts: BTreeMap<(String, String), BTreeMap<Level, String>> = BTreeMap::new();
    app.fleet.visit(|live| {
        let text = |name| live.resource.attribute(name).filter(|it| !it.is_empty());
        let key = || (live.key.cluster.to_string(), live.node.to_string());
        let part = match live.key.kind {
            ResourceKind::Node => Some((Level::Zone, text(attribute::ZONE).map(str::to_owned))),
            ResourceKind::Gpu => {
                // Machines whose NVLink ends within them all say the same: zeros.
                let domain = text(attribute::FABRIC_CLUSTER).filter(|it| !is_null_uuid(it));
                let clique = text(attribute::FABRIC_CLIQUE).unwrap_or_default();
                Some((Level::Domain, domain.map(|it| format!("{it}/{clique}"))))
            }
            _ => None,
        };
        let Some((level, name)) = part.filter(|_| !live.node.is_empty()) else {
            return;
        };
        let of_node = parts.entry(key()).or_default();
        of_node.extend(name.map(|name| (level, name)));
    });
    let cluster = app.inventory.cluster();
    for record in app.inventory.known().records() {
        let node = &record.node;
        let Some(of_node) = parts.get_mut(&(cluster.to_string(), node.name.clone())) else {
            continue;
        };
        for (level, name) in [
            (Level::SubBlock, &node.subblock),
            (Level::Block, &node.block),
            (Level::Zone, &node.zone),
        ] {
            if !name.is_empty() {
                of_node.insert(level, name.clone());
            }
        }
    }
    let machine = |((cluster, node), parts): (_, BTreeMap<Level, String>)| Machine {
        cluster,
        node,
        parts: parts.into_iter().collect(),
    };
    parts.into_iter().map(machine).collect()
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

/// What the faults have lost that are this one's.
fn price(who: &Offender, faults: &[(&Fault, Option<Lost>)]) -> Price {
    let is_its = |it: &Fault| match who {
        Offender::Card(cluster, card, _) => (&it.cluster, &it.card) == (cluster, card),
        Offender::Node(cluster, node, ..) => (&it.cluster, &it.node) == (cluster, node),
        Offender::Part(part) => it.cluster == part.cluster && part.faulty.contains(&it.node),
    };
    let own = faults.iter().filter(|(it, _)| is_its(it));
    Price::repeated(own.map(|(_, lost)| *lost), WINDOW_NS)
}

fn faults_read(faults: usize, most: f64) -> Reading {
    let (faults, usual) = (faults as f64, Some(most));
    Reading::new("faults in 30 days", faults, usual, Unit::Count)
}

fn signal(place: Place, what: &str, action: &str, readings: Vec<Reading>, price: Price) -> Signal {
    Signal {
        family: Family::Offender,
        place,
        severity: Severity::Warning,
        what: what.to_owned(),
        action: action.to_owned(),
        cause: Cause::GpuFault,
        since: None::<Timestamp>,
        readings,
        price,
        confidence: None,
        booted_at: None,
    }
}
