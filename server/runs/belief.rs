//! What of a run is believed, and of whom: its ranks of the best trust that it has.
//!
//! A process may call itself a rank of anyone's run. Once a rank's identity is proved by its node, what
//! ranks that only claim theirs say of the run, and said before, counts for nothing: they stand in the
//! list of ranks and nowhere else. The same holds for a rank beyond the world that the run says it has.
//! Of several that count the lowest describes the run.

use std::sync::Arc;

use gpufleet_telemetry::identity::{Resource, attribute as named};
use gpufleet_telemetry::training::Trust;

use super::{MAX_RANKS, Rank, Run, RunFacts};

/// Most tags of a run: a resource has at most 64 attributes.
const MAX_TAGS: usize = 64;

impl Run {
    /// The ranks that speak for it.
    pub fn members(&self) -> impl Iterator<Item = (&u32, &Rank)> + Clone {
        self.ranks
            .iter()
            .filter(|(number, rank)| self.facts.believes(**number, rank.facts.trust))
    }

    /// Those of them that have not ended.
    pub fn living(&self) -> impl Iterator<Item = (&u32, &Rank)> {
        self.members().filter(|(_, it)| it.facts.end.is_none())
    }

    /// Those whose figures of the present are the run's: while it goes on those that have not ended, else all.
    pub fn computing(&self) -> impl Iterator<Item = (&u32, &Rank)> {
        let goes_on = self.facts.ended.is_none() && self.living().next().is_some();
        let members = self.members();
        members.filter(move |(_, it)| !goes_on || it.facts.end.is_none())
    }

    /// Whether this rank does.
    pub fn counts(&self, number: u32) -> bool {
        let trust = self.ranks.get(&number).and_then(|it| it.facts.trust);
        self.facts.believes(number, trust)
    }

    /// Takes in what the resource of a rank says of the rank and of the run.
    pub(super) fn introduce(&mut self, number: u32, resource: &Arc<Resource>) {
        let rank = self.ranks.entry(number).or_default();
        let before = rank.introduced.replace(Arc::clone(resource));
        if before.as_ref().is_some_and(|it| Arc::ptr_eq(it, resource)) {
            return;
        }
        let trust = rank.facts.trust;
        rank.changed |= rank.facts.introduce(resource);
        let now = rank.facts.trust;
        let is_other = before.is_some_and(|it| !is_same_process(&it, resource));
        // Who proves that it is this rank is another than who only said so.
        let is_freed = is_other && trust == Some(Trust::Claimed) && now == Some(Trust::Proved);
        if is_freed {
            (rank.facts.began, rank.facts.began_last) = (None, None);
            rank.facts.started = None;
            (rank.facts.end, rank.facts.exception) = (None, None);
            self.disbelieve(|it| it == number);
        }
        let best = self.facts.trust;
        self.facts.trust = [best, now].into_iter().flatten().min();
        if self.facts.trust != best || now != trust {
            let (facts, ranks) = (&self.facts, &self.ranks);
            let trust_of = |rank: &u32| ranks.get(rank).and_then(|it| it.facts.trust);
            let told = facts.told_by();
            let strangers = told.into_iter().flatten();
            let strangers = strangers.filter(|it| !facts.believes(*it, trust_of(it)));
            let strangers: Vec<u32> = strangers.collect();
            if !strangers.is_empty() {
                self.disbelieve(|it| strangers.contains(&it));
            }
        }
        if self.counts(number) {
            self.changed |= self.facts.introduce(number, resource);
        }
    }

    /// Forgets what these ranks said of the run.
    fn disbelieve(&mut self, is_stranger: impl Fn(u32) -> bool) {
        self.facts.disbelieve(&is_stranger);
        let members = self.members().filter(|(number, _)| !is_stranger(**number));
        let started = members.filter_map(|(number, rank)| Some((rank.facts.came_up()?, *number)));
        let first = started.min();
        self.facts.started = first.map(|it| it.0);
        self.facts.started_rank = first.map(|it| it.1);
        self.changed = true;
    }
}

/// Whether two resources of a rank are of one process.
fn is_same_process(before: &Resource, now: &Resource) -> bool {
    let place = |it: &Resource| {
        let text = |name| it.attribute(name).map(str::to_owned);
        (text(named::NODE), text(named::PID))
    };
    place(before) == place(now)
}

impl RunFacts {
    /// Whether what a rank says of the run counts.
    fn believes(&self, number: u32, trust: Option<Trust>) -> bool {
        let is_inside = self.world == 0 || number < self.world;
        is_inside && trust.is_none_or(|it| self.trust.is_none_or(|best| it <= best))
    }

    /// Who told what is known.
    fn told_by(&self) -> [Option<u32>; 6] {
        [
            self.described_by,
            self.tags_by,
            self.fingerprint_rank,
            self.started_rank,
            self.checkpoint.and_then(|it| it.rank),
            self.restored.and_then(|it| it.rank),
        ]
    }

    fn disbelieve(&mut self, is_stranger: impl Fn(u32) -> bool) {
        let told = self.told_by().map(|it| it.is_some_and(&is_stranger));
        let [described, tagged, made_of, _, saved, restored] = told;
        if described {
            (self.world, self.described_by) = (0, None);
            for text in [
                &mut self.framework,
                &mut self.launcher,
                &mut self.data_type,
                &mut self.flops_source,
            ] {
                text.clear();
            }
        }
        if tagged {
            self.tags.clear();
            (self.tags_left_out, self.tags_by) = (0, None);
        }
        if made_of {
            self.fingerprint.clear();
            (self.fingerprint_at, self.fingerprint_rank) = Default::default();
        }
        self.checkpoint.take_if(|_| saved);
        self.restored.take_if(|_| restored);
    }

    /// Learns from the resource of a rank what it says of its run. Whether that was new.
    pub fn introduce(&mut self, rank: u32, resource: &Resource) -> bool {
        let before = self.clone();
        self.origin = resource.origin();
        let describes = self.described_by.is_none_or(|known| rank <= known);
        if describes {
            self.described_by = Some(rank);
        }
        let world = resource.attribute(named::WORLD);
        let world = world.and_then(|it| it.parse::<u32>().ok());
        let world = world.filter(|it| *it > rank && *it as usize <= MAX_RANKS);
        if describes || self.world == 0 {
            self.world = world.unwrap_or(self.world);
        }
        let texts = [
            (&mut self.framework, named::FRAMEWORK),
            (&mut self.launcher, named::LAUNCHER),
            (&mut self.data_type, named::DATA_TYPE),
            (&mut self.flops_source, named::FLOPS_SOURCE),
        ];
        for (known, name) in texts {
            if let Some(text) = resource
                .attribute(name)
                .filter(|_| describes || known.is_empty())
            {
                text.clone_into(known);
            }
        }
        self.take_tags(rank, resource);
        *self != before
    }

    /// The tags of a run are those of one rank, the lowest that has any: what it no longer says goes.
    fn take_tags(&mut self, rank: u32, resource: &Resource) {
        let all = || {
            let named = resource.attributes.iter();
            named.filter_map(|(name, it)| Some((name.strip_prefix(named::TAG_PREFIX)?, it)))
        };
        let has_any = all().next().is_some();
        let known = self.tags_by;
        if known == Some(rank) || has_any && known.is_none_or(|known| rank < known) {
            let kept = all().take(MAX_TAGS);
            self.tags = kept
                .map(|(name, it)| (name.to_owned(), it.clone()))
                .collect();
            self.tags_left_out = all().count() - self.tags.len();
            self.tags_by = has_any.then_some(rank);
        }
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::event::{Event, EventKind, Severity};
    use gpufleet_telemetry::identity::ResourceKind;
    use gpufleet_telemetry::steps::{StepBlock, StepTimes};
    use gpufleet_telemetry::time::Timestamp;
    use gpufleet_telemetry::training::attribute;

    use super::*;
    use crate::runs::Place;
    use crate::runs::complete::Rings;

    const ID: &str = "team/llama/u1/0";

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_seconds(1_790_000_000 + seconds)
    }

    fn resource(rank: u32, world: u32, trust: Trust, about: &[(&str, &str)]) -> Arc<Resource> {
        let mut resource = Resource::new(ResourceKind::Rank, format!("{ID}/{rank}"))
            .with(named::WORLD, world.to_string())
            .with(named::TRUST, trust.name());
        for (name, text) in about {
            resource = resource.with(name, *text);
        }
        Arc::new(resource)
    }

    /// Ten steps of a second that begin at this one.
    fn steps(run: &mut Run, rank: u32, first_step: u64, log2: u8) {
        let times = StepTimes {
            wall_ns: 1_000_000_000 << log2,
            busy_ns: 900_000_000 << log2,
            ..StepTimes::default()
        };
        let block = StepBlock {
            first_step,
            steps_log2: log2,
            started_at: at(0),
            ended_at: at(10),
            tokens: 0,
            samples: 0,
            times: vec![times; 10 >> log2],
        };
        run.ranks.entry(rank).or_default().ring.push(&block);
    }

    /// Rank 0 comes up.
    fn began(run: &mut Run) {
        let about = [(attribute::FINGERPRINT, "torch=2.9.1\n")];
        let event = Event {
            at: at(0),
            kind: EventKind::RunStarted,
            severity: Severity::Info,
            resource_kind: ResourceKind::Rank,
            resource_id: format!("{ID}/0").into(),
            message: String::new(),
            attributes: about
                .map(|(name, text)| (name.to_owned(), text.to_owned()))
                .into(),
        };
        run.facts.learn(0, &event);
        run.ranks.entry(0).or_default().facts.learn(&event);
    }

    fn complete(run: &Run) -> usize {
        Rings::of(run, Place::default())
            .complete(&mut Place::default(), 100)
            .len()
    }

    #[test]
    fn who_only_claims_to_be_a_rank_of_a_proved_run_stands_in_its_list_and_nowhere_else() {
        let mut run = Run::default();
        for rank in 0..2 {
            run.introduce(rank, &resource(rank, 2, Trust::Proved, &[]));
            steps(&mut run, rank, 0, 0);
        }
        let before = run.facts.clone();
        let spoilt = [("gpufleet.tag.a", "b"), (named::DATA_TYPE, "fp8")];
        run.introduce(99_999, &resource(99_999, 200_000, Trust::Claimed, &spoilt));
        steps(&mut run, 99_999, 1 << 60, 0);
        assert_eq!(run.facts, before);
        assert_eq!((run.ranks.len(), run.members().count()), (3, 2));
        assert_eq!((complete(&run), run.last_step()), (10, Some(9)));
    }

    #[test]
    fn what_others_claimed_before_the_first_proof_is_forgotten_then() {
        let mut run = Run::default();
        let other = [(named::PID, "7"), ("gpufleet.tag.a", "b")];
        run.introduce(0, &resource(0, 64, Trust::Claimed, &other));
        began(&mut run);
        assert_eq!((run.facts.world, run.facts.started), (64, Some(at(0))));
        run.introduce(0, &resource(0, 2, Trust::Proved, &[(named::PID, "9")]));
        assert_eq!(run.facts.world, 2);
        assert!(run.facts.tags.is_empty() && run.facts.fingerprint.is_empty());
        assert_eq!(
            (run.facts.started, run.ranks[&0].facts.started),
            (None, None)
        );
    }

    #[test]
    fn what_a_rank_told_before_its_identity_was_known_stays_once_it_is_proved() {
        let mut run = Run::default();
        began(&mut run);
        run.introduce(1, &resource(1, 2, Trust::Proved, &[]));
        run.introduce(0, &resource(0, 2, Trust::Proved, &[]));
        assert_eq!(run.facts.started, Some(at(0)));
        assert_eq!(run.facts.fingerprint["torch"], "2.9.1");
        assert_eq!(run.facts.described_by, Some(0), "the lowest");
    }

    #[test]
    fn one_of_many_that_claim_as_well_as_it_does_not_stop_the_steps_of_the_others() {
        for (first, log2) in [(1 << 60, 0), (0, 3)] {
            let mut run = Run::default();
            for rank in 0..8 {
                run.introduce(rank, &resource(rank, 8, Trust::Claimed, &[]));
                steps(&mut run, rank, 0, 0);
            }
            run.ranks.entry(7).or_default().ring = crate::runs::Ring::default();
            steps(&mut run, 7, first, log2);
            // What it does not tell is waited for, and no longer than a minute.
            let late = StepBlock {
                ended_at: at(100),
                started_at: at(90),
                first_step: 100,
                steps_log2: 0,
                tokens: 0,
                samples: 0,
                times: vec![StepTimes::default(); 10],
            };
            run.ranks.entry(0).or_default().ring.push(&late);
            assert_eq!(complete(&run), 10, "{first} {log2}");
        }
    }

    #[test]
    fn a_world_that_cannot_be_is_not_believed() {
        for (rank, world, expected) in [(0, 8, 8), (8, 8, 0), (0, u32::MAX, 0), (0, 0, 0)] {
            let mut run = Run::default();
            run.introduce(rank, &resource(rank, world, Trust::Proved, &[]));
            assert_eq!(run.facts.world, expected, "{rank} of {world}");
            assert_eq!(run.members().count(), 1);
        }
    }

    #[test]
    fn the_tags_are_what_the_lowest_rank_says_now_and_what_is_too_many_is_counted() {
        let tags = |range: std::ops::Range<usize>| -> Vec<(String, String)> {
            range
                .map(|it| (format!("gpufleet.tag.t{it:03}"), "v".to_owned()))
                .collect()
        };
        let mut run = Run::default();
        let mut say = |rank: u32, range| {
            let tags = tags(range);
            let tags: Vec<_> = tags
                .iter()
                .map(|(name, it)| (name.as_str(), it.as_str()))
                .collect();
            run.introduce(rank, &resource(rank, 8, Trust::Proved, &tags));
            (
                run.facts.tags.len(),
                run.facts.tags_left_out,
                run.facts.tags_by,
            )
        };
        assert_eq!(say(3, 0..5), (5, 0, Some(3)));
        assert_eq!(say(0, 0..0), (5, 0, Some(3)), "it says none");
        assert_eq!(say(1, 10..20), (10, 0, Some(1)));
        assert_eq!(say(3, 0..70), (10, 0, Some(1)), "a lower one has spoken");
        assert_eq!(
            say(1, 20..100),
            (64, 16, Some(1)),
            "they replace the former"
        );
        assert_eq!(say(1, 0..0), (0, 0, None));
    }
}
