//! Who holds which GPU, and what this node is: pods by the kubelet, else by exporters, and the Kubernetes API, Slurm jobs
//! by cgroup, prolog, `squeue` and `scontrol`, else whose processes compute there.
//!
//! A reader as any other: what it returns of a GPU or share are attributes, which the collector lays
//! beside those of the reader that measures it. Nothing is looked up when a reading is taken. What the
//! kubelet said counts for [`KEEP_FOR`]; after that nobody knows who holds a GPU, which is not the same
//! as that nobody holds it.
//!
//! Read in this order: [`users`], [`kubelet`], [`exported`], [`devices`] and [`replicas`], [`cgroup`] and [`processes`],
//! [`api`] and [`cluster`] with [`pods`] and [`labels`], [`learned`] with [`claims`], [`slurm`] and [`names`], [`prolog`],
//! [`allocations`] and [`given`], [`look`], [`node`] and [`metadata`]; [`by_process`] and [`held`] lay it together,
//! [`health`] says how it goes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use gpufleet_program::kubernetes;
use gpufleet_program::section;
use gpufleet_telemetry::identity::attribute;
use gpufleet_telemetry::sample::Readings;
use tokio::time::Instant;

use crate::config::Config;
use crate::read::{NodeFacts, Read, ReadError, ReadFuture, Readers, Turn, Wiring, boxed};

pub mod users;

pub mod kubelet;

pub mod exported;

mod devices;

mod replicas;

pub mod cgroup;

mod processes;

pub mod api;

mod labels;

mod pods;

mod cluster;

mod claims;

pub mod slurm;

mod prolog;

mod allocations;

mod given;

mod names;

mod look;

mod node;

mod metadata;

mod standing;

mod task;

mod answers;

mod learned;

mod by_process;

mod held;

mod strange;

mod resources;

mod health;

pub mod bytes;

use allocations::{Allocations, Given};
use answers::Answers;
use claims::Claims;
use cluster::Cluster;
use exported::{Exported, Told};
use held::{Found, Known, Kubelet};
use labels::Facts;
use learned::Learned;
use look::Look;
use metadata::Metadata;
use names::Getent;
use processes::Processes;
use prolog::Prolog;
use slurm::Scontrol;
use standing::{Source, Standing};
use strange::Strange;
use users::{Card, Users};

section! {
    /// Who holds which GPU: pods, Slurm jobs, processes.
    pub struct AttributeConfig {
        /// Whether it is asked who holds GPUs.
        pub enabled: bool = true,
        /// Seconds between two rounds, 1 to 30.
        pub period_seconds: u64 = 5,
        /// The kubelet's socket for who has which device. A machine without its folder, outside of a pod,
        /// is no node of Kubernetes. Empty: nobody is asked; the pods that an exporter names hold GPUs then.
        pub kubelet_socket: PathBuf =
            PathBuf::from("/var/lib/kubelet/pod-resources/kubelet.sock"),
        /// The name of the agent's own pod, as the downward API tells it. A list of the kubelet without that pod is not
        /// believed: it has just begun, and does not know its pods yet. Empty: every list is believed.
        pub pod_name: String = String::new(),
        /// The namespace of that pod.
        pub pod_namespace: String = String::new(),
        /// The address of the Kubernetes API, https:// unless it is on this machine. Empty: where a pod
        /// finds it, and nobody is asked where there is no token.
        pub kubernetes_url: String = String::new(),
        /// The file with the token for it, read again when it changes.
        pub kubernetes_token_file: PathBuf =
            PathBuf::from("/var/run/secrets/kubernetes.io/serviceaccount/token"),
        /// The certificates (PEM) that its own must come from.
        pub kubernetes_ca_file: PathBuf =
            PathBuf::from("/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"),
        /// Labels of pods that become attributes of what they hold; with those of namespaces 16.
        pub labels: Vec<String> = ["team", "app.kubernetes.io/name", "app.kubernetes.io/part-of"]
            .map(str::to_owned)
            .into(),
        /// Labels of namespaces that do.
        pub namespace_labels: Vec<String> = vec!["team".to_owned()],
        /// The program that knows Slurm's jobs; by its name it is looked for as the shell does.
        pub scontrol_path: PathBuf = PathBuf::from("scontrol"),
        /// The program that knows which GPUs they have; asked, with that one, while nothing else says who has a GPU.
        /// Empty: neither is asked for that.
        pub squeue_path: PathBuf = PathBuf::from("squeue"),
        /// The node's name in Slurm; empty: its name here, up to the first dot.
        pub slurm_node: String = String::new(),
        /// The folder in which Slurm's prolog writes which job has which GPU. Files from before the machine
        /// started do not count.
        pub slurm_jobs_folder: PathBuf = PathBuf::from("/var/lib/gpufleet-jobs"),
    }
}

/// The name of this reader.
pub const SOURCE: &str = "attribute";

/// What to do where other users' processes cannot be seen.
pub(crate) const SEE_PROCESSES: &str =
    "run as root, or mount /proc without hidepid; in Kubernetes set hostPID: true";

/// For so long counts what the kubelet said last: three ticks, in which a kubelet restarts.
const KEEP_FOR: Duration = Duration::from_secs(30);

/// Longest a round may take: the kubelet's answer and the look.
const DEADLINE: Duration = Duration::from_millis(3_500);

/// For so long a round waits for what is said of a job or a claim that it was the first to find; of each once.
const NEW_WITHIN: Duration = Duration::from_secs(1);

/// So long after its beginning a round waits for nobody any more: the rest of it needs no time.
const LATEST: Duration = Duration::from_secs(3);

/// The reader.
pub struct Attribution {
    config: AttributeConfig,
    period: Duration,
    sys: PathBuf,
    metadata_server: String,
    /// What the config says of the node.
    said: Facts,
    users: Arc<Users>,
    exported: Arc<Exported>,
    /// The folder that the machine's paths are under: `/`, but in tests.
    root: PathBuf,
    /// The program that knows users that are in no file.
    getent: PathBuf,
    /// Whether this agent is in a pod: then its node is one of Kubernetes.
    is_in_pod: bool,
    /// Begun with the first round: before it nothing is asked.
    tasks: Option<Tasks>,
    kubelet: Standing,
    /// Whether this is a node of Kubernetes; once it was, its kubelet is missed.
    has_kubelet: bool,
    /// Whether this is a node of Slurm; once it was, it is.
    has_slurm: bool,
    list: kubelet::List,
    prolog: Prolog,
    look: Look,
    /// How long it waits for what is said of something new: [`NEW_WITHIN`], but in tests.
    patience: Duration,
    /// Who failed in the last round.
    failing: BTreeSet<Source>,
    strange: Strange,
}

struct Tasks {
    cluster: Option<Cluster>,
    /// None where there is nobody to ask.
    claims: Option<Learned<Claims>>,
    slurm: Learned<Scontrol>,
    names: Option<Learned<Getent>>,
    allocations: Option<Allocations>,
    metadata: Option<Metadata>,
}

impl AttributeConfig {
    /// Whether these can work together.
    ///
    /// # Errors
    /// Names the key and says what it may be.
    pub fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            (1..=30).contains(&self.period_seconds),
            "attribute.period_seconds = {}: it must be 1 to 30",
            self.period_seconds
        );
        let labels = self.labels.len() + self.namespace_labels.len();
        anyhow::ensure!(
            labels <= attribute::MAX_HOLDER_LABELS,
            "attribute.labels and attribute.namespace_labels are {labels}: together they may be {}",
            attribute::MAX_HOLDER_LABELS
        );
        anyhow::ensure!(
            self.pod_name.is_empty() == self.pod_namespace.is_empty(),
            "attribute.pod_name = \"{}\", attribute.pod_namespace = \"{}\": set both or neither",
            self.pod_name,
            self.pod_namespace
        );
        match self.kubernetes_url.as_str() {
            "" => Ok(()),
            url => kubernetes::is_secure(url, api::URL_KEY)
                .map(|_| ())
                .map_err(anyhow::Error::from_boxed),
        }
    }

    /// Namespace and name of the agent's own pod; none where that is not known.
    pub(crate) fn own_pod(&self) -> Option<(&str, &str)> {
        let own = (self.pod_namespace.as_str(), self.pod_name.as_str());
        (!self.pod_name.is_empty()).then_some(own)
    }

    /// Whether its files can be used now. A start does not depend on it: in a pod that has just begun they
    /// may not be there yet, and the agent tries again.
    ///
    /// # Errors
    /// Names the file that cannot be used.
    pub fn rehearse(&self) -> anyhow::Result<()> {
        match api::base_of(self).filter(|_| self.enabled) {
            Some(base) => api::open(&base, self)
                .map(|_| ())
                .map_err(anyhow::Error::from_boxed),
            None => Ok(()),
        }
    }
}

/// The reader, where the config wants it.
pub(crate) fn readers(config: &Config, wiring: &mut Wiring) -> anyhow::Result<Readers> {
    let reader = Attribution::new(config, Arc::clone(&wiring.users));
    Ok(boxed(reader.map(|it| Attribution {
        exported: Arc::clone(&wiring.exported),
        ..it
    })))
}

impl Attribution {
    /// The reader, where the config wants it; `users` knows the GPUs and the processes on them.
    pub fn new(config: &Config, users: Arc<Users>) -> Option<Self> {
        let own = &config.attribute;
        if !own.enabled {
            return None;
        }
        let proc = &config.host.proc_folder;
        let processes = Processes::new(proc, Path::new("/etc/passwd"));
        Some(Self {
            period: Duration::from_secs(own.period_seconds),
            sys: config.host.sys_folder.clone(),
            metadata_server: config.node.metadata_server.clone(),
            said: config.node.facts(),
            users,
            exported: Arc::default(),
            root: PathBuf::from("/"),
            getent: PathBuf::from("getent"),
            is_in_pod: kubernetes::in_pod().is_some(),
            tasks: None,
            kubelet: Standing::default(),
            has_kubelet: false,
            has_slurm: false,
            list: kubelet::List::default(),
            prolog: Prolog::new(&own.slurm_jobs_folder, proc),
            look: Look::new(processes),
            patience: NEW_WITHIN,
            failing: BTreeSet::new(),
            strange: Strange::default(),
            config: own.clone(),
        })
    }

    async fn round(&mut self, turn: &Turn) -> Readings {
        let began = Instant::now();
        let tasks = self.tasks(&turn.node);
        let (mut answers, mut given) = tasks.answers();
        let in_cloud = tasks.metadata.as_ref().map(Metadata::known);
        let names = tasks.names.as_ref().map(|it| it.known().0);
        let names = names.unwrap_or_default();
        self.ask_kubelet().await;
        let mut cards = self.users.cards();
        let told = match self.has_kubelet {
            true => self.exported.lay(&mut cards),
            false => Told::default(),
        };
        self.look.again(&cards, &self.prolog).await;
        let unnamed = self.look.seen.looked.name(&names);
        let seen = &self.look.seen;
        self.has_slurm = self.has_slurm
            || seen.prolog.is_some()
            || !seen.looked.jobs().is_empty()
            || slurm::is_node(&self.root);
        let mut found = self.lay(&cards, &told, &answers, given.as_deref());
        let until = (Instant::now() + self.patience).min(began + LATEST.max(self.patience));
        let tasks = self.tasks(&turn.node);
        if tasks.ask_for_new(&found, until).await {
            (answers, given) = tasks.answers();
            found = self.lay(&cards, &told, &answers, given.as_deref());
        }
        let sources = self.sources(&answers);
        let mut events = self.events(&sources, turn);
        let metadata = self.tasks.as_ref().and_then(|it| it.metadata.as_ref());
        events.extend(metadata.and_then(|it| it.notice(turn)));
        self.strange.tell(&found);
        let mut resources = resources::resources(&cards, &found);
        resources.extend(replicas::resources(&cards, &found.replicas, &turn.node));
        let node = self.node(turn, &answers, in_cloud.as_deref(), &sources, &found);
        let paid = node.resource.attribute(attribute::PROVISIONING);
        if let Some(metadata) = metadata.filter(|_| paid == Some(metadata::SPOT)) {
            metadata.is_spot();
        }
        resources.push(node);
        if let Some(tasks) = &self.tasks {
            if let Some(names) = &tasks.names {
                names.want(unnamed);
            }
            if let Some(allocations) = &tasks.allocations {
                let is_wanted = self.has_slurm && found.asks_slurm;
                allocations.want(is_wanted, self.look.seen.looked.jobs());
            }
            if let Some(cluster) = &tasks.cluster {
                cluster.want(found.namespaces);
                if told.names_pods() {
                    cluster.watch_pods();
                }
            }
        }
        Readings {
            at: turn.at,
            resources,
            events,
        }
    }

    /// Lays together what is known now.
    fn lay(&self, cards: &[Card], told: &Told, names: &Answers, given: Option<&Given>) -> Found {
        let why = self
            .kubelet
            .error()
            .unwrap_or("the kubelet is not asked: attribute.kubelet_socket is empty");
        let kubelet = match self.kubelet.age() {
            _ if !self.has_kubelet => Kubelet::NotHere,
            Some(age) if age <= KEEP_FOR => Kubelet::Said(&self.list),
            _ if told.is_empty() => Kubelet::NotHeard(why),
            _ => Kubelet::ByExporter(told, why),
        };
        held::found(&Known {
            cards,
            kubelet,
            slurm: match &self.look.seen.prolog {
                Some(jobs) => held::Slurm::Wrote(jobs),
                None if self.has_slurm => held::Slurm::Silent,
                None => held::Slurm::NotHere,
            },
            given,
            looked: &self.look.seen.looked,
            names,
        })
    }

    fn tasks(&mut self, node: &NodeFacts) -> &Tasks {
        let config = &self.config;
        let (server, sys, getent) = (&self.metadata_server, &self.sys, &self.getent);
        self.tasks.get_or_insert_with(|| Tasks {
            cluster: Cluster::start(&node.node, config),
            claims: Claims::start(config),
            slurm: Learned::start(Scontrol(config.scontrol_path.clone())),
            // A container's directory is not the node's.
            names: (!self.is_in_pod).then(|| Getent::start(getent)),
            allocations: Allocations::of(config, &node.node),
            metadata: Metadata::start(server, sys),
        })
    }

    /// What pods hold now; a failure leaves what was known.
    async fn ask_kubelet(&mut self) {
        let socket = &self.config.kubelet_socket;
        // Who may not look does not know that there is none.
        let folder = socket.parent().map(fs::metadata);
        let is_absent =
            folder.is_none_or(|it| it.is_err_and(|it| it.kind() == io::ErrorKind::NotFound));
        self.has_kubelet |= self.is_in_pod || !is_absent;
        if !self.has_kubelet || socket.as_os_str().is_empty() {
            return;
        }
        match kubelet::list(socket, self.config.own_pod()).await {
            Ok(list) => {
                self.list = list;
                self.kubelet.heard();
            }
            Err(error) => self.kubelet.failed(Source::Kubelet, error.to_string()),
        }
    }
}

impl Tasks {
    /// What they know now, and which GPUs Slurm said that jobs have.
    fn answers(&self) -> (Answers, Option<Arc<Given>>) {
        let allocations = self.allocations.as_ref().map(Allocations::known);
        let (given, allocations) = allocations.unwrap_or_default();
        let (jobs, slurm) = self.slurm.known();
        let claims = self.claims.as_ref().map(Learned::known);
        let (claims, claims_standing) = claims.unwrap_or_default();
        let answers = Answers {
            cluster: self.cluster.as_ref().map(Cluster::known),
            claims,
            claims_standing,
            jobs,
            slurm,
            allocations,
        };
        (answers, given)
    }

    /// Has asked for what a round was the first to find, and waits for it a moment: what is sent next would have a job
    /// without its owner, and a short one for good, or a GPU held by who only looks at it. Whether there was something new.
    async fn ask_for_new(&self, found: &Found, until: Instant) -> bool {
        let jobs = self.slurm.want(found.jobs.clone());
        let mut is_new = !jobs.is_empty();
        if let Some(asked) = &self.claims {
            let claims = asked.want(found.claims.clone());
            asked.wait_for(&claims, until).await;
            is_new |= !claims.is_empty();
        }
        self.slurm.wait_for(&jobs, until).await;
        is_new
    }
}

impl Read for Attribution {
    fn name(&self) -> &str {
        SOURCE
    }

    fn deadline(&self) -> Duration {
        DEADLINE
    }

    fn period(&self) -> Duration {
        self.period
    }

    fn read<'a>(&'a mut self, turn: Turn) -> ReadFuture<'a> {
        Box::pin(async move { Ok::<_, ReadError>(self.round(&turn).await) })
    }
}

#[cfg(test)]
#[path = "attribute/tests.rs"]
mod tests;
