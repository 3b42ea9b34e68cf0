//! Communicators of made jobs: which link is named, and when none is.

use super::*;

const RAILS: usize = 8;
const USUAL: f64 = 45e9;

/// A job whose communicators have a rank of these nodes on each of eight rails. `at` gives what the links of a
/// communicator give; all but its last rank wait for that one, and measure less.
fn groups(sets: &[&[usize]], look: i64, at: impl Fn(&[usize], usize) -> f64) -> Vec<Group> {
    let of_set = |(number, nodes): (usize, &&[usize])| {
        let nodes = *nodes;
        let rail = |rail: usize| Group {
            communicator: (number * RAILS + rail) as u64,
            function: Function::AllReduce,
            bytes_per_call: 64e6,
            at: Timestamp::from_seconds(1_790_000_000 + look * 10),
            ends: (0_u32..)
                .zip(nodes)
                .map(|(place, node)| End {
                    node: format!("node-{node}").into(),
                    gpu: format!("GPU-{node}-{rail}").into(),
                    bytes_per_second: at(nodes, rail) / (1.0 + f64::from(place)),
                })
                .collect(),
        };
        (0..RAILS).map(rail).collect::<Vec<_>>()
    };
    sets.iter().enumerate().flat_map(of_set).collect()
}

/// What is said after so many looks.
fn judged(
    looks: i64,
    sets: &[&[usize]],
    at: impl Fn(&[usize], usize) -> f64,
) -> Result<Vec<Finding>, Silent> {
    let mut watch = Watch::default();
    let mut said = Err(Silent::Starting);
    for look in 0..looks {
        said = watch.observe(&groups(sets, look, &at));
    }
    said
}

/// A little noise that differs from communicator to communicator.
fn noise(nodes: &[usize], rail: usize) -> f64 {
    let seed = nodes.iter().sum::<usize>() * 31 + rail * 17;
    1.0 + 0.01 * ((seed % 7) as f64 - 3.0) / 3.0
}

fn node(number: usize) -> Arc<str> {
    format!("node-{number}").into()
}

fn suspects(said: Result<Vec<Finding>, Silent>) -> Vec<Suspect> {
    said.expect("it is judged")
        .into_iter()
        .map(|it| it.suspect)
        .collect()
}

#[test]
fn one_port_at_half_its_speed_is_named_with_both_its_ends_and_what_is_usual() {
    let slow = |nodes: &[usize], rail: usize| {
        let is_slow = nodes.contains(&1) && rail == 3;
        USUAL * noise(nodes, rail) * if is_slow { 0.5 } else { 1.0 }
    };
    let said = judged(6, &[&[0, 1], &[2, 3]], slow).expect("it is judged");
    let [found] = &said[..] else {
        panic!("{said:?}");
    };
    assert_eq!(found.suspect, Suspect::Pair(node(0), node(1)));
    assert!(found.is_across);
    assert_eq!((found.groups, found.like), (1, 16));
    let ratio = found.bytes_per_second / found.usual_bytes_per_second;
    assert!((0.48..0.52).contains(&ratio), "{ratio}");
    // The same GPU in a second communicator, whose other rank is well: it alone is left.
    let said = suspects(judged(6, &[&[0, 1], &[1, 2], &[2, 3], &[3, 0]], slow));
    assert_eq!(said, [Suspect::Gpu(node(1), "GPU-1-3".into())]);
}

#[test]
fn all_rails_of_one_node_are_the_node_and_of_one_pair_the_way_between() {
    let ring: [&[usize]; 4] = [&[0, 1], &[1, 2], &[2, 3], &[3, 0]];
    let of_node = |nodes: &[usize], rail: usize| {
        let part = if nodes.contains(&2) { 0.6 } else { 1.0 };
        USUAL * noise(nodes, rail) * part
    };
    // Half of four pairs would be no fault but the median: more nodes.
    let many: [&[usize]; 8] = [
        &[0, 1],
        &[1, 2],
        &[2, 3],
        &[3, 4],
        &[4, 5],
        &[5, 6],
        &[6, 7],
        &[7, 0],
    ];
    assert_eq!(
        suspects(judged(6, &many, of_node)),
        [Suspect::Node(node(2))]
    );
    let between = |nodes: &[usize], rail: usize| {
        let part = if nodes == [1, 2] { 0.6 } else { 1.0 };
        USUAL * noise(nodes, rail) * part
    };
    let said = suspects(judged(6, &ring, between));
    assert_eq!(said, [Suspect::Pair(node(1), node(2))]);
}

#[test]
fn a_node_whose_nvlinks_are_slow_is_named_for_links_within_it() {
    let sets: [&[usize]; 6] = [&[0, 0], &[1, 1], &[2, 2], &[3, 3], &[4, 4], &[5, 5]];
    let slow = |nodes: &[usize], rail: usize| {
        let part = if nodes == [4, 4] { 0.5 } else { 1.0 };
        8.0 * USUAL * noise(nodes, rail) * part
    };
    let said = judged(6, &sets, slow).expect("it is judged");
    assert_eq!(said.len(), 1, "{said:?}");
    assert_eq!(said[0].suspect, Suspect::Node(node(4)));
    assert!(!said[0].is_across);
}

#[test]
fn a_late_rank_makes_no_communicator_slow_and_nor_does_one_look() {
    // The ranks that wait measure a third; who came last measures what the links give.
    let late = |_: &[usize], _: usize| USUAL;
    assert_eq!(suspects(judged(9, &[&[0, 1, 2], &[3, 4, 5]], late)), []);
    let mut watch = Watch::default();
    for look in 0..12 {
        let once = |nodes: &[usize], rail: usize| {
            let is_slow = look % 3 == 0 && nodes == [0, 1] && rail == 3;
            USUAL * if is_slow { 0.4 } else { 1.0 }
        };
        let said = watch.observe(&groups(&[&[0, 1], &[2, 3]], look, once));
        if look >= 6 {
            assert_eq!(suspects(said), [], "look {look}");
        }
    }
}

#[test]
fn nothing_is_said_when_all_are_slow_or_so_many_that_it_is_the_network() {
    let sets: [&[usize]; 4] = [&[0, 1], &[1, 2], &[2, 3], &[3, 0]];
    let said = judged(6, &sets, |nodes, rail| 0.2 * USUAL * noise(nodes, rail));
    assert_eq!(suspects(said), []);
    // A rail in three is slow, each between other nodes: an uplink with too much to carry.
    let some = |nodes: &[usize], rail: usize| {
        let is_slow = (nodes[0] * RAILS + rail).is_multiple_of(3);
        USUAL * if is_slow { 0.6 } else { 1.0 }
    };
    assert_eq!(judged(6, &sets, some), Err(Silent::Many));
}

#[test]
fn nothing_is_said_without_measurements_or_like_ones_or_looks() {
    let well = |_: &[usize], _: usize| USUAL;
    let mut watch = Watch::default();
    assert_eq!(watch.observe(&[]), Err(Silent::NotMeasured));
    let unmeasured = groups(&[&[0, 1]], 0, |_, _| 0.0);
    assert_eq!(watch.observe(&unmeasured), Err(Silent::NotMeasured));
    let mut others = groups(&[&[0, 1]], 0, well);
    others
        .iter_mut()
        .for_each(|it| it.function = Function::Other);
    assert_eq!(watch.observe(&others), Err(Silent::NotMeasured));
    let few = groups(&[&[0, 1]], 0, well);
    assert_eq!(watch.observe(&few[..3]), Err(Silent::NothingLike));
    assert_eq!(judged(5, &[&[0, 1]], well), Err(Silent::Starting));
    // The same reading seen again and again is one look.
    let mut watch = Watch::default();
    for _ in 0..20 {
        let said = watch.observe(&groups(&[&[0, 1]], 3, well));
        assert_eq!(said, Err(Silent::Starting));
    }
}

#[test]
fn messages_of_other_sizes_and_communicators_with_a_rank_unheard_are_compared_with_none() {
    let mut watch = Watch::default();
    for look in 0..8 {
        let mut all = groups(&[&[0, 1], &[2, 3]], look, |_, _| USUAL);
        // Small messages are slow on every link.
        all[3].bytes_per_call = 1e5;
        all[3].ends[0].bytes_per_second = 3e9;
        // Of this one the rank that waits for nobody is not heard.
        all[5].ends.remove(0);
        let said = watch.observe(&all);
        if look >= 6 {
            assert_eq!(suspects(said), []);
        }
    }
}

#[test]
fn what_is_mended_is_fast_again() {
    let mut watch = Watch::default();
    let mut told = Vec::new();
    for look in 0..14 {
        let slow = |nodes: &[usize], rail: usize| {
            let is_slow = look < 8 && nodes == [0, 1] && rail == 3;
            USUAL * if is_slow { 0.5 } else { 1.0 }
        };
        let said = watch.observe(&groups(&[&[0, 1], &[2, 3]], look, slow));
        told.push(said.is_ok_and(|it| !it.is_empty()));
    }
    let first = told.iter().position(|it| *it);
    assert_eq!(first, Some(5));
    assert_eq!(told.iter().rposition(|it| *it), Some(7), "{told:?}");
}

#[test]
fn a_link_is_slow_below_the_part_that_is_set() {
    let slow = |nodes: &[usize], rail: usize| {
        let is_slow = nodes.contains(&1) && rail == 3;
        USUAL * noise(nodes, rail) * if is_slow { 0.6 } else { 1.0 }
    };
    let told = |part: f64| {
        let mut watch = Watch::default();
        let looks = (0..6).map(|look| groups(&[&[0, 1], &[2, 3]], look, slow));
        let said = looks.map(|it| watch.observe_by(&it, &Thresholds { part }));
        said.last().expect("six looks").expect("it is judged").len()
    };
    assert_eq!((told(SLOW_RATIO), told(0.5)), (1, 0));
}
