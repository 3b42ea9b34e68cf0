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
const OF_BLOCK: usize = 64;
const OF_RACK: usize = 8;
/// Machines of a hundred with a fault in a month, where nothing is wrong with what they share.
const USUAL: f64 = 0.03;

fn machines() -> Vec<Machine> {
    let machine = |number: usize| Machine {
        cluster: "prod".to_owned(),
        node: format!("n{number}"),
        parts: vec![
            (Level::SubBlock, format!("s{}", number / OF_RACK)),
            (Level::Block, format!("b{}", number / OF_BLOCK)),
        ],
    };
    (0..MACHINES).map(machine).collect()
}

/// The parts that are told of a month in which so many of the machines of one part of this size break.
fn told(seed: u32, usual: f64, (size, share): (usize, f64)) -> Vec<Part> {
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
                card: format!("card{number}"),
                at: NOW.shifted(-ago),
            })
        })
        .collect();
    let parts = judge(&faults, &machines(), NOW).into_iter();
    let parts = parts.filter_map(|it| match it {
        Offender::Part(part) => Some(part),
        Offender::Card(..) | Offender::Node(..) => None,
    });
    parts.collect()
}

fn part(level: Level, size: usize, share: f64, least: u32) -> Faults {
    let name = if level == Level::Block { "b3" } else { "s3" };
    let is_found = |seed: &u32| {
        let parts = told(*seed, USUAL, (size, share));
        matches!(&parts[..], [only] if only.level == level && only.name == name)
    };
    let count = (0..SEEDS).filter(is_found).count();
    Faults {
        detector: "offender",
        fault: format!(
            "a {} of {size} machines of which {:.0} % break in a month",
            level.words(),
            share * 100.0
        ),
        of: SEEDS,
        found: u32::try_from(count).unwrap_or(0),
        delay: None,
        least,
    }
}

pub(super) fn faults() -> Vec<Faults> {
    vec![
        part(Level::SubBlock, OF_RACK, 0.5, 0),
        part(Level::SubBlock, OF_RACK, 0.9, 49),
        part(Level::Block, OF_BLOCK, 0.15, 0),
        part(Level::Block, OF_BLOCK, 0.3, 40),
    ]
}

pub(super) fn well() -> Vec<Well> {
    let months = [USUAL, 0.1].map(|usual| {
        let months = (1_000..1_100).map(|seed| told(seed, usual, (OF_RACK, 0.0)).len());
        months.sum::<usize>()
    });
    vec![Well {
        detector: "offender",
        world: "1,024 machines, faults as they come: 3 % and 10 % a month",
        alarms: u32::try_from(months.iter().sum::<usize>()).unwrap_or(u32::MAX),
        exposure: 200.0,
        unit: "month",
        most: 0,
    }]
}
