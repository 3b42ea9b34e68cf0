//! Which process is which rank: what it claims, what its cgroup confirms, and who was first.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use gpufleet_hooks_shm::records::Identity;
use gpufleet_hooks_tell::rank::{self, rank_id};
use gpufleet_telemetry::identity::{Origin, Resource, ResourceKind, attribute};
use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::training::{RankId, Trust};

use super::Refused;
use super::process::{Process, ProcessId};
use crate::attribute::cgroup::Owner;
use crate::attribute::users::Users;
use crate::read::NodeFacts;
use crate::sample::nanos;

/// Most new ranks of one container in [`WINDOW`]: 8 processes that begin anew 8 times.
pub(super) const MAX_NEW_OF_GROUP: usize = 64;

/// Most new ranks of the node in [`WINDOW`]: half of the resources that the agent keeps.
pub(super) const MAX_NEW: usize = 512;

/// How long a resource is kept that is not read any more: so long does a new one take its place.
const WINDOW: Duration = Duration::from_secs(600);

/// Which rank a process is.
pub(super) struct Rank {
    pub(super) resource: Arc<Resource>,
    /// What the resource was made of.
    said: Said,
}

/// What the resource of a rank is made of.
#[derive(Clone, PartialEq)]
struct Said {
    told: rank::Said,
    gpu: Option<Gpu>,
}

impl Rank {
    /// The GPU or share that it computes on, where the driver says so.
    pub(super) fn proved_gpu(&self) -> Option<&str> {
        let (gpu, trust) = self.said.gpu.as_ref()?;
        (*trust == Trust::Proved).then_some(gpu.as_str())
    }
}

/// The GPU or share that a process computes on, by id, and how that is known.
type Gpu = (String, Trust);

/// Who is which rank on this node.
pub(super) struct Ranks {
    users: Arc<Users>,
    owners: HashMap<Arc<str>, (ProcessId, Trust)>,
    window: Timestamp,
    new_of_group: BTreeMap<String, usize>,
}

impl Ranks {
    /// None yet; `users` knows which process the driver lists on which GPU.
    pub(super) fn new(users: Arc<Users>) -> Self {
        Self {
            users,
            owners: HashMap::new(),
            window: Timestamp::default(),
            new_of_group: BTreeMap::new(),
        }
    }

    /// Says which rank the process is, when it has said so and nobody else is it.
    pub(super) fn place(
        &mut self,
        id: ProcessId,
        process: &mut Process,
        node: &NodeFacts,
        now: Timestamp,
        refused: &mut Refused,
    ) {
        let script = process.script();
        let told = script.and_then(|it| rank::Said::of(it, process.snapshots()));
        let Some(told) = told else {
            return;
        };
        let before = process.rank.as_ref().and_then(|it| it.said.gpu.as_ref());
        let gpu = gpu(&self.users.of(id.pid), &told.identity.gpu_uuid, before);
        let said = Said { told, gpu };
        let identity = &said.told.identity;
        if let Some(rank) = &process.rank {
            let owner = self.owners.get(&rank.resource.id);
            if owner.is_none_or(|(owner, _)| *owner != id) {
                // A process that proved that it is this rank came after it.
                process.rank = None;
            } else if rank.said == said {
                return;
            }
        }
        let mut refuse = |reason| *refused.entry(reason).or_default() += 1;
        let rank_id = match rank_id(identity).map(|it| it.map(|it| (it.checked(), it))) {
            Some(Ok((Ok(text), id))) => (text, id),
            // It has not said enough yet.
            None => return,
            Some(_) => return refuse("identity"),
        };
        let trust = trust(&process.peer().group, identity);
        let (text, rank_id) = rank_id;
        match &process.rank {
            Some(rank) if *rank.resource.id != *text => return refuse("other_identity"),
            Some(_) => {}
            None => {
                let owner = self.owners.get(text.as_str());
                let is_free = owner.is_none_or(|(_, of_owner)| trust < *of_owner);
                if !is_free {
                    return refuse("taken_identity");
                }
                if owner.is_none() && !self.admits(process.group(), now) {
                    return refuse("new_identities");
                }
                self.owners.insert(text.as_str().into(), (id, trust));
            }
        }
        let resource = resource(&text, &rank_id, &said, trust, process, node);
        process.rank = Some(Rank {
            resource: Arc::new(resource),
            said,
        });
    }

    /// Forgets the ranks of processes that are gone.
    pub(super) fn keep(&mut self, is_there: impl Fn(&ProcessId) -> bool) {
        self.owners.retain(|_, (owner, _)| is_there(owner));
    }

    /// Whether one more rank of this container is taken.
    fn admits(&mut self, group: &str, now: Timestamp) -> bool {
        if now.since(self.window).abs() > nanos(WINDOW) {
            self.window = now;
            self.new_of_group.clear();
        }
        let in_all: usize = self.new_of_group.values().sum();
        let of_group = self.new_of_group.get(group).copied().unwrap_or(0);
        let admits = in_all < MAX_NEW && of_group < MAX_NEW_OF_GROUP;
        if admits {
            self.new_of_group.insert(group.to_owned(), of_group + 1);
        }
        admits
    }
}

/// Which GPU a process computes on: the only one that the driver lists it on, or of several the one it
/// says; where the driver does not list it (any more) what was proved before, or what it says.
fn gpu(listed: &BTreeSet<Arc<str>>, claimed: &str, before: Option<&Gpu>) -> Option<Gpu> {
    let proved = match listed.len() {
        1 => listed.first().map(|only| only.to_string()),
        _ => listed.contains(claimed).then(|| claimed.to_owned()),
    };
    if let Some(proved) = proved {
        return Some((proved, Trust::Proved));
    }
    let was_proved = |it: &&Gpu| listed.is_empty() && it.1 == Trust::Proved;
    let kept = before.filter(was_proved).cloned();
    kept.or_else(|| (!claimed.is_empty()).then(|| (claimed.to_owned(), Trust::Claimed)))
}

/// Whether the kernel confirms the job: its id is the one that Slurm or the kubelet named the process'
/// cgroup after.
fn trust(cgroup: &str, identity: &Identity) -> Trust {
    let uid = identity.job_uid.as_str();
    match Owner::of(cgroup).is_some_and(|it| it.id() == uid) {
        true => Trust::Proved,
        false => Trust::Claimed,
    }
}

fn resource(
    id: &str,
    rank: &RankId,
    said: &Said,
    trust: Trust,
    process: &Process,
    node: &NodeFacts,
) -> Resource {
    let resource = node
        .resource(ResourceKind::Rank, id, Origin::Live, "hooks")
        .with(attribute::TRUST, trust.name())
        .with(attribute::PID, process.peer().pid.to_string());
    let resource = said.told.describe(resource, rank);
    match &said.gpu {
        Some((gpu, source)) => resource
            .with(attribute::GPU_ID, gpu)
            .with(attribute::GPU_SOURCE, source.name()),
        None => resource,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_proved_by_the_cgroup_that_slurm_or_the_kubelet_made_for_it() {
        let pod = "0a1b2c3d-0000-1111-2222-333344445555";
        let of_pod = format!("/kubepods/burstable/pod{pod}/1234");
        let of_job = "/system.slice/slurmstepd.scope/job_77/step_0";
        let of_user = "/user.slice/user-1000.slice/user@1000.service/slurm/uid_1/job_77";
        for (cgroup, uid, is_proved) in [
            (of_job, "77", true),
            (of_job, "7", false),
            (of_pod.as_str(), pod, true),
            (of_pod.as_str(), "another", false),
            (of_pod.as_str(), "", false),
            (of_user, "77", false),
            ("", "", false),
        ] {
            let identity = Identity {
                job_uid: uid.to_owned(),
                ..Identity::default()
            };
            let proved = trust(cgroup, &identity) == Trust::Proved;
            assert_eq!(proved, is_proved, "{cgroup} {uid}");
        }
    }

    #[test]
    fn the_gpu_that_the_driver_names_is_proved_and_another_only_claimed() {
        let proved = |id: &str| Some((id.to_owned(), Trust::Proved));
        let claimed = |id: &str| Some((id.to_owned(), Trust::Claimed));
        let check = |listed: &[&str], claims: &str, before: Option<Gpu>, expected| {
            let listed = listed.iter().map(|it| Arc::from(*it)).collect();
            let found = gpu(&listed, claims, before.as_ref());
            assert_eq!(found, expected, "{listed:?} {claims}");
        };
        check(&["GPU-a"], "", None, proved("GPU-a"));
        check(&["GPU-a"], "GPU-b", None, proved("GPU-a"));
        check(&["GPU-a", "GPU-b"], "GPU-b", None, proved("GPU-b"));
        check(&["GPU-a", "GPU-b"], "", proved("GPU-a"), None);
        check(&["GPU-a", "GPU-b"], "GPU-c", None, claimed("GPU-c"));
        check(&[], "GPU-c", None, claimed("GPU-c"));
        check(&[], "GPU-c", proved("GPU-a"), proved("GPU-a"));
        check(&[], "", claimed("GPU-a"), None);
        check(&[], "", None, None);
    }

    #[test]
    fn a_container_that_makes_up_ranks_has_no_more_after_its_share_and_others_have_theirs() {
        let mut ranks = Ranks::new(Arc::default());
        let now = Timestamp::from_seconds(1_800_000_000);
        let taken = (0..1_000).filter(|_| ranks.admits("/bad", now)).count();
        assert_eq!(taken, MAX_NEW_OF_GROUP);
        assert!(ranks.admits("/good", now));
        let later = now.shifted(nanos(WINDOW) + 1);
        assert!(ranks.admits("/bad", later), "a later window is new");
    }
}
