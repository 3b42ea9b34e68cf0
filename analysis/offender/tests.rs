//! Months of faults: of cards, of machines, of parts of a cluster, and of nobody.

use super::*;

const NOW: Timestamp = Timestamp::from_seconds(1_790_000_000);

fn fault(node: &str, card: &str, hours_ago: i64) -> Fault {
    Fault {
        cluster: "prod".to_owned(),
        node: node.to_owned(),
        cards: vec![card.to_owned()],
        at: NOW.shifted(-hours_ago * HOUR_NS),
    }
}

#[test]
fn a_card_that_breaks_three_times_in_a_month_is_told_wherever_it_was_put() {
    let faults = [
        fault("a", "1", 600),
        fault("b", "1", 300),
        fault("b", "1", 2),
    ];
    let card = |count| Offender::Card("prod".to_owned(), "1".to_owned(), count);
    assert_eq!(judge(&faults, &[], NOW), [card(3)]);
    assert_eq!(judge(&faults[..2], &[], NOW), []);
    let by = |card_faults| Thresholds {
        card_faults,
        ..Thresholds::default()
    };
    assert_eq!(judge_by(&faults, &[], &by(4.0), NOW), []);
    assert_eq!(judge_by(&faults[..2], &[], &by(2.0), NOW), [card(2)]);
    let old = [&faults[..2], &[fault("a", "1", 721)]].concat();
    assert_eq!(judge(&old, &[], NOW), [], "that is more than a month ago");
}

#[test]
fn what_comes_and_goes_within_an_hour_is_one_fault() {
    let at = |minutes: i64| Fault {
        at: NOW.shifted(-minutes * HOUR_NS / 60),
        ..fault("a", "1", 0)
    };
    let faults: Vec<Fault> = (0..20).map(|it| at(10 + it * 2)).collect();
    assert_eq!(judge(&faults, &[], NOW), []);
}

#[test]
fn a_machine_in_which_card_after_card_breaks_is_told_and_not_its_cards() {
    let faults = [
        fault("a", "1", 2),
        fault("a", "1", 90),
        fault("a", "1", 300),
        fault("a", "2", 30),
        fault("a", "3", 60),
        fault("b", "4", 60),
    ];
    let node = Offender::Node("prod".to_owned(), "a".to_owned(), 5, 3);
    assert_eq!(judge(&faults, &[], NOW), [node]);
    let two = Offender::Card("prod".to_owned(), "1".to_owned(), 3);
    assert_eq!(judge(&faults[..4], &[], NOW), [two], "two cards are cards");
}

/// Several cards of a machine at once, or none of them.
fn whole(node: &str, cards: &[&str], hours_ago: i64) -> Fault {
    Fault {
        cards: cards.iter().map(|it| (*it).to_owned()).collect(),
        ..fault(node, "", hours_ago)
    }
}

#[test]
fn what_breaks_all_cards_at_once_is_the_machines_fault_and_one_however_many_they_are() {
    let cards = ["1", "2", "3", "4", "5", "6", "7", "8"];
    let weekly = |count: i64| -> Vec<Fault> {
        let each = (0..count).map(|it| whole("a", &cards, 2 + 168 * it));
        each.collect()
    };
    let node = |faults, cards| Offender::Node("prod".to_owned(), "a".to_owned(), faults, cards);
    assert_eq!(judge(&weekly(1), &[], NOW), [], "eight cards are one fault");
    assert_eq!(judge(&weekly(3), &[], NOW), [], "and no card's");
    assert_eq!(judge(&weekly(4), &[], NOW), [node(4, 0)]);
    let port: Vec<Fault> = (0..4).map(|it| whole("a", &[], 24 * it + 1)).collect();
    assert_eq!(judge(&port, &[], NOW), [node(4, 0)], "a port is no card");
    let minutes: Vec<Fault> = (0..9).map(|_| whole("a", &[], 3)).collect();
    assert_eq!(judge(&minutes, &[], NOW), [], "what comes and goes is one");
    let mixed = [weekly(2), vec![fault("a", "1", 50), fault("a", "1", 90)]].concat();
    assert_eq!(judge(&mixed, &[], NOW), [node(4, 1)]);
    let one_card = [50, 90, 130].map(|it| fault("a", "1", it));
    let beside = [weekly(1), one_card.to_vec()].concat();
    let card = Offender::Card("prod".to_owned(), "1".to_owned(), 3);
    assert_eq!(judge(&beside, &[], NOW), [card], "it is that card");
}

#[test]
fn what_was_there_before_under_the_name_of_a_machine_is_another() {
    let of = |hours_ago: i64| Machine {
        cluster: "prod".to_owned(),
        node: "a".to_owned(),
        parts: Vec::new(),
        made: Some(NOW.shifted(-hours_ago * HOUR_NS)),
    };
    let port: Vec<Fault> = (0..4).map(|it| whole("a", &[], 24 * it + 1)).collect();
    let told = |machine: Machine, faults: &[Fault]| judge(faults, &[machine], NOW).len();
    assert_eq!(told(of(100), &port), 1);
    assert_eq!(told(of(50), &port), 0, "one of them is another's");
    let cards = [1, 30, 60, 90].map(|it| fault("a", &format!("card{it}"), it));
    assert_eq!((told(of(100), &cards), told(of(50), &cards)), (1, 0));
    let card = [1, 30, 60].map(|it| fault("a", "1", it));
    assert_eq!(told(of(10), &card), 1, "a card goes into another machine");
}

#[test]
fn nobody_is_told_without_faults_or_for_those_to_come() {
    assert_eq!(judge(&[], &[], NOW), []);
    let coming: Vec<Fault> = (1..9).map(|it| fault("a", "1", -24 * it)).collect();
    assert_eq!(judge(&coming, &[], NOW), []);
}

/// A cluster of so many blocks of 16 machines, each of two sub-blocks.
fn machines(blocks: usize) -> Vec<Machine> {
    let machine = |number: usize| Machine {
        cluster: "prod".to_owned(),
        node: format!("n{number}"),
        parts: vec![
            (Level::Zone, "z".to_owned()),
            (Level::Block, format!("b{}", number / 16)),
            (Level::SubBlock, format!("s{}", number / 8)),
        ],
        made: None,
    };
    (0..blocks * 16).map(machine).collect()
}

/// A fault on each of these machines, each of another card.
fn on(nodes: &[usize]) -> Vec<Fault> {
    let of = |node: &usize| fault(&format!("n{node}"), &format!("card{node}"), 24);
    nodes.iter().map(of).collect()
}

fn told(nodes: &[usize], blocks: usize) -> Vec<(Level, String, usize)> {
    let found = judge(&on(nodes), &machines(blocks), NOW).into_iter();
    let part = |it| match it {
        Offender::Part(part) => (part.level, part.name, part.faulty.len()),
        other => panic!("{other:?}"),
    };
    found.map(part).collect()
}

#[test]
fn a_block_in_which_machine_after_machine_breaks_is_told_once_and_explains_its_parts() {
    let block = [0, 2, 5, 9, 12, 14, 40, 70];
    assert_eq!(told(&block, 8), [(Level::Block, "b0".to_owned(), 6)]);
    let sub_block = [8, 9, 11, 13, 15, 40, 70];
    assert_eq!(
        told(&sub_block, 8),
        [(Level::SubBlock, "s1".to_owned(), 5)],
        "the narrower"
    );
    // Two racks of a block, one of which is wrong by itself: the block is.
    let both = [0, 1, 2, 4, 5, 6, 8, 10, 11, 13, 15, 70];
    assert_eq!(told(&both, 8), [(Level::Block, "b0".to_owned(), 11)]);
    // One of its cards breaks three times: it is one of the block's.
    let mut again = on(&block);
    again.extend([100, 200, 300].map(|it| fault("n2", "card2", it)));
    let found = judge(&again, &machines(8), NOW);
    assert!(matches!(&found[..], [Offender::Part(_)]), "{found:?}");
    // The same card elsewhere is nobody's but its own.
    again.extend([100, 200, 300].map(|it| fault("n100", "card100", it)));
    let found = judge(&again, &machines(8), NOW);
    assert!(
        matches!(&found[..], [Offender::Part(_), Offender::Card(..)]),
        "{found:?}"
    );
}

#[test]
fn one_bad_machine_is_no_bad_block_and_nor_are_faults_everywhere() {
    let mut one = Vec::new();
    one.extend((0..9).map(|it| fault("n3", &format!("card{it}"), 24 * it)));
    let found = judge(&one, &machines(8), NOW);
    assert!(matches!(&found[..], [Offender::Node(..)]), "{found:?}");
    assert_eq!(told(&[0, 20, 41, 63, 77, 90, 101, 120], 8), []);
    assert_eq!(
        told(&(0..128).step_by(3).collect::<Vec<_>>(), 8),
        [],
        "a third of all"
    );
    assert_eq!(told(&[0, 5, 60, 100], 8), [], "two of a block are two");
}

#[test]
fn a_part_that_is_held_against_nothing_and_machines_without_topology_are_not_told() {
    assert_eq!(
        told(&[0, 2, 5, 9, 12, 14], 1),
        [],
        "the block is the cluster"
    );
    let mut bare = machines(8);
    bare.iter_mut().for_each(|it| it.parts.clear());
    assert_eq!(judge(&on(&[0, 2, 5, 9, 12, 14]), &bare, NOW), []);
    let mut unnamed = machines(8);
    unnamed
        .iter_mut()
        .for_each(|it| it.parts = vec![(Level::Block, String::new())]);
    assert_eq!(judge(&on(&[0, 2, 5, 9, 12, 14]), &unnamed, NOW), []);
    assert_eq!(judge(&on(&[0, 2, 5, 9, 12, 14]), &[], NOW), []);
}

#[test]
fn chances_are_those_of_the_tables() {
    for (count, all, part, chance) in [
        (0, 10, 0.3, 1.0),
        (1, 10, 0.1, 0.651_322),
        (5, 10, 0.5, 0.623_047),
        (3, 16, 0.02, 0.003_685),
    ] {
        let own = at_least(count, all, part);
        assert!((own - chance).abs() < 2e-5, "{count} of {all}: {own}");
    }
}
