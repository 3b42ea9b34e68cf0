//! The morning: what the fleet does in one line, what goes to waste ranked by dollars a day, what is not
//! measured, and what changed in the last day. One answer for the page, the API and the client.
//!
//! No GPU is in two rows: those that wait for what an incident of their run names are in the row of the
//! incident. What has no price stands behind what has one and is in no sum. What is simulated is a section
//! of its own, what is recorded is counted and costs nothing. Budgets stand apart: what is over one is no waste.
//!
//! Limits: made again at most once in [`FRESH_FOR`], and nobody waits for that while the last one is younger than
//! [`STANDS_FOR`]; [`MAX_WASTE`] rows and [`MAX_CHANGES`] changes a section; how many more there are is said.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use gpufleet_analysis::incident::Incident;
use gpufleet_analysis::owner::{Owners, Payer};
use gpufleet_telemetry::gpu_specs::Specs;
use gpufleet_telemetry::identity::Origin;
use gpufleet_telemetry::time::Timestamp;

use crate::App;
use crate::answers::Answers;
use crate::auth::Grant;
use crate::money::Terms;
use crate::money::now::{self, MoneySnapshot};
use crate::money::savings::Savings;
use crate::money::savings::reached::Reached;
use crate::money::tables::Targets;
use crate::runs::RunKey;
use crate::threads::apart;
use crate::view::{Counts, FleetView};
use crate::words::text::grouped;

mod budgets;

pub mod waste;

pub mod training;

mod right_size;

pub mod changes;

pub mod unmeasured;

pub mod blind;

pub use budgets::OverBudget;
pub use changes::Change;
pub use unmeasured::Unmeasured;
pub use waste::{Kind, Waste};

/// How long an answer is kept: agents ship every 10 s, so more often would show nothing new.
const FRESH_FOR: Duration = Duration::from_secs(10);

/// How old an answer may be that is given while the next one is made; it says when it was.
const STANDS_FOR: Duration = Duration::from_secs(30);

/// Most readers with rights of their own whose answers are kept: one for each cluster that a token is
/// bound to, and one for all.
const KEPT: usize = 16;

/// Answers that are made at once, for readers with rights of their own: each walks over the whole fleet.
const AT_ONCE: usize = 2;

/// Most rows of waste of a section: the dearest; more nobody reads in the morning.
pub const MAX_WASTE: usize = 30;

/// Most changes of a section, the newest first.
pub const MAX_CHANGES: usize = 12;

/// The whole answer.
#[derive(Debug, Default)]
pub struct Today {
    /// When it was made.
    pub at: Timestamp,
    /// What money is counted in.
    pub currency: String,
    /// Teams over their budgets.
    pub budgets: Vec<OverBudget>,
    /// What is live, then what is simulated; each only where there is some.
    pub sections: Vec<Section>,
    /// GPUs that are played back from recordings.
    pub recorded: usize,
    /// Whether the store did not answer, so that failed runs and changes are not known.
    pub past_failed: bool,
}

/// The clusters of one origin.
#[derive(Debug, Default)]
pub struct Section {
    /// Which.
    pub origin: Origin,
    /// Their nodes that report.
    pub nodes: usize,
    /// Nodes with GPUs of which the cluster says that they went, as long as the fleet remembers them.
    pub gone: usize,
    /// Their GPUs by state.
    pub counts: Counts,
    /// Incidents that are open.
    pub incidents: usize,
    /// On how many nodes they are, and how many nodes there are, silent ones too: one node, or the whole fleet. One of a
    /// run is on a node where one is suspected.
    pub hurt_nodes: (usize, usize),
    /// What they cost a day, nano-units, of what has a price; none when nothing has.
    pub day_cost: Option<i128>,
    /// What of that goes to waste; none when nothing has a price.
    pub wasted: Option<i128>,
    /// Where it goes, the dearest first.
    pub waste: Vec<Waste>,
    /// Rows beyond those.
    pub more_waste: usize,
    /// What is in no sum, because it is not measured or not known whose it is.
    pub unmeasured: Vec<Unmeasured>,
    /// What changed in the last day, the newest first.
    pub changes: Vec<Change>,
    /// Changes beyond those.
    pub more_changes: usize,
}

impl Section {
    /// That its nodes tell of no GPU, with what says why; none where there is one.
    pub fn no_gpus(&self) -> Option<String> {
        if self.is_scaled_to_zero() {
            let gone = match self.gone {
                1 => "1 that was there is gone".to_owned(),
                gone => format!("{} that were there are gone", grouped(gone as f64)),
            };
            return Some(format!(
                "No node with GPUs is there now: the cluster says that {gone}"
            ));
        }
        let nodes = match (self.counts.all, self.nodes) {
            (1.., _) => return None,
            (0, 0) => "No node reports now, and none has told of a GPU".to_owned(),
            (0, 1) => "1 node reports and tells of no GPU".to_owned(),
            (0, nodes) => format!(
                "{} nodes report and none tells of a GPU",
                grouped(nodes as f64)
            ),
        };
        Some(format!(
            "{nodes}; gpufleet-agent doctor on the node says why"
        ))
    }

    /// Whether no node reports because those that had GPUs went: nothing is wrong with it.
    pub fn is_scaled_to_zero(&self) -> bool {
        self.counts.all == 0 && self.nodes == 0 && self.gone > 0
    }
}

/// Answers as they were last made, by the cluster that a reader is bound to.
pub struct Todays(Answers<Option<Arc<str>>, Today, Infallible>);

/// What everything is made from.
pub(crate) struct Look<'a> {
    pub(crate) app: &'a App,
    pub(crate) view: &'a FleetView,
    pub(crate) specs: &'a Specs,
    pub(crate) found: &'a MoneySnapshot,
    pub(crate) targets: &'a Targets,
    pub(crate) owners: &'a Owners,
    pub(crate) open: &'a [Incident],
    /// What runs that ended reached of MFU; none where it is not worked out yet.
    pub(crate) reached: Option<&'a Reached>,
    /// Whether it is worked out who could do with less.
    pub(crate) is_sized: bool,
    pub(crate) at: Timestamp,
}

impl Default for Todays {
    fn default() -> Self {
        Self(Answers::new(FRESH_FOR, KEPT, AT_ONCE))
    }
}

impl Todays {
    /// The answer for a reader.
    pub async fn get(
        &self,
        app: &App,
        view: &Arc<FleetView>,
        specs: &Arc<Specs>,
        grant: &Grant,
    ) -> Arc<Today> {
        let (own, view, specs) = (app.clone(), Arc::clone(view), Arc::clone(specs));
        let seen = grant.clone();
        let making = async move { Ok(make(own, view, specs, seen).await) };
        let (todays, asked) = (&self.0, grant.cluster.clone());
        let made = todays.get_standing(asked, &app.clock, STANDS_FOR, making);
        let Ok(today) = made.await;
        today
    }
}

/// What a [`Look`] is at.
struct Seen {
    app: App,
    view: Arc<FleetView>,
    specs: Arc<Specs>,
    found: Arc<MoneySnapshot>,
    terms: Arc<Terms>,
    open: Vec<Incident>,
    saved: Option<Arc<Savings>>,
}

impl Seen {
    fn look(&self) -> Look<'_> {
        Look {
            app: &self.app,
            view: &self.view,
            specs: &self.specs,
            found: &self.found,
            targets: &self.terms.targets,
            owners: &self.terms.owners,
            open: &self.open,
            reached: self.saved.as_ref().map(|it| &it.reached),
            is_sized: self.saved.is_some(),
            at: self.view.at,
        }
    }
}

async fn make(app: App, view: Arc<FleetView>, specs: Arc<Specs>, grant: Grant) -> Today {
    let saved = app.savings.last(&app, &specs, &grant, view.at);
    let past = changes::read(&app, &grant, view.at).await;
    let past_failed = past.is_err();
    let past = past.unwrap_or_else(|error| {
        tracing::error!(%error, "what happened in the last day cannot be read");
        changes::Past::default()
    });
    let terms = app.money.terms();
    let found = now::walked(&app, &terms, &grant, view.at).await;
    let mut open = app.incidents.open(&grant);
    let budgets = budgets::over(&app, &open, view.at);
    open.retain(|it| view.cluster(&it.place.cluster).next().is_some());
    let seen = Seen {
        app,
        view,
        specs,
        found,
        terms,
        open,
        saved,
    };
    let failed = training::failed(&seen.look(), &past.failed).await;
    // Beside the threads that answer: it looks at every GPU and run.
    let looking = move || Today {
        at: seen.view.at,
        currency: seen.terms.sources.cost.currency.clone(),
        budgets,
        sections: sections(&seen, failed, &past),
        recorded: seen.view.counts(Origin::Recorded).all,
        past_failed,
    };
    apart(looking).await
}

/// What is live and what is simulated, each where there is some.
fn sections(seen: &Seen, failed: Vec<Waste>, past: &changes::Past) -> Vec<Section> {
    let look = &seen.look();
    let mut rows = waste::idle(look);
    rows.extend(waste::held_back(look));
    rows.extend(waste::incidents(look));
    let (below, unrated) = training::below_target(look);
    rows.extend(below);
    rows.extend(failed);
    rows.extend(seen.saved.iter().flat_map(|it| right_size::rows(it)));
    let sections = [Origin::Live, Origin::Simulated].into_iter();
    let sections = sections.filter(|origin| look.view.of(*origin).next().is_some());
    sections
        .map(|origin| section(look, origin, &rows, &unrated, past))
        .collect()
}

fn section(
    look: &Look<'_>,
    origin: Origin,
    rows: &[Waste],
    unrated: &BTreeMap<Origin, training::Unrated>,
    past: &changes::Past,
) -> Section {
    let mut waste: Vec<Waste> = rows
        .iter()
        .filter(|it| look.origin(&it.cluster) == Some(origin))
        .cloned()
        .collect();
    // What has no price stands behind what has one, by how many GPUs it is about.
    waste.sort_by(|one, other| {
        let rank = |it: &Waste| (it.day_cost, it.milli_gpus);
        rank(other)
            .cmp(&rank(one))
            .then(one.place.cmp(&other.place))
    });
    let day_cost = look.found.hour_cost.get(&origin).map(|hour| hour * 24);
    let counted = waste.iter().filter(|it| it.kind.is_waste());
    let wasted = day_cost.map(|_| counted.filter_map(|it| it.day_cost).sum());
    let mut changes = changes::changes(look, origin, past);
    let unmeasured = unmeasured::of(look, origin, unrated, &waste);
    let is_of = |it: &&Incident| look.origin(&it.place.cluster) == Some(origin);
    let open = || look.open.iter().filter(is_of);
    let hurt = open().filter_map(|it| Some((&it.place.cluster, it.place.node.as_ref()?)));
    let hurt: BTreeSet<(&String, &String)> = hurt.collect();
    Section {
        origin,
        nodes: look
            .view
            .of(origin)
            .flat_map(|it| &it.nodes)
            .filter(|it| it.silent_since.is_none())
            .count(),
        gone: look.view.of(origin).map(|it| it.gone().count()).sum(),
        counts: look.view.counts(origin),
        incidents: open().count(),
        hurt_nodes: (
            hurt.len(),
            look.view.of(origin).map(|it| it.nodes.len()).sum(),
        ),
        day_cost,
        wasted,
        more_waste: cut(&mut waste, MAX_WASTE),
        waste,
        unmeasured,
        more_changes: cut(&mut changes, MAX_CHANGES),
        changes,
    }
}

/// Keeps so many, and says how many there were beyond.
fn cut<T>(all: &mut Vec<T>, most: usize) -> usize {
    let more = all.len().saturating_sub(most);
    all.truncate(most);
    more
}

impl Look<'_> {
    /// Where the data of a cluster comes from.
    pub(crate) fn origin(&self, cluster: &str) -> Option<Origin> {
        self.view.cluster(cluster).next().map(|it| it.origin)
    }

    /// Who pays for a GPU.
    pub(crate) fn owner_of_gpu(&self, cluster: &str, gpu: &str) -> Option<&Payer> {
        self.found.gpu(cluster, gpu).map(|it| &it.payer)
    }

    /// Who pays for a run that has its GPUs: who pays for the first of them that is known.
    pub(crate) fn owner_of_run(&self, key: &RunKey) -> Option<&Payer> {
        let gpus = self.app.fleet.runs().gpus(key);
        gpus.iter()
            .find_map(|it| self.owner_of_gpu(&key.cluster, it))
    }
}

/// The owner of what nobody can say whose it is.
pub(crate) const NO_OWNER: &str = "not known";

/// An owner in words.
pub(crate) fn owner(payer: Option<&Payer>) -> String {
    match payer {
        None => NO_OWNER.to_owned(),
        Some(payer) => payer.name().to_owned(),
    }
}
