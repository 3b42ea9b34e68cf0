//! Rows of waste: GPUs that nobody holds, GPUs that are held and idle, and what open incidents lose.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gpufleet_analysis::incident::{Family, Incident};
use gpufleet_analysis::ledger::State;
use gpufleet_analysis::lost::WHOLE_GPU;
use gpufleet_analysis::owner::Payer;
use gpufleet_telemetry::time::Timestamp;
use uuid::Uuid;

use super::Look;
use crate::money::now::{Idle, milli_gpus};
use crate::runs::RunKey;
use crate::words::text::{self, counted};
use crate::words::{address, incident};

/// What kind of waste.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Nobody holds them.
    Free,
    /// Nobody holds them, and their node is cordoned or about to be taken away.
    Draining,
    /// Held and inactive, with memory in use.
    Parked,
    /// Held, inactive and empty.
    HeldEmpty,
    /// Busy without progress.
    Stalled,
    /// Broken GPUs, and those that do not work on nodes that are not ready.
    Broken,
    /// Slowed down by heat, power, memory or a link.
    Throttled,
    /// A run that stands still.
    Hang,
    /// A rank makes the others wait.
    Straggler,
    /// A run became slower.
    Slower,
    /// A run's numbers went wrong.
    Training,
    /// Runs that broke off, and steps that are done again.
    FailedRun,
    /// A run below the target of its use. Active, so no waste: in no sum.
    BelowTarget,
    /// A holder that could do with fewer or smaller GPUs. In no sum as well.
    RightSize,
}

/// One thing that costs money for nothing.
#[derive(Debug, Clone)]
pub struct Waste {
    /// What kind.
    pub kind: Kind,
    /// In which cluster.
    pub cluster: Arc<str>,
    /// Where: `GPU 3 of node-7`, a job, a cluster.
    pub place: String,
    /// The page of the place.
    pub address: String,
    /// What is the case, in one sentence without its full stop.
    pub what: String,
    /// How many GPUs it takes, in thousandths.
    pub milli_gpus: u64,
    /// What it costs a day, nano-units, of what of it has a price; none when nothing has.
    pub day_cost: Option<i128>,
    /// GPUs of it that have no price.
    pub unpriced: usize,
    /// Since when at least; none when that is not known.
    pub since: Option<Timestamp>,
    /// Whose it is: a team, `unowned`, `nobody`, `not known`; `several` of what nodes that take no work lose of several.
    pub owner: String,
    /// What to do.
    pub action: String,
    /// How it stands: open, in somebody's hands.
    pub status: String,
    /// Its incident, where it has one.
    pub incident: Option<Uuid>,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 14] = [
        Self::Free,
        Self::Draining,
        Self::Parked,
        Self::HeldEmpty,
        Self::Stalled,
        Self::Broken,
        Self::Throttled,
        Self::Hang,
        Self::Straggler,
        Self::Slower,
        Self::Training,
        Self::FailedRun,
        Self::BelowTarget,
        Self::RightSize,
    ];

    /// The name in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Draining => "draining",
            Self::Parked => "parked",
            Self::HeldEmpty => "held_empty",
            Self::Stalled => "stalled",
            Self::Broken => "broken",
            Self::Throttled => "throttled",
            Self::Hang => "hang",
            Self::Straggler => "straggler",
            Self::Slower => "slower",
            Self::Training => "training",
            Self::FailedRun => "failed_run",
            Self::BelowTarget => "below_target",
            Self::RightSize => "right_size",
        }
    }

    /// Whether its money is for nothing: all but active time that could do more.
    pub const fn is_waste(self) -> bool {
        !matches!(self, Self::BelowTarget | Self::RightSize)
    }

    /// Of an incident; none of what its GPUs' own rows say, and of what costs nothing by itself.
    const fn of(family: Family) -> Option<Self> {
        Some(match family {
            Family::Blind | Family::Idle | Family::Offender | Family::Budget => return None,
            Family::GpuFault => Self::Broken,
            Family::Memory | Family::Heat | Family::Power | Family::Link | Family::Leak => {
                Self::Throttled
            }
            Family::Hang => Self::Hang,
            Family::Straggler => Self::Straggler,
            Family::Training => Self::Training,
            Family::Slower => Self::Slower,
            Family::Stalled => Self::Stalled,
        })
    }
}

/// What open incidents lose.
pub(super) fn incidents(look: &Look<'_>) -> Vec<Waste> {
    let open = look.open.iter();
    open.filter_map(|it| of_incident(look, it)).collect()
}

fn of_incident(look: &Look<'_>, incident: &Incident) -> Option<Waste> {
    let kind = Kind::of(incident.family)?;
    let losing = &incident.losing;
    if losing.milli_gpus == 0 {
        return None;
    }
    let place = &incident.place;
    let because = incident::cause(incident).map(|it| format!(", because of {it}"));
    let because = because.unwrap_or_default();
    let day = losing.nano_usd_per_hour().map(|it| i128::from(it) * 24);
    Some(Waste {
        kind,
        cluster: place.cluster.as_str().into(),
        place: incident::place_words(place, look.view),
        address: address::place(place),
        what: format!("{}{because}", incident::what(incident)),
        milli_gpus: losing.milli_gpus,
        day_cost: day,
        unpriced: match day {
            None => usize::try_from(losing.milli_gpus.div_ceil(WHOLE_GPU)).unwrap_or(usize::MAX),
            Some(_) => 0,
        },
        since: Some(incident.since),
        owner: look.app.incidents.owner_of(incident),
        action: sentence(&incident.action),
        status: incident::status(incident, look.at),
        incident: Some(incident.id),
    })
}

/// What the driver or a table says, as a sentence begins.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(char::to_uppercase);
    first.into_iter().flatten().chain(letters).collect()
}

/// What is idle: a row for the free GPUs of each cluster, and one for each job that holds some.
pub(super) fn idle(look: &Look<'_>) -> Vec<Waste> {
    let mut rows = Vec::new();
    for (cluster, idle) in by_cluster(&look.found.idle) {
        let (free, held): (Vec<&Idle>, Vec<&Idle>) = idle
            .into_iter()
            .partition(|it| it.state == State::Unallocated);
        rows.extend((!free.is_empty()).then(|| of_free(look, cluster, &free)));
        let ids: BTreeSet<&str> = held.iter().map(|it| &*it.key.id).collect();
        let runs = look.app.fleet.runs().on_gpus(cluster, &ids);
        let mut jobs: BTreeMap<(Option<&RunKey>, String), Vec<&Idle>> = BTreeMap::new();
        for it in held {
            let run = runs.get(&*it.key.id).map(|(key, _)| key);
            let job = run.map_or_else(|| it.job.clone(), |key| key.run.to_string());
            jobs.entry((run, job)).or_default().push(it);
        }
        for ((run, job), gpus) in jobs {
            rows.extend(of_holder(look, run, &job, &gpus));
        }
    }
    rows
}

fn by_cluster(all: &[Idle]) -> BTreeMap<&Arc<str>, Vec<&Idle>> {
    let mut clusters: BTreeMap<&Arc<str>, Vec<&Idle>> = BTreeMap::new();
    for it in all {
        clusters.entry(&it.key.cluster).or_default().push(it);
    }
    clusters
}

/// What is on nodes that take no work: of each cluster a row of what nobody holds on those that are emptied, and one of
/// what those that are not ready lose, but for what an incident counts.
pub(super) fn held_back(look: &Look<'_>) -> Vec<Waste> {
    let mut rows = Vec::new();
    for (cluster, gpus) in by_cluster(&look.found.held_back) {
        let (drain, lost): (Vec<&Idle>, Vec<&Idle>) =
            gpus.into_iter().partition(|it| it.state == State::Draining);
        let lost = uncounted(look, cluster, lost);
        for (kind, gpus, why) in [
            (Kind::Draining, drain, "cordoned or about to go"),
            (Kind::Broken, lost, "not ready"),
        ] {
            rows.extend((!gpus.is_empty()).then(|| Waste {
                kind,
                ..of_held_back(cluster, &gpus, why)
            }));
        }
    }
    rows
}

/// Those that no open incident counts, of the GPU itself or of who holds it.
fn uncounted<'a>(look: &Look<'_>, cluster: &Arc<str>, gpus: Vec<&'a Idle>) -> Vec<&'a Idle> {
    let ids: BTreeSet<&str> = gpus.iter().map(|it| &*it.key.id).collect();
    let runs = look.app.fleet.runs().on_gpus(cluster, &ids);
    let counts = |it: &&Incident| *it.place.cluster == **cluster && is_counted(it);
    let open: Vec<&Incident> = look.open.iter().filter(counts).collect();
    let is_told = |it: &&Idle| {
        let run = runs.get(&*it.key.id);
        let holder = run.map_or_else(|| it.job.clone(), |(key, _)| key.run.to_string());
        open.iter().any(|incident| {
            let place = &incident.place;
            place.gpu.as_deref() == Some(&*it.key.id) || place.run.as_ref() == Some(&holder)
        })
    };
    gpus.into_iter().filter(|it| !is_told(it)).collect()
}

/// Whether a row of its own says what it loses.
fn is_counted(incident: &Incident) -> bool {
    Kind::of(incident.family).is_some() && incident.losing.milli_gpus > 0
}

/// Nobody who waits can have them, and why.
fn of_held_back(cluster: &Arc<str>, gpus: &[&Idle], why: &str) -> Waste {
    let nodes: BTreeSet<&str> = gpus.iter().map(|it| &*it.node).collect();
    let owners: BTreeSet<&str> = gpus.iter().map(|it| it.payer.name()).collect();
    let takes = match nodes.len() {
        1 => "that takes",
        _ => "that take",
    };
    Waste {
        what: format!(
            "{} on {} {takes} no work ({why})",
            text::gpus(sum(gpus)),
            counted(nodes.len(), "node", "nodes"),
        ),
        action: "Mend and uncordon, or give back; the page Queue names what is held back."
            .to_owned(),
        owner: match owners.len() {
            0 | 1 => owners.into_iter().collect(),
            _ => "several".to_owned(),
        },
        ..of_nobody(cluster, gpus)
    }
}

fn of_free(look: &Look<'_>, cluster: &Arc<str>, gpus: &[&Idle]) -> Waste {
    // By node what is free.
    let mut nodes: BTreeMap<&str, Vec<&Idle>> = BTreeMap::new();
    for it in gpus {
        nodes.entry(&it.node).or_default().push(it);
    }
    let is_whole = |(node, free): &(&&str, &Vec<&Idle>)| {
        let known = look.view.node(cluster, node);
        known.is_some_and(|(_, it)| it.gpus.len() as u64 * WHOLE_GPU == sum(free))
    };
    let whole = nodes.iter().filter(is_whole).count();
    let action = match whole {
        0 => "Give them to who waits for GPUs; no node is free as a whole.".to_owned(),
        1 => "Give them to who waits for GPUs, or give back the node that is free as a whole."
            .to_owned(),
        _ => format!(
            "Give them to who waits for GPUs, or give back the {whole} nodes that are free as a whole."
        ),
    };
    Waste {
        what: format!(
            "{} on {} that nobody holds",
            text::gpus(sum(gpus)),
            counted(nodes.len(), "node", "nodes"),
        ),
        action,
        ..of_nobody(cluster, gpus)
    }
}

fn of_nobody(cluster: &Arc<str>, gpus: &[&Idle]) -> Waste {
    let payer = gpus.first().map(|it| it.payer.name().to_owned());
    Waste {
        kind: Kind::Free,
        place: format!("cluster {cluster}"),
        address: address::cluster(cluster),
        owner: payer.unwrap_or_default(),
        ..of_idle(cluster, gpus)
    }
}

/// A job that holds GPUs and does nothing with them; none where an incident of its run says why, and
/// counts them.
fn of_holder(look: &Look<'_>, run: Option<&RunKey>, job: &str, gpus: &[&Idle]) -> Option<Waste> {
    let first = gpus.first()?;
    let cluster = &first.key.cluster;
    let is_its =
        |it: &&Incident| *it.place.cluster == **cluster && it.place.run.as_deref() == Some(job);
    let own = || look.open.iter().filter(is_its);
    if own().any(is_counted) {
        return None;
    }
    let told = own().find(|it| it.family == Family::Idle);
    let parked = gpus.iter().filter(|it| it.state == State::Parked);
    let (all, parked) = (sum(gpus), milli_gpus(parked.copied()));
    let is_one_node = gpus.iter().all(|it| it.node == first.node);
    let address = match (run, gpus.len()) {
        (Some(key), _) => address::run(key),
        (None, 1) => address::gpu(cluster, &first.key.id),
        (None, _) if is_one_node => address::node(cluster, &first.node),
        (None, _) => address::cluster(cluster),
    };
    let name = run.map_or(job, |key| &key.run.job.name);
    let action = match &first.payer {
        Payer::Team(team) => format!("Ask {team} whether it still needs them."),
        Payer::Unowned | Payer::Nobody => {
            "Find out who runs it and whether it still needs them; an owner rule names its team."
                .to_owned()
        }
    };
    Some(Waste {
        kind: match parked * 2 >= all {
            true => Kind::Parked,
            false => Kind::HeldEmpty,
        },
        what: match all.saturating_sub(parked) {
            0 => format!("{} held and idle, with memory in use", text::gpus(all)),
            _ if parked == 0 => format!("{} held, idle and empty", text::gpus(all)),
            empty => format!(
                "{} held and idle, {} of them empty",
                text::gpus(all),
                text::gpu_count(empty)
            ),
        },
        place: match name {
            "" => format!("a holder without a name on {}", first.node),
            name => name.to_owned(),
        },
        address,
        owner: told.map_or_else(
            || first.payer.name().to_owned(),
            |it| look.app.incidents.owner_of(it),
        ),
        action: told.map_or(action, |it| it.action.clone()),
        status: told.map_or("no incident yet".to_owned(), |it| {
            incident::status(it, look.at)
        }),
        incident: told.map(|it| it.id),
        ..of_idle(cluster, gpus)
    })
}

/// How many GPUs these are, thousandths.
fn sum(gpus: &[&Idle]) -> u64 {
    milli_gpus(gpus.iter().copied())
}

/// What rows of idle GPUs have in common.
fn of_idle(cluster: &Arc<str>, gpus: &[&Idle]) -> Waste {
    let priced = gpus.iter().filter_map(|it| it.day_cost);
    let unpriced = gpus.iter().filter(|it| it.day_cost.is_none());
    let unpriced = milli_gpus(unpriced.copied()).div_ceil(WHOLE_GPU);
    let has_price = gpus.iter().any(|it| it.day_cost.is_some());
    Waste {
        kind: Kind::Free,
        cluster: Arc::clone(cluster),
        place: String::new(),
        address: String::new(),
        what: String::new(),
        milli_gpus: sum(gpus),
        day_cost: has_price.then(|| priced.sum()),
        unpriced: usize::try_from(unpriced).unwrap_or(usize::MAX),
        since: gpus.iter().filter_map(|it| it.since).min(),
        owner: String::new(),
        action: String::new(),
        status: "no incident".to_owned(),
        incident: None,
    }
}
