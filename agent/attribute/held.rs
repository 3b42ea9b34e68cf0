//! Who holds each GPU and share: everything that is known laid together. No I/O and no clock.
//!
//! The kubelet's word counts first, or where it is not heard that of exporters' labels, then the kernel's on processes of
//! Slurm's jobs, what Slurm's prolog wrote and what Slurm said when it was asked, then whose the other processes on the
//! device are. What is not known has its reason.
//! Replicas of a time-sliced device have a holder each where it is known how many there are; else nobody holds the device,
//! since who has some of them has not the whole. Only who would know may say that nobody holds a device, so not a driver
//! that lists no processes, and not while something that was given away has no place here.
//!
//! Limits: [`MAX_NAMED`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gpufleet_telemetry::holder::{Holder, Unknown};
use gpufleet_telemetry::identity::{ResourceKind, attribute};

use super::allocations::Given;
use super::by_process::jobs_on;
use super::devices::{Device, Directory};
use super::exported::Told;
use super::given::{Asked, Words};
use super::kubelet::{Held, List};
use super::labels::Facts;
use super::processes::Looked;
use super::prolog::Wrote;
use super::replicas::{Replica, Replicas, part_held, replicas};
use super::users::Card;

/// Most holders that a reason names.
const MAX_NAMED: usize = 4;

/// What the kubelet said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kubelet<'a> {
    /// This is no node of Kubernetes.
    NotHere,
    /// What pods hold, as it said not too long ago.
    Said(&'a List),
    /// It was not heard for too long, and why; what exporters say counts in its place.
    ByExporter(&'a Told, &'a str),
    /// It was not heard for too long, and why.
    NotHeard(&'a str),
}

/// What Slurm says of this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Slurm<'a> {
    /// This is no node of Slurm.
    NotHere,
    /// What its prolog wrote.
    Wrote(&'a Wrote),
    /// It gives GPUs to jobs, and there is no prolog that says which.
    Silent,
}

/// What is known of pods and jobs by name.
pub(super) trait Names {
    /// What is known of a pod; none while nothing is.
    fn pod(&self, namespace: &str, name: &str) -> Option<Pod<'_>>;

    /// Whether a container of a pod is known not to run, and to wait for something.
    fn is_starting(&self, namespace: &str, pod: &str, container: &str) -> bool;

    /// Namespace and name of the pod with this uid.
    fn pod_of(&self, uid: &str) -> Option<(String, String)>;

    /// Whether a claim is known to give this device only to look at, and not to have.
    fn only_looks(&self, claim: &str, device: &str) -> bool;

    /// What is known of a Slurm job.
    fn job(&self, job: u64) -> Facts;
}

/// What is known of a pod.
#[derive(Debug, Clone)]
pub(super) struct Pod<'a> {
    pub(super) uid: &'a str,
    /// Whether it has ended: the kubelet lists it until it is deleted, and gives its devices away.
    pub(super) is_over: bool,
    pub(super) facts: Facts,
}

/// Everything that was found out in a round.
pub(super) struct Known<'a, N> {
    pub(super) cards: &'a [Card],
    pub(super) kubelet: Kubelet<'a>,
    pub(super) slurm: Slurm<'a>,
    /// What Slurm said when it was asked, not too long ago.
    pub(super) given: Option<&'a Given>,
    pub(super) looked: &'a Looked,
    pub(super) names: &'a N,
}

/// What was found of all.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// By GPU or share: its holder as attributes, or why it is not known; nothing where nobody holds it
    /// or nobody was asked.
    pub(super) attributes: BTreeMap<Arc<str>, Facts>,
    /// By device of which replicas are held: all of its replicas.
    pub(super) replicas: BTreeMap<Arc<str>, Vec<Replica>>,
    /// How many have no known holder, by reason.
    pub(super) unknown: BTreeMap<&'static str, usize>,
    /// Devices that pods hold and that no GPU of this node is.
    pub(super) strangers: BTreeSet<String>,
    /// The claims by which pods have devices, or look at them.
    pub(super) claims: BTreeSet<String>,
    /// The jobs that hold something.
    pub(super) jobs: BTreeSet<u64>,
    /// Whether there is a GPU of which Slurm has to be asked who holds it: nothing else says so.
    pub(super) asks_slurm: bool,
    /// The namespaces of the pods that hold something.
    pub(super) namespaces: BTreeSet<String>,
}

/// Who holds one device.
pub(super) enum Answer {
    Pod {
        namespace: String,
        name: String,
        container: String,
    },
    Job(u64),
    Process {
        user: String,
        name: String,
    },
    Unknown(Unknown, String),
    Nobody,
}

/// One pod's claim to a device.
struct Claim<'a> {
    held: &'a Held,
    replica: Option<u32>,
}

/// Lays everything together.
pub(super) fn found<N: Names>(known: &Known<'_, N>) -> Found {
    let mut found = Found::default();
    let directory = Directory::new(known.cards);
    let wrote = match known.slurm {
        Slurm::Wrote(it) => Some(it),
        Slurm::NotHere | Slurm::Silent => None,
    };
    let words = Words::new(known.cards, known.looked, wrote, known.given);
    let claims = claims(known, &directory, &mut found);
    let given_out = match known.kubelet {
        Kubelet::Said(List {
            allocatable: Some(Ok(all)),
            ..
        }) => replicas(all, &directory),
        _ => Replicas::new(),
    };
    let cut = known.cards.iter();
    let cut: BTreeSet<&str> = cut
        .filter(|it| it.resource.kind == ResourceKind::Share)
        .filter_map(|it| it.resource.attribute(attribute::PARENT))
        .collect();
    for card in known.cards {
        let id = &card.resource.id;
        let claims = claims.get(id).map_or(&[][..], Vec::as_slice);
        let is_cut = cut.contains(id.as_ref());
        let of_replicas = given_out.get(id).filter(|_| !is_cut);
        let of_replicas = of_replicas.and_then(|all| {
            let strangers = &found.strangers;
            known.replicas(claims, all, &|| known.nobody(card, &words, strangers))
        });
        // Of a card that is cut into instances, the instances are held, and nobody holds it any more; of a device
        // that is held by turns its replicas.
        let answer = match is_cut || of_replicas.is_some() {
            true => Answer::Nobody,
            false => known.answer(card, claims, &words).unwrap_or_else(|| {
                found.asks_slurm |= card.resource.kind == ResourceKind::Gpu && !words.is_written();
                known.asked(card, &words, &found.strangers)
            }),
        };
        if let Some(answers) = of_replicas {
            let answers = answers.into_iter();
            let noted = answers.map(|(number, it)| (number, found.note(it, known.names)));
            let noted: Vec<Replica> = noted.collect();
            found.replicas.insert(Arc::clone(id), noted);
        }
        let attributes = found.note(answer, known.names);
        found.attributes.insert(Arc::clone(id), attributes);
    }
    found
}

/// What pods hold by GPU or share.
fn claims<'a, N: Names>(
    known: &Known<'a, N>,
    directory: &Directory,
    found: &mut Found,
) -> BTreeMap<Arc<str>, Vec<Claim<'a>>> {
    let mut claims: BTreeMap<Arc<str>, Vec<Claim<'a>>> = BTreeMap::new();
    let list = match known.kubelet {
        Kubelet::Said(list) => list,
        Kubelet::ByExporter(told, _) => {
            for (id, held, replica) in told.claims() {
                let claim = Claim { held, replica };
                claims.entry(Arc::clone(id)).or_default().push(claim);
            }
            return claims;
        }
        Kubelet::NotHere | Kubelet::NotHeard(_) => return claims,
    };
    if list.left_out > 0 {
        let more = format!("{} more devices", list.left_out);
        found.strangers.insert(more);
    }
    for held in &list.held {
        if let Some(claim) = &held.claim {
            found.claims.insert(claim.clone());
            if known.names.only_looks(claim, &held.device) {
                continue;
            }
        }
        let device = match held.claim {
            Some(_) => Device::of_claim(&held.device),
            None => Device::of_plugin(&held.device),
        };
        let replica = device.as_ref().and_then(|it| it.replica);
        match device.and_then(|it| directory.find(&it)) {
            Some(id) => {
                let claim = Claim { held, replica };
                claims.entry(Arc::clone(id)).or_default().push(claim);
            }
            None if known.is_over(held) => {}
            None => _ = found.strangers.insert(held.device.clone()),
        }
    }
    claims
}

impl<N: Names> Known<'_, N> {
    /// Who holds it by the kubelet or an exporter, by the processes of Slurm's jobs or by what the prolog wrote; none where
    /// none of these says.
    fn answer(&self, card: &Card, claims: &[Claim<'_>], words: &Words<'_>) -> Option<Answer> {
        if let Some(answer) = self.claimed(claims) {
            return Some(answer);
        }
        let by_process = self.by_process(card);
        let unheard = match self.kubelet {
            Kubelet::NotHeard(why) => Some(why.to_owned()),
            Kubelet::ByExporter(told, why) => {
                let unsaid = told.unsaid(&card.resource.id);
                unsaid.map(|it| format!("{why}, and {it}"))
            }
            Kubelet::NotHere | Kubelet::Said(_) => None,
        };
        if let Some(why) = unheard {
            // Whose process it is, the kernel knows without the kubelet.
            return Some(match by_process {
                Some(answer @ (Answer::Pod { .. } | Answer::Job(_))) => answer,
                _ => Answer::Unknown(Unknown::NotHeard, why),
            });
        }
        let on_it = jobs_on(card, self.looked);
        match words.written(card) {
            Some(jobs) if on_it.is_subset(jobs) => Some(Answer::of_jobs(jobs)),
            _ if on_it.is_empty() => None,
            _ => by_process,
        }
    }

    /// Who holds it by what Slurm said when it was asked, else whose the processes on it are.
    fn asked(&self, card: &Card, words: &Words<'_>, strangers: &BTreeSet<String>) -> Answer {
        let asked = words.asked(card);
        if let Some(Asked::Jobs(jobs)) = asked {
            return Answer::of_jobs(jobs);
        }
        self.by_process(card).unwrap_or_else(|| match asked {
            Some(Asked::Held) => {
                let words = "a Slurm job that squeue does not show; with PrivateData=jobs in slurm.conf make the \
                    agent's user an operator of Slurm";
                Answer::Unknown(Unknown::Unnamed, words.to_owned())
            }
            _ => self.nobody(card, words, strangers),
        })
    }

    /// Who holds each of the replicas that a device has, where pods hold some of these and nothing else of it.
    fn replicas(
        &self,
        claims: &[Claim<'_>],
        all: &BTreeSet<u32>,
        nobody: &dyn Fn() -> Answer,
    ) -> Option<Vec<(u32, Answer)>> {
        let living = claims.iter().filter(|it| !self.is_over(it.held));
        let mut of: BTreeMap<u32, Vec<&Claim<'_>>> = BTreeMap::new();
        for claim in living {
            let number = claim.replica.filter(|it| all.contains(it))?;
            of.entry(number).or_default().push(claim);
        }
        if of.is_empty() {
            return None;
        }
        let answer = |number: &u32| {
            let claims = of.get(number).map_or(&[][..], Vec::as_slice);
            (*number, self.held_by(claims).unwrap_or_else(nobody))
        };
        Some(all.iter().map(answer).collect())
    }

    /// That nobody holds it, where everybody who would know has said who holds what: the kubelet, Slurm,
    /// and the driver of its processes.
    fn nobody(&self, card: &Card, words: &Words<'_>, strangers: &BTreeSet<String>) -> Answer {
        let may_be = |it: &&String| Device::may_be(it, &card.resource);
        let mut strangers = strangers.iter().filter(may_be).cloned().peekable();
        if strangers.peek().is_some() {
            let devices = listed(strangers);
            let words = format!("the kubelet gave away {devices}, which may be this");
            return Answer::Unknown(Unknown::Unplaced, words);
        }
        let is_free = words.asked(card) == Some(Asked::Free);
        if self.slurm == Slurm::Silent && !is_free {
            let words = "Slurm's prolog does not say which GPUs jobs have, nor do squeue and scontrol; install \
                deploy/slurm/prolog.sh";
            return Answer::Unknown(Unknown::NotHeard, words.to_owned());
        }
        if let Some(job) = words.refuted_by().filter(|_| !is_free) {
            let words = format!(
                "Slurm's prolog wrote numbers of other GPUs than job {job} computes on; install deploy/slurm/prolog.sh \
                anew, which writes UUIDs"
            );
            return Answer::Unknown(Unknown::NotHeard, words);
        }
        // deploy/slurm/prolog.sh names GPUs alone: that no file names an instance says nothing of it.
        let is_unnamed = |prolog: &Wrote| !prolog.of.contains_key(&card.resource.id);
        if card.resource.kind == ResourceKind::Share
            && matches!(self.slurm, Slurm::Wrote(prolog) if is_unnamed(prolog))
        {
            let words = "Slurm's prolog does not say which job has this instance; one that does writes a file \
                <gpu>.<instance>, empty while no job has it";
            return Answer::Unknown(Unknown::NotHeard, words.to_owned());
        }
        // An exporter that says that no pod has it is believed: where it is asked, the driver is out of reach.
        if card.processes.is_none() && !matches!(self.kubelet, Kubelet::ByExporter(..)) {
            let words = "the driver does not say which processes are on it";
            return Answer::Unknown(Unknown::NotHeard, words.to_owned());
        }
        Answer::Nobody
    }

    /// Whether the pod that it was given to has ended.
    fn is_over(&self, held: &Held) -> bool {
        let pod = self.names.pod(&held.namespace, &held.pod);
        pod.is_some_and(|it| it.is_over)
    }

    /// Which pod it was given to; none where it was given to nobody.
    fn claimed(&self, claims: &[Claim<'_>]) -> Option<Answer> {
        let living = claims.iter().filter(|it| !self.is_over(it.held));
        let living: Vec<&Claim<'_>> = living.collect();
        if !living.is_empty() && living.iter().all(|it| it.replica.is_some()) {
            return Some(self.part_held(&living));
        }
        self.held_by(&living)
    }

    /// The pod that has all of these claims to one thing; none where there are none.
    fn held_by(&self, living: &[&Claim<'_>]) -> Option<Answer> {
        let first = living.first()?;
        let pod = |it: &&Claim<'_>| (it.held.namespace.clone(), it.held.pod.clone());
        let pods: BTreeSet<_> = living.iter().map(pod).collect();
        if pods.len() == 1 {
            // Of several of its containers one that does not wait: it starts where none has begun.
            let mut all = living.iter().map(|it| it.held);
            let waits = |it: &Held| {
                self.names
                    .is_starting(&it.namespace, &it.pod, &it.container)
            };
            let held = all.find(|it| !waits(it)).unwrap_or(first.held);
            return Some(Answer::Pod {
                namespace: held.namespace.clone(),
                name: held.pod.clone(),
                container: held.container.clone(),
            });
        }
        let is_shared =
            first.held.claim.is_some() && living.iter().all(|it| it.held.claim == first.held.claim);
        let reason = match is_shared {
            true => Unknown::Shared,
            false => Unknown::ClaimedTwice,
        };
        let names = pods
            .into_iter()
            .map(|(namespace, name)| Holder::Pod { namespace, name }.to_string());
        Some(Answer::Unknown(reason, listed(names)))
    }

    /// That replicas of a device are held, by whom how many, and why it is not known of how many.
    fn part_held(&self, living: &[&Claim<'_>]) -> Answer {
        let why = match self.kubelet {
            Kubelet::Said(List {
                allocatable: Some(Err(why)),
                ..
            }) => why.as_str(),
            Kubelet::ByExporter(..) => "exporters do not say it",
            _ => "the kubelet does not give out all of these",
        };
        let held = living.iter().map(|it| it.held);
        Answer::Unknown(Unknown::PartHeld, part_held(held, why))
    }
}

impl Answer {
    /// That these jobs have it, of which there is one at least.
    fn of_jobs(jobs: &BTreeSet<u64>) -> Self {
        let names = jobs.iter().map(|it| Holder::Slurm(*it).to_string());
        match jobs.first() {
            Some(job) if jobs.len() == 1 => Self::Job(*job),
            _ => Self::Unknown(Unknown::Shared, listed(names)),
        }
    }

    /// How a reason names it.
    pub(super) fn words(&self) -> String {
        match self {
            Self::Pod {
                namespace, name, ..
            } => format!("pod:{namespace}/{name}"),
            Self::Job(job) => format!("slurm:{job}"),
            Self::Process { user, name } => format!("process:{user}/{name}"),
            Self::Unknown(_, words) => words.clone(),
            Self::Nobody => String::new(),
        }
    }
}

impl Found {
    /// An answer as attributes.
    fn note(&mut self, answer: Answer, names: &impl Names) -> Facts {
        let mut facts = Facts::new();
        let mut push = |name: &str, value: &str| {
            if !value.is_empty() {
                facts.push((name.to_owned(), value.to_owned()));
            }
        };
        match answer {
            Answer::Nobody => {}
            Answer::Unknown(reason, words) => {
                push(attribute::HOLDER_UNKNOWN, &reason.text(&words));
                *self.unknown.entry(reason.name()).or_default() += 1;
            }
            Answer::Process { user, name } => {
                push(
                    attribute::HOLDER,
                    &Holder::Process { user, name }.to_string(),
                );
            }
            Answer::Job(job) => {
                push(attribute::HOLDER, &Holder::Slurm(job).to_string());
                self.jobs.insert(job);
                facts.extend(names.job(job));
            }
            Answer::Pod {
                namespace,
                name,
                container,
            } => {
                let pod = names.pod(&namespace, &name);
                push(attribute::NAMESPACE, &namespace);
                push(attribute::POD, &name);
                push(attribute::CONTAINER, &container);
                push(attribute::POD_UID, pod.as_ref().map_or("", |it| it.uid));
                // Where processes say whose it is, no container is named, and one runs.
                if names.is_starting(&namespace, &name, &container) && !container.is_empty() {
                    push(attribute::HOLDER_STARTING, "true");
                }
                self.namespaces.insert(namespace.clone());
                let holder = Holder::Pod { namespace, name };
                push(attribute::HOLDER, &holder.to_string());
                facts.extend(pod.into_iter().flat_map(|it| it.facts));
            }
        }
        facts
    }
}

/// The first of several names, and how many more there are.
pub(super) fn listed(names: impl Iterator<Item = String>) -> String {
    let mut names: Vec<String> = names.collect();
    let more = names.len().saturating_sub(MAX_NAMED);
    names.truncate(MAX_NAMED);
    let named = names.join(", ");
    match more {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

#[cfg(test)]
#[path = "held_tests.rs"]
mod tests;
