//! PCIe lanes of a GPU beside those of like ones: a card that sits badly from the first day never had more, so that its own
//! best says nothing.
//!
//! Like ones are the cards of one model on machines of one kind: of one cluster, with as many cards, of one machine type where
//! that is told. Of [`LEAST_LIKE`] at least, where [`SAME_PART`] had as many lanes at best, these are usual.
//!
//! Limits: a machine of which every card has fewer is of another kind, whatever it is called. Where more than one and more
//! than [`ODD_PART`] of the machines have such a card, they are wired so. Of generations only a card's own best tells: an
//! idle one lowers its.

use std::collections::{BTreeMap, HashMap};

use gpufleet_telemetry::identity::attribute;

use super::{GpuSnapshot, NodeName, NodeSnapshot, is_same};

/// Cards that are compared, with itself: as of ports.
const LEAST_LIKE: usize = 4;
/// Part of them that agrees on what is usual.
const SAME_PART: f64 = 0.75;
/// Part of the machines that may have a card with fewer.
const ODD_PART: f64 = 0.1;

/// What was read of the machines of one kind.
#[derive(Debug, Clone, Default)]
struct Kind {
    /// How many cards had so many lanes at best.
    lanes: BTreeMap<u8, usize>,
    machines: usize,
    /// Machines with a card that has fewer than usual.
    odd: usize,
}

/// What was read of one machine.
#[derive(Debug, Clone, Copy, Default)]
struct Machine {
    cards: usize,
    /// Those that have fewer lanes than usual.
    below: usize,
}

/// Holds the lanes of each card against those that are usual.
pub(super) fn hold(all: &mut [GpuSnapshot], nodes: &[(NodeName, NodeSnapshot)]) {
    let lanes = |it: &GpuSnapshot| {
        let (_, node) = &nodes[it.at_node];
        let is_of_kind = is_same(&node.model, &it.alike.model);
        it.links.best_lanes().filter(|_| is_of_kind)
    };
    let cards = all.iter().filter_map(|it| Some((it.at_node, lanes(it)?)));
    let cards: Vec<(usize, u8)> = cards.collect();
    let mut kinds = HashMap::new();
    let mut kind_of = Vec::with_capacity(nodes.len());
    for (name, node) in nodes {
        let next = kinds.len();
        kind_of.push(*kinds.entry(kind(name, node)).or_insert(next));
    }
    let usual = usual(&cards, &kind_of);
    for seen in all {
        if let Some((own, usual)) = lanes(seen).zip(usual[seen.at_node])
            && own < usual
        {
            seen.links.hold_lanes(usual);
        }
    }
}

/// What machines of a kind have in common: cluster, model and number of their cards, and what they are called.
fn kind<'a>(name: &'a NodeName, node: &'a NodeSnapshot) -> (&'a str, &'a str, u32, &'a str) {
    let resource = node.resource.as_deref();
    let machine = resource.and_then(|it| it.attribute(attribute::MACHINE_TYPE));
    (
        &*name.0,
        &*node.model,
        node.gpus,
        machine.unwrap_or_default(),
    )
}

/// The lanes that the cards of each machine are held against; none where nothing is usual or the machine is of another
/// kind. Of each card its machine and the lanes that it had at best; of each machine its kind, counted from 0.
fn usual(cards: &[(usize, u8)], kind_of: &[usize]) -> Vec<Option<u8>> {
    let mut kinds = vec![Kind::default(); kind_of.iter().max().map_or(0, |it| it + 1)];
    for (machine, lanes) in cards {
        let kind = &mut kinds[kind_of[*machine]];
        *kind.lanes.entry(*lanes).or_default() += 1;
    }
    let usual: Vec<Option<u8>> = kinds.iter().map(Kind::usual).collect();
    let mut machines = vec![Machine::default(); kind_of.len()];
    for (machine, lanes) in cards {
        let is_below = usual[kind_of[*machine]].is_some_and(|it| *lanes < it);
        machines[*machine].cards += 1;
        machines[*machine].below += usize::from(is_below);
    }
    for (kind, machine) in kind_of.iter().zip(&machines) {
        kinds[*kind].machines += usize::from(machine.cards > 0);
        kinds[*kind].odd += usize::from(machine.below > 0);
    }
    let held = kind_of.iter().zip(&machines).map(|(kind, machine)| {
        let is_told = !kinds[*kind].is_wired_so() && !machine.is_another();
        usual[*kind].filter(|_| is_told)
    });
    held.collect()
}

impl Kind {
    fn usual(&self) -> Option<u8> {
        let all: usize = self.lanes.values().sum();
        let is_usual = |count: usize| count as f64 >= SAME_PART * all as f64;
        let mut lanes = self.lanes.iter();
        let (lanes, _) = lanes.find(|(_, count)| is_usual(**count))?;
        (all >= LEAST_LIKE).then_some(*lanes)
    }

    fn is_wired_so(&self) -> bool {
        self.odd > 1 && self.odd as f64 > ODD_PART * self.machines as f64
    }
}

impl Machine {
    const fn is_another(&self) -> bool {
        self.cards > 1 && self.below == self.cards
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is held against the cards of machines of one kind, of which each has these lanes.
    fn held(machines: &[&[u8]]) -> Vec<Option<u8>> {
        let mut cards = Vec::new();
        for (machine, lanes) in machines.iter().enumerate() {
            cards.extend(lanes.iter().map(|it| (machine, *it)));
        }
        usual(&cards, &vec![0; machines.len()])
    }

    #[test]
    fn lanes_are_usual_where_most_have_them_and_few_machines_are_odd() {
        let (well, odd) = ([16_u8; 8], [16_u8, 16, 16, 8, 16, 16, 16, 16]);
        assert_eq!(held(&[&odd]), [Some(16)]);
        assert_eq!(held(&[&well, &odd]), [Some(16); 2]);
        assert_eq!(held(&[&odd, &odd]), [None; 2], "the fourth slot is so");
        assert_eq!(held(&[&[8; 8]]), [Some(8)], "nothing is below that");
        assert_eq!(held(&[&[16, 16, 8]]), [None], "too few to say");
        assert_eq!(held(&[&[16, 16, 8, 8]]), [None], "as many have fewer");
        assert_eq!(held(&[&[], &well]), [Some(16); 2]);
        let mut many: Vec<&[u8]> = vec![&well[..]; 18];
        many.extend([&odd[..], &odd[..]]);
        assert_eq!(held(&many), [Some(16); 20], "two of twenty sit badly");
        many.push(&odd);
        assert_eq!(held(&many), [None; 21]);
    }

    #[test]
    fn a_machine_of_which_all_have_fewer_is_of_another_kind_and_one_card_alone_is_not() {
        let well = [16_u8; 8];
        let told = held(&[&well, &well, &well, &well, &[8; 8]]);
        assert_eq!(told[3..], [Some(16), None]);
        let told = held(&[&[16], &[16], &[16], &[8]]);
        assert_eq!(told, [Some(16); 4]);
        // Two kinds of machines, that nobody calls by a name.
        let told = held(&[&[16], &[16], &[16], &[16], &[16], &[16], &[8], &[8]]);
        assert_eq!(told, [None; 8]);
        let apart = usual(&[(0, 16), (0, 16), (0, 16), (0, 16), (1, 8)], &[0, 1]);
        assert_eq!(apart, [Some(16), None], "of kinds that are told apart");
    }
}
