//! A chargeback as people read it: grouped by team, cluster, namespace, job, model, project, pool or GPU, with the
//! states of each group; and once more with what was free borne as the policies say.
//!
//! Jobs of one name in two clusters are two jobs, as pods and numbers of Slurm's are: where lines are told by job, and not
//! by cluster beside it, each says its cluster. A namespace is a name for people, and one wherever it is.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};

use super::{Chargeback, Detail, Fleet, Key, Sum, Tariff};
use crate::ledger::{Reason, State};
use crate::money::apportion;
use crate::owner::{IdleTo, Owners, PLATFORM, Payer};

/// What lines are grouped by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum By {
    /// Who pays.
    Team,
    /// The cluster of the node: also of what nobody held.
    Cluster,
    /// The namespace.
    Namespace,
    /// The job.
    Job,
    /// The model.
    Model,
    /// The project of the holder, else of the node.
    Project,
    /// The pool of the node, as idle policies name it: also of what nobody held.
    Pool,
    /// The GPU, or the node where the GPU was never seen.
    Gpu,
}

/// A group of lines.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Group {
    /// Its words, one for each [`By`] asked for.
    pub words: Vec<String>,
    /// Everything.
    pub sum: Sum,
    /// By state.
    pub states: BTreeMap<State, Sum>,
    /// By state and why: the reasons of a state add up to it.
    pub reasons: BTreeMap<(State, Reason), Sum>,
}

impl Group {
    /// Takes another in; the words stay.
    pub fn add(&mut self, other: &Self) {
        self.sum.add(&other.sum);
        for (state, sum) in &other.states {
            self.states.entry(*state).or_default().add(sum);
        }
        for (why, sum) in &other.reasons {
            self.reasons.entry(*why).or_default().add(sum);
        }
    }
}

/// What the jobs of lines are called, so that no two have one name.
pub(crate) struct Jobs<'a> {
    fleet: &'a Fleet,
    /// Names that jobs of several clusters have.
    shared: HashSet<&'a str>,
}

impl<'a> Jobs<'a> {
    /// Of these lines.
    pub(crate) fn of(made: &Chargeback, fleet: &'a Fleet) -> Self {
        let mut shared = HashSet::new();
        let first = fleet.nodes.first().map(|it| &it.cluster);
        // Most fleets are one cluster, and then there is nothing to tell apart.
        if fleet.nodes.iter().any(|it| Some(&it.cluster) != first) {
            let mut cluster_of: HashMap<&str, &str> = HashMap::new();
            for key in made.lines.keys() {
                if let Some((job, cluster)) = job_of(fleet, key) {
                    let known = cluster_of.entry(job).or_insert(cluster);
                    if *known != cluster {
                        shared.insert(job);
                    }
                }
            }
        }
        Self { fleet, shared }
    }

    /// That of a line, with its cluster where jobs of several have its name; empty when there is none.
    pub(crate) fn word(&self, key: &Key) -> Cow<'a, str> {
        match job_of(self.fleet, key) {
            Some((job, cluster)) if self.shared.contains(job) => {
                format!("{job} in {cluster}").into()
            }
            Some((job, _)) => job.into(),
            None => "".into(),
        }
    }
}

/// The job of a line and its cluster; none where no job is known.
fn job_of<'a>(fleet: &'a Fleet, key: &Key) -> Option<(&'a str, &'a str)> {
    let job = fleet.holders[key.holder?].job.as_str();
    let cluster = fleet.nodes[key.node?].cluster.as_str();
    (!job.is_empty()).then_some((job, cluster))
}

/// What is divided as one: a day of a pool.
#[derive(Default)]
struct Pool<'a> {
    /// What was free of it costs so much.
    free: i128,
    /// GPU-milliseconds by who pays for them.
    used: BTreeMap<&'a Payer, i64>,
}

/// The headline figures, all of the same lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Headline {
    /// Everything.
    pub total: Sum,
    /// Unallocated, parked and held empty.
    pub idle: Sum,
    /// Idle, stalled, broken, starting, draining.
    pub waste: Sum,
    /// Active.
    pub active: Sum,
    /// Held, inactive, memory in use.
    pub parked: Sum,
    /// Held and busy without progress.
    pub stalled: Sum,
    /// Nothing is known of it.
    pub unobserved: Sum,
    /// Held, and no rule says whose it is.
    pub unowned: Sum,
    /// Without a price.
    pub unpriced: Sum,
    /// Commitments that nothing used; part of idle.
    pub unused: Sum,
}

impl By {
    /// How far lines must be told apart to be grouped by these.
    pub fn detail(by: &[Self]) -> Detail {
        match by.contains(&Self::Gpu) {
            true => Detail::Gpus,
            false => Detail::Nodes,
        }
    }

    /// Every one.
    pub const ALL: [Self; 8] = [
        Self::Team,
        Self::Cluster,
        Self::Namespace,
        Self::Job,
        Self::Model,
        Self::Project,
        Self::Pool,
        Self::Gpu,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Team => "team",
            Self::Cluster => "cluster",
            Self::Namespace => "namespace",
            Self::Job => "job",
            Self::Model => "model",
            Self::Project => "project",
            Self::Pool => "pool",
            Self::Gpu => "gpu",
        }
    }

    /// The one of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == name)
    }

    /// The word of a line; empty when there is none.
    pub fn word<'a>(self, made: &'a Chargeback, fleet: &'a Fleet, key: &Key) -> &'a str {
        let holder = key.holder.map(|it| &fleet.holders[it]);
        let node = key.node.map(|it| &fleet.nodes[it]);
        let of = |word: Option<&'a String>| word.map_or("", String::as_str);
        match self {
            Self::Team => made.payers[key.payer].name(),
            Self::Cluster => of(node.map(|it| &it.cluster)),
            Self::Namespace => of(holder.map(|it| &it.namespace)),
            Self::Job => of(holder.map(|it| &it.job)),
            Self::Model => of(holder.map(|it| &it.model)),
            Self::Project => {
                let own = of(holder.map(|it| &it.project));
                if own.is_empty() {
                    of(node.map(|it| &it.project))
                } else {
                    own
                }
            }
            Self::Pool => of(node.map(|it| &it.pool)),
            Self::Gpu => match key.gpu {
                Some(gpu) => &fleet.gpus[gpu],
                None => of(node.map(|it| &it.name)),
            },
        }
    }
}

impl Chargeback {
    /// The lines in groups, the dearest first. The groups add up to all lines. Of jobs of one name in several clusters
    /// each has groups of its own, whose word says the cluster where that is not asked for.
    pub fn grouped(&self, fleet: &Fleet, by: &[By]) -> Vec<Group> {
        let are_alike = by.contains(&By::Job) && !by.contains(&By::Cluster);
        let jobs = are_alike.then(|| Jobs::of(self, fleet));
        let mut groups: BTreeMap<Vec<Cow<'_, str>>, Group> = BTreeMap::new();
        for (key, sum) in &self.lines {
            let word = |by: &By| match (by, &jobs) {
                (By::Job, Some(jobs)) => jobs.word(key),
                _ => Cow::Borrowed(by.word(self, fleet, key)),
            };
            let group = groups.entry(by.iter().map(word).collect()).or_default();
            group.sum.add(sum);
            group.states.entry(key.state).or_default().add(sum);
            let why = (key.state, key.reason);
            group.reasons.entry(why).or_default().add(sum);
        }
        let named = |(words, group): (Vec<Cow<'_, str>>, Group)| Group {
            words: words.into_iter().map(Cow::into_owned).collect(),
            ..group
        };
        let mut groups: Vec<Group> = groups.into_iter().map(named).collect();
        // Stable: groups that cost the same stay in the order of their words.
        groups.sort_by_key(|it| std::cmp::Reverse((it.sum.cost, it.sum.gpu_millis)));
        groups
    }

    /// All lines as one group without words.
    pub fn whole(&self) -> Group {
        let whole = self.grouped(&Fleet::default(), &[]);
        whole.into_iter().next().unwrap_or_default()
    }

    /// GPU-milliseconds that somebody held, by the name of who pays: not what is paid of GPUs and commitments that nobody
    /// used.
    pub fn held(&self) -> BTreeMap<&str, i64> {
        let mut held: BTreeMap<&str, i64> = BTreeMap::new();
        for (key, sum) in self.lines.iter().filter(|it| it.0.holder.is_some()) {
            *held.entry(self.payers[key.payer].name()).or_default() += sum.gpu_millis;
        }
        held
    }

    /// The headline.
    pub fn headline(&self) -> Headline {
        let mut headline = Headline::default();
        for (key, sum) in &self.lines {
            let tariff = &self.tariffs[key.tariff];
            headline.total.add(sum);
            for (is_in, into) in [
                (key.state.is_idle(), &mut headline.idle),
                (key.state.is_waste(), &mut headline.waste),
                (key.state.is_active(), &mut headline.active),
                (key.state == State::Parked, &mut headline.parked),
                (key.state == State::Stalled, &mut headline.stalled),
                (key.state == State::Unobserved, &mut headline.unobserved),
                (
                    self.payers[key.payer] == Payer::Unowned,
                    &mut headline.unowned,
                ),
                (
                    matches!(tariff, Tariff::Unpriced(_)),
                    &mut headline.unpriced,
                ),
                (
                    matches!(tariff, Tariff::Unused { .. }),
                    &mut headline.unused,
                ),
            ] {
                if is_in {
                    into.add(sum);
                }
            }
        }
        headline
    }

    /// The cost by payer with what was free borne as the policies say, day by day and pool by pool, or by cluster
    /// where a policy names that. Adds up to all lines. What no team used or has a quota of falls to the platform.
    /// What nobody held and what was not free either (unobserved, unhealthy, starting, draining) stays
    /// [`Payer::Nobody`]'s: whoever used a pool has no part in what broke, or in what nobody saw.
    pub fn borne(&self, owners: &Owners) -> BTreeMap<Payer, i128> {
        let mut borne: BTreeMap<Payer, i128> = BTreeMap::new();
        let mut pools: BTreeMap<_, (&IdleTo, Pool<'_>)> = BTreeMap::new();
        for (of, sum) in &self.days {
            let at_ms = of.since_ms.max(of.day * super::MILLIS_PER_DAY);
            let at_ms = at_ms.max(self.from_ms);
            let (scope, to) = owners.idle_of(&self.pools[of.pool], at_ms);
            let pool = pools.entry((of.day, of.since_ms, scope));
            let (_, pool) = pool.or_insert_with(|| (to, Pool::default()));
            let payer = &self.payers[of.payer];
            if *payer == Payer::Nobody && of.is_idle {
                pool.free += sum.cost;
                continue;
            }
            *borne.entry(payer.clone()).or_default() += sum.cost;
            if *payer != Payer::Nobody {
                *pool.used.entry(payer).or_default() += sum.gpu_millis;
            }
        }
        for (to, pool) in pools.into_values() {
            let weights = match to {
                IdleTo::Platform => Vec::new(),
                IdleTo::Owner(team) => vec![(Payer::Team(team.clone()), 1)],
                IdleTo::Quota(quotas) => {
                    let teams = quotas.iter();
                    teams
                        .map(|(team, gpus)| (Payer::Team(team.clone()), *gpus))
                        .collect()
                }
                IdleTo::Use => {
                    let used = pool.used.iter();
                    used.map(|(payer, millis)| ((*payer).clone(), *millis))
                        .collect()
                }
            };
            let shares: Vec<i64> = weights.iter().map(|it| it.1).collect();
            match apportion(pool.free, &shares) {
                Some(parts) => {
                    for ((payer, _), part) in weights.into_iter().zip(parts) {
                        *borne.entry(payer).or_default() += part;
                    }
                }
                None => *borne.entry(Payer::Team(PLATFORM.to_owned())).or_default() += pool.free,
            }
        }
        borne.retain(|_, cost| *cost != 0);
        borne
    }
}
