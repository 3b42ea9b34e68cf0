//! What a month is made from: days of the ledger, lives of nodes, runs, and what model servers served.
//!
//! Days that changed since they were put together are put together here.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;

use gpufleet_analysis::chargeback::MILLIS_PER_DAY;
use gpufleet_analysis::table;
use gpufleet_telemetry::gpu_specs::Specs;
use gpufleet_telemetry::identity::Origin;
use gpufleet_telemetry::time::Timestamp;

use super::{Days, preempted, taken_back, time_of, training};
use crate::ledger::days::put_together;
use crate::store::model::{LedgerDay, NodeLife};
use crate::store::{MAX_DIRTY_DAYS, Store, StoreError};

/// Reads the days of one cluster, or of all live ones, and what was preempted in them.
///
/// # Errors
/// When the store does not answer.
pub async fn read(
    store: &Store,
    days: Range<i64>,
    cluster: Option<&str>,
) -> Result<Days, StoreError> {
    let time = time_of(&days);
    let mut read = ledger(store, days, cluster).await?;
    let (preempted, are_all) = preempted::read(store, &time, cluster).await?;
    read.preempted = preempted;
    read.notices = taken_back::notices(store, &read, &time).await?;
    read.preempted_untold = match are_all {
        true => deleted(store, &time).await?,
        false => Some(format!(
            "more than {} runs were preempted, and nobody looked at the others",
            preempted::MAX_RUNS
        )),
    };
    Ok(read)
}

/// That training runs of this time are deleted; none where they are kept.
///
/// # Errors
/// When the store does not answer.
async fn deleted(store: &Store, time: &Range<Timestamp>) -> Result<Option<String>, StoreError> {
    let since = store.runs_kept_since().await?;
    let since = since.filter(|it| time.start < *it);
    Ok(since.map(|it| {
        let since = table::moment_text(it.millis());
        format!("training runs of before {since} are deleted (retention.events_d)")
    }))
}

/// Reads what model servers of these days served.
///
/// # Errors
/// When the store does not answer.
pub async fn serve(
    read: &mut Days,
    store: &Store,
    days: &Range<i64>,
    cluster: Option<&str>,
) -> Result<(), StoreError> {
    let (mut served, are_all) = store.served(days.clone(), cluster).await?;
    served.retain(|it| cluster.is_some() || it.resource.resource.origin() == Origin::Live);
    read.served = served;
    read.served_left_out = !are_all;
    Ok(())
}

/// Reads the training runs of these days, whose cards' peaks these are.
///
/// # Errors
/// When the store does not answer.
pub(crate) async fn train(
    read: &mut Days,
    store: &Store,
    days: &Range<i64>,
    cluster: Option<&str>,
    specs: &Specs,
) -> Result<(), StoreError> {
    let time = time_of(days);
    let (trained, are_all) = training::read(store, read, &time, cluster, specs).await?;
    read.trained = trained;
    read.trained_untold = match are_all {
        true => deleted(store, &time).await?,
        false => Some(format!(
            "there were more than {} training runs, and nobody looked at those that started first",
            training::MAX_RUNS
        )),
    };
    Ok(())
}

/// Reads the days alone.
///
/// # Errors
/// When the store does not answer.
pub(crate) async fn ledger(
    store: &Store,
    days: Range<i64>,
    cluster: Option<&str>,
) -> Result<Days, StoreError> {
    let mut read = of_any_origin(store, days, cluster).await?;
    if cluster.is_none() {
        let others = read.others();
        read.leave_out(&others);
    }
    Ok(read)
}

/// Reads the days alone, those of all clusters whether they are live or not where none is named.
///
/// # Errors
/// When the store does not answer.
pub(in crate::money) async fn of_any_origin(
    store: &Store,
    days: Range<i64>,
    cluster: Option<&str>,
) -> Result<Days, StoreError> {
    // The marks first: a day that is put together meanwhile is then read twice, and never not at all.
    let dirty = store.dirty_days_of(days.clone()).await?;
    let time = time_of(&days);
    // Before the days: what is seen of a node later than these is not missed in them.
    let lives = store
        .inventory_lives((time.start, time.end), cluster)
        .await?;
    let looked = store.days_looked(days.clone(), cluster).await?;
    let next_day = next_day(store, &days, &lives, cluster).await?;
    let (mut found, mut unreadable) = store.ledger_days(days, cluster).await?;
    let (mut anew, mut changed) = (Vec::new(), HashSet::new());
    for dirty in dirty.chunks(MAX_DIRTY_DAYS) {
        for input in store.day_inputs(dirty).await? {
            changed.insert((input.day, input.subject));
            anew.push((input.subject, put_together(&input)));
        }
    }
    if !changed.is_empty() {
        found.retain(|(subject, it)| !changed.contains(&(it.day, *subject)));
        unreadable.retain(|it| !changed.contains(&(it.day, it.subject)));
        anew.retain(|(_, it)| cluster.is_none_or(|cluster| cluster == it.of.cluster));
        anew.retain(|(_, it)| !it.times.is_empty());
        found.append(&mut anew);
    }
    // So the days of a GPU follow one another, which share what they say of it.
    found.sort_by_key(|(subject, it)| (*subject, it.day));
    let days: Vec<LedgerDay> = found.into_iter().map(|it| it.1).collect();
    let times = days.iter().flat_map(|it| &it.times);
    let held_by: BTreeSet<i64> = times.map(|it| it.holder).filter(|it| *it != 0).collect();
    let holders = store.holders(&held_by).await?;
    Ok(Days {
        cluster: cluster.map(str::to_owned),
        days,
        holders,
        unreadable,
        lives,
        next_day,
        looked,
        ..Days::default()
    })
}

/// The day after these of whole cards that are then on nodes that began on the last of them, as it was put together.
///
/// # Errors
/// When the store does not answer.
async fn next_day(
    store: &Store,
    days: &Range<i64>,
    lives: &[NodeLife],
    cluster: Option<&str>,
) -> Result<Vec<LedgerDay>, StoreError> {
    let last_ms = days.end.saturating_sub(1).saturating_mul(MILLIS_PER_DAY);
    let began = lives.iter().filter(|it| it.from_ms >= last_ms);
    let name = |it: &NodeLife| (it.cluster.clone(), it.record.node.name.clone());
    let began: HashSet<(String, String)> = began.map(name).collect();
    if began.is_empty() {
        return Ok(Vec::new());
    }
    let next = days.end..days.end.saturating_add(1);
    let (found, _) = store.ledger_days(next, cluster).await?;
    let mut next: Vec<LedgerDay> = found.into_iter().map(|it| it.1).collect();
    next.retain(|it| {
        let name = (it.of.cluster.clone(), it.of.facts.node.clone());
        !it.of.is_share && began.contains(&name)
    });
    Ok(next)
}

pub(super) fn is_live(day: &LedgerDay) -> bool {
    day.of.facts.origin == Origin::Live
}

impl Days {
    /// These days of any origin as reports are made of them: all live clusters together, and each cluster that has another
    /// origin by itself, by its name.
    pub(in crate::money) fn apart(mut self) -> Vec<(Option<String>, Origin, Self)> {
        let others = self.others();
        let other = |(cluster, origin): (&String, &Origin)| {
            let days = self.of_cluster(cluster);
            (Some(cluster.clone()), *origin, days)
        };
        let mut all: Vec<_> = others.iter().map(other).collect();
        self.leave_out(&others);
        all.push((None, Origin::Live, self));
        all
    }

    /// How many days of GPUs of these cannot be read, by scope and day. Of a cluster of which no day at all can be read
    /// nobody knows whether it is live: it counts for both.
    pub(in crate::money) fn unread(&self) -> BTreeMap<(String, i64), i64> {
        let others = self.others();
        let mut found: BTreeMap<_, i64> = BTreeMap::new();
        for it in &self.unreadable {
            if !others.contains_key(&it.cluster) {
                *found.entry((String::new(), it.day)).or_default() += 1;
            }
            *found.entry((it.cluster.clone(), it.day)).or_default() += 1;
        }
        found
    }

    /// The clusters that are not live.
    fn others(&self) -> BTreeMap<String, Origin> {
        let others = self.days.iter().filter(|it| !is_live(it));
        others
            .map(|it| (it.of.cluster.clone(), it.of.facts.origin))
            .collect()
    }

    /// Leaves out those that are not live.
    fn leave_out(&mut self, others: &BTreeMap<String, Origin>) {
        self.days.retain(is_live);
        self.next_day.retain(is_live);
        self.unreadable
            .retain(|it| !others.contains_key(&it.cluster));
        self.not_live = others.keys().cloned().collect();
    }

    /// What of them is of one cluster.
    pub(in crate::money) fn of_cluster(&self, cluster: &str) -> Self {
        let days = self.days.iter().filter(|it| it.of.cluster == cluster);
        let lives = self.lives.iter().filter(|it| it.cluster == cluster);
        let next_day = self.next_day.iter().filter(|it| it.of.cluster == cluster);
        let looked = self.looked.iter().filter(|it| it.0 == cluster);
        let trained = self.trained.iter().filter(|it| it.cluster == cluster);
        let unreadable = self.unreadable.iter().filter(|it| it.cluster == cluster);
        Self {
            cluster: Some(cluster.to_owned()),
            at: self.at,
            days: days.cloned().collect(),
            lives: lives.cloned().collect(),
            next_day: next_day.cloned().collect(),
            looked: looked.cloned().collect(),
            holders: self.holders.clone(),
            unreadable: unreadable.cloned().collect(),
            trained: trained.cloned().collect(),
            trained_untold: self.trained_untold.clone(),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::store::model::{DayFacts, DayOf, UnreadDay};

    #[test]
    fn a_day_that_cannot_be_read_is_one_of_its_own_cluster() {
        let day = |cluster: &str, origin| LedgerDay {
            day: 7,
            of: Arc::new(DayOf {
                cluster: cluster.to_owned(),
                facts: DayFacts {
                    origin,
                    ..DayFacts::default()
                },
                ..DayOf::default()
            }),
            ..LedgerDay::default()
        };
        let unread = |day, cluster: &str| UnreadDay {
            day,
            subject: 1,
            cluster: cluster.to_owned(),
        };
        let days = Days {
            days: vec![day("prod", Origin::Live), day("sim", Origin::Simulated)],
            unreadable: vec![
                unread(7, "sim"),
                unread(8, "prod"),
                unread(9, "gone"),
                unread(9, "prod"),
            ],
            ..Days::default()
        };
        let found = days.unread();
        let found = found
            .iter()
            .map(|((scope, day), it)| (scope.as_str(), *day, *it));
        let found: Vec<(&str, i64, i64)> = found.collect();
        let expected = [
            ("", 8, 1),
            ("", 9, 2),
            ("gone", 9, 1),
            ("prod", 8, 1),
            ("prod", 9, 1),
            ("sim", 7, 1),
        ];
        assert_eq!(found, expected);
        let scopes = days.apart();
        let of = |scope: Option<&str>| {
            let mut all = scopes.iter();
            let found = all.find(|it| it.0.as_deref() == scope);
            found.map(|it| it.2.unreadable.clone())
        };
        assert_eq!(of(Some("sim")), Some(vec![unread(7, "sim")]));
        let live = vec![unread(8, "prod"), unread(9, "gone"), unread(9, "prod")];
        assert_eq!(of(None), Some(live));
    }
}
