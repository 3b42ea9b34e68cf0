//! What is known beside nodes and pods: what waits before it has pods, and what the autoscaler said.
//!
//! Limits: as many of each kind as pods may wait; what is beyond is counted.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use gpufleet_analysis::inventory::{Claim, Scaled};

use super::{Asking, ClusterState, DeviceKind, MAX_BOUND, MAX_WAITING, Moment, Sight, Standing};

/// Kinds of objects that wait before they have pods. Who says more goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Maker {
    /// Kueue's.
    Workload,
    /// Of the JobSet API.
    JobSet,
    /// Kubernetes' own.
    Job,
}

/// What waits before it has pods, of one kind.
#[derive(Debug, Default)]
pub struct HeldBack {
    /// Who tells it.
    pub standing: Standing,
    /// By object.
    pub(super) claims: BTreeMap<String, Vec<Asking>>,
    pub(super) left_out: BTreeSet<String>,
    /// By object what made it, as that is called where it waits.
    made_by: BTreeMap<String, String>,
}

/// What the autoscaler said of pods.
#[derive(Debug, Default)]
pub struct ScalerSaid {
    /// Who tells it.
    pub standing: Standing,
    /// By pod.
    pub(super) of_pod: HashMap<String, Scaled>,
}

impl Maker {
    /// Every one, who says more first.
    pub const ALL: [Self; 3] = [Self::Workload, Self::JobSet, Self::Job];

    /// What it makes, for people.
    pub const fn what(self) -> &'static str {
        match self {
            Self::Workload => "Workloads of Kueue",
            Self::JobSet => "JobSets",
            Self::Job => "Jobs",
        }
    }
}

impl HeldBack {
    /// An object as it is now; without claims it waits for nothing.
    pub fn put(&mut self, uid: &str, claims: Vec<Asking>) {
        self.remove(uid);
        match (claims.is_empty(), self.claims.len() < MAX_WAITING) {
            (true, _) => {}
            (false, true) => _ = self.claims.insert(uid.to_owned(), claims),
            (false, false) => {
                self.left_out.insert(uid.to_owned());
                // So many more that their names alone would be dear.
                if self.left_out.len() > MAX_BOUND {
                    self.left_out.pop_last();
                }
            }
        }
    }

    /// An object as it is now, and what made it: where that waits, of a kind that says more, it is told by that alone.
    pub fn put_of(&mut self, uid: &str, claims: Vec<Asking>, made_by: Option<String>) {
        self.put(uid, claims);
        if let Some(made_by) = made_by.filter(|_| self.claims.contains_key(uid)) {
            self.made_by.insert(uid.to_owned(), made_by);
        }
    }

    /// An object is gone.
    pub fn remove(&mut self, uid: &str) {
        self.claims.remove(uid);
        self.made_by.remove(uid);
        self.left_out.remove(uid);
    }

    /// All objects as they are now.
    pub fn all(&mut self, all: Self, now: Moment) {
        (self.claims, self.left_out) = (all.claims, all.left_out);
        self.made_by = all.made_by;
        self.standing.whole(now);
    }
}

impl ClusterState {
    /// Everything that waits: pods with what the autoscaler said of them, and what has no pods yet. What has
    /// some that wait is told by these; what is told twice by who says more.
    pub fn waiting(&self) -> Vec<Claim> {
        let mut told = BTreeSet::new(); // A claim that several pods share is waited for once.
        let mut with_scaler = |(uid, it): (&String, &Claim)| {
            let it = match self.pods.by_claims.get(uid) {
                Some(all) => {
                    let new = all.iter().filter(|it| {
                        let claim = it.claim.as_deref();
                        claim.is_none_or(|claim| told.insert(claim))
                    });
                    self.claimed.waits(it, new)?
                }
                None => it.clone(),
            };
            let scaler = self.scaler.of_pod.get(uid).cloned();
            Some(Claim { scaler, ..it })
        };
        let mut all: Vec<Claim> = self
            .pods
            .waiting
            .iter()
            .filter_map(&mut with_scaler)
            .collect();
        let mut told: BTreeSet<String> = all.iter().map(|it| it.workload.clone()).collect();
        for of_kind in &self.held_back {
            let of_told = |uid: &String| {
                let made_by = of_kind.made_by.get(uid);
                made_by.is_some_and(|it| told.contains(it))
            };
            let objects = of_kind.claims.iter().filter(|it| !of_told(it.0));
            let claims = objects.flat_map(|it| it.1);
            let new = claims.filter(|it| !told.contains(&it.0.workload));
            let new = new.filter_map(|(claim, by)| self.claimed.waits(claim, by));
            let new: Vec<Claim> = new.collect();
            told.extend(new.iter().map(|it| it.workload.clone()));
            all.extend(new);
        }
        all
    }

    /// Whether all that may wait is seen now: pods, what waits before it has any, and the resource claims that
    /// some of these ask by. What is not installed has nothing that waits.
    pub fn sees_who_waits(&self, now: Moment) -> bool {
        let is_told = |it: &Standing| matches!(it.sight(now), Sight::Seen | Sight::Absent(_));
        let claims = &self.claimed.standings[DeviceKind::Claim as usize];
        let by_claims = self.pods.by_claims.is_empty() || is_told(claims);
        let held_back = self.held_back.iter().flat_map(|it| it.claims.values());
        let of_held_back = held_back.flatten().map(|it| &it.1);
        let mut by = self.pods.by_claims.values().chain(of_held_back).flatten();
        by_claims
            && !by.any(|it| self.claimed.is_unknown(it, now))
            && self.waiting_left_out() == 0
            && self.claims.sight(now) == Sight::Seen
            && self.held_back.iter().all(|it| is_told(&it.standing))
    }
}

impl ScalerSaid {
    /// The autoscaler said something of a pod; what it said before is over.
    pub fn said(&mut self, pod: &str, scaled: Scaled) {
        let known = self.of_pod.get(pod);
        let is_newer = known.is_none_or(|it| *it <= scaled);
        let has_room = known.is_some() || self.of_pod.len() < MAX_WAITING;
        if is_newer && has_room {
            self.of_pod.insert(pod.to_owned(), scaled);
        }
    }

    /// All that it said and the API server still knows.
    pub fn all(&mut self, all: Self, now: Moment) {
        self.of_pod = all.of_pod;
        self.standing.whole(now);
    }
}
