//! Which of a card and its instances is there, second by second.

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

#[test]
fn an_instance_that_is_made_anew_under_its_name_within_a_minute_was_there_throughout() {
    let card = [(Active, 3_600)];
    for begin in [1_210, 1_250, 1_139] {
        let part = [(Active, begin), (Untold, 40), (Active, 3_560 - begin)];
        check(&[&card, &part], &[&[], &[(0, 3_600)]]);
    }
    // And across the end of an hour, in both of them.
    let members = [
        line(&[(Active, 7_200)]),
        line(&[(Active, 3_590), (Untold, 30), (Active, 3_580)]),
    ];
    let found = family(&members, 2, 10_800);
    for (whole, part) in found[0].iter().zip(&found[1]).take(2) {
        assert_eq!(whole.ledger.total_millis(), 0);
        assert_eq!(part.ledger.total_millis(), 3_600_000);
    }
}

#[test]
fn an_instance_in_whose_pause_another_lived_and_went_was_gone_in_it() {
    let card = [(Active, 3_600)];
    let (whole, half) = (1_210, 1_250);
    let first = [(Active, whole), (Untold, 50), (Active, 3_550 - whole)];
    let second = [(Untold, 1_215), (Active, 35)];
    check(
        &[&card, &first, &second],
        &[
            &[(1_210, 1_215), (1_250, 1_260)],
            &[(0, 1_210), (1_260, 3_600)],
            &[(1_215, half)],
        ],
    );
    // One that stays is beside it: the pause is one of samples.
    let stays = [(Untold, 1_215), (Active, 2_385)];
    check(
        &[&card, &first, &stays],
        &[&[], &[(0, 3_600)], &[(1_215, 3_600)]],
    );
    // And so is one that is read as late as it.
    let late = [(Active, 1_208), (Untold, 50), (Active, 2_342)];
    check(
        &[&card, &first, &late],
        &[&[], &[(0, 3_600)], &[(0, 3_600)]],
    );
}

/// Instances that come and go under the same names, some within seconds: who of them is there, as bits, and for how
/// long. The fourth takes the whole card.
fn remade() -> impl Strategy<Value = Vec<(u8, u32)>> {
    let who = prop_oneof![0_u8..8, Just(8)];
    let stretch = prop_oneof![4_u32..60, 60_u32..130, 130_u32..1_500];
    proptest::collection::vec((who, stretch), 1..16)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn instances_that_are_made_anew_under_their_names_double_and_lose_no_second(remade in remade()) {
        let mut lines: Vec<Vec<(Piece, u32)>> = vec![vec![(Active, 10_900)]];
        for part in 0..4 {
            let piece = |(who, seconds): &(u8, u32)| match who >> part & 1 {
                1 => (NotHeld, *seconds),
                _ => (Untold, *seconds),
            };
            lines.push(remade.iter().map(piece).collect());
        }
        let members: Vec<Rows> = lines.iter().map(|it| line(it)).collect();
        let slices = [3, 2, 1, 7];
        let found = family(&members, 3, 10_900);
        for hour in 0..3 {
            let start_s = (HOUR + hour) * 3_600;
            let at = usize::try_from(hour).expect("few");
            let is_in = |member: usize, second: i64| {
                let spans = &found[member][at].spans;
                spans.iter().any(|it| it.from_s <= second && second < it.until_s)
            };
            for second in start_s..start_s + 3_600 {
                let of = (1..members.len()).filter(|it| is_in(*it, second));
                let slices: u32 = of.map(|it| slices[it - 1]).sum();
                prop_assert!(is_in(0, second) != (slices > 0), "second {}", second - start_s);
                prop_assert!(slices <= 7, "{} of 7 in second {}", slices, second - start_s);
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
