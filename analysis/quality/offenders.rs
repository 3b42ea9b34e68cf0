//! Made months of a cluster: a rack or a block in which machines break more often than elsewhere, and months
//! in which faults are spread as they come.

use gpufleet_telemetry::time::Timestamp;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Faults, Well};
use crate::offender::{Fault, Level, Machine, Offender, Part, WINDOW_NS, judge};

const SEEDS: u32 = 50;
const NOW: Timestamp = Timestamp::from_seconds(1_790_000_000);
/// 16 blocks of 8 racks with 8 machines each.
const MACHINES: usize = 1_024;
const OF_MACHINE: usize = 8;
const OF_BLOCK: usize = 64;
const OF_RACK: usize = 8;
/// Or four zones, with NVLink domains of 18.
const OF_ZONE: usize = 256;
const OF_DOMAIN: usize = 18;

/// What machines know to be parts of, with their sizes.
type Levels = [(Level, usize); 2];

const RACKS: Levels = [(Level::SubBlock, OF_RACK), (Level::Block, OF_BLOCK)];
const ZONES: Levels = [(Level::Domain, OF_DOMAIN), (Level::Zone, OF_ZONE)];

const DAY_NS: f64 = 86_400e9;
/// Machines of a hundred with a fault in a month, where nothing is wrong with what they share.
const USUAL: f64 = 0.03;

/// Machines of which each knows its racks and blocks, or the parts of these sizes.
fn machines(levels: Levels) -> Vec<Machine> {
    let machine = |number: usize| Machine {
        cluster: "prod".to_owned(),
        node: format!("n{number}"),
        parts: levels
            .iter()
            .map(|(level, size)| (*level, format!("{}-{}", level.words(), number / size)))
            .collect(),
        made: None,
    };
    (0..MACHINES).map(machine).collect()
}

/// The parts that are told of a month in which so many of the machines of one part of this size break.
fn told(seed: u32, usual: f64, (size, share): (usize, f64), levels: Levels) -> Vec<Part> {
    let mut random = ChaCha8Rng::seed_from_u64(seed.into());
    let faults: Vec<Fault> = (0..MACHINES)
        .filter_map(|number| {
            let chance = if number / size == 3 {
                usual.max(share)
            } else {
                usual
            };
            let is_faulty = random.random_bool(chance);
            let ago = random.random_range(0..WINDOW_NS);
            is_faulty.then(|| Fault {
                cluster: "prod".to_owned(),
                node: format!("n{number}"),
                cards: vec![format!("card{number}")],
                at: NOW.shifted(-ago),
            })
        })
        .collect();
    let parts = judge(&faults, &machines(levels), NOW).into_iter();
    let parts = parts.filter_map(|it| match it {
        Offender::Part(part) => Some(part),
        Offender::Card(..) | Offender::Node(..) => None,
    });
    parts.collect()
}

fn part(level: Level, size: usize, share: f64, least: u32) -> Faults {
    let name = format!("{}-3", level.words());
    let levels = match level {
        Level::SubBlock | Level::Block => RACKS,
        Level::Domain | Level::Zone => ZONES,
    };
    let is_found = |seed: &u32| {
        let parts = told(*seed, USUAL, (size, share), levels);
        matches!(&parts[..], [only] if only.level == level && only.name == name)
    };
    let count = (0..SEEDS).filter(is_found).count();
    let article = if level == Level::Domain { "an" } else { "a" };
    Faults {
        detector: "offender",
        fault: format!(
            "{article} {} of {size} machines of which {:.0} % break in a month",
            level.words(),
            share * 100.0
        ),
        of: SEEDS,
        found: u32::try_from(count).unwrap_or(0),
        delay: None,
        least,
    }
}

/// Faults of a card or of a machine's cards, which come each so many days.
fn often(random: &mut ChaCha8Rng, days: f64, cards: usize) -> Vec<Fault> {
    let mut all = Vec::new();
    let mut ago = 0.0;
    loop {
        ago -= days * (1.0 - random.random::<f64>()).ln();
        if ago >= 30.0 {
            return all;
        }
        let card = random.random_range(0..cards);
        // What comes and goes for some minutes is one fault.
        for minutes in 0..random.random_range(1..4_i64) {
            all.push(Fault {
                cluster: "prod".to_owned(),
                node: "n1".to_owned(),
                cards: vec![format!("sick{card}")],
                at: NOW.shifted(-(ago * DAY_NS) as i64 - minutes * 60_000_000_000),
            });
        }
    }
}

/// A machine of which each of so many cards is sick, beside faults as they come.
fn sick(cards: usize, days: f64, least: u32) -> Faults {
    let is_found = |seed: &u32| {
        let mut random = ChaCha8Rng::seed_from_u64(900 + u64::from(*seed));
        let faults = often(&mut random, days, cards);
        match &judge(&faults, &[], NOW)[..] {
            [Offender::Card(_, card, _)] => cards == 1 && card == "sick0",
            [Offender::Node(_, node, ..)] => cards > 1 && node == "n1",
            _ => false,
        }
    };
    let what = match cards {
        1 => "a card".to_owned(),
        _ => format!("a machine of {cards} cards, of which one or the other"),
    };
    Faults {
        detector: "offender",
        fault: format!("{what} breaks each {days:.0} days"),
        of: SEEDS,
        found: (0..SEEDS).filter(is_found).count() as u32,
        delay: None,
        least,
    }
}

pub(super) fn faults() -> Vec<Faults> {
    vec![
        sick(1, 10.0, 22),
        sick(1, 4.0, 45),
        sick(8, 10.0, 9),
        sick(8, 3.0, 46),
        part(Level::SubBlock, OF_RACK, 0.5, 12),
        part(Level::SubBlock, OF_RACK, 0.9, 49),
        part(Level::Block, OF_BLOCK, 0.15, 12),
        part(Level::Block, OF_BLOCK, 0.3, 45),
        part(Level::Domain, OF_DOMAIN, 0.5, 35),
        part(Level::Zone, OF_ZONE, 0.12, 35),
    ]
}

pub(super) fn well() -> Vec<Well> {
    let months = [USUAL, 0.1].map(|usual| {
        let months = (1_000..1_100).map(|seed| told(seed, usual, (OF_RACK, 0.0), RACKS).len());
        months.sum::<usize>()
    });
    // One card of 250 breaks in a month, as real ones do, and one in three of these again.
    let cards = (3_000..3_100).map(|seed| {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let all = (0..MACHINES * OF_MACHINE).flat_map(|card| {
            let chance = random.random_bool(0.004);
            let count = if chance {
                1 + usize::from(random.random_bool(0.3))
            } else {
                0
            };
            let ago: Vec<i64> = (0..count)
                .map(|_| random.random_range(0..WINDOW_NS))
                .collect();
            ago.into_iter().map(move |ago| Fault {
                cluster: "prod".to_owned(),
                node: format!("n{}", card / OF_MACHINE),
                cards: vec![format!("card{card}")],
                at: NOW.shifted(-ago),
            })
        });
        judge(&all.collect::<Vec<_>>(), &[], NOW).len()
    });
    let cards = u32::try_from(cards.sum::<usize>()).unwrap_or(u32::MAX);
    let of_cards = Well {
        detector: "offender",
        world: "8,192 cards of which one in 250 breaks a month, some twice",
        alarms: cards,
        exposure: 100.0,
        unit: "month",
        most: 0,
    };
    vec![
        of_cards,
        Well {
            detector: "offender",
            world: "1,024 machines, faults as they come: 3 % and 10 % a month",
            alarms: u32::try_from(months.iter().sum::<usize>()).unwrap_or(u32::MAX),
            exposure: 200.0,
            unit: "month",
            most: 0,
        },
    ]
}
