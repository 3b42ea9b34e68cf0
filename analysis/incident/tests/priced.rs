//! What incidents cost by the word of their detectors.

use super::*;
use crate::price::Figure;

const PRICE: Option<i64> = Some(3_000_000_000);

fn node(node: usize) -> Place {
    Place::node("prod", &format!("node-{node}"))
}

fn priced(family: Family, place: Place, price: Price) -> Signal {
    Signal {
        price,
        ..signal(family, place)
    }
}

#[test]
fn what_was_not_measured_is_none_and_not_nothing() {
    let mut world = World::new();
    let port = priced(Family::Link, node(7), Price::none(Basis::NoRunWaits));
    world.ticks(60, std::slice::from_ref(&port));
    let open = world.open()[0];
    assert_eq!(open.basis, Basis::NoRunWaits);
    assert_eq!((open.lost_known(), open.losing_known()), (None, None));
    assert_eq!(open.stake_known(), None);
    // A run over it waits: from now on it has a figure, and what was measured stays known when it ends.
    let slow = Price::of(Basis::LongerCollectives, Losing::gpus(2, PRICE));
    let slow = priced(Family::Link, node(7), slow);
    world.ticks(11, &[port.clone(), slow]);
    assert_eq!(
        world.open()[0].losing_known(),
        Some(&Losing::gpus(2, PRICE))
    );
    world.ticks(6, &[port]);
    let open = world.open()[0];
    assert_eq!(open.losing_known(), None, "nobody measures it now");
    let lost = open.lost_known().map(crate::lost::Lost::gpu_seconds);
    assert_eq!(lost, Some(2.0 * 110.0));
}

#[test]
fn unobserved_time_adds_up_and_is_no_loss_and_goes_on_with_the_node_it_is_taken_into() {
    let mut world = World::new();
    let silent = |it| {
        let price = Price::of(Basis::NotObserved, Losing::gpus(8, PRICE));
        priced(Family::Blind, node(it), price)
    };
    world.ticks(13, &[silent(7)]);
    let open = world.open()[0];
    let (figure, stake) = open.stake_known().expect("it has one");
    assert_eq!(figure, Figure::Unobserved);
    assert_eq!(stake.so_far.gpu_seconds(), 8.0 * 120.0);
    assert_eq!((open.lost_known(), open.losing_known()), (None, None));
    // So many at once are the cluster's: what was not observed of the first is in it.
    let many: Vec<Signal> = (0..20).map(silent).collect();
    world.ticks(3, &many);
    let open = world.open();
    let (_, stake) = open[0].stake_known().expect("it has one");
    assert_eq!((open.len(), stake.losing.milli_gpus), (1, 160_000));
    assert!(stake.so_far.gpu_seconds() >= 8.0 * 120.0 + 160.0 * 20.0);
}

#[test]
fn what_is_at_stake_is_as_the_last_tick_has_it_and_over_when_it_is() {
    let mut world = World::new();
    let leak = |now: Timestamp, since: Timestamp| {
        let gpus = Losing::gpus(8, PRICE);
        let price = Price::at_stake(Basis::SinceCheckpoint, gpus, since, now);
        priced(Family::Leak, gpu(7, 3), price)
    };
    for tick in 1..=6 {
        let now = START.shifted(tick * 10_000_000_000);
        world.tick(&[leak(now, START)]);
    }
    let stake = |world: &World| world.open()[0].stake;
    assert_eq!(stake(&world).so_far.gpu_seconds(), 8.0 * 60.0);
    // It has saved: less is at stake.
    let now = world.now.shifted(10_000_000_000);
    world.tick(&[leak(now, world.now)]);
    assert_eq!(stake(&world).so_far.gpu_seconds(), 8.0 * 10.0);
    assert_eq!(world.open()[0].lost_known(), None);
    let id = world.open()[0].id;
    world.ticks(31, &[]);
    let over = world.book.get(id).expect("it is kept");
    assert_eq!(over.state, State::Resolved);
    assert_eq!(over.stake.losing, Losing::default(), "no more is at stake");
}

#[test]
fn a_gpu_without_a_figure_among_those_of_a_node_makes_it_the_least() {
    let mut world = World::new();
    let slow = Price::of(Basis::LowerClock, Losing::part(1, 0.25, PRICE));
    let mut all: Vec<Signal> = (0..5)
        .map(|it| priced(Family::Heat, gpu(7, it), slow))
        .collect();
    let unknown = Price::none(Basis::NoLikeClock);
    all.push(priced(Family::Heat, gpu(7, 5), unknown));
    world.ticks(3, &all);
    let open = world.open()[0];
    assert_eq!((open.losing.milli_gpus, open.is_least), (1_250, true));
    world.ticks(1, &all[..5]);
    assert!(!world.open()[0].is_least, "now all of them have one");
}

#[test]
fn an_incident_that_was_written_before_there_was_a_basis_is_read_with_its_figures() {
    let mut world = World::new();
    world.ticks(2, &[signal(Family::GpuFault, gpu(7, 3))]);
    let mut old = serde_json::to_value(world.open()[0]).expect("it is JSON");
    for name in ["basis", "is_least", "stake"] {
        old.as_object_mut().expect("an object").remove(name);
    }
    let old: Incident = serde_json::from_value(old).expect("it is read");
    assert_eq!(old.basis, Basis::NotRecorded);
    assert_eq!(old.losing_known().map(|it| it.milli_gpus), Some(1_000));
    assert_eq!(old.lost_known(), Some(&world.open()[0].lost));
}
