//! Which node of a cluster is the machine that agents tell of: Slurm, people and agents may leave out the
//! domain of its name.
//!
//! The name that is written the same goes first. A short name and a full one that begins with it are one
//! machine where nothing else could be meant: where the cluster has one node of that short name, and no two
//! domains are named. What could be more than one machine is taken for none, and told.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;

/// Doubts that are told by name: who mends one finds the others.
const MAX_DOUBTS: usize = 5;

/// A name without its domain. An address has none.
pub fn short(name: &str) -> &str {
    let is_name = name.parse::<IpAddr>().is_err();
    let short = name.split_once('.').filter(|_| is_name);
    short.map_or(name, |it| it.0)
}

/// The names of the nodes of one cluster, those that agree without their domain together.
#[derive(Debug, Default)]
pub struct Names(BTreeMap<String, Alike>);

#[derive(Debug, Default)]
struct Alike {
    /// Those that agents tell.
    told: BTreeSet<String>,
    /// Those that the cluster has.
    listed: BTreeSet<String>,
}

/// The names that agents tell, as those of the cluster are held against them.
#[derive(Debug)]
pub enum Told<'a> {
    /// Only the same name is the same node.
    Same(HashSet<&'a str>),
    /// With the domain or without.
    Alike(Names),
}

impl Told<'_> {
    /// Whether an agent may tell of this node of the cluster.
    pub fn has(&self, listed: &str) -> bool {
        match self {
            Self::Same(names) => names.contains(listed),
            Self::Alike(names) => names.is_told(listed),
        }
    }
}

impl Names {
    /// Takes in a name that an agent tells.
    pub fn tell(&mut self, name: &str) {
        self.alike(name).told.insert(name.to_owned());
    }

    /// Takes in the name of a node that the cluster has.
    pub fn list(&mut self, name: &str) {
        self.alike(name).listed.insert(name.to_owned());
    }

    fn alike(&mut self, name: &str) -> &mut Alike {
        self.0.entry(short(name).to_owned()).or_default()
    }

    /// The names that agents tell of the machine that is this node of the cluster.
    pub fn told_of(&self, listed: &str) -> Vec<&str> {
        let Some(alike) = self.0.get(short(listed)) else {
            return Vec::new();
        };
        let is_one = alike.is_one(short(listed));
        let told = alike.told.iter().map(String::as_str);
        told.filter(|it| is_one || *it == listed).collect()
    }

    /// Whether an agent may tell of this node: one does, or one with a domain that the cluster leaves out,
    /// whatever that is, because agents of other clusters are among them.
    fn is_told(&self, listed: &str) -> bool {
        let alike = self.0.get(short(listed));
        let is_short = listed == short(listed);
        alike.is_some_and(|it| {
            let is_one = it.told.contains(listed) || it.is_one(short(listed));
            !it.told.is_empty() && (is_one || is_short)
        })
    }

    /// What could be one machine or several, a sentence each, of `cluster`.
    pub fn doubts(&self, cluster: &str) -> Vec<String> {
        let in_doubt = self.0.iter().filter(|(short, it)| it.is_in_doubt(short));
        let told = in_doubt.take(MAX_DOUBTS).map(|(short, it)| {
            let list = |names: &BTreeSet<String>| {
                let names: Vec<&str> = names.iter().map(String::as_str).take(MAX_DOUBTS).collect();
                names.join(", ")
            };
            format!(
                "{cluster}: which machine `{short}` is cannot be told: agents tell of {}, the inventory has {}; \
                 each is billed by itself. Let both sides call a machine by one name",
                list(&it.told),
                list(&it.listed)
            )
        });
        told.collect()
    }
}

impl Alike {
    /// Whether all of these are one machine.
    fn is_one(&self, short: &str) -> bool {
        let all = self.told.union(&self.listed);
        let full = all.filter(|it| *it != short).count();
        self.listed.len() == 1 && full <= 1
    }

    /// Whether the short name could be one of several that the other side has in full.
    fn is_in_doubt(&self, short: &str) -> bool {
        let could_be = match (self.told.contains(short), self.listed.contains(short)) {
            (true, false) => self.listed.difference(&self.told).next(),
            (false, true) => self.told.difference(&self.listed).next(),
            _ => None,
        };
        could_be.is_some() && !self.is_one(short)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For each node of the cluster what agents call it; and how many doubts there are.
    fn check(told: &[&str], listed: &[&str], expected: &[&[&str]], doubts: usize) {
        let mut names = Names::default();
        told.iter().for_each(|it| names.tell(it));
        listed.iter().for_each(|it| names.list(it));
        let found: Vec<Vec<&str>> = listed.iter().map(|it| names.told_of(it)).collect();
        assert_eq!(found, expected, "{told:?} {listed:?}");
        let found = names.doubts("prod");
        assert_eq!(found.len(), doubts, "{told:?} {listed:?}: {found:?}");
    }

    #[test]
    fn a_short_name_and_the_one_full_name_that_begins_with_it_are_one_machine() {
        check(&["a"], &["a"], &[&["a"]], 0);
        check(&["a.rack"], &["a"], &[&["a.rack"]], 0);
        check(&["a"], &["a.rack"], &[&["a"]], 0);
        // Its agent was given another name within the month.
        check(&["a", "a.rack"], &["a"], &[&["a", "a.rack"]], 0);
        check(&["a", "a.rack"], &["a.rack"], &[&["a", "a.rack"]], 0);
    }

    #[test]
    fn what_could_be_two_machines_is_taken_for_none_and_told() {
        check(&["a"], &["a.one", "a.two"], &[&[], &[]], 1);
        check(&["a.one", "a.two"], &["a"], &[&[]], 1);
        check(&["a.one"], &["a", "a.two"], &[&[], &[]], 1);
        check(&["a.one"], &["a.two"], &[&[]], 0);
        let all: &[&[&str]] = &[&["a.one"], &["a.two"]];
        check(&["a.one", "a.two"], &["a.one", "a.two"], all, 0);
        check(&["a"], &["a", "a.one"], &[&["a"], &[]], 0);
    }

    #[test]
    fn a_node_of_which_an_agent_may_tell_is_not_missed() {
        let mut names = Names::default();
        for told in ["a", "b.elsewhere", "c", "d.one", "10.0.0.1"] {
            names.tell(told);
        }
        for listed in ["a.rack", "b", "c.one", "c.two", "d.two", "10"] {
            names.list(listed);
        }
        let is_told = |it: &str| names.is_told(it);
        assert!(is_told("a.rack") && is_told("b"));
        // One agent is not two nodes, and none is a node of another domain.
        assert!(
            !["c.one", "c.two", "d.two", "10", "e"]
                .into_iter()
                .any(is_told)
        );
    }

    #[test]
    fn an_address_has_no_domain() {
        check(&["10.0.0.1"], &["10"], &[&[]], 0);
        check(&["10.0.0.1"], &["10.0.0.2"], &[&[]], 0);
        check(&["fe80::1"], &["fe80::1"], &[&["fe80::1"]], 0);
    }
}
