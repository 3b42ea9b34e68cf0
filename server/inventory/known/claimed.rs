//! GPUs that a driver gives out by resource claims (Kubernetes' dynamic resource allocation) and not by a count
//! on their node: which there are, who asks for how many, which are given out.
//!
//! A node's slices say which GPUs it has; they are laid over what it says itself. A claim says how many of a class it
//! asks for, and once it is given some, which. So a GPU that several pods share by one claim is held once, and one
//! that was asked for by count on a node without a device plugin is not held twice.
//!
//! A claim that is made for a pod is made of a template, a while after the pod: until it is there, the template says
//! what the pod asks for.
//!
//! Limits: [`MAX_SLICES`], [`MAX_CLAIMS`], [`MAX_CLASSES`], [`MAX_TEMPLATES`]; with more slices or claims than that it is
//! not known what is free, with more templates not who waits, and a class beyond is taken for what its name says.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

use gpufleet_analysis::inventory::{Claim, Node};
use gpufleet_telemetry::time::Timestamp;

use super::super::look::Sight;
use super::{ClusterState, MAX_BOUND, MAX_NODES, MAX_WAITING, Moment, Standing};

/// Most slices of GPUs: a driver writes another one for each 128 devices of a node.
const MAX_SLICES: usize = 2 * MAX_NODES;

/// Most claims.
const MAX_CLAIMS: usize = MAX_BOUND;

/// Most classes of devices.
const MAX_CLASSES: usize = 1_000;

/// Most templates of claims: one for each that may wait.
const MAX_TEMPLATES: usize = MAX_WAITING;

/// Kinds of objects of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceKind {
    /// What there is.
    Slice,
    /// What it is called.
    Class,
    /// What is asked for and given out.
    Claim,
    /// What claims are made of.
    Template,
}

/// What a device, or every device of a class, is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gives {
    /// A whole GPU.
    Whole,
    /// A part of one.
    Share,
    /// No GPU, or one that another device stands for.
    Nothing,
}

/// A device of a slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its name in its pool.
    pub name: String,
    /// What it is.
    pub gives: Gives,
    /// Whether it can be given out: a taint may keep it.
    pub is_free_of_taints: bool,
    /// The counters that it takes from, which a card and its parts have in common; empty where none are told.
    pub card: String,
}

/// Devices of one kind on a node.
#[derive(Debug, Default)]
struct Offered {
    all: u32,
    /// Those that can be given out.
    can: u32,
}

/// GPUs of a node, as their driver tells them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Slice {
    /// The node.
    pub node: String,
    /// The pool of devices: usually one a node.
    pub pool: String,
    /// Slices of an older generation than the newest of their pool say nothing any more.
    pub generation: u64,
    /// The type of GPU; empty where not told.
    pub model: String,
    /// The devices.
    pub devices: Vec<Device>,
}

/// How many of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// So many.
    Exactly(u32),
    /// All of a node.
    All,
}

/// How many of which classes.
pub type Asks = Vec<(String, Count)>;

/// What a pod asks for by a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ByClaim {
    /// The claim, by namespace and name; none before it is made.
    pub claim: Option<String>,
    /// The template that it is made of, by namespace and name; none where the pod names a claim, which others may
    /// share.
    pub template: Option<String>,
}

/// What asks for GPUs, by count and by claims.
pub type Asking = (Claim, Vec<ByClaim>);

/// What a claim asks for and was given.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceClaim {
    /// How many of which class.
    pub asks: Asks,
    /// Pool and name of each device that it was given.
    pub given: Vec<(String, String)>,
    /// Whether it was given what it asks for.
    pub is_given: bool,
}

/// What a node says of its GPUs itself.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Itself {
    gpus: u32,
    allocatable: u32,
    model: String,
    is_shared: bool,
}

/// Everything that is known of it.
#[derive(Debug, Default)]
pub struct Claimed {
    /// Who tells it, by [`DeviceKind`].
    pub standings: [Standing; 4],
    /// By node and name.
    slices: BTreeMap<String, BTreeMap<String, Slice>>,
    slice_count: usize,
    /// Slices that have no place here.
    slices_left_out: BTreeSet<String>,
    classes: BTreeMap<String, Gives>,
    claims: Kept<DeviceClaim>,
    templates: Kept<Asks>,
    /// Whole GPUs of each node that claims were given, once somebody asked; every change forgets it.
    given: OnceCell<BTreeMap<String, u32>>,
    /// Of each node what it says itself.
    nodes: BTreeMap<String, Itself>,
}

/// Objects of a kind, as many as have a place here.
#[derive(Debug, Default)]
struct Kept<T> {
    /// By namespace and name.
    all: BTreeMap<String, T>,
    /// Those that have no place here.
    left_out: BTreeSet<String>,
}

impl<T> Kept<T> {
    /// One as it is now, where there are fewer than `most`; none: it is gone.
    fn put(&mut self, name: &str, object: Option<T>, most: usize) {
        self.all.remove(name);
        self.left_out.remove(name);
        let Some(object) = object else { return };
        if self.all.len() < most {
            self.all.insert(name.to_owned(), object);
        } else if self.left_out.len() < MAX_BOUND {
            self.left_out.insert(name.to_owned());
        }
    }
}

impl DeviceKind {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Slice, Self::Class, Self::Claim, Self::Template];

    /// Its name in sentences.
    pub const fn what(self) -> &'static str {
        match self {
            Self::Slice => "Which GPUs are given out by resource claims (ResourceSlices)",
            Self::Class => "Which classes of devices are GPUs (DeviceClasses)",
            Self::Claim => "Who holds and asks for GPUs by resource claims (ResourceClaims)",
            Self::Template => {
                "What asks for GPUs before its resource claims are made (ResourceClaimTemplates)"
            }
        }
    }
}

impl Claimed {
    /// Who tells a kind.
    pub fn standing(&mut self, kind: DeviceKind) -> &mut Standing {
        &mut self.standings[kind as usize]
    }

    /// Whether it is known whether there are such GPUs: until then nodes are not to be taken for empty.
    pub fn is_decided(&self) -> bool {
        self.standings[DeviceKind::Slice as usize].is_decided()
    }

    /// All slices as they are now, by name; returns the nodes that it concerns.
    pub fn all_slices(&mut self, all: Vec<(String, Slice)>, now: Moment) -> BTreeSet<String> {
        let before = std::mem::take(&mut self.slices);
        (self.slice_count, self.slices_left_out) = (0, BTreeSet::new());
        self.given.take();
        for (name, slice) in all {
            self.slice(&name, slice);
        }
        self.standing(DeviceKind::Slice).whole(now);
        let both = before.keys().chain(self.slices.keys());
        both.cloned().collect()
    }

    /// A slice as it is now.
    pub fn slice(&mut self, name: &str, slice: Slice) {
        self.slice_gone(name, &slice.node);
        if self.slice_count < MAX_SLICES {
            self.slice_count += 1;
            let of_node = self.slices.entry(slice.node.clone()).or_default();
            of_node.insert(name.to_owned(), slice);
        } else if self.slices_left_out.len() < MAX_SLICES {
            self.slices_left_out.insert(name.to_owned());
        }
    }

    /// A slice of this node is gone.
    pub fn slice_gone(&mut self, name: &str, node: &str) {
        self.given.take();
        self.slices_left_out.remove(name);
        let Some(of_node) = self.slices.get_mut(node) else {
            return;
        };
        self.slice_count -= usize::from(of_node.remove(name).is_some());
        if of_node.is_empty() {
            self.slices.remove(node);
        }
    }

    /// All classes as they are now.
    pub fn all_classes(&mut self, all: BTreeMap<String, Gives>, now: Moment) {
        self.classes = all.into_iter().take(MAX_CLASSES).collect();
        self.standing(DeviceKind::Class).whole(now);
    }

    /// A class as it is now; none: it is gone.
    pub fn class(&mut self, name: &str, gives: Option<Gives>) {
        self.classes.remove(name);
        if let Some(gives) = gives.filter(|_| self.classes.len() < MAX_CLASSES) {
            self.classes.insert(name.to_owned(), gives);
        }
    }

    /// All claims as they are now.
    pub fn all_claims(&mut self, all: BTreeMap<String, DeviceClaim>, now: Moment) {
        self.claims = Kept::default();
        self.given.take();
        for (name, claim) in all {
            self.claim(&name, Some(claim));
        }
        self.standing(DeviceKind::Claim).whole(now);
    }

    /// A claim as it is now, by namespace and name; none: it is gone.
    pub fn claim(&mut self, name: &str, claim: Option<DeviceClaim>) {
        self.given.take();
        self.claims.put(name, claim, MAX_CLAIMS);
    }

    /// All templates as they are now.
    pub fn all_templates(&mut self, all: BTreeMap<String, Asks>, now: Moment) {
        self.templates = Kept::default();
        for (name, asks) in all {
            self.template(&name, Some(asks));
        }
        self.standing(DeviceKind::Template).whole(now);
    }

    /// A template as it is now, by namespace and name; none: it is gone.
    pub fn template(&mut self, name: &str, asks: Option<Asks>) {
        self.templates.put(name, asks, MAX_TEMPLATES);
    }

    /// Whether what is asked for so is only to be known of a template, and that has no place here or is not told.
    pub fn is_unknown(&self, by: &ByClaim, now: Moment) -> bool {
        let Some(template) = &by.template else {
            return false;
        };
        let is_made = by
            .claim
            .as_ref()
            .is_some_and(|it| self.claims.all.contains_key(it));
        let sight = self.standings[DeviceKind::Template as usize].sight(now);
        let is_told = matches!(sight, Sight::Seen | Sight::Absent(_));
        !is_made && (!is_told || self.templates.left_out.contains(template))
    }

    /// A node with the GPUs that its slices tell, of which it says this itself.
    pub fn over(&mut self, node: Node) -> Node {
        let itself = Itself {
            gpus: node.gpus,
            allocatable: node.allocatable,
            model: node.model.clone(),
            is_shared: node.is_shared,
        };
        self.nodes.insert(node.name.clone(), itself);
        self.laid_over(node)
    }

    /// The same of one that is known, when its slices changed; none where it is not known.
    pub fn over_again(&self, mut node: Node) -> Option<Node> {
        let itself = self.nodes.get(&node.name)?;
        (node.gpus, node.allocatable) = (itself.gpus, itself.allocatable);
        node.model.clone_from(&itself.model);
        node.is_shared = itself.is_shared;
        Some(self.laid_over(node))
    }

    fn laid_over(&self, mut node: Node) -> Node {
        let (mut whole, mut shares) = (Offered::default(), Offered::default());
        let slices = self.slices.get(&node.name).into_iter();
        for (slice, device) in slices.flat_map(newest) {
            let offered = match device.gives {
                Gives::Whole => &mut whole,
                Gives::Share => &mut shares,
                Gives::Nothing => continue,
            };
            offered.all += 1;
            offered.can += u32::from(device.is_free_of_taints);
            if node.model.is_empty() {
                node.model.clone_from(&slice.model);
            }
        }
        // Shares beside whole GPUs may be parts of them, so they count only alone.
        let are_alone = whole.all == 0 && (node.gpus == 0 || node.is_shared);
        node.is_shared |= are_alone && shares.all > 0;
        let told = if are_alone { shares } else { whole };
        // A GPU that plugin and driver both tell is one.
        node.gpus = node.gpus.max(told.all);
        node.allocatable = node.allocatable.max(told.can);
        node
    }

    /// A node is forgotten.
    pub fn forget(&mut self, is_there: impl Fn(&str) -> bool) {
        self.nodes.retain(|name, _| is_there(name));
    }

    /// All devices.
    fn devices(&self) -> impl Iterator<Item = (&Slice, &Device)> {
        self.slices.values().flat_map(newest)
    }

    /// Whole GPUs that are held on each node: what pods ask for by count, and what claims were given. None where not
    /// all slices and claims are known.
    pub fn held(&self, by_count: &BTreeMap<String, u32>) -> Option<BTreeMap<String, u32>> {
        if !self.slices_left_out.is_empty() {
            return None;
        }
        if self.slices.is_empty() {
            return Some(by_count.clone());
        }
        let claims = &self.standings[DeviceKind::Claim as usize];
        if claims.whole_since.is_none() || !self.claims.left_out.is_empty() {
            return None;
        }
        // What is asked for by count where no plugin counts is given by a claim that the scheduler makes.
        let counts = |node: &str| self.nodes.get(node).is_none_or(|it| it.gpus > 0);
        let mut held: BTreeMap<String, u32> = by_count.clone();
        held.retain(|node, _| counts(node));
        for (node, given) in self.given.get_or_init(|| self.given()) {
            let held = held.entry(node.clone()).or_default();
            *held = held.saturating_add(*given);
        }
        Some(held)
    }

    /// Whole GPUs of each node that claims were given: a walk over all devices.
    fn given(&self) -> BTreeMap<String, u32> {
        let mut whole: BTreeMap<(&str, &str), &str> = BTreeMap::new();
        let mut cards: BTreeMap<(&str, &str), &str> = BTreeMap::new();
        for (slice, device) in self.devices().filter(|it| it.1.gives == Gives::Whole) {
            whole.insert((&slice.pool, &device.name), &slice.node);
            cards.insert((&slice.pool, &device.card), &device.name);
        }
        // Who is given a part takes the whole of which it is one, where both are told.
        let mut parts: BTreeMap<(&str, &str), &str> = BTreeMap::new();
        for (slice, part) in self.devices().filter(|it| !it.1.card.is_empty()) {
            if let Some(card) = cards.get(&(slice.pool.as_str(), part.card.as_str())) {
                parts.insert((&slice.pool, &part.name), card);
            }
        }
        let mut given: BTreeMap<String, u32> = BTreeMap::new();
        for (pool, device) in self.claims.all.values().flat_map(|it| &it.given) {
            let of = (pool.as_str(), device.as_str());
            let of = parts.get(&of).map_or(of, |whole| (of.0, *whole));
            // Taken away, so that one that two claims share is one.
            if let Some(node) = whole.remove(&of) {
                *given.entry(node.to_owned()).or_default() += 1;
            }
        }
        given
    }

    /// What waits, with what its claims ask for beside what it asks for itself; none where that is no GPU.
    pub fn waits<'a>(
        &self,
        claim: &Claim,
        by: impl IntoIterator<Item = &'a ByClaim>,
    ) -> Option<Claim> {
        let (mut whole, mut shares) = match claim.is_shares {
            true => (0, claim.gpus_each),
            false => (claim.gpus_each, 0),
        };
        for (class, count) in by.into_iter().flat_map(|it| self.asked(it)) {
            let gives = self.classes.get(class).copied();
            match gives.unwrap_or_else(|| by_name(class)) {
                Gives::Whole => whole = whole.saturating_add(self.count(*count)),
                Gives::Share => shares = shares.saturating_add(self.count(*count)),
                Gives::Nothing => {}
            }
        }
        let gpus_each = if whole > 0 { whole } else { shares };
        (gpus_each > 0).then(|| Claim {
            gpus_each,
            is_shares: whole == 0,
            ..claim.clone()
        })
    }

    /// What is asked for by a claim that was given nothing yet.
    fn asked(&self, by: &ByClaim) -> &[(String, Count)] {
        let claim = by.claim.as_ref().and_then(|it| self.claims.all.get(it));
        match (claim, &by.template) {
            (Some(claim), _) if claim.is_given => &[],
            (Some(claim), _) => &claim.asks,
            (None, Some(template)) => self.templates.all.get(template).map_or(&[], Vec::as_slice),
            (None, None) => &[],
        }
    }

    /// All of a node are as many as the largest has.
    fn count(&self, count: Count) -> u32 {
        match count {
            Count::Exactly(count) => count,
            Count::All => {
                let whole = |it: &BTreeMap<String, Slice>| {
                    let devices = newest(it);
                    devices.filter(|it| it.1.gives == Gives::Whole).count()
                };
                let most = self.slices.values().map(whole).max().unwrap_or(1);
                u32::try_from(most).unwrap_or(u32::MAX)
            }
        }
    }
}

impl ClusterState {
    /// Slices of the GPUs of these nodes changed.
    pub fn slices_changed<'a>(&mut self, nodes: impl Iterator<Item = &'a str>, now: Timestamp) {
        for name in nodes {
            let known = self.records.get(name).filter(|it| !it.is_gone());
            let node = known.and_then(|it| self.claimed.over_again(it.node.clone()));
            if let Some(node) = node {
                self.take(node, now);
            }
        }
    }
}

/// Devices of a node's slices that are of the newest generation of their pool.
fn newest(slices: &BTreeMap<String, Slice>) -> impl Iterator<Item = (&Slice, &Device)> {
    let is_newest = |it: &&Slice| {
        let of_pool = slices.values().filter(|other| other.pool == it.pool);
        of_pool.map(|it| it.generation).max() == Some(it.generation)
    };
    let slices = slices.values().filter(is_newest);
    slices.flat_map(|it| it.devices.iter().map(move |device| (it, device)))
}

/// What a class gives that was not read: those that NVIDIA's driver comes with.
fn by_name(class: &str) -> Gives {
    match class {
        "gpu.nvidia.com" | "vfio.gpu.nvidia.com" => Gives::Whole,
        "mig.nvidia.com" => Gives::Share,
        _ => Gives::Nothing,
    }
}

#[cfg(test)]
#[path = "claimed_tests.rs"]
mod tests;
