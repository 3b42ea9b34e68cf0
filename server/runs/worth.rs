//! What a list says of runs beside how each stands: whose they are, on how many GPUs, how well they use them, and what
//! they cost.
//!
//! All that are in memory are looked at at once and beside the threads that answer, so that a row of a list costs a look
//! into a map; each is what its page says, by the same functions. No run is locked while its GPUs are looked up. A run
//! that has left the memory has its page alone: its ranks would be a question to the store for each row.
//!
//! Limits: looked at again at most once in [`FRESH_FOR`], and nobody waits for that while the last look is younger than
//! [`STANDS_FOR`]; [`KEPT`] are kept, of [`MAX_RUNS`](super::MAX_RUNS) runs each at most, and for those who may see the same
//! as many of which a list shows pages in an order, for [`PAGED_FOR`].

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gpufleet_analysis::mfu::Utilisation;
use gpufleet_analysis::owner::Payer;
use gpufleet_telemetry::gpu_specs::Specs;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

use super::{Run, RunFacts, RunKey, State, cost, lookup};
use crate::App;
use crate::answers::Answers;
use crate::auth::Grant;
use crate::money::now::{self, MoneySnapshot};
use crate::money::{Terms, payer};
use crate::threads::apart;

/// How long a look is kept: agents ship every 10 s, so more often would show nothing new.
const FRESH_FOR: Duration = Duration::from_secs(10);

/// How old a look may be that is given while the next one is taken; it says when it was.
const STANDS_FOR: Duration = Duration::from_secs(30);

/// Most looks that are kept, the newest: of all clusters, and of those that tokens are bound to.
const KEPT: usize = 8;

/// How long the pages of a list in an order are made of one look, nanoseconds: a client has read all of it by then, a
/// person the first page, and an open page is soon one of newer figures.
const PAGED_FOR: i64 = 60 * NANOS_PER_SECOND;

/// Why a run costs nothing an hour.
const NOT_RUNNING: &str = "it does not run";

/// What is known of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Worth {
    /// Who pays for it; none where nobody can say.
    pub payer: Option<Payer>,
    /// How many GPUs it computes on; none where no rank was heard of.
    pub gpus: Option<usize>,
    /// Its MFU, or why there is none.
    pub mfu: Result<Utilisation, String>,
    /// What its GPUs cost an hour now, nano-units; or why that is not known, or nothing.
    pub nano_usd_per_hour: Result<i64, String>,
    /// What this attempt alone has cost, nano-units; or why that is not known.
    pub attempt_nano_usd: Result<i64, String>,
}

/// All runs in memory as they were looked at.
pub struct Worths {
    /// When that was.
    pub at: Timestamp,
    runs: BTreeMap<RunKey, Worth>,
    terms: Arc<Terms>,
}

/// The newest looks.
pub struct KeptWorths {
    /// By the only cluster that a reader may see and by the terms.
    newest: Answers<(Option<Arc<str>>, u64), Worths, Infallible>,
    /// Those of which pages of lists in an order were made, the newest first, by the only cluster that a reader may see.
    paged: Mutex<VecDeque<Paged>>,
}

/// A look, and the only cluster that its readers may see.
type Paged = (Option<Arc<str>>, Arc<Worths>);

impl Worth {
    /// That of a run.
    fn of(
        (app, specs): (&App, &Specs),
        (found, terms): (&MoneySnapshot, &Terms),
        (key, run): (&RunKey, &Run),
        at: Timestamp,
    ) -> Self {
        let attempt = cost::Attempt::of(app, (key, run), at);
        Self {
            payer: payer::of_run(found, &terms.owners, (key, run), at),
            gpus: Some(attempt.gpus).filter(|it| *it > 0),
            mfu: lookup::mfu(&app.fleet, specs, (key, run)),
            nano_usd_per_hour: match run.state(at) {
                State::Running => attempt.hour(),
                State::Silent { .. } | State::Ended { .. } => Err(NOT_RUNNING.to_owned()),
            },
            attempt_nano_usd: attempt.so_far(),
        }
    }
}

impl Worths {
    /// That of a run; none of one that was not in memory then.
    pub fn of(&self, key: &RunKey) -> Option<&Worth> {
        self.runs.get(key)
    }

    /// Those of all runs that were in memory.
    pub(super) fn all(&self) -> &BTreeMap<RunKey, Worth> {
        &self.runs
    }

    /// Who pays for a run, also for one that was not in memory; none where nobody can say.
    pub fn payer(&self, key: &RunKey, facts: &RunFacts) -> Option<Payer> {
        match self.of(key) {
            Some(known) => known.payer.clone(),
            None => {
                let until = facts.ended.unwrap_or(facts.heard);
                payer::by_name(&self.terms.owners, key, until)
            }
        }
    }

    /// How many GPUs it computes on; of one that was not in memory one for each rank that it says it has. None where that
    /// is not known.
    pub fn gpus(&self, key: &RunKey, facts: &RunFacts) -> Option<usize> {
        match self.of(key) {
            Some(known) => known.gpus,
            None => Some(facts.world as usize).filter(|it| *it > 0),
        }
    }
}

impl Default for KeptWorths {
    fn default() -> Self {
        Self {
            newest: Answers::new(FRESH_FOR, KEPT, 1),
            paged: Mutex::default(),
        }
    }
}

impl KeptWorths {
    /// Those of the runs that a reader may see.
    pub async fn get(&self, app: &App, specs: &Arc<Specs>, grant: &Grant) -> Arc<Worths> {
        let terms = app.money.terms();
        let asked = (grant.cluster.clone(), terms.number);
        let (own, specs, grant) = (app.clone(), Arc::clone(specs), grant.clone());
        let making = async move {
            let at = own.clock.now();
            let found = now::walked(&own, &terms, &grant, at).await;
            let looking = move || look((&own, &specs), (&found, terms), &grant, at);
            Ok(apart(looking).await)
        };
        let made = self
            .newest
            .get_standing(asked, &app.clock, STANDS_FOR, making);
        let Ok(worths) = made.await;
        worths
    }

    /// Those that a page of a list is made of that this reader may see: of the look of the page before it while that is
    /// kept, else the newest, which is kept from now on.
    pub async fn page(
        &self,
        app: &App,
        specs: &Arc<Specs>,
        grant: &Grant,
        before: Option<Timestamp>,
    ) -> Arc<Worths> {
        let is_young = |at: Timestamp| (0..PAGED_FOR).contains(&app.clock.now().since(at));
        if let Some(kept) = before.and_then(|at| self.paged(grant, at))
            && is_young(kept.at)
        {
            return kept;
        }
        let newest = self.get(app, specs, grant).await;
        if self.paged(grant, newest.at).is_none() {
            let mut paged = self.paged.lock().unwrap_or_else(PoisonError::into_inner);
            paged.push_front((grant.cluster.clone(), Arc::clone(&newest)));
            // Those of who may see something else stand as long, however often this list is read.
            let mut same = 0;
            paged.retain(|(cluster, kept)| {
                same += usize::from(*cluster == grant.cluster);
                is_young(kept.at) && (*cluster != grant.cluster || same <= KEPT)
            });
        }
        newest
    }

    /// The look of that moment of which pages were made for who may see the same.
    fn paged(&self, grant: &Grant, at: Timestamp) -> Option<Arc<Worths>> {
        let paged = self.paged.lock().unwrap_or_else(PoisonError::into_inner);
        let mut same = paged
            .iter()
            .filter(|(cluster, _)| *cluster == grant.cluster);
        same.find_map(|(_, kept)| (kept.at == at).then(|| Arc::clone(kept)))
    }
}

/// Looks at every run in memory that this reader may see.
fn look(
    (app, specs): (&App, &Specs),
    (found, terms): (&MoneySnapshot, Arc<Terms>),
    grant: &Grant,
    at: Timestamp,
) -> Worths {
    let keys = app.fleet.runs().keys().into_iter();
    let seen = keys.filter(|it| grant.may_see(&it.cluster));
    let runs = seen.filter_map(|key| {
        // A copy: data that comes in waits for who holds the runs.
        let run = app.fleet.runs().get(&key)?;
        let worth = Worth::of((app, specs), (found, &terms), (&key, &run), at);
        Some((key, worth))
    });
    Worths {
        at,
        runs: runs.collect(),
        terms,
    }
}
