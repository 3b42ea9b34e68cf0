//! A network or RDMA port beside the same port of like machines: which came up at a lower speed, is down,
//! makes errors or repeats packets. A bad cable, optic or lane, or a switch's port that was set so: nothing
//! breaks, everything over it is slower.
//!
//! Method: ports of the same name on machines with the same GPUs are like ones, because a machine's storage
//! port may well be slower than the ones of its GPUs. Of [`LEAST_LIKE`] at least, where [`SAME_PART`] agree on a
//! speed, one below [`SLOW_PART`] of that is slow ([`slow`]). What tells one end of a slow link from the other
//! needs no such agreement ([`sign`]): down where the like are up, slower than most of them, errors or repeated
//! packets by [`TIMES`] more than them.
//!
//! Limits: a speed that is not read compares with none; when as many disagree nobody is named; ports that
//! carry less than they promise are [`crate::slow_link`]'s to find.

use std::collections::HashMap;
use std::sync::Arc;

use crate::robust::median;

/// Ports that are compared, with itself.
pub const LEAST_LIKE: usize = 4;
/// Part of them that agrees on what is usual.
pub const SAME_PART: f64 = 0.75;
/// A speed below this part of the usual one is slow.
pub const SLOW_PART: f64 = 0.9;
/// Errors a second that are a sign, and repeated packets: some of these are usual on RDMA.
pub const ERRORS: f64 = 1.0;
/// See [`ERRORS`].
pub const REPEATS: f64 = 10.0;
/// … and so many times what like ports make.
pub const TIMES: f64 = 10.0;

/// From when a port is not like the others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Thresholds {
    /// Part of the usual speed below which one is slow.
    pub slow_part: f64,
    /// Errors a second.
    pub errors: f64,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            slow_part: SLOW_PART,
            errors: ERRORS,
        }
    }
}

/// One network or RDMA port of a node, as it was lately.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Port {
    /// Its name: `eth0`, `mlx5_3`.
    pub name: Arc<str>,
    /// Whether it is an RDMA port.
    pub is_rdma: bool,
    /// Whether it is up.
    pub is_up: Option<bool>,
    /// What it could carry one way, bytes a second.
    pub speed: Option<f64>,
    /// Bytes that it sends a second.
    pub sent: Option<f64>,
    /// Bytes that it receives a second.
    pub received: Option<f64>,
    /// Errors that it makes a second.
    pub errors: Option<f64>,
    /// Packets that it repeats a second.
    pub repeats: Option<f64>,
}

/// A machine with its ports.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Machine<'a> {
    /// Its node.
    pub node: &'a str,
    /// What it is like: the type of its GPUs.
    pub model: &'a str,
    /// Its ports.
    pub ports: &'a [Port],
}

/// A port that came up slower than its like.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Finding<'a> {
    /// Its node.
    pub node: &'a str,
    /// Its name.
    pub port: &'a str,
    /// What it could carry one way, bytes a second.
    pub bytes_per_second: f64,
    /// What its like run at.
    pub usual_bytes_per_second: f64,
}

/// What is wrong with a port beside its like; with what is read, and what they read.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub enum Sign {
    /// It is down.
    Down,
    /// It came up at a lower speed, bytes a second.
    Slow(f64, f64),
    /// It makes errors, a second.
    Errors(f64, f64),
    /// It repeats packets, a second.
    Repeats(f64, f64),
}

/// A port's node, its name and the bytes a second that it came up with.
type CameUp<'a> = (&'a str, &'a str, f64);

/// The ports of a cluster that came up slower than their like, by node and name.
pub fn slow<'a>(machines: &[Machine<'a>]) -> Vec<Finding<'a>> {
    slow_by(machines, &Thresholds::default())
}

/// The same by these thresholds.
pub fn slow_by<'a>(machines: &[Machine<'a>], by: &Thresholds) -> Vec<Finding<'a>> {
    let mut classes: HashMap<(&str, &str), Vec<CameUp<'a>>> = HashMap::new();
    for machine in machines {
        for port in machine.ports {
            if let Some(speed) = port.speed.filter(|it| it.is_finite() && *it > 0.0) {
                let of_class = classes.entry((machine.model, &*port.name)).or_default();
                of_class.push((machine.node, &*port.name, speed));
            }
        }
    }
    let mut found = Vec::new();
    for like in classes.values().filter(|it| it.len() >= LEAST_LIKE) {
        let speeds = like.iter().map(|it| it.2);
        let Some((usual, count)) = commonest(speeds) else {
            continue;
        };
        if (count as f64) < SAME_PART * like.len() as f64 {
            continue;
        }
        let slow = like.iter().filter(|it| it.2 < by.slow_part * usual);
        found.extend(slow.map(|(node, port, speed)| Finding {
            node,
            port,
            bytes_per_second: *speed,
            usual_bytes_per_second: usual,
        }));
    }
    found.sort_by_key(|it| (it.node, it.port));
    found
}

/// What is wrong with a node's ports beside those of the same name on these others, the worst first.
pub fn sign<'a>(own: &'a [Port], others: &[&[Port]]) -> Option<(&'a Port, Sign)> {
    sign_by(own, others, &Thresholds::default())
}

/// The same by these thresholds.
pub fn sign_by<'a>(
    own: &'a [Port],
    others: &[&[Port]],
    by: &Thresholds,
) -> Option<(&'a Port, Sign)> {
    let of = |port: &'a Port| {
        let like = others.iter().flat_map(|it| it.iter());
        let like: Vec<&Port> = like.filter(|it| it.name == port.name).collect();
        Some((port, sign_of(port, &like, by)?))
    };
    let worse = |one: &(&Port, Sign), other: &(&Port, Sign)| one.1.rank().cmp(&other.1.rank());
    own.iter().filter_map(of).min_by(worse)
}

fn sign_of(port: &Port, like: &[&Port], by: &Thresholds) -> Option<Sign> {
    let up = like.iter().filter(|it| it.is_up == Some(true)).count();
    if port.is_up == Some(false) && up * 2 > like.len() {
        return Some(Sign::Down);
    }
    let usual = commonest(like.iter().filter_map(|it| it.speed)).map(|it| it.0);
    if let (Some(own), Some(usual)) = (port.speed, usual)
        && own < by.slow_part * usual
    {
        return Some(Sign::Slow(own, usual));
    }
    let above = |of: fn(&Port) -> Option<f64>, least: f64| {
        let own = of(port)?;
        let usual = median(&mut like.iter().filter_map(|it| of(it)).collect::<Vec<_>>())?;
        (own >= least && own >= TIMES * usual).then_some((own, usual))
    };
    let errors = above(|it| it.errors, by.errors).map(|(own, usual)| Sign::Errors(own, usual));
    errors.or_else(|| above(|it| it.repeats, REPEATS).map(|(own, it)| Sign::Repeats(own, it)))
}

impl Sign {
    /// The worst first.
    const fn rank(&self) -> u8 {
        match self {
            Self::Down => 0,
            Self::Slow(..) => 1,
            Self::Errors(..) => 2,
            Self::Repeats(..) => 3,
        }
    }
}

/// The commonest of these speeds and how many have it; of as common ones the highest.
fn commonest(speeds: impl Iterator<Item = f64>) -> Option<(f64, usize)> {
    let mut counts: HashMap<u64, usize> = HashMap::new();
    for speed in speeds.filter(|it| it.is_finite() && *it > 0.0) {
        *counts.entry(speed as u64).or_default() += 1;
    }
    let most = counts
        .into_iter()
        .max_by_key(|(speed, count)| (*count, *speed))?;
    Some((most.0 as f64, most.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: &str = "NVIDIA H100 80GB HBM3";

    fn port(name: &str, gigabits: f64) -> Port {
        Port {
            name: name.into(),
            is_rdma: true,
            is_up: Some(true),
            speed: Some(gigabits * 1e9 / 8.0),
            errors: Some(0.0),
            repeats: Some(0.5),
            ..Port::default()
        }
    }

    fn machine<'a>(node: &'a str, ports: &'a [Port]) -> Machine<'a> {
        Machine {
            node,
            model: MODEL,
            ports,
        }
    }

    #[test]
    fn a_port_at_half_the_speed_of_the_same_port_elsewhere_is_slow() {
        let (well, ill) = ([port("mlx5_3", 400.0)], [port("mlx5_3", 200.0)]);
        let mut machines: Vec<Machine<'_>> =
            ["a", "b", "c", "d"].map(|it| machine(it, &well)).into();
        assert_eq!(slow(&machines), []);
        machines.push(machine("e", &ill));
        let found = slow(&machines);
        let [found] = &found[..] else {
            panic!("{found:?}");
        };
        assert_eq!((found.node, found.port), ("e", "mlx5_3"));
        assert_eq!(
            (found.bytes_per_second, found.usual_bytes_per_second),
            (25e9, 50e9)
        );
    }

    #[test]
    fn other_ports_other_machines_and_ports_that_disagree_are_no_like_ones() {
        let both = [port("mlx5_3", 400.0), port("mlx5_8", 100.0)];
        let (slower, other) = ([port("mlx5_3", 200.0)], [port("mlx5_3", 100.0)]);
        let all = ["a", "b", "c", "d"];
        let mut machines: Vec<Machine<'_>> = all.map(|it| machine(it, &both)).into();
        machines.push(Machine {
            model: "NVIDIA L4",
            ..machine("f", &other)
        });
        assert_eq!(slow(&machines), []);
        let half = [
            machine("a", &both),
            machine("b", &both),
            machine("c", &slower),
            machine("d", &slower),
        ];
        assert_eq!(slow(&half), [], "half and half");
    }

    #[test]
    fn nothing_is_said_of_few_or_of_what_is_not_read() {
        let (well, ill) = ([port("mlx5_3", 400.0)], [port("mlx5_3", 200.0)]);
        assert_eq!(
            slow(&[machine("a", &well), machine("b", &well), machine("c", &ill)]),
            []
        );
        let unread = [Port {
            speed: None,
            ..port("mlx5_3", 1.0)
        }];
        let mut machines: Vec<Machine<'_>> =
            ["a", "b", "c", "d"].map(|it| machine(it, &well)).into();
        machines.push(machine("e", &unread));
        assert_eq!(slow(&machines), []);
        assert_eq!(sign(&unread, &[&well]), None);
        assert_eq!(sign(&ill, &[]), None, "there is nothing to hold it against");
        assert_eq!(sign(&[], &[&well]), None);
    }

    #[test]
    fn a_port_shows_what_is_worst_with_it_beside_the_same_port_of_others() {
        let others = [port("mlx5_2", 400.0), port("mlx5_3", 400.0)];
        let others: [&[Port]; 3] = [&others; 3];
        let told = |change: &dyn Fn(&mut Port)| {
            let mut own = [port("mlx5_2", 400.0), port("mlx5_3", 400.0)];
            change(&mut own[1]);
            sign(&own, &others).map(|(port, sign)| (port.name.to_string(), sign))
        };
        let name = || "mlx5_3".to_owned();
        assert_eq!(told(&|_| {}), None);
        assert_eq!(
            told(&|it| it.is_up = Some(false)),
            Some((name(), Sign::Down))
        );
        let slow = told(&|it| (it.speed, it.errors) = (Some(25e9), Some(9.0)));
        assert_eq!(slow, Some((name(), Sign::Slow(25e9, 50e9))));
        let errs = told(&|it| it.errors = Some(9.0));
        assert_eq!(errs, Some((name(), Sign::Errors(9.0, 0.0))));
        let repeats = told(&|it| it.repeats = Some(40.0));
        assert_eq!(repeats, Some((name(), Sign::Repeats(40.0, 0.5))));
        assert_eq!(told(&|it| it.repeats = Some(9.0)), None, "some are usual");
    }
}
