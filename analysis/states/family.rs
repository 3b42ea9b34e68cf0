//! A card and what it is cut into: which of them is there in which second, so that each second of the card is
//! accounted once, of the card or of its parts.
//!
//! Method. A part (a MIG instance) is there from its first sample to its last: what is missing between two minutes
//! of its own that follow one on the other, and a minute that only says that it is missing, change nothing of that.
//! After its last it is no more as soon as the card or another part is seen without it. Where nothing of the card is
//! seen at all, an agent that is away, what was there before still is, for as long as it counts as there without a
//! word ([`Policy::gone_after_s`]). The card is accounted in the seconds in which no part of it is there.
//!
//! So a second of the card is that of its parts from the first sample of any of them on, and the card's own again after
//! the last sample of the last; what all parts leave of it is `stranded`, which the chargeback says.
//!
//! Limits. A part that is made anew under its name within the same or the next minute was there throughout. Of a
//! sender that leaves parts out that it cannot read, and says nothing of them, they are no more.

use std::collections::BTreeMap;

use gpufleet_telemetry::minute::MinuteRow;
use gpufleet_telemetry::time::Minute;

use super::{HOUR_S, LOOKAHEAD_MINUTES, Policy, Span};

/// The first minute that is looked at, before the hour: what was told an hour ago is there no more by then.
const BEFORE_MINUTES: i64 = 60;

/// How many minutes there are to look at, from [`BEFORE_MINUTES`] before the hour to one behind its lookahead, whose
/// last minute is seen to go on by the one after it.
const MINUTES: i64 = BEFORE_MINUTES + 60 + LOOKAHEAD_MINUTES + 1;

/// Another of the family, as one of it sees it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Relative {
    /// Its minute rows in [`family_minutes`]; others are ignored.
    pub minutes: BTreeMap<Minute, MinuteRow>,
    /// Whether it is a part of who is asked: while it is there, it is accounted in its place.
    pub is_part: bool,
}

/// The minutes of each of a family that decide which of them is there in an hour and its lookahead.
pub fn family_minutes(hour: i64) -> std::ops::Range<i64> {
    let first = hour * 60 - BEFORE_MINUTES;
    first..first + MINUTES
}

/// When in an hour and the lookahead after it one of a family is not there: because parts of it are in its place, or
/// because it is a part itself that the card, or another of its parts, is seen without.
pub fn away(
    hour: i64,
    (own, is_part): (&BTreeMap<Minute, MinuteRow>, bool),
    relatives: &[Relative],
    policy: &Policy,
) -> Vec<Span> {
    let first = family_minutes(hour).start;
    let own = Seen::of(first, own);
    let others: Vec<(Seen, bool)> = relatives
        .iter()
        .map(|it| (Seen::of(first, &it.minutes), it.is_part))
        .collect();
    let all = || std::iter::once(&own).chain(others.iter().map(|it| &it.0));
    // Who has no sample in a second is not the one that is seen in it.
    let is_seen: Vec<bool> = (0..own.seconds.len())
        .map(|second| all().any(|it| it.seconds[second] == Word::Observed))
        .collect();
    let there = |part: &Seen| {
        let mut is_there = false;
        let of = std::iter::zip(&part.seconds, &part.untold_s);
        let each = std::iter::zip(of, &is_seen).map(|((word, untold_s), is_seen)| {
            is_there = match word {
                Word::Observed | Word::There => true,
                Word::None => is_there && *untold_s <= policy.gone_after_s && !is_seen,
            };
            is_there
        });
        each.collect::<Vec<bool>>()
    };
    // Without a sample of its own it is not there, whatever else is told of its node.
    let mut is_away = match is_part {
        true => there(&own).into_iter().map(|it| !it).collect(),
        false => vec![false; own.seconds.len()],
    };
    for (part, _) in others.iter().filter(|it| it.1) {
        for (away, is_there) in std::iter::zip(&mut is_away, there(part)) {
            *away |= is_there;
        }
    }
    let start = usize::try_from(BEFORE_MINUTES * 60).expect("an hour of seconds");
    let end = start + HOUR_S + usize::try_from(LOOKAHEAD_MINUTES * 60).expect("minutes");
    spans(&is_away[start..end], hour * HOUR_S as i64)
}

/// The stretches of seconds that are set, of which the first is this second of Unix time.
pub(super) fn spans(seconds: &[bool], start_s: i64) -> Vec<Span> {
    let mut found = Vec::new();
    let mut from_s = start_s;
    for run in seconds.chunk_by(|a, b| a == b) {
        let until_s = from_s + run.len() as i64;
        if run[0] {
            found.push(Span { from_s, until_s });
        }
        from_s = until_s;
    }
    found
}

/// What is known of a member in one second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word {
    /// A sample.
    Observed,
    /// No sample, and it is there: it is told to be missing, or is seen again soon.
    There,
    /// Nothing.
    None,
}

/// A member, second by second.
struct Seen {
    seconds: Vec<Word>,
    /// For how many seconds nobody has told anything, up to and with this one.
    untold_s: Vec<u32>,
}

impl Seen {
    fn of(first: i64, rows: &BTreeMap<Minute, MinuteRow>) -> Self {
        let length = usize::try_from(MINUTES * 60).expect("two hours of seconds");
        let mut seen = Self {
            seconds: Vec::with_capacity(length),
            untold_s: Vec::with_capacity(length),
        };
        let mut untold = 0_u32;
        for minute in first..first + MINUTES {
            let observed = rows.get(&Minute(minute)).map(|it| it.bitmaps.observed);
            for second in 0..60 {
                untold = match observed {
                    Some(_) => 0,
                    None => untold.saturating_add(1),
                };
                seen.untold_s.push(untold);
                seen.seconds.push(match observed {
                    Some(0) => Word::There,
                    Some(bits) if bits >> second & 1 == 1 => Word::Observed,
                    _ => Word::None,
                });
            }
        }
        seen.bridge();
        seen
    }

    /// Fills what is missing between two seconds of the same minute or of two that follow one on the other.
    fn bridge(&mut self) {
        let mut last: Option<usize> = None;
        for second in 0..self.seconds.len() {
            if self.seconds[second] == Word::None {
                continue;
            }
            if let Some(last) = last.filter(|it| second / 60 - it / 60 <= 1) {
                self.seconds[last + 1..second].fill(Word::There);
            }
            last = Some(second);
        }
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::catalog::gpu;
    use gpufleet_telemetry::time::Timestamp;
    use proptest::prelude::*;

    use super::super::tests::{HOUR, Piece, rows};
    use super::super::{Accounted, Around, Carry, Hour, NotReady, account};
    use super::*;
    use crate::chargeback::{GpuPeriod, Part, fixture};
    use crate::ledger::{Reason, State};
    use Piece::{Active, NotHeld, Unseen, Untold};

    type Rows = BTreeMap<Minute, MinuteRow>;

    /// Hours of a card and its parts from [`HOUR`] on, member by member, the card first; as far as `until_s` after the
    /// start.
    fn family(members: &[Rows], hours: i64, until_s: i64) -> Vec<Vec<Accounted>> {
        let policy = Policy::default();
        let of = |me: usize| {
            let others = members.iter().enumerate().filter(|it| it.0 != me);
            let relatives: Vec<Relative> = others
                .map(|(_, minutes)| Relative {
                    minutes: minutes.clone(),
                    is_part: me == 0,
                })
                .collect();
            let mut carry = Carry::default();
            let hour = |hour: i64| {
                let around = Around {
                    away: away(hour, (&members[me], me != 0), &relatives, &policy),
                    ..Around::default()
                };
                let asked = Hour {
                    hour,
                    minutes: &members[me],
                    health: &[],
                    carry,
                    until: Timestamp::from_seconds(HOUR * 3_600 + until_s),
                    around: &around,
                };
                let accounted = account(&asked, &policy);
                carry = accounted.carry;
                accounted
            };
            (HOUR..HOUR + hours).map(hour).collect()
        };
        (0..members.len()).map(of).collect()
    }

    fn line(pieces: &[(Piece, u32)]) -> Rows {
        rows(0, pieces, Some(8e9))
    }

    /// (seconds from the start of the hour, until) in which each is accounted in the first hour.
    fn check(members: &[&[(Piece, u32)]], expected: &[&[(i64, i64)]]) {
        let members: Vec<Rows> = members.iter().map(|it| line(it)).collect();
        let found = family(&members, 1, 7_200);
        let start_s = HOUR * 3_600;
        let spans = |it: &Vec<Accounted>| -> Vec<(i64, i64)> {
            let spans = it[0].spans.iter();
            spans
                .map(|it| (it.from_s - start_s, it.until_s - start_s))
                .collect()
        };
        let found: Vec<_> = found.iter().map(spans).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_card_that_is_cut_within_the_hour_has_the_time_before_and_its_instances_the_time_after() {
        let card = [(Active, 3_600)];
        let first = [(Untold, 1_817), (Active, 1_783)];
        let second = [(Untold, 1_820), (NotHeld, 1_780)];
        check(
            &[&card, &first, &second],
            &[&[(0, 1_817)], &[(1_817, 3_600)], &[(1_820, 3_600)]],
        );
    }

    #[test]
    fn a_card_that_is_whole_again_has_the_time_after_its_last_instance() {
        let card = [(Active, 3_600)];
        let first = [(Active, 1_210)];
        let second = [(Active, 1_200)];
        check(
            &[&card, &first, &second],
            &[&[(1_210, 3_600)], &[(0, 1_210)], &[(0, 1_200)]],
        );
    }

    #[test]
    fn cut_whole_and_cut_again_in_one_hour_is_told_apart() {
        let card = [(Active, 3_600)];
        let again = [(Active, 1_200), (Untold, 1_200), (Active, 1_200)];
        let other = [(Untold, 2_400), (Active, 1_200)];
        check(
            &[&card, &again, &other],
            &[
                &[(1_200, 2_400)],
                &[(0, 1_200), (2_400, 3_600)],
                &[(2_400, 3_600)],
            ],
        );
    }

    #[test]
    fn instances_that_are_made_anew_do_not_count_beside_those_of_before() {
        let card = [(Active, 3_600)];
        let before = [(Active, 1_800)];
        let after = [(Untold, 1_800), (Active, 1_800)];
        check(
            &[&card, &before, &after],
            &[&[], &[(0, 1_800)], &[(1_800, 3_600)]],
        );
    }

    #[test]
    fn an_instance_that_is_no_more_is_not_unhealthy_with_its_node() {
        let lost = Span {
            from_s: HOUR * 3_600 + 2_400,
            until_s: HOUR * 3_600 + 3_600,
        };
        let (card, part) = (line(&[(Active, 2_400)]), line(&[(Active, 1_200)]));
        let of = |own: &Rows, other: &Rows, is_part: bool| {
            let relative = Relative {
                minutes: other.clone(),
                is_part: !is_part,
            };
            let policy = Policy::default();
            let around = Around {
                away: away(HOUR, (own, is_part), &[relative], &policy),
                not_ready: vec![(lost, NotReady::Lost)],
                ..Around::default()
            };
            let asked = Hour {
                hour: HOUR,
                minutes: own,
                health: &[],
                carry: Carry::default(),
                until: Timestamp::from_seconds(HOUR * 3_600 + 7_200),
                around: &around,
            };
            let accounted = account(&asked, &policy).ledger;
            (accounted.total_millis(), accounted.millis(State::Unhealthy))
        };
        assert_eq!(of(&card, &part, false), (2_400_000, 1_200_000));
        assert_eq!(of(&part, &card, true), (1_200_000, 0));
    }

    #[test]
    fn an_instance_that_is_told_to_be_missing_is_there_and_unobserved() {
        let card = line(&[(Active, 3_600)]);
        let part = line(&[(Active, 1_220), (Unseen, 1_180), (Active, 1_200)]);
        let found = family(&[card, part], 1, 7_200);
        assert_eq!(found[0][0].ledger.total_millis(), 0);
        assert_eq!(found[1][0].ledger.total_millis(), 3_600_000);
        assert_eq!(found[1][0].ledger.millis(State::Unobserved), 1_180_000);
    }

    #[test]
    fn while_nothing_is_seen_of_a_card_what_was_there_still_is() {
        let silent = [(Active, 1_200), (Untold, 1_200), (Active, 1_200)];
        // Whole before, whole after.
        check(&[&silent, &[]], &[&[(0, 3_600)], &[]]);
        // Cut before and after.
        check(&[&silent, &silent], &[&[], &[(0, 3_600)]]);
        // Cut before, whole after.
        check(
            &[&silent, &[(Active, 1_200)]],
            &[&[(2_400, 3_600)], &[(0, 2_400)]],
        );
        // Whole before, cut after.
        check(
            &[&silent, &[(Untold, 2_400), (Active, 1_200)]],
            &[&[(0, 2_400)], &[(2_400, 3_600)]],
        );
    }

    #[test]
    fn a_card_that_is_lost_while_it_is_cut_does_not_count_beside_its_silent_instances() {
        // The instances are not read any more, the card is told to be missing, across the hour.
        let card = line(&[(Active, 3_000), (Unseen, 7_800)]);
        let part = line(&[(Active, 3_000)]);
        let found = family(&[card, part], 3, 10_800);
        for (hour, (card, part)) in found[0].iter().zip(&found[1]).enumerate() {
            let both = card.ledger.total_millis() + part.ledger.total_millis();
            assert_eq!(both, 3_600_000, "hour {hour}");
        }
        assert_eq!(found[1][1].ledger.total_millis(), 3_000_000);
    }

    #[test]
    fn what_nobody_sees_of_a_part_between_two_of_its_minutes_is_its_own() {
        let card = line(&[(Active, 3_600)]);
        let mut part = line(&[(Active, 3_600)]);
        for (minute, bits) in [(20, 0xfff_u64), (21, 0x3f << 54)] {
            let row = part
                .get_mut(&Minute(HOUR * 60 + minute))
                .expect("it is there");
            row.bitmaps = gpufleet_telemetry::minute::Bitmaps::default();
            for metric in [gpu::OBSERVED, gpu::HELD, gpu::HOLDER_KNOWN, gpu::ACTIVE] {
                row.bitmaps.set(metric.id, bits);
            }
        }
        let found = family(&[card, part], 1, 7_200);
        assert_eq!(found[0][0].ledger.total_millis(), 0);
        assert_eq!(found[1][0].ledger.millis(State::Unobserved), 102_000);
        assert_eq!(found[1][0].ledger.total_millis(), 3_600_000);
    }

    /// A card that is cut and whole by turns, minute by minute: how many instances it has, and whether the agent tells.
    fn layouts() -> impl Strategy<Value = Vec<(usize, bool, u32)>> {
        let stretch = prop_oneof![60_u32..400, 400_u32..2_000];
        proptest::collection::vec((0_usize..4, proptest::bool::weighted(0.8), stretch), 1..7)
    }

    /// The rows of the card, and of each instance with its compute slices, as [`layouts`] are laid one behind the other
    /// from the start of [`HOUR`] on; the card is whole at last.
    fn laid(layouts: &[(usize, bool, u32)]) -> (Vec<Rows>, Vec<u32>) {
        let mut lines: Vec<Vec<(Piece, u32)>> = vec![vec![(Active, 100)]];
        let mut slices = Vec::new();
        let (mut at, mut was_told) = (100, true);
        for (parts, is_told, seconds) in layouts {
            let seconds = *seconds;
            // Nobody is silent for so long that it is gone.
            let is_told = *is_told || !was_told;
            was_told = is_told;
            lines[0].push((if is_told { Active } else { Untold }, seconds));
            if is_told {
                // Each layout has instances of its own, as NVIDIA's driver names them anew.
                lines.extend((0..*parts).map(|_| vec![(Untold, at), (NotHeld, seconds)]));
                slices.extend([3, 2, 1].iter().take(*parts));
            }
            at += seconds;
        }
        lines[0].push((Active, 10_900_u32.saturating_sub(at)));
        (lines.iter().map(|it| line(it)).collect(), slices)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]

        #[test]
        fn each_second_of_a_card_is_its_own_or_its_parts_and_never_both(
            layouts in layouts(), until_s in 3_000_i64..10_800,
        ) {
            let (members, _) = laid(&layouts);
            let found = family(&members, 3, until_s);
            for hour in 0..3 {
                let start_s = (HOUR + hour) * 3_600;
                let length = (until_s - hour * 3_600).clamp(0, 3_600);
                let is_in = |member: usize, second: i64| {
                    let spans = &found[member][usize::try_from(hour).expect("few")].spans;
                    spans.iter().any(|it| it.from_s <= second && second < it.until_s)
                };
                for second in start_s..start_s + length {
                    let parts = (1..members.len()).any(|it| is_in(it, second));
                    prop_assert!(is_in(0, second) != parts, "second {}", second - start_s);
                }
            }
            for member in &found {
                for hour in member {
                    let spans: i64 = hour.spans.iter().map(|it| it.until_s - it.from_s).sum();
                    prop_assert_eq!(spans * 1_000, hour.ledger.total_millis());
                }
            }
        }

        #[test]
        fn an_hour_of_a_card_that_is_cut_in_it_costs_what_an_hour_of_a_card_costs(layouts in layouts()) {
            let (members, slices) = laid(&layouts);
            let found = family(&members, 3, 10_900);
            let book = fixture::book(fixture::RATES, "");
            let mut fleet = fixture::fleet(1);
            fleet.nodes[0].gpus = 1;
            fleet.shares = (0..slices.len()).map(|it| format!("MIG-{it}")).collect();
            for hour in 0..3 {
                let mut period = fixture::period(0, hour, &[]);
                period.gpus.truncate(1);
                let at = usize::try_from(hour).expect("few");
                for (member, hours) in found.iter().enumerate() {
                    let parts = GpuPeriod::whole(0, &hours[at]).parts.into_iter();
                    let share = member.checked_sub(1);
                    period.gpus[0].parts.extend(parts.map(|it| Part {
                        share,
                        slices: share.map_or(1, |it| slices[it]),
                        of: share.map_or(1, |_| 7),
                        ..it
                    }));
                }
                let made = fixture::october(&fleet, std::slice::from_ref(&period), &book);
                let total = made.total();
                prop_assert_eq!(total.gpu_millis, 3_600_000);
                prop_assert_eq!(total.cost, 80_000_000_000);
                prop_assert!(made.notes.is_empty(), "nothing was scaled: {:?}", made.notes);
                let of = |share: Option<usize>| {
                    let lines = made.lines.iter().filter(|it| it.0.share == share);
                    let lines = lines.filter(|it| it.0.reason != Reason::Stranded);
                    lines.map(|it| it.1.gpu_millis).sum::<i64>()
                };
                for (member, hours) in found.iter().enumerate() {
                    let millis = hours[at].ledger.total_millis();
                    let share = member.checked_sub(1);
                    let part = share.map_or(millis, |it| millis * i64::from(slices[it]) / 7);
                    prop_assert!((of(share) - part).abs() <= 1, "{} for {}", of(share), part);
                }
            }
        }
    }
}
