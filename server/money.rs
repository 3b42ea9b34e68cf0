//! What GPU time costs and who pays: the prices, owners and budgets that hold now ([`terms`]), a month
//! of the ledger as money ([`month`], [`report`]; [`daily`] for who asks in SQL), what is idle this moment ([`now`]) at
//! what that costs with commitments ([`covered`]), and
//! what is advised with what becomes of it ([`savings`], [`advice`]).
//!
//! The judgement is analysis' (`price_book`, `owner`, `chargeback`); here is what it is asked with. Terms
//! are made from the shipped prices, the files of the configuration and the tables of the store, and
//! made again when one of these changed, beside the threads that serve: a file may lie on a disk that
//! hangs. Who asks meanwhile is given the ones before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use gpufleet_program::section;
use tokio_util::sync::CancellationToken;

use crate::App;
use crate::store::model::{FencingToken, MoneyTable};
use crate::store::{Store, StoreError};
use crate::threads::apart;

pub mod tables;

pub mod terms;

mod shipped;

pub mod strangers;

pub mod import;

pub mod month;

pub mod report;

pub mod daily;

pub mod budgets;

pub mod digest;

pub mod now;

pub mod covered;

pub mod rule;

pub mod payer;

pub mod savings;

pub mod advice;

use budgets::Standings;
pub use covered::CoveredNow;
pub use terms::{Machine, Terms};

/// How often files and tables are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(30);

section! {
    /// Prices, and who pays. The public prices of Google Cloud are built in.
    pub struct CostConfig {
        /// The currency of every price, as ISO 4217 has it. Nothing is converted.
        pub currency: String = "USD".to_owned(),
        /// CSV files with rates, machine types, discounts, commitments, owner rules or budgets; which,
        /// the names of the columns say (docs/cost.md). What changes in them holds within a minute.
        pub tables: Vec<String> = Vec::new(),
        /// Labels of a pod that name its team, where no owner rule does.
        pub team_labels: Vec<String> = vec!["team".to_owned()],
        /// The billing account in FOCUS files, which must have one.
        pub billing_account: String = "not configured".to_owned(),
        /// Who sells machines that are of no cloud: the provider and issuer in FOCUS files, which must have one. Machines
        /// that tell a cloud's machine type or account are of that cloud.
        pub provider: String = "not configured".to_owned(),
        /// As what they are sold: the service in FOCUS files.
        pub service: String = "GPU machines".to_owned(),
        /// The address of the dashboard on cost in your Grafana, such as https://grafana.example/d/gpufleet-cost: the
        /// page on cost leads there. Empty: it does not.
        pub dashboard_url: String = String::new(),
    }
}

impl CostConfig {
    /// Refuses an address that a page must not lead to.
    ///
    /// # Errors
    /// The key and its value.
    pub fn check(&self) -> Result<(), String> {
        let url = self.dashboard_url.as_str();
        let is_web = url.starts_with("http://") || url.starts_with("https://");
        match is_web || url.is_empty() {
            true => Ok(()),
            false => Err(format!(
                "cost.dashboard_url = {url:?} must begin with http:// or https://"
            )),
        }
    }
}

/// The terms that hold now.
#[derive(Default)]
pub struct Money {
    /// What the configuration says, until tables were read for the first time.
    first: terms::Sources,
    terms: RwLock<Option<Arc<Terms>>>,
    /// Days of the ledger that were put together since [`Self::restated`] was asked, since the Unix epoch.
    restated: Mutex<BTreeSet<i64>>,
    /// What months as money do not tell, by their first days; none before one was made.
    untold: Mutex<Option<BTreeMap<i64, String>>>,
    /// How many months are still to be made as money.
    to_make: AtomicUsize,
    /// Where teams stand to their budgets in the month that runs; none before it was made.
    standings: RwLock<Option<Arc<Standings>>>,
    token: Mutex<Option<FencingToken>>,
    /// What is idle and what it costs, as it was last looked at.
    snapshots: now::Snapshots,
    /// What commitments cover, as it was last looked at.
    covered: covered::KeptCovered,
}

impl Money {
    /// The terms of a configuration alone, made when somebody asks.
    pub fn new(config: &crate::config::Config) -> Self {
        Self {
            first: terms::Sources::of(config).read(),
            ..Self::default()
        }
    }

    /// This server has the right to write.
    pub fn leads(&self, token: FencingToken) {
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = Some(token);
    }

    /// By which it writes; none before it leads.
    fn token(&self) -> Option<FencingToken> {
        *self.token.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that days of the ledger were put together anew.
    pub fn restate(&self, days: BTreeSet<i64>) {
        let mut restated = self.restated.lock().unwrap_or_else(PoisonError::into_inner);
        restated.extend(days);
    }

    /// The days that were put together since this was asked.
    fn restated(&self) -> BTreeSet<i64> {
        let mut restated = self.restated.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *restated)
    }

    /// Notes what of the month that begins on a day is not told in tables; none where all is.
    pub(crate) fn tell(&self, first_day: i64, untold: Option<String>) {
        let mut all = self.untold.lock().unwrap_or_else(PoisonError::into_inner);
        let all = all.get_or_insert_default();
        match untold {
            Some(untold) if all.get(&first_day) != Some(&untold) => {
                tracing::warn!("money by day is not all told: {untold}");
                all.insert(first_day, untold);
            }
            Some(_) => {}
            None => _ = all.remove(&first_day),
        }
    }

    /// Notes that so many months are still to be made, and forgets those that began before this day: of what is deleted
    /// nothing can be mended.
    pub(crate) fn goes_on(&self, to_make: usize, kept_since: Option<i64>) {
        self.to_make.store(to_make, Ordering::Relaxed);
        let mut all = self.untold.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(all), Some(kept_since)) = (all.as_mut(), kept_since) {
            all.retain(|first_day, _| *first_day >= kept_since);
        }
    }

    /// How many months are still to be made as money.
    pub fn months_to_make(&self) -> usize {
        self.to_make.load(Ordering::Relaxed)
    }

    /// What of months is not told in tables, the oldest first; none before a month was made.
    pub fn untold(&self) -> Option<Vec<String>> {
        let all = self.untold.lock().unwrap_or_else(PoisonError::into_inner);
        let all = all.as_ref()?;
        Some(all.values().cloned().collect())
    }

    /// Notes where teams stand to their budgets in the month that runs.
    pub(crate) fn stand(&self, standings: Standings) {
        let standings = Some(Arc::new(standings));
        *self
            .standings
            .write()
            .unwrap_or_else(PoisonError::into_inner) = standings;
    }

    /// Where teams stand to their budgets in the month that runs, as it was last made; none before that.
    pub fn standings(&self) -> Option<Arc<Standings>> {
        let standings = self
            .standings
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        standings.clone()
    }

    /// What commitments cover by these terms of the nodes that there are, looked at every few seconds.
    pub fn covered(&self, app: &App, terms: &Terms) -> Arc<CoveredNow> {
        let seen = (&*app.fleet, &*app.inventory);
        self.covered.get(seen, terms, app.clock.now())
    }

    /// The terms as they were last read.
    pub fn terms(&self) -> Arc<Terms> {
        if let Some(known) = self.known() {
            return known;
        }
        let mut terms = self.terms.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(terms.get_or_insert_with(|| Arc::new(Terms::of(self.first.clone()))))
    }

    fn known(&self) -> Option<Arc<Terms>> {
        let known = self.terms.read().unwrap_or_else(PoisonError::into_inner);
        known.clone()
    }

    /// Reads files and tables, and makes the terms anew when one of them changed.
    ///
    /// # Errors
    /// When the store does not answer; then the terms stay as they are. A file that cannot be read is
    /// no error: its name is among the findings.
    pub async fn refresh(
        &self,
        store: &Store,
        config: &crate::config::Config,
    ) -> Result<Arc<Terms>, StoreError> {
        let (known, names) = (self.known(), store.money_table_names().await?);
        let stored = known.as_ref().map(|it| it.sources.stored.clone());
        let is_as_read = |stored: &Vec<MoneyTable>| {
            let read = stored.iter().map(|it| (it.name.as_str(), it.imported));
            read.eq(names.iter().map(|it| (it.0.as_str(), it.1)))
        };
        let stored = match stored.filter(is_as_read) {
            Some(stored) => stored,
            None => store.money_tables().await?,
        };
        let sources = terms::Sources {
            stored,
            ..terms::Sources::of(config)
        };
        let before = known.clone();
        let make = move || {
            let sources = sources.read();
            match known {
                Some(known) if known.sources == sources => known,
                _ => Arc::new(Terms::of(sources)),
            }
        };
        let made = apart(make).await;
        if before.is_some_and(|it| Arc::ptr_eq(&it, &made)) {
            return Ok(made);
        }
        for finding in &made.findings {
            tracing::warn!("prices and owners: {finding}");
        }
        let mut terms = self.terms.write().unwrap_or_else(PoisonError::into_inner);
        *terms = Some(Arc::clone(&made));
        Ok(made)
    }
}

/// Keeps the terms fresh from when this server leads until it is told to stop.
pub async fn run(app: App, stop: CancellationToken) {
    if !app.lead.wait(&stop).await {
        return;
    }
    let (job, clock) = (app.jobs.of("prices"), app.clock.as_ref());
    while !stop.is_cancelled() {
        job.round(clock, app.money.refresh(&app.store, &app.config))
            .await;
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}
