//! A run in one sentence: whether it goes on, how fast, who is slow, why, since when and what it costs.

use gpufleet_analysis::incident::{Family, Incident, Place};
use gpufleet_analysis::straggler::{Silent, Verdict};
use gpufleet_telemetry::time::Timestamp;

use super::blind::Blind;
use super::state::SILENT_AFTER;
use super::{Judged, Run, Slowdown, State};
use crate::words::{Said, incident, text};

mod nobody;
mod together;

use together::together;

/// Ranks, or all slow ranks of a machine, that are named in the sentence; the map has them all.
const NAMED: usize = 3;

/// Most of a sentence that is shown where it stands alone, characters: names in it are of others.
pub const SHOWN_CHARACTERS: usize = 900;

/// The same where several stand.
pub const LISTED_CHARACTERS: usize = 600;

/// Why a run that stands has no pace and no finish.
pub const STANDS: &str = "it stands: no step came lately";

/// The sentence that stands above everything else; cause and costs are those of the open incidents of the run, their
/// money is in this currency.
pub fn sentence(run: &Run, open: &[Incident], now: Timestamp, currency: &str) -> String {
    said(run, open, now, currency).to_string()
}

/// The same with what of it is open, for pages.
pub fn said(run: &Run, open: &[Incident], now: Timestamp, currency: &str) -> Said {
    match run.state(now) {
        State::Running => running(run, open, now, currency),
        State::Silent { since } => Said::from(format!(
            "Silent: nothing was heard of it since {} UTC, {}. ",
            text::moment(since),
            text::ago(now, since)
        ))
        .and(Said::open("silent", "Whether it runs is not known.")),
        State::Ended { at } => {
            let when = text::moment(at);
            match &run.facts.ending {
                Some(ending) => Said::from(format!("Ended at {when} UTC: ")).and(ending.said()),
                None => format!("Ended at {when} UTC; why is being looked at.").into(),
            }
        }
    }
}

fn running(run: &Run, open: &[Incident], now: Timestamp, currency: &str) -> Said {
    let Some(judged) = &run.judged else {
        let runs = match run.last_step() {
            // Two readings later it is: nothing has to be mended.
            Some(step) => Said::from(format!(
                "Runs, at step {}; how fast is not known yet.",
                text::grouped(step as f64)
            )),
            None => without_a_step(run, open, now, currency),
        };
        return match &run.by_collectives {
            Some(judged) => slow(run, open, judged, currency).and(" ").and(runs),
            None => runs,
        };
    };
    if let Some(since) = run.stands_since(now) {
        let begins = match run.has_made_its_steps() {
            true => "Has made the steps that it planned",
            false => "Stands",
        };
        let stands = format!(
            "{begins}: {}, and no step came since step {} ended at {} UTC, {}",
            heard(run, now),
            text::grouped(judged.step as f64),
            text::moment(since),
            text::ago(now, since)
        );
        let because = because(dearest(open.iter()), currency);
        return Said::from(stands).and(because).and(".").and(unclear(run));
    }
    let pace = text::pace(judged.step_ns as f64 / 1e9);
    let tokens = run.tokens_per_second();
    let tokens = tokens.map(|it| format!(", {} tokens/s", text::grouped(it.round())));
    let gone = run.members().filter(|(_, it)| it.facts.end.is_some());
    let gone = gone.count();
    let gone = match gone {
        0 => String::new(),
        gone => format!(
            " {} already ended.",
            text::counted(gone, "rank has", "ranks have")
        ),
    };
    let runs = format!(
        "Runs: {pace} a step{}, at step {}.",
        tokens.unwrap_or_default(),
        text::grouped(judged.step as f64)
    );
    let slower = judged.slower.map(|it| became_slower(&it, open, currency));
    let slower = slower.unwrap_or_default();
    let judged = run.who_waits().unwrap_or(judged);
    let slow = slow(run, open, judged, currency);
    // What is wrong comes first. Who makes the others wait is why it is slower.
    let said = match judged.verdict.stragglers.is_empty() {
        true => slower.and(runs).and(" ").and(slow).and(gone),
        false => slow.and(format!(" {runs}{gone}")),
    };
    said.and(astray(run))
}

/// That a run is slower than it was, since when, why, and what that costs.
fn became_slower(slowdown: &Slowdown, open: &[Incident], currency: &str) -> Said {
    let change = &slowdown.change;
    let is_it = |it: &&Incident| it.family == Family::Slower;
    let takes = match slowdown.rests {
        true => "took",
        false => "take",
    };
    let again = slowdown.every.map(|it| {
        let every = text::grouped(it as f64);
        format!(" again and again, each {every} steps,")
    });
    let slower = format!(
        "Its steps {takes} {:.0} % longer than they did{} since step {} at {} UTC",
        (change.ratio - 1.0) * 100.0,
        again.unwrap_or_else(|| ",".to_owned()),
        text::grouped(change.since_step as f64),
        text::moment(slowdown.began_at)
    );
    let because = because(open.iter().find(is_it), currency);
    Said::from(slower).and(because).and(". ")
}

/// A run that has told no step: since when, where its ranks say that they made none, and why, where that is known.
fn without_a_step(run: &Run, open: &[Incident], now: Timestamp, currency: &str) -> Said {
    let Some(since) = run.up_without_step(now) else {
        return Said::from("Runs, and ").and(Said::open("hooks", "has not told a step yet."));
    };
    let stands = format!(
        "Runs, and has told no step since it came up at {} UTC, {}",
        text::moment(since),
        text::ago(now, since)
    );
    let because = because(dearest(open.iter()), currency);
    Said::from(stands).and(because).and(".").and(unclear(run))
}

/// How many of its ranks are heard: a machine that is lost with some of them may be why the others stand.
fn heard(run: &Run, now: Timestamp) -> String {
    let living = run.living().map(|(_, it)| it.facts.heard);
    let lives = |heard: Timestamp| now.since(heard) < SILENT_AFTER;
    let (all, silent) = living.fold((0_usize, 0_usize), |(all, silent), heard| {
        (all + 1, silent + usize::from(!lives(heard)))
    });
    match silent {
        0 => "its ranks are heard".to_owned(),
        _ => format!("nothing is heard of {silent} of its {all} ranks"),
    }
}

/// That it cannot be told whether it hangs, and for want of what.
fn unclear(run: &Run) -> Said {
    const WHY: &str = "Whether it hangs is not known: neither its collectives nor what its GPUs' tensor cores do is told.";
    match run.lacks_evidence {
        true => Said::from(" ").and(Said::open("collectives", WHY)),
        false => Said::default(),
    }
}

/// That it cannot be told whether its traffic takes the wrong network, and for want of what.
fn astray(run: &Run) -> Said {
    const WHY: &str = "Whether its traffic takes the wrong network is not known: its nodes send over their hosts' ports while faster ones are silent, and neither waits for other ranks nor collectives between nodes are told.";
    match run.may_be_astray {
        true => Said::from(" ").and(Said::open("collectives", WHY)),
        false => Said::default(),
    }
}

/// Why, and what it costs, as its incident says; nothing before there is one.
fn because(incident: Option<&Incident>, currency: &str) -> Said {
    let Some(incident) = incident else {
        return Said::default();
    };
    let why = match incident.cause.is_known() {
        true => format!("because of {}", incident::why(incident)),
        false => "for no reason that was measured".to_owned(),
    };
    let lost = &incident.lost;
    let is_all = lost.is_priced() && !incident.is_least;
    let least = if is_all { "" } else { "at least " };
    // Before anything is lost nothing is known of its price.
    let so_far = lost.nano_usd().filter(|_| lost.gpu_seconds() > 0.0);
    let so_far = so_far.map(|nano| format!(", {least}{} so far", text::money(currency, nano)));
    Said::from(format!(", {why}; that "))
        .and(Said::ours("prices", incident::costs(incident, currency)))
        .and(so_far.unwrap_or_default())
}

/// The one that costs most of those that can be why a run is slow or stands. That its numbers are wrong, or that
/// its memory grows, is neither; what a machine lacks is.
fn dearest<'a>(open: impl Iterator<Item = &'a Incident>) -> Option<&'a Incident> {
    let is_its_own = |it: &&Incident| {
        it.place.run.is_some() && matches!(it.family, Family::Training | Family::Leak)
    };
    let found = open.filter(|it| !is_its_own(it));
    found.max_by_key(|it| it.losing.milli_gpus)
}

/// The incident that says why a rank is slow: of itself, of its node, or of what explains it.
fn of_rank<'a>(run: &Run, rank: u32, open: &'a [Incident]) -> Option<&'a Incident> {
    let node = run.ranks.get(&rank).map(|it| &*it.facts.node);
    let is_its = |place: &Place| match place.rank {
        Some(its) => its == rank,
        None => place.run.is_some() && place.node.is_some() && place.node.as_deref() == node,
    };
    dearest(open.iter().filter(|it| it.places().any(is_its)))
}

/// Who is slow, or why nobody is named.
pub(super) fn slow(run: &Run, open: &[Incident], judged: &Judged, currency: &str) -> Said {
    let slow = together(run, open, &judged.verdict.stragglers);
    if !slow.is_empty() {
        let named = slow.iter().take(NAMED).enumerate();
        let named = named.fold(Said::default(), |said, (at, it)| {
            let apart = if at > 0 { " " } else { "" };
            said.and(apart).and(it.words(judged, currency))
        });
        let unnamed = slow.iter().skip(NAMED).map(|it| it.ranks.len());
        let more: usize = unnamed.sum();
        let more = (more > 0).then(|| format!(" And {more} more."));
        return named.and(more.unwrap_or_default());
    }
    if let Some(blind) = run.blind() {
        let why = format!("Who is slow is not known: {}.", blind.words());
        return Said::open("collectives", why);
    }
    if let Some(said) = nobody::words(&judged.verdict) {
        return said;
    }
    let Some(why) = judged.verdict.silent else {
        return Said::from(match run.steps_tell() {
            true => "No rank is slower than its peers.",
            false => "No rank is slower than its peers, by the times of its collectives.",
        });
    };
    let words = format!("Who is slow is not judged: {}.", not_judged(why));
    match why {
        Silent::RanksMissing | Silent::MeshUnknown => Said::open("hooks", words),
        // More steps, or another rank, and it is judged.
        Silent::Starting | Silent::NoPeers => words.into(),
    }
}

/// Why nobody is named of a run as it was judged: the end of a sentence; none where somebody is, or nobody is slow.
pub fn not_named(run: &Run, verdict: &Verdict) -> Option<&'static str> {
    let is_named = !verdict.stragglers.is_empty();
    let blind = run.blind().filter(|_| !is_named).map(Blind::words);
    blind.or_else(|| verdict.silent.map(not_judged))
}

/// Why nobody is judged or blamed.
pub const fn not_judged(why: Silent) -> &'static str {
    match why {
        Silent::Starting => "too few steps since the start",
        Silent::NoPeers => "there is no other rank to compare with",
        Silent::RanksMissing => "half the ranks do not tell their steps",
        Silent::MeshUnknown => {
            "several look slow, and the run does not say which pipeline stage they are on"
        }
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_analysis::cause::Cause;
    use gpufleet_analysis::ending::Cause as Ended;
    use gpufleet_analysis::lost::Losing;
    use gpufleet_analysis::regression::{Change, Direction};
    use gpufleet_analysis::straggler::{Moving, Parted, StageImbalance, Unnamed};
    use gpufleet_telemetry::catalog::training;

    use super::*;
    use crate::runs::facts::EndingFacts;

    /// What is said of a run whose ranks wait for each other, and of which this was judged.
    fn of_verdict(verdict: Verdict) -> Said {
        let mut run = Run::default();
        for number in 0..2 {
            let rank = run.ranks.entry(number).or_default();
            rank.facts.readings = vec![
                (training::STEP_WALL.id, 500.0),
                (training::STEP_COMMUNICATION_WAIT.id, 100.0),
            ];
            rank.facts.readings.sort_by_key(|it| it.0);
        }
        let judged = Judged {
            verdict,
            since: std::collections::BTreeMap::new(),
            slower: None,
            before: None,
            step: 500,
            ended_at: Timestamp::default(),
            step_ns: 1_000_000_000,
        };
        run.judged = Some(judged.clone());
        slow(&run, &[], &judged, "USD")
    }

    #[test]
    fn a_run_that_became_slower_says_since_when_and_why() {
        let slowdown = Slowdown {
            change: Change {
                direction: Direction::Slower,
                since_step: 1_200,
                at_step: 1_230,
                baseline_ns: 1e9,
                ratio: 1.118,
            },
            every: None,
            rests: false,
            began_at: Timestamp::from_seconds(1_790_000_000),
            before: None,
            since: None,
        };
        let begin = "Its steps take 12 % longer than they did, since step 1\u{202f}200 at ";
        let told = became_slower(&slowdown, &[], "USD").to_string();
        assert!(
            told.starts_with(begin) && told.ends_with(" UTC. "),
            "{told}"
        );
        let resting = Slowdown {
            every: Some(1_000),
            rests: true,
            ..slowdown
        };
        let told = became_slower(&resting, &[], "USD").to_string();
        let begin = "Its steps took 12 % longer than they did again and again, each 1\u{202f}000 steps, since step 1\u{202f}200 at ";
        assert!(told.starts_with(begin), "{told}");
        let mut incident = crate::notify::fixture::incident(1);
        (incident.family, incident.cause) = (Family::Slower, Cause::Storage);
        let told = became_slower(&slowdown, &[incident], "USD").to_string();
        assert!(
            told.contains(" UTC, because of storage; that costs "),
            "{told}"
        );
    }

    #[test]
    fn the_thousands_of_a_step_are_set_apart_also_before_there_is_a_pace() {
        let mut run = Run::default();
        let told = vec![(training::LAST_STEP.id, 1_496.0)];
        run.ranks.entry(0).or_default().facts.readings = told;
        let said = running(&run, &[], Timestamp::default(), "USD");
        let expected = "Runs, at step 1\u{202f}496; how fast is not known yet.";
        // Nothing has to be mended for it.
        assert_eq!(said, Said::from(expected));
    }

    #[test]
    fn what_is_of_no_rank_says_what_it_is_and_why_it_has_no_price() {
        let stages = vec![StageImbalance {
            stage: 1,
            ratio: 1.5,
        }];
        let of_a_stage = |silent: Option<Silent>| Verdict {
            stages: stages.clone(),
            silent,
            ..Verdict::default()
        };
        let moving = Verdict {
            moving: Some(Moving {
                ratio: 1.4,
                ranks: 8,
            }),
            ..Verdict::default()
        };
        let longer = "pipeline stage 1 takes 1.50 × as long as the others: it has more work, or";
        for (verdict, expected) in [
            (
                of_a_stage(None),
                format!(
                    "No rank is slow beside those of its stage; {longer} all of its machines are slow."
                ),
            ),
            (
                of_a_stage(Some(Silent::NoPeers)),
                format!("Each rank is alone on its stage; {longer} its machine is slow."),
            ),
            (
                moving,
                "No one rank is slow: the slowest keeps changing, 1.40 × its peers, which is the data.".to_owned(),
            ),
        ] {
            let said = of_verdict(verdict).to_string();
            let why = said.strip_prefix(&*expected);
            let why = why.unwrap_or_else(|| panic!("{said}"));
            assert!(why.starts_with(" It has no price: "), "{said}");
        }
    }

    #[test]
    fn a_slow_part_says_why_nobody_is_named() {
        let of = |unnamed: Unnamed| {
            of_verdict(Verdict {
                parted: vec![Parted {
                    stage: 0,
                    slow: 8,
                    of: 16,
                    ratio: 1.67,
                    unnamed,
                }],
                ..Verdict::default()
            })
        };
        let slow = "8 of the 16 ranks of pipeline stage 0 take 1.67 × as long as the rest, and ";
        let each = [
            (Unnamed::SameData, "so do the other stages"),
            (Unnamed::HostsUnknown, "it is not known which machines"),
            (
                Unnamed::BesideFast,
                "ranks of the rest are on the same machines",
            ),
            (Unnamed::Alone, "not each has another of them"),
            (
                Unnamed::SamePart,
                "they hold the same part of each sequence",
            ),
        ];
        for (unnamed, why) in each {
            let said = of(unnamed);
            let words = said.to_string();
            assert!(words.contains(&format!("{slow}{why}")), "{words}");
            assert!(words.contains(". It has no price: "), "{words}");
            let is_open = unnamed == Unnamed::HostsUnknown;
            assert_eq!(said.anchor(), is_open.then_some("silent"), "{words}");
        }
    }

    #[test]
    fn what_is_open_leads_to_what_mends_it_and_the_rest_of_the_sentence_nowhere() {
        let open = |said: &Said| {
            let pieces = said.pieces.iter();
            let open = pieces.filter_map(|it| Some((it.anchor?, it.text.clone())));
            open.collect::<Vec<_>>()
        };
        let now = Timestamp::default();
        let told = running(&Run::default(), &[], now, "USD");
        let expected = ("hooks", "has not told a step yet.".to_owned());
        assert_eq!(open(&told), [expected]);
        for (silent, anchor) in [
            (Silent::Starting, None),
            (Silent::NoPeers, None),
            (Silent::RanksMissing, Some("hooks")),
            (Silent::MeshUnknown, Some("hooks")),
        ] {
            let said = of_verdict(Verdict {
                silent: Some(silent),
                ..Verdict::default()
            });
            assert!(said.to_string().starts_with("Who is slow is not judged: "));
            assert_eq!(said.anchor(), anchor, "{said}");
        }
        let unclear = unclear(&Run {
            lacks_evidence: true,
            ..Run::default()
        });
        assert_eq!(unclear.anchor(), Some("collectives"));
        let mut incident = crate::notify::fixture::incident(1);
        incident.losing = Losing::gpus(1, None);
        let because = because(Some(&incident), "USD");
        let found = open(&because);
        let [("prices", words)] = found.as_slice() else {
            panic!("{because:?}");
        };
        assert!(words.starts_with("costs ") && words.ends_with("without a price"));
    }

    #[test]
    fn an_exception_that_sounds_like_something_open_leads_nowhere() {
        let ended = |cause: Ended| EndingFacts {
            cause: cause.name().to_owned(),
            sentence: "The script failed: the loss is not known.".to_owned(),
            ..EndingFacts::default()
        };
        assert_eq!(ended(Ended::Exception).said().anchor(), None);
        assert_eq!(ended(Ended::Unknown).said().anchor(), Some("hooks"));
    }
}
