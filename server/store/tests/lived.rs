//! Sixteen hours of a node from minutes over hours and days to money: cards that change hands, one that is cut and cut
//! anew, minutes that come when their day was put together long ago, a server that is restarted, a price that changes.
//! What comes out is what was made, to the millisecond and the nano-dollar.

use gpufleet_analysis::chargeback::{Detail, MILLIS_PER_DAY};
use gpufleet_analysis::ledger::State;
use gpufleet_analysis::money::ratio;
use gpufleet_analysis::table::moment_text;
use rand::{Rng as _, SeedableRng as _};

use super::hours::{at, hour};
use super::money::{held, holder, table, tables, terms};
use super::*;
use crate::ledger::days;
use crate::money::{Terms, month};

const HOUR_S: i64 = 3_600;
const HOUR_MS: i64 = 3_600_000;
const MINUTE_MS: i64 = 60_000;

/// How long the node is there, minutes. For an hour more it is taken to be there, silent.
const MINUTES: i64 = 16 * 60;
/// Its GPUs by its machine type; three of them nobody ever tells of.
const GPUS: i64 = 8;
/// Those that stay whole. One more is cut.
const WHOLE: usize = 4;
/// What it costs an hour, nano-USD: in the table that is there first, and by a later one from a minute of its life on.
const FIRST: i128 = 80_000_000_001;
const SECOND: i128 = 91_234_567_891;
const DEARER_FROM: i64 = 317;

/// The shares of the card that is cut: of how many sevenths each is, who holds it, and from which minute until which,
/// multiples of seven minutes.
const SHARES: [(&str, i64, &str, [i64; 2]); 3] = [
    ("MIG-1", 3, "a", [60, 410]),
    ("MIG-2", 2, "b", [60, 200]),
    ("MIG-3", 4, "b", [200, 410]),
];
/// When it is cut.
const CUT: [i64; 2] = [60, 410];

/// GPU-milliseconds by who pays and state; of whoever fell silent it is nobody's.
type Times = BTreeMap<(String, State), i64>;

#[derive(Default)]
struct Lived {
    prompt: Vec<MinuteDelta>,
    late: Vec<MinuteDelta>,
    times: Times,
}

impl Lived {
    fn add(&mut self, payer: &str, state: State, millis: i64) {
        *self.times.entry((payer.to_owned(), state)).or_default() += millis;
    }

    /// Minutes of a GPU in somebody's hands, where he works, or in nobody's.
    fn hold(&mut self, gpu: &str, [first, end]: [i64; 2], by: Option<&str>, is_late: bool) {
        let by = by.map(holder);
        let minutes = held(gpu, first, end, by.as_ref(), by.is_some());
        match is_late {
            true => self.late.extend(minutes),
            false => self.prompt.extend(minutes),
        }
    }

    fn of(seed: u64) -> Self {
        let mut random = rand::rngs::StdRng::seed_from_u64(seed);
        let mut lived = Self::default();
        for gpu in 0..WHOLE {
            let (gpu, mut first) = (format!("GPU-{gpu}"), 0);
            while first < MINUTES {
                let end = MINUTES.min(first + random.random_range(3..70));
                let by = [Some("a"), Some("b"), None][random.random_range(0..3_usize)];
                // What it was there for is known by its ends.
                let may_be_late = first > 0 && end < MINUTES - 60;
                let is_late = may_be_late && random.random_bool(0.3);
                lived.hold(&gpu, [first, end], by, is_late);
                let (payer, state) = paid(by);
                lived.add(payer, state, (end - first) * MINUTE_MS);
                first = end;
            }
        }
        // The card goes on telling of itself while it is cut: its shares are what is accounted.
        lived.hold("GPU-4", [0, MINUTES], Some("a"), false);
        let cut = (CUT[1] - CUT[0]) * MINUTE_MS;
        lived.add("science", State::ActiveUnrated, MINUTES * MINUTE_MS - cut);
        let mut rest = cut;
        for (id, sevenths, by, [first, end]) in SHARES {
            let (payer, state) = paid(Some(by));
            let millis = (end - first) * MINUTE_MS / 7 * sevenths;
            lived.add(payer, state, millis);
            rest -= millis;
            let by = holder(by);
            let minutes = held(id, first, end, Some(&by), true).into_iter();
            let of_share = |it: MinuteDelta| MinuteDelta {
                key: share(id),
                ..it
            };
            lived.prompt.extend(minutes.map(of_share));
        }
        lived.add("nobody", State::Unallocated, rest);
        // GPUs that nobody tells of, and the hour in which all are silent.
        let untold = GPUS - i64::try_from(WHOLE + 1).expect("it is little");
        let silent = untold * MINUTES * MINUTE_MS + GPUS * HOUR_MS;
        lived.add("", State::Unobserved, silent);
        lived
    }
}

/// Who pays for what somebody holds, or nobody.
fn paid(by: Option<&str>) -> (&'static str, State) {
    match by {
        Some("a") => ("science", State::ActiveUnrated),
        Some(_) => ("unowned", State::ActiveUnrated),
        None => ("nobody", State::Unallocated),
    }
}

fn share(id: &str) -> ResourceKey {
    ResourceKey {
        kind: ResourceKind::Share,
        ..key(id)
    }
}

/// What is told of the node and of all that is on it.
fn resources() -> Vec<KnownResource> {
    let described = |key: &ResourceKey, [first, end]: [i64; 2], told: &[(&str, &str)]| {
        let mut known = known(key, Minute(START.0 + end - 1));
        known.first_seen = Minute(START.0 + first).start();
        let resource = Resource::clone(&known.resource);
        let resource = told
            .iter()
            .fold(resource, |it, (name, value)| it.with(name, *value));
        known.resource = Arc::new(resource);
        known
    };
    let node = ResourceKey {
        kind: ResourceKind::Node,
        ..key("node-1")
    };
    let machine = [
        (attribute::MACHINE_TYPE, "a3-highgpu-8g"),
        (attribute::REGION, "us-central1"),
        (attribute::PROVISIONING, "on_demand"),
    ];
    let mut all = vec![described(&node, [0, MINUTES], &machine)];
    all.extend((0..=WHOLE).map(|it| described(&key(&format!("GPU-{it}")), [0, MINUTES], &[])));
    all.extend(SHARES.map(|(id, sevenths, _, times)| {
        let slices = format!("{sevenths}/7");
        let told = [
            (attribute::PARENT, "GPU-4"),
            (attribute::MIG_SLICES, slices.as_str()),
        ];
        described(&share(id), times, &told)
    }));
    all
}

/// The terms with the first price, or with both.
fn priced(is_both: bool) -> Terms {
    let header = "machine_type,region,basis,currency,hour,gpu_hour,from,until,quality,source\n";
    let row = |hour: i128, from: &str| {
        let hour = gpufleet_analysis::money::decimal(hour);
        format!("a3-highgpu-8g,us-central1,on_demand,USD,{hour},,{from},,list,contract\n")
    };
    let mut rates = format!("{header}{}", row(FIRST, "2026-01-01"));
    if is_both {
        let from = at(DEARER_FROM * 60).millis();
        rates += &row(SECOND, &moment_text(from));
    }
    let mut stored = tables();
    stored[0] = table("mine.csv", "rates", &rates);
    let terms = terms(stored);
    assert_eq!(terms.findings, [""; 0]);
    terms
}

impl Bench {
    /// The time of the node, and its money.
    async fn lived(&self, terms: &Terms) -> (Times, i128) {
        let day = hour() / 24;
        let days = month::read(&self.store, day..day + 2, Some("live")).await;
        let days = days.expect("the store answers");
        let made = month::charge(&days, day..day + 2, terms, Detail::Gpus).made;
        assert!(made.balance().is_exact(), "{:?}", made.balance());
        assert_eq!(made.notes, BTreeMap::new());
        let of_days: i128 = made.days.values().map(|it| it.cost).sum();
        assert_eq!(of_days, made.total().cost);
        let mut times = Times::new();
        for (key, sum) in &made.lines {
            let payer = match key.state {
                State::Unobserved => "",
                _ => made.payers[key.payer].name(),
            };
            *times.entry((payer.to_owned(), key.state)).or_default() += sum.gpu_millis;
        }
        (times, made.total().cost)
    }

    /// Puts every day together that is due.
    async fn put_days_together(&self, now: Timestamp) {
        loop {
            let done = days::round(&self.store, now).await;
            if done.expect("the store answers") == 0 {
                return;
            }
        }
    }
}

both! {
    async fn what_a_node_lived_through_is_what_it_costs_to_the_nano_dollar(bench) {
        let lived = Lived::of(29);
        assert!(lived.late.len() > 100, "{} minutes are late", lived.late.len());
        let mut first = commit(1, 0, START);
        (first.resources, first.minutes) = (resources(), lived.prompt);
        first.holders = ["a", "b"].map(holder).into();
        bench.commit(&first).await;
        bench.compute(at(30 * HOUR_S)).await;
        let billed = i128::from(MINUTES / 60 + 1);
        // Put together while it is read, and then as it is stored.
        let read = bench.lived(&priced(false)).await;
        bench.put_days_together(at(31 * HOUR_S)).await;
        let (times, cost) = bench.lived(&priced(false)).await;
        assert_eq!((&times, cost), (&read.0, read.1));
        assert_eq!(cost, FIRST * billed, "what is missing is paid for too");
        assert_eq!(times.values().sum::<i64>(), GPUS * 17 * HOUR_MS);
        let silent = (String::new(), State::Unobserved);
        assert!(times[&silent] > lived.times[&silent], "and nobody saw it");

        let server = bench.restarted().await;
        // What is newest comes first, as out of a spool.
        for (number, minutes) in (2..).zip(lived.late.chunks(400).rev()) {
            let mut more = commit(number, 0, START);
            more.minutes = minutes.to_vec();
            server.commit(&more).await;
            server.compute(at(40 * HOUR_S)).await;
        }
        let (times, cost) = server.lived(&priced(false)).await;
        assert_eq!((&times, cost), (&lived.times, FIRST * billed));
        server.put_days_together(at(41 * HOUR_S)).await;
        // The price of before holds until the other does, and money follows it day by day.
        let (times, cost) = server.lived(&priced(true)).await;
        assert_eq!(times, lived.times);
        let (dearer, midnight) = (DEARER_FROM * MINUTE_MS, MILLIS_PER_DAY - at(0).millis() % MILLIS_PER_DAY);
        let of = |rate: i128, millis: i64| ratio(rate, millis.into(), HOUR_MS.into()).expect("it fits");
        let after = (MINUTES + 60) * MINUTE_MS - midnight;
        let expected = of(FIRST, dearer) + of(SECOND, midnight - dearer) + of(SECOND, after);
        assert_eq!(cost, expected);
    }
}
