//! Cards, machines and parts of a cluster that break again and again: the hardware incidents that the store has
//! of the last month, put together once an hour, by the card's serial number where it tells one, and by where
//! its machine is: the NVLink domain that its GPUs tell, the zone that its agent tells, and the block that the
//! inventory has. An incident of a machine, as of a port or of half of its GPUs at once, is the machine's own; which
//! cards broke says its evidence. What a busy network is enough for is no fault.
//!
//! Limits: the last [`MOST`] incidents of each kind that are over; a card that is no longer there is told
//! no more; a machine that takes another's name is known as another by when its node was made, where the cluster
//! tells that.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use gpufleet_analysis::cause::{Cause, Reading};
use gpufleet_analysis::incident::{Evidence, Family, Incident, Place, Remedy, Signal, State};
use gpufleet_analysis::lost::Lost;
use gpufleet_analysis::offender::{
    Fault, Level, Machine, NODE_CARDS, Offender, Thresholds, WINDOW_NS, judge_by,
};
use gpufleet_analysis::price::{Basis, Price};
use gpufleet_telemetry::catalog::Unit;
use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::identity::{ResourceKind, attribute, is_null_uuid};
use gpufleet_telemetry::time::Timestamp;

use super::detector::{Detector, Findings, Finds, Need, TickSnapshot};
use super::limits::table::REPEATS;
use crate::App;
use crate::store::StoreError;
use crate::store::model::IncidentFilter;
use crate::words::text;

/// Incidents of a kind that are read: as many as the store hands out at a time.
const MOST: usize = 1_000;

/// Machines of a part that are named: the rest is in the list of incidents.
const MOST_NAMED: usize = 8;

/// Characters of a serial number that are shown: NVIDIA's have 13.
const SHOWN_SERIAL: usize = 32;

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
        let mut faults = Vec::new();
        for family in HARDWARE {
            let filter = IncidentFilter {
                family: Some(family),
                state: Some(State::Resolved),
                resolved_since: Some(now.shifted(-WINDOW_NS)),
                ..IncidentFilter::default()
            };
            let (over, _) = app.store.incidents(&filter, None, MOST).await?;
            let fault = |it: &Incident| Some((fault(it, &serials)?, it.lost_known().copied()));
            faults.extend(over.iter().filter_map(fault));
        }
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
                let action = (
                    "Have the card replaced: resets do not mend it.",
                    Remedy::Replace,
                );
                // By its serial number, where that is known; else by its id, which is its place's.
                let serial = Some(card).filter(|card| place.gpu.as_ref() != Some(*card));
                let readings = vec![faults_read(*faults, self.by.card_faults, serial)];
                signal(place, what, action, readings, price)
            }
            Offender::Node(cluster, node, faults, cards) => {
                let what = match *cards >= NODE_CARDS {
                    true => "card after card breaks in it",
                    false => "it breaks again and again, and no single card of it",
                };
                let action = (
                    "Have the machine looked at: board, riser, power, cooling, ports and cables; not the cards.",
                    Remedy::Look,
                );
                let cards =
                    Reading::new("cards that broke alone", *cards as f64, None, Unit::Count);
                let readings = vec![faults_read(*faults, self.by.node_faults, None), cards];
                let place = Place::node(cluster, node);
                signal(place, what, action, readings, price)
            }
            Offender::Part(part) => {
                let (level, name) = (part.level.words(), &part.name);
                let what = format!("machine after machine breaks in {level} {name}");
                let action = (
                    "Have what these machines share looked at: power, cooling, switch, firmware; have the scheduler prefer others.",
                    Remedy::Look,
                );
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

/// The fault that an incident was; none where it is about more than a machine, or about nothing that may be broken.
fn fault(incident: &Incident, serials: &HashMap<(String, String), String>) -> Option<Fault> {
    let place = &incident.place;
    let node = place.node.clone()?;
    let gpus = match &place.gpu {
        Some(gpu) => BTreeSet::from([gpu.as_str()]),
        None => of_machine(incident)?,
    };
    let card = |gpu: &str| {
        let key = (place.cluster.clone(), gpu.to_owned());
        serials.get(&key).cloned().unwrap_or(key.1)
    };
    Some(Fault {
        cluster: place.cluster.clone(),
        node,
        cards: gpus.into_iter().map(card).collect(),
        at: incident.since,
    })
}

/// The GPUs of a machine that broke together, none where something else of it did; nothing where none of its hardware
/// did.
fn of_machine(incident: &Incident) -> Option<BTreeSet<&str>> {
    let place = &incident.place;
    let is_its = |it: &&Evidence| {
        let is_here = it.place.node == place.node && it.place.run.is_none();
        is_here && is_hardware(it)
    };
    let mut own = incident.evidence.iter().filter(is_its).peekable();
    own.peek().filter(|_| place.run.is_none())?;
    let gpus: Option<BTreeSet<&str>> = own.map(|it| it.place.gpu.as_deref()).collect();
    Some(gpus.unwrap_or_default())
}

/// Whether a piece of evidence tells of a card, a link, a slot or a port that may be broken.
fn is_hardware(evidence: &Evidence) -> bool {
    use Cause::{GpuFault, GpuMemory, Network, Nvlink, Pcie};
    let is_one = matches!(
        evidence.cause,
        GpuFault | GpuMemory | Pcie | Nvlink | Network
    );
    is_one && evidence.what != REPEATS
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
    let mut made: HashMap<String, Timestamp> = HashMap::new();
    for record in app.inventory.known().records() {
        let node = &record.node;
        let Some(of_node) = parts.get_mut(&(cluster.to_string(), node.name.clone())) else {
            continue;
        };
        made.extend(node.created.map(|at| (node.name.clone(), at)));
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
    let machine = |((name, node), parts): ((String, String), BTreeMap<Level, String>)| Machine {
        made: made.get(&node).copied().filter(|_| *name == **cluster),
        cluster: name,
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
        Offender::Card(cluster, card, _) => it.cluster == *cluster && it.cards == [card.as_str()],
        Offender::Node(cluster, node, ..) => (&it.cluster, &it.node) == (cluster, node),
        Offender::Part(part) => it.cluster == part.cluster && part.faulty.contains(&it.node),
    };
    let own = faults.iter().filter(|(it, _)| is_its(it));
    Price::repeated(own.map(|(_, lost)| *lost), WINDOW_NS)
}

/// How many faults there were, of the card with this serial number.
fn faults_read(faults: usize, most: f64, serial: Option<&String>) -> Reading {
    let (faults, usual) = (faults as f64, Some(most));
    let name = serial.map_or_else(
        || "faults in 30 days".to_owned(),
        |it| {
            let serial = text::harmless(it, SHOWN_SERIAL);
            format!("faults in 30 days, serial number {serial}")
        },
    );
    Reading::new(&name, faults, usual, Unit::Count)
}

fn signal(
    place: Place,
    what: &str,
    (action, remedy): (&str, Remedy),
    readings: Vec<Reading>,
    price: Price,
) -> Signal {
    Signal {
        family: Family::Offender,
        place,
        severity: Severity::Warning,
        what: what.to_owned(),
        action: action.to_owned(),
        remedy,
        cause: Cause::GpuFault,
        since: None::<Timestamp>,
        readings,
        price,
        confidence: None,
        booted_at: None,
    }
}
