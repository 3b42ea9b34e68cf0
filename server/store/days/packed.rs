//! A day of the ledger as bytes.
//!
//! Format: the version byte, then the facts, spans and times of [`LedgerDay`] in postcard's form. Days of version
//! [`WITHOUT_ENERGY`] say nothing of energy, those before [`WITHOUT_PROVIDER`] nothing of what was missing to a target, and
//! those before [`VERSION`] nothing of who provides the machine.
//! Numbers: about 170 bytes a GPU and day; a month of 10,000 GPUs is 300,000 rows.

use std::collections::HashMap;
use std::sync::Arc;

use gpufleet_analysis::ledger::{Energy, Reason, State};

use super::super::model::{DayFacts, DayOf, DayTime, LedgerDay};

/// The version this code writes.
const VERSION: u8 = 4;

/// The versions before, which are read as well.
const WITHOUT_PROVIDER: u8 = 3;
const WITHOUT_LOST: u8 = 2;
const WITHOUT_ENERGY: u8 = 1;

/// How a packed day begins: id, whether it is a share, facts; then, but for days of before, who provides the machine.
type Head<Text, Facts> = (Text, bool, Facts);

/// Then: spans, and times.
type Body<Spans, Time> = (Spans, Vec<Time>);

/// Of each time the holder, the code of the state, that of the reason, milliseconds.
type BareTime = (i64, i64, i64, i64);

/// The same, and millijoules with the milliseconds for which they are told.
type DrawnTime = (BareTime, (i64, i64));

/// The same, and the milliseconds that were missing to a target.
type Time = (DrawnTime, i64);

/// Whose days were read, by their resource, with the bytes that say it: those of a GPU begin with the same
/// bytes day after day, which are then read once and kept once.
#[derive(Default)]
pub(super) struct Heads(HashMap<i64, (Packed, Arc<DayOf>)>);

/// The bytes that say whose a day is, and whether they say who provides the machine.
type Packed = (Box<[u8]>, bool);

pub(super) fn pack(day: &LedgerDay) -> Vec<u8> {
    let of = &day.of;
    let head: Head<&str, &DayFacts> = (&of.id, of.is_share, &of.facts);
    let times = day.times.iter();
    let times = times.map(|it| {
        let energy = (it.energy.millijoules, it.energy.metered_millis);
        let time = (it.holder, it.state.code(), it.reason.code(), it.millis);
        ((time, energy), it.lost_millis)
    });
    let body: Body<&[(i64, i64)], Time> = (&day.spans, times.collect());
    let whole = (head, of.facts.provider.as_str(), body);
    postcard::to_extend(&whole, vec![VERSION]).expect("memory takes it")
}

/// As the version before packed it.
#[cfg(test)]
fn pack_without_provider(day: &LedgerDay) -> Vec<u8> {
    let packed = pack(&LedgerDay {
        of: Arc::new(DayOf {
            facts: DayFacts {
                provider: String::new(),
                ..day.of.facts.clone()
            },
            ..(*day.of).clone()
        }),
        ..day.clone()
    });
    let head: Head<&str, &DayFacts> = (&day.of.id, day.of.is_share, &day.of.facts);
    let head = postcard::to_extend(&head, vec![WITHOUT_PROVIDER]).expect("memory takes it");
    // Without the one byte of an empty text.
    [&head, &packed[head.len() + 1..]].concat()
}

/// As the first version packed it.
#[cfg(test)]
pub(in crate::store) fn pack_without_energy(day: &LedgerDay) -> Vec<u8> {
    let of = &day.of;
    let head: Head<&str, &DayFacts> = (&of.id, of.is_share, &of.facts);
    let times = day.times.iter();
    let times = times.map(|it| (it.holder, it.state.code(), it.reason.code(), it.millis));
    let body: Body<&[(i64, i64)], BareTime> = (&day.spans, times.collect());
    postcard::to_extend(&(head, body), vec![WITHOUT_ENERGY]).expect("memory takes it")
}

impl Heads {
    pub(super) fn unpack(
        &mut self,
        (day, subject): (i64, i64),
        cluster: &str,
        data: &[u8],
    ) -> Result<LedgerDay, String> {
        let (version, packed) = match data.split_first() {
            Some((&version @ WITHOUT_ENERGY..=VERSION, rest)) => (version, rest),
            Some((version, _)) => return Err(format!("version {version}: run a newer server")),
            None => return Err("it is empty".to_owned()),
        };
        let (of, body) = self.head(subject, cluster, packed, version == VERSION)?;
        let (spans, times): Body<Vec<_>, Time> = match version {
            VERSION | WITHOUT_PROVIDER => postcard::from_bytes(body),
            WITHOUT_LOST => postcard::from_bytes(body).map(|(spans, times): Body<_, DrawnTime>| {
                (spans, times.into_iter().map(|it| (it, 0)).collect())
            }),
            _ => postcard::from_bytes(body).map(|(spans, times): Body<_, BareTime>| {
                (
                    spans,
                    times.into_iter().map(|it| ((it, (0, 0)), 0)).collect(),
                )
            }),
        }
        .map_err(|error| error.to_string())?;
        let time = |(((holder, state, reason, millis), energy), lost_millis): Time| {
            Some(DayTime {
                holder,
                state: State::from_code(state)?,
                reason: Reason::from_code(reason)?,
                millis,
                energy: Energy {
                    millijoules: energy.0,
                    metered_millis: energy.1,
                },
                lost_millis,
            })
        };
        let times: Option<Vec<DayTime>> = times.into_iter().map(time).collect();
        Ok(LedgerDay {
            day,
            of,
            spans,
            times: times.ok_or("a state or a reason is not known: run a newer server")?,
        })
    }

    /// Whose day it is, and what of the packed day is behind that.
    fn head<'a>(
        &mut self,
        subject: i64,
        cluster: &str,
        packed: &'a [u8],
        has_provider: bool,
    ) -> Result<(Arc<DayOf>, &'a [u8]), String> {
        let known = self.0.get(&subject);
        let known = known.filter(|it| it.1.cluster == cluster && it.0.1 == has_provider);
        if let Some(((head, _), of)) = known
            && let Some(body) = packed.strip_prefix(&**head)
        {
            return Ok((Arc::clone(of), body));
        }
        let ((id, is_share, mut facts), mut body): (Head<String, DayFacts>, _) =
            postcard::take_from_bytes(packed).map_err(|error| error.to_string())?;
        if has_provider {
            (facts.provider, body) =
                postcard::take_from_bytes(body).map_err(|error| error.to_string())?;
        }
        let of = Arc::new(DayOf {
            cluster: cluster.to_owned(),
            id,
            is_share,
            facts,
        });
        let head = packed[..packed.len() - body.len()].into();
        self.0
            .insert(subject, ((head, has_provider), Arc::clone(&of)));
        Ok((of, body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn day(number: i64, provider: &str) -> LedgerDay {
        LedgerDay {
            day: number,
            of: Arc::new(DayOf {
                cluster: "lab".to_owned(),
                id: "GPU-1".to_owned(),
                is_share: false,
                facts: DayFacts {
                    node: "node-1".to_owned(),
                    provider: provider.to_owned(),
                    slices: 1,
                    of: 1,
                    ..DayFacts::default()
                },
            }),
            spans: vec![(0, 60_000)],
            times: vec![DayTime {
                holder: 7,
                state: State::ActiveInefficient,
                reason: Reason::Unknown,
                millis: 60_000,
                energy: Energy {
                    millijoules: 5,
                    metered_millis: 60_000,
                },
                lost_millis: 12,
            }],
        }
    }

    #[test]
    fn a_day_says_who_provides_its_machine_and_one_of_before_does_not() {
        let (with, without) = (day(1, "our basement"), day(1, ""));
        let mut heads = Heads::default();
        let mut read = |data: &[u8]| heads.unpack((1, 3), "lab", data);
        // Of one resource the old and the new day after day, as after an update: neither is read as the other.
        for _ in 0..2 {
            assert_eq!(read(&pack(&with)), Ok(with.clone()));
            assert_eq!(read(&pack_without_provider(&with)), Ok(without.clone()));
            assert_eq!(read(&pack(&without)), Ok(without.clone()));
        }
        let newer = [&[VERSION + 1], &pack(&with)[1..]].concat();
        let refused = read(&newer).expect_err("it is of a newer server");
        assert!(refused.contains("newer"), "{refused}");
        assert!(read(&[0]).is_err() && read(&[]).is_err());
    }
}
