//! Which slow ranks are told in one sentence.

use gpufleet_analysis::incident::Incident;
use gpufleet_analysis::straggler::{Confidence, Straggler};

use super::{because, of_rank};
use crate::runs::{Judged, Run};
use crate::words::{Said, numbers, text};

/// Slow ranks that are told as one: those of one machine that one incident is about, because what they cost is one
/// sum.
pub(super) struct Together<'a> {
    pub(super) ranks: Vec<&'a Straggler>,
    node: &'a str,
    incident: Option<&'a Incident>,
}

/// Who is slow, in the order in which they were judged.
pub(super) fn together<'a>(
    run: &'a Run,
    open: &'a [Incident],
    stragglers: &'a [Straggler],
) -> Vec<Together<'a>> {
    let mut all: Vec<Together<'a>> = Vec::new();
    for straggler in stragglers {
        let rank = run.ranks.get(&straggler.rank);
        let node = rank.map(|it| &*it.facts.node).unwrap_or_default();
        let incident = of_rank(run, straggler.rank, open);
        let is_with = |it: &&mut Together<'a>| {
            let ids = it.incident.zip(incident);
            it.node == node && ids.is_some_and(|(one, other)| one.id == other.id)
        };
        match all.iter_mut().find(is_with) {
            Some(others) => others.ranks.push(straggler),
            None => all.push(Together {
                ranks: vec![straggler],
                node,
                incident,
            }),
        }
    }
    all
}

impl Together<'_> {
    /// Which ranks, where, by how much, since when, why, and what that costs in this currency.
    pub(super) fn words(&self, judged: &Judged, currency: &str) -> Said {
        let mut numbers: Vec<u32> = self.ranks.iter().map(|it| it.rank).collect();
        numbers.sort_unstable();
        let ranks = numbers::rows(&numbers);
        let (who, take, their, make) = match self.ranks.len() {
            1 => (format!("Rank {ranks}"), "takes", "its", "makes"),
            _ => (format!("Ranks {ranks}"), "take", "their", "make"),
        };
        let at = match self.node {
            "" => String::new(),
            node => format!(" on {}", text::harmless(node, text::SHOWN_CHARACTERS)),
        };
        let ratios = || self.ranks.iter().map(|it| it.ratio);
        let (least, most) = (
            ratios().fold(f64::INFINITY, f64::min),
            ratios().fold(0.0, f64::max),
        );
        let (least, most) = (format!("{least:.2}"), format!("{most:.2}"));
        let ratio = match least == most {
            true => most,
            false => format!("{least} to {most}"),
        };
        let since = |it: &&Straggler| judged.since.get(&it.rank).copied();
        let since = self.ranks.iter().filter_map(since).min();
        let is_low = |it: &&Straggler| it.confidence == Confidence::Low;
        let probably = match self.ranks.iter().all(is_low) {
            true => "probably ",
            false => "",
        };
        let since = text::moment(since.unwrap_or(judged.ended_at));
        Said::from(format!(
            "{who}{at} {take} {ratio} × as long as {their} peers since {since} UTC and {probably}{make} the others wait"
        ))
        .and(because(self.incident, currency))
        .and(".")
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_analysis::cause::Cause;
    use gpufleet_analysis::incident::Place;
    use gpufleet_analysis::straggler::Verdict;
    use gpufleet_telemetry::time::Timestamp;

    use super::super::slow;
    use super::*;

    #[test]
    fn the_slow_ranks_of_a_machine_are_one_sentence_and_their_price_is_told_once() {
        let mut run = Run::default();
        let node = |rank: u32| if rank < 8 { "h100-00" } else { "h100-01" };
        let mut slow_rank = |rank: u32, ratio: f64| {
            let facts = &mut run.ranks.entry(rank).or_default().facts;
            facts.node = node(rank).into();
            Straggler {
                rank,
                since_step: 100,
                ratio,
                z: 9.0,
                window: 10,
                confidence: Confidence::High,
                price: None,
            }
        };
        let slow_ranks = [(5, 1.41), (4, 1.38), (6, 1.40), (2, 1.40), (9, 1.20)];
        let stragglers: Vec<Straggler> = slow_ranks
            .map(|(rank, ratio)| slow_rank(rank, ratio))
            .into();
        let mut hot = crate::notify::fixture::incident(1);
        hot.cause = Cause::Heat;
        hot.place = Place {
            cluster: "prod".to_owned(),
            node: Some(node(0).to_owned()),
            gpu: None,
            run: Some("llama".to_owned()),
            rank: None,
        };
        let at = Timestamp::from_seconds(1_790_000_000);
        let judged = Judged {
            verdict: Verdict {
                stragglers,
                ..Verdict::default()
            },
            since: [(4, at), (5, at.shifted(60_000_000_000))].into(),
            slower: None,
            before: None,
            step: 500,
            ended_at: at.shifted(600_000_000_000),
            step_ns: 1_000_000_000,
        };
        let told = slow(&run, &[hot], &judged, "EUR").to_string();
        let first = format!(
            "Ranks 2, 4–6 on h100-00 take 1.38 to 1.41 × as long as their peers since {} UTC and make the others wait, \
             because of heat; that costs ",
            text::moment(at)
        );
        assert!(told.starts_with(&first), "{told}");
        assert_eq!(told.matches("that costs").count(), 1, "{told}");
        assert!(told.contains(" EUR/h") && !told.contains('$'), "{told}");
        let other = " Rank 9 on h100-01 takes 1.20 × as long as its peers since ";
        assert!(told.contains(other), "{told}");
        // Nothing says that they have one price as long as there is no incident.
        let told = slow(&run, &[], &judged, "EUR").to_string();
        assert!(told.starts_with("Rank 5 on h100-00 takes 1.41"), "{told}");
        assert!(told.ends_with(" And 2 more."), "{told}");
    }
}
