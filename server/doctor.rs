//! The doctor of the fleet: what keeps gpufleet itself from telling the truth, the worst first, each with
//! where, since when, what is not known because of it, and the line that mends it. One answer for the
//! page, the API and the client.
//!
//! Every check of `CHECKS` says how it ended: fine, found, or why it could not be made. Nothing is fine
//! that was not looked at. Of clusters that are simulated or recorded nothing is said. A reader who is
//! bound to one cluster is told of that one alone, and of the server itself that it was not looked at.
//!
//! Limits: made again at most once in `FRESH_FOR`, and nobody waits for that while the last one is younger than
//! `STANDS_FOR`; [`NAMED`] places of a finding and [`MAX_FINDINGS`] findings are named; how many more there are is said.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::gpu_specs::Specs;
use gpufleet_telemetry::identity::Origin;
use gpufleet_telemetry::time::Timestamp;

use crate::App;
use crate::answers::Answers;
use crate::auth::Grant;
use crate::disk::{self, Disks};
use crate::health;
use crate::inventory::known::Moment;
use crate::money::now::{self, MoneySnapshot};
use crate::threads::apart;
use crate::view::FleetView;
use crate::words::text::counted;
use crate::words::{Why, address};

mod gather;

mod agents;

mod readings;

mod worth;

mod training;

mod itself;

mod doors;

mod others;

use gather::{Gathered, Places};

/// How old an answer may be: agents ship every 10 s, so more often would show nothing new.
const FRESH_FOR: Duration = Duration::from_secs(10);

/// How old an answer may be that is given while the next one is made; it says when it was.
const STANDS_FOR: Duration = Duration::from_secs(30);

/// Most readers with rights of their own whose answers are kept: one for each cluster that a token is
/// bound to, and one for all.
const KEPT: usize = 16;

/// Answers that are made at once, for readers with rights of their own: each walks over the whole fleet.
const AT_ONCE: usize = 2;

/// Places that a finding names.
pub const NAMED: usize = 6;

/// Most findings that are told, the worst first: more than this nobody mends in one day.
pub const MAX_FINDINGS: usize = 200;

/// The whole answer.
#[derive(Debug, Clone, Default)]
pub struct Doctor {
    /// When it was made.
    pub at: Timestamp,
    /// What is to be mended, the worst first.
    pub findings: Vec<Finding>,
    /// Findings beyond those.
    pub more_findings: usize,
    /// What was looked at, each once.
    pub checks: Vec<Check>,
    /// Why a reading may be missing, of the reasons that no finding is about.
    pub reasons: Vec<Why>,
}

/// One thing that keeps gpufleet from telling the truth.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Which check found it.
    pub check: &'static str,
    /// Its name, unique among the findings: the anchor on the page.
    pub id: String,
    /// How bad it is: an error when something is blind or lost.
    pub severity: Severity,
    /// What is the case.
    pub what: String,
    /// Where; the first few.
    pub places: Vec<Place>,
    /// Places beyond those.
    pub more_places: usize,
    /// How many GPUs it is about; 0 where it is about none in particular.
    pub gpus: usize,
    /// Since when, where that is known.
    pub since: Option<Timestamp>,
    /// What is not known because of it.
    pub missing: String,
    /// What mends it, in a sentence.
    pub fix: String,
    /// The line that mends it: a command, or lines of a configuration.
    pub line: Option<String>,
}

/// Where something is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Its name.
    pub name: String,
    /// Its page.
    pub address: Option<String>,
}

/// Something that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// Its name in the API.
    pub id: &'static str,
    /// What is so when it is fine.
    pub looks_at: &'static str,
    /// How much was looked at; empty when it was not.
    pub scope: String,
    /// How it ended.
    pub outcome: Outcome,
}

/// How a check ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// There is nothing to mend.
    Fine,
    /// So many findings.
    Found(usize),
    /// It could not be made; why.
    NotChecked(String),
}

/// Findings, or why it could not be looked.
type Looked = Result<Vec<Finding>, String>;

/// What a check looks at, and so what must be there before it can say that something is fine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// Every live node, also one that is silent.
    Nodes,
    /// What agents on nodes that are heard tell of themselves.
    Agents,
    /// Live GPUs that are heard.
    Gpus,
    /// Runs that go on.
    Runs,
    /// The cluster that this server asks about its nodes.
    Cluster,
    /// The server itself.
    Server,
}

/// One line of [`CHECKS`].
struct OneCheck {
    id: &'static str,
    scope: Scope,
    looks_at: &'static str,
    look: fn(&Look<'_>) -> Looked,
}

const fn check(
    id: &'static str,
    scope: Scope,
    looks_at: &'static str,
    look: fn(&Look<'_>) -> Looked,
) -> OneCheck {
    OneCheck {
        id,
        scope,
        looks_at,
        look,
    }
}

/// Every check, in the order in which a person would ask.
#[rustfmt::skip]
const CHECKS: &[OneCheck] = &[
    check("silent", Scope::Nodes, "every node is heard", agents::silent),
    check("no_agent", Scope::Cluster, "every node with GPUs has an agent", agents::none),
    check("readers", Scope::Agents, "the agents' readers succeed", agents::readers),
    check("spools", Scope::Agents, "agents can keep and ship what they read", agents::spools),
    check("agent_limits", Scope::Agents, "agents leave nothing out", agents::limits),
    check("agent_versions", Scope::Nodes, "agents are as new as this server", agents::versions),
    check("agent_clocks", Scope::Nodes, "the clocks of nodes are right", agents::clocks),
    check("cluster", Scope::Cluster, "the cluster's nodes and queue are seen", others::cluster),
    check("twice", Scope::Gpus, "no GPU is reported by two agents", agents::twice),
    check("foreign", Scope::Gpus, "GPUs are reported by an agent", agents::foreign),
    check("readings", Scope::Gpus, "no reading is missing that could be there", readings::missing),
    check("activity", Scope::Gpus, "it is known what every GPU does", readings::activity),
    check("holders", Scope::Gpus, "it is known who holds every GPU", readings::holders),
    check("prices", Scope::Gpus, "every GPU has a price", worth::prices),
    check("owners", Scope::Gpus, "every GPU that is held has an owner", worth::owners),
    check("money_tables", Scope::Server, "tables of prices and rules can be used", worth::tables),
    check("money_months", Scope::Server, "days and months as money tell all of it", worth::months),
    check("peaks", Scope::Gpus, "the peak rates of every card are known", worth::peaks),
    check("hooks", Scope::Gpus, "GPUs at work are of jobs that tell their steps", training::hooks),
    check("collectives", Scope::Runs, "running jobs tell their collectives", training::collectives),
    check("server_clock", Scope::Server, "this server's clock is that of its agents", itself::clock),
    check("commits", Scope::Server, "what comes in is made durable", itself::commits),
    check("database", Scope::Server, "the database answers and its rows can be read", itself::database),
    check("spool_disk", Scope::Server, "the disk of the server's spool has room", itself::spool_disk),
    check("database_disk", Scope::Server, "the disk of the database has room", itself::database_disk),
    check("jobs", Scope::Server, "the server's jobs succeed", itself::jobs),
    check("detectors", Scope::Server, "the detectors judge", itself::detectors),
    check("refused", Scope::Server, "no door refuses data", doors::refused),
    check("left_out", Scope::Server, "nothing of accepted data is left out", doors::left_out),
    check("channels", Scope::Server, "messages to people get through", others::channels),
    check("routes", Scope::Server, "routes ask for teams that are known", others::routes),
    check("exports", Scope::Server, "what is pushed to others arrives", others::exports),
    check("files", Scope::Server, "limits, tokens and certificates are good", itself::files),
    check("config", Scope::Server, "the config file can still be used", itself::config),
];

/// What the checks look at.
pub(crate) struct Look<'a> {
    app: &'a App,
    view: &'a FleetView,
    found: &'a MoneySnapshot,
    seen: Gathered,
    disks: Disks,
    /// What is wrong with the database.
    store: Option<String>,
    /// Live runs that go on.
    runs: Vec<training::Running>,
    /// The only cluster that the reader may see.
    bound: Option<&'a str>,
    at: Timestamp,
}

/// Answers as they were last made, by the cluster that a reader is bound to.
pub struct Doctors(Answers<Option<Arc<str>>, Doctor, Infallible>);

impl Default for Doctors {
    fn default() -> Self {
        Self(Answers::new(FRESH_FOR, KEPT, AT_ONCE))
    }
}

impl Doctors {
    /// The answer for a reader.
    pub async fn get(
        &self,
        app: &App,
        view: &Arc<FleetView>,
        specs: &Arc<Specs>,
        grant: &Grant,
    ) -> Arc<Doctor> {
        let (own, view, specs) = (app.clone(), Arc::clone(view), Arc::clone(specs));
        let seen = grant.clone();
        let making = async move { Ok(make(own, view, specs, seen).await) };
        let (doctors, asked) = (&self.0, grant.cluster.clone());
        let made = doctors.get_standing(asked, &app.clock, STANDS_FOR, making);
        let Ok(doctor) = made.await;
        doctor
    }
}

async fn make(app: App, view: Arc<FleetView>, specs: Arc<Specs>, grant: Grant) -> Doctor {
    let (disks, store) = match grant.cluster {
        // Of the server itself this reader is told nothing.
        Some(_) => (Disks::default(), None),
        None => {
            let spool = app.config.ingest.spool_dir.as_str().into();
            tokio::join!(
                disk::look(spool, app.store.file(), app.room),
                health::store(&app)
            )
        }
    };
    let terms = app.money.terms();
    let moment = Moment {
        at: view.at,
        monotonic: app.clock.monotonic(),
    };
    // Two walks over the fleet, and all the checks.
    let looking = move || {
        let found = now::now((&app.fleet, &app.inventory), &terms, &grant, moment);
        let look = Look {
            app: &app,
            view: &view,
            found: &found,
            seen: gather::gather(&app, &view, &specs),
            runs: training::running(&app, &view),
            disks,
            store,
            bound: grant.cluster.as_deref(),
            at: view.at,
        };
        look.everything()
    };
    apart(looking).await
}

impl Look<'_> {
    fn everything(&self) -> Doctor {
        let mut findings = Vec::new();
        let mut checks = Vec::new();
        for check in CHECKS {
            let scope = self.scope(check.scope);
            let looked = scope.and_then(|scope| Ok((scope, (check.look)(self)?)));
            let (scope, outcome) = match looked {
                Err(why) => (String::new(), Outcome::NotChecked(why)),
                Ok((scope, found)) if found.is_empty() => (scope, Outcome::Fine),
                Ok((scope, found)) => {
                    let count = found.len();
                    let named = |it| Finding {
                        check: check.id,
                        ..it
                    };
                    findings.extend(found.into_iter().map(named));
                    (scope, Outcome::Found(count))
                }
            };
            checks.push(Check {
                id: check.id,
                looks_at: check.looks_at,
                scope,
                outcome,
            });
        }
        // The sort keeps the order of the checks among equals.
        findings.sort_by_key(|it| std::cmp::Reverse((it.severity, it.gpus)));
        let more_findings = findings.len().saturating_sub(MAX_FINDINGS);
        findings.truncate(MAX_FINDINGS);
        name_apart(&mut findings);
        let mut reasons = readings::reasons();
        reasons.retain(|it| findings.iter().all(|found| found.id != it.anchor));
        Doctor {
            at: self.at,
            findings,
            more_findings,
            checks,
            reasons,
        }
    }

    /// How much a check looks at, in words; or why there is nothing to look at.
    fn scope(&self, scope: Scope) -> Result<String, String> {
        let nodes = self.view.of(Origin::Live).map(|it| it.nodes.len());
        let (nodes, seen) = (nodes.sum::<usize>(), &self.seen);
        if scope == Scope::Server {
            return match self.bound {
                Some(cluster) => Err(format!("this token sees the cluster {cluster} alone")),
                None => Ok("this server".to_owned()),
            };
        }
        if scope == Scope::Cluster {
            let asked = &**self.app.inventory.cluster();
            return match self.bound.filter(|it| *it != asked) {
                Some(other) => Err(format!("this token sees the cluster {other} alone")),
                None => Ok(format!("the cluster {asked}")),
            };
        }
        let said = match scope {
            _ if nodes == 0 => Err("no live node has reported"),
            Scope::Server | Scope::Cluster | Scope::Nodes => {
                Ok(counted(nodes, "live node", "live nodes"))
            }
            _ if seen.heard.is_empty() => Err("no live node is heard"),
            Scope::Agents if seen.agents == 0 => Err("no agent tells how it is"),
            Scope::Agents => Ok(format!(
                "{} of {}",
                counted(seen.agents, "agent", "agents"),
                counted(nodes, "live node", "live nodes")
            )),
            Scope::Gpus if seen.gpus == 0 => Err("no live GPU is heard"),
            Scope::Gpus => Ok(counted(
                seen.gpus,
                "GPU that is heard",
                "GPUs that are heard",
            )),
            Scope::Runs if self.runs.is_empty() => Err("no live run goes on"),
            Scope::Runs => Ok(counted(
                self.runs.len(),
                "run that goes on",
                "runs that go on",
            )),
        };
        said.map_err(str::to_owned)
    }
}

impl Finding {
    fn new(severity: Severity, id: impl Into<String>, what: impl Into<String>) -> Self {
        Self {
            check: "",
            id: anchor(&id.into()),
            severity,
            what: what.into(),
            places: Vec::new(),
            more_places: 0,
            gpus: 0,
            since: None,
            missing: String::new(),
            fix: String::new(),
            line: None,
        }
    }

    /// What is not known because of it.
    fn missing(mut self, missing: impl Into<String>) -> Self {
        self.missing = missing.into();
        self
    }

    /// What mends it.
    fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = fix.into();
        self
    }

    /// The line that mends it.
    fn line(mut self, line: impl Into<String>) -> Self {
        self.line = Some(line.into());
        self
    }

    /// Since when.
    fn since(mut self, since: Option<Timestamp>) -> Self {
        self.since = since;
        self
    }

    /// On which nodes.
    fn on(self, places: &Places) -> Self {
        let nodes = places.nodes.keys().map(|(cluster, node)| Place {
            name: node.to_string(),
            address: Some(address::node(cluster, node)),
        });
        let gpus = places.nodes.values().sum();
        let since = self.since.or(places.since);
        Self {
            gpus,
            since,
            ..self.at(nodes)
        }
    }

    /// In which places.
    fn at(mut self, places: impl ExactSizeIterator<Item = Place>) -> Self {
        self.more_places = places.len().saturating_sub(NAMED);
        self.places = places.take(NAMED).collect();
        self
    }
}

impl Check {
    /// Whether it could be looked.
    pub const fn was_made(&self) -> bool {
        !matches!(self.outcome, Outcome::NotChecked(_))
    }
}

impl Outcome {
    /// Its name in the API.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Fine => "fine",
            Self::Found(_) => "found",
            Self::NotChecked(_) => "not_checked",
        }
    }
}

/// A name as an anchor: what others sent goes into an address.
fn anchor(name: &str) -> String {
    let plain = |it: char| match it {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '_' => it,
        _ => '-',
    };
    name.chars().take(64).map(plain).collect()
}

/// Names that became the same as anchors get a number: an anchor is one place of the page.
fn name_apart(findings: &mut [Finding]) {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for finding in findings {
        let times = seen.entry(finding.id.clone()).or_default();
        *times += 1;
        if *times > 1 {
            finding.id = format!("{}--{times}", finding.id);
        }
    }
}

#[cfg(test)]
mod tests;
