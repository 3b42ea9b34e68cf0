//! A run whose traffic between nodes goes over the wrong network: the host's port carries it, while the ports
//! that were bought for it are up and silent. NCCL has then fallen back to sockets, 4 to 5 times slower.
//!
//! Method. Of each node of the run the busy port is the Ethernet port with the most bytes that go both ways:
//! the lesser of what it sends and what it receives. Collectives send as much as they receive, reading data
//! and saving checkpoints do not, so one way is less than [`MOST_UNEVEN`] × the other. The fast ports are the
//! RDMA ports that are up; on a node without any the other Ethernet ports that are up, when there are
//! [`LEAST_PORTS`] and each is as fast as the busy one. A node goes the wrong way when the busy port carries
//! [`LEAST_BYTES`] a second each way and all fast ports together less than [`SILENT_PART`] of it. A run does
//! when [`LEAST_NODES`] of its nodes and [`WRONG_PART`] of those that are known do, at [`WRONG_LOOKS`] of the last
//! [`LOOKS`] looks, and when something shows that its ranks talk between nodes at all: a communicator across them, or
//! waits in collectives. Where neither is told, a setting that keeps NCCL from the fast ports says whose the traffic is;
//! without one it is nobody's ([`Silent::NotKnownWhose`]).
//!
//! Why: the settings of NCCL that the run's fingerprint has, in the order in which they decide. Where none of
//! them says so, the network's plugin or library was not found in the container, which NCCL writes to its log.
//!
//! Price: of the time that a step waits in collectives, what a network loses that is as many times slower as
//! the busy port is slower than the fast ones together, at most [`MOST_TIMES`]: sockets were measured 4 to
//! 5 times slower, whatever line rates promise. Without the ports' speeds, or the steps' waits, no price.
//!
//! Limits: a port of which no bytes are read makes its node unknown; a run that shares its nodes with another is
//! judged by the traffic of both, which is silent on the fast ports only if both are; NVLink between nodes
//! needs no network, and then no port is busy; where RDMA ports are there for storage alone and training is meant
//! to go over Ethernet, such runs are told all the same.

use std::collections::BTreeMap;

use crate::port::Port;

/// Bytes a second each way from which a port is busy: 0.4 Gbit/s. Log in, scrapes and a training script's
/// own chatter are far below; a job that moves less between its nodes does not wait for it.
pub const LEAST_BYTES: f64 = 50e6;
/// One way is less than this times the other.
pub const MOST_UNEVEN: f64 = 2.0;
/// The fast ports carry less than this part of the busy one.
pub const SILENT_PART: f64 = 0.05;
/// Ethernet ports that are one for each pair of GPUs at least; fewer are not there for GPUs.
pub const LEAST_PORTS: usize = 4;
/// Nodes that go the wrong way.
pub const LEAST_NODES: usize = 2;
/// Part of the nodes known that does.
pub const WRONG_PART: f64 = 0.75;
/// Part of the run's nodes of which the ports are known.
const KNOWN_PART: f64 = 0.5;
/// Looks that are remembered: a minute.
pub const LOOKS: u32 = 6;
/// Of these so many have to be wrong.
pub const WRONG_LOOKS: u32 = 5;
/// As many times slower a wrong network is reckoned at most.
pub const MOST_TIMES: f64 = 4.0;

/// From when traffic is on the wrong network.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Thresholds {
    /// Bytes a second each way over the slow port.
    pub bytes: f64,
    /// Less than this part of it over the fast ones.
    pub silent_part: f64,
    /// At this part of the nodes.
    pub nodes_part: f64,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            bytes: LEAST_BYTES,
            silent_part: SILENT_PART,
            nodes_part: WRONG_PART,
        }
    }
}

/// What is looked at of a run.
#[derive(Debug, Clone, Copy)]
pub struct Look<'a> {
    /// The ports of each of its nodes, by the node's name.
    pub nodes: &'a [(&'a str, &'a [Port])],
    /// Whether its ranks talk between nodes: a communicator across them, or waits in collectives. None is not
    /// known.
    pub talks: Option<bool>,
    /// Its fingerprint: versions and settings.
    pub settings: &'a BTreeMap<String, String>,
}

/// The setting that is likely to have done it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Its name.
    pub key: &'static str,
    /// What it is set to.
    pub value: String,
}

/// That it goes the wrong way.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// A node that does, the first by name.
    pub node: String,
    /// How many nodes do.
    pub nodes: usize,
    /// Its port that carries it.
    pub busy: String,
    /// What that carries each way, bytes a second.
    pub bytes_per_second: f64,
    /// Its fast ports.
    pub idle_ports: usize,
    /// What those carry together, both ways, bytes a second.
    pub idle_bytes_per_second: f64,
    /// Whether those are RDMA ports.
    pub are_rdma: bool,
    /// What is likely to have done it; none where no setting says so.
    pub setting: Option<Setting>,
    /// How many times slower the way is at least that it takes; none where speeds are not known.
    pub times: Option<f64>,
}

/// Why nothing is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Silent {
    /// It has no two nodes.
    OneNode,
    /// Its ranks hardly wait for one another: it costs nothing which way they talk, if they do.
    NotKnownToTalk,
    /// Its nodes' traffic goes the wrong way, and nothing shows that it is that of its ranks.
    NotKnownWhose,
    /// The ports of too few nodes are known.
    PortsUnknown,
    /// Too few looks so far.
    Starting,
}

/// The state of one run: 2 bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Watch {
    /// The last looks, one bit each, the newest lowest.
    wrong: u8,
    looks: u8,
}

/// What the ports of one node say.
struct Way<'a> {
    busy: &'a Port,
    each_way: f64,
    fast: Vec<&'a Port>,
    on_fast: f64,
}

impl Watch {
    /// Looks at a run, once a tick.
    ///
    /// # Errors
    /// Why nothing can be said.
    pub fn observe(&mut self, look: &Look<'_>) -> Result<Option<Finding>, Silent> {
        self.observe_by(look, &Thresholds::default())
    }

    /// The same by these thresholds.
    ///
    /// # Errors
    /// Why nothing can be said.
    pub fn observe_by(
        &mut self,
        look: &Look<'_>,
        by: &Thresholds,
    ) -> Result<Option<Finding>, Silent> {
        if look.nodes.len() < LEAST_NODES {
            return Err(Silent::OneNode);
        }
        if look.talks == Some(false) {
            return Err(Silent::NotKnownToTalk);
        }
        let ways = look.nodes.iter().map(|(node, ports)| (*node, way(ports)));
        let known: Vec<(&str, Way<'_>)> = ways.filter_map(|(node, it)| Some((node, it?))).collect();
        let part = |of: usize, all: usize| of as f64 / all.max(1) as f64;
        if known.is_empty() || part(known.len(), look.nodes.len()) < KNOWN_PART {
            return Err(Silent::PortsUnknown);
        }
        let mut wrong: Vec<&(&str, Way<'_>)> =
            known.iter().filter(|it| it.1.is_wrong(by)).collect();
        wrong.sort_by_key(|it| it.0);
        let is_wrong =
            wrong.len() >= LEAST_NODES && part(wrong.len(), known.len()) >= by.nodes_part;
        self.wrong = self.wrong << 1 | u8::from(is_wrong);
        self.looks = self.looks.saturating_add(1);
        if u32::from(self.looks) < LOOKS {
            return Err(Silent::Starting);
        }
        let lately = self.wrong & ((1 << LOOKS) - 1);
        let is_so = is_wrong && lately.count_ones() >= WRONG_LOOKS;
        let first = wrong.first().filter(|_| is_so);
        let found = first.map(|(node, way)| way.finding(node, wrong.len(), look.settings));
        match found {
            Some(it) if look.talks.is_none() && it.setting.is_none() => Err(Silent::NotKnownWhose),
            found => Ok(found),
        }
    }
}

impl Way<'_> {
    fn is_wrong(&self, by: &Thresholds) -> bool {
        let (sent, received) = (
            self.busy.sent.unwrap_or(0.0),
            self.busy.received.unwrap_or(0.0),
        );
        let is_even = sent.max(received) < MOST_UNEVEN * self.each_way;
        let is_silent = self.on_fast < by.silent_part * (sent + received);
        self.each_way >= by.bytes && is_even && is_silent
    }

    fn finding(&self, node: &str, nodes: usize, settings: &BTreeMap<String, String>) -> Finding {
        let are_rdma = self.fast.iter().any(|it| it.is_rdma);
        let speeds: Option<Vec<f64>> = self.fast.iter().map(|it| it.speed).collect();
        let fast = speeds.map(|it| it.iter().sum::<f64>());
        let times = fast.zip(self.busy.speed).map(|(fast, busy)| fast / busy);
        Finding {
            node: node.to_owned(),
            nodes,
            busy: self.busy.name.to_string(),
            bytes_per_second: self.each_way,
            idle_ports: self.fast.len(),
            idle_bytes_per_second: self.on_fast,
            are_rdma,
            setting: setting(settings, &self.fast),
            times: times.filter(|it| it.is_finite() && *it > 1.0),
        }
    }
}

impl Finding {
    /// The part of the waits in collectives that the right network would save, at most.
    pub fn saved_part(&self) -> Option<f64> {
        self.times.map(|times| 1.0 - 1.0 / times.min(MOST_TIMES))
    }
}

/// The way that a node's traffic takes; none where that is not known, or where it has no choice.
fn way(ports: &[Port]) -> Option<Way<'_>> {
    let up = || ports.iter().filter(|it| it.is_up != Some(false));
    let each_way = |it: &Port| Some(it.sent?.min(it.received?)).filter(|it| it.is_finite());
    let wired: Option<Vec<(&Port, f64)>> = up()
        .filter(|it| !it.is_rdma)
        .map(|it| Some((it, each_way(it)?)))
        .collect();
    let (busy, most) = wired?
        .into_iter()
        .max_by(|one, other| one.1.total_cmp(&other.1))?;
    let is_fast_wire = |it: &&Port| {
        let is_as_fast = it
            .speed
            .zip(busy.speed)
            .is_some_and(|(own, its)| own >= its);
        !it.is_rdma && it.name != busy.name && is_as_fast
    };
    let mut fast: Vec<&Port> = up()
        .filter(|it| it.is_rdma && it.is_up == Some(true))
        .collect();
    if fast.is_empty() {
        fast = up().filter(is_fast_wire).collect();
        if fast.len() < LEAST_PORTS {
            return None;
        }
    }
    let both = |it: &&Port| Some(it.sent? + it.received?).filter(|it| it.is_finite());
    let on_fast = fast.iter().map(both).sum::<Option<f64>>()?;
    Some(Way {
        busy,
        each_way: most,
        fast,
        on_fast,
    })
}

/// The setting that keeps NCCL from these ports, the one that decides first.
fn setting(settings: &BTreeMap<String, String>, fast: &[&Port]) -> Option<Setting> {
    let told = |key: &'static str, does: &dyn Fn(&str) -> bool| {
        let value = settings
            .get(key)
            .map(|it| it.trim())
            .filter(|it| does(it))?;
        let value = value.to_owned();
        Some(Setting { key, value })
    };
    let are_rdma = fast.iter().any(|it| it.is_rdma);
    let chosen = |list: &str| fast.iter().any(|it| chooses(list, &it.name));
    told("NCCL_NET", &|it| it.eq_ignore_ascii_case("socket"))
        .or_else(|| {
            told("NCCL_NET_PLUGIN", &|it| {
                it.eq_ignore_ascii_case("none") && !are_rdma
            })
        })
        .or_else(|| told("NCCL_IB_DISABLE", &|it| it == "1" && are_rdma))
        .or_else(|| {
            told("NCCL_IB_HCA", &|it| {
                are_rdma && !it.is_empty() && !chosen(it)
            })
        })
        .or_else(|| {
            told("NCCL_SOCKET_IFNAME", &|it| {
                !are_rdma && !it.is_empty() && !chosen(it)
            })
        })
}

/// Whether NCCL's list of ports takes this one: prefixes, whole names behind `=`, all but these behind `^`.
fn chooses(list: &str, name: &str) -> bool {
    let (is_without, rest) = match list.strip_prefix('^') {
        Some(rest) => (true, rest),
        None => (false, list),
    };
    let (is_exact, rest) = match rest.strip_prefix('=') {
        Some(rest) => (true, rest),
        None => (false, rest),
    };
    let device = name.split('/').next().unwrap_or(name);
    let is_meant = |entry: &str| {
        let entry = entry.trim().split(':').next().unwrap_or_default();
        match is_exact {
            true => entry == device,
            false => !entry.is_empty() && device.starts_with(entry),
        }
    };
    rest.split(',').any(is_meant) != is_without
}

#[cfg(test)]
mod tests;
