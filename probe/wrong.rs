//! What was found wrong with a GPU and by no run since to be right. A pass undoes only what it measured: a work that
//! was right on every SM, memory of which at least as much was gone through, copies with another GPU that broke where
//! some were made and did not, and what else is no result (an ECC error, a kernel that does not end) only where the
//! probe had the GPU for itself.

use crate::measured::Measured;
use crate::ptx::Work;
use crate::verdict::Verdict;

/// Some of the works; bit n of it is the work that is declared as number n, also in the memory that a training
/// process shares with its agent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Works(u64);

/// How far a run went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reach {
    /// What was right on every SM, and would have been noticed otherwise.
    pub right: Works,
    /// What was wrong on some.
    pub wrong: Works,
    /// Bytes of memory that were gone through.
    pub checked_bytes: u64,
    /// Whether it had the GPU for itself, and so looked at everything on it that a probe looks at.
    pub is_alone: bool,
    /// Whether copies with other GPUs went well; none where there were none.
    pub link: Option<bool>,
}

/// What stands against a GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wrong {
    works: Works,
    /// How much memory was gone through when some was wrong.
    bytes: u64,
    /// Whether it failed otherwise than by a result.
    is_other: bool,
    /// Whether copies with another GPU broke.
    is_link: bool,
}

impl Works {
    /// These.
    pub fn of(works: impl IntoIterator<Item = Work>) -> Self {
        Self(works.into_iter().fold(0, |bits, it| bits | bit(it)))
    }

    /// As they are told. Bits of no work are left out: no run could ever find right what it does not know, and a
    /// failure of such a work alone is one without a result.
    pub fn from_bits(bits: u64) -> Self {
        Self(bits & Self::of(Work::ALL).0)
    }

    /// As they are told.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Whether it is one of them.
    pub const fn has(self, work: Work) -> bool {
        self.0 & bit(work) != 0
    }

    const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

const fn bit(work: Work) -> u64 {
    1 << work as u64
}

impl Reach {
    /// Of what a run read.
    pub fn of(measured: &Measured, is_alone: bool) -> Self {
        let checks = &measured.checks;
        // Memory is read by whoever comes first.
        let is_right = |it: &&crate::measured::Check| {
            let is_whole = it.covered >= measured.sms || it.work == Work::Memory;
            it.wrong == 0 && it.sees_errors && is_whole
        };
        Self {
            right: Works::of(checks.iter().filter(is_right).map(|it| it.work)),
            wrong: Works::of(checks.iter().filter(|it| it.wrong > 0).map(|it| it.work)),
            checked_bytes: measured.checked_bytes,
            is_alone,
            link: match &measured.broke_with {
                Some(_) => Some(false),
                None => (!measured.peers.is_empty()).then_some(true),
            },
        }
    }
}

impl Wrong {
    /// Whether nothing stands against it.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// The works whose results were wrong.
    pub const fn works(&self) -> Works {
        self.works
    }

    /// Takes in a run that came to this. What could not be measured changes nothing.
    pub fn take(&mut self, reach: &Reach, verdict: Verdict) {
        if verdict == Verdict::CouldNotMeasure {
            return;
        }
        let mut undone = reach.right;
        if reach.checked_bytes < self.bytes {
            undone.0 &= !bit(Work::Memory);
        }
        self.works.0 &= !undone.0;
        if !self.works.has(Work::Memory) {
            self.bytes = 0;
        }
        self.works.0 |= reach.wrong.0;
        if reach.wrong.has(Work::Memory) {
            self.bytes = self.bytes.max(reach.checked_bytes);
        }
        if verdict == Verdict::Fail {
            self.is_other |= reach.wrong.is_empty();
            self.is_link |= reach.link == Some(false);
        } else {
            self.is_other &= !reach.is_alone;
            self.is_link &= reach.link != Some(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn inside(right: &[Work], wrong: &[Work], checked_bytes: u64) -> Reach {
        Reach {
            right: Works::of(right.iter().copied()),
            wrong: Works::of(wrong.iter().copied()),
            checked_bytes,
            is_alone: false,
            link: None,
        }
    }

    /// Runs one after the other, and whether something stands after the last.
    fn check(runs: &[(Reach, Verdict)], stands: bool) {
        let mut wrong = Wrong::default();
        for (reach, verdict) in runs {
            wrong.take(reach, *verdict);
        }
        assert_eq!(!wrong.is_nothing(), stands, "{runs:?}: {wrong:?}");
    }

    #[test]
    fn a_pass_undoes_what_it_measured_and_nothing_else() {
        use Verdict::{CouldNotMeasure, Degraded, Fail, Pass};
        use Work::{Arithmetic, Bf16, Fp16, Memory};
        let all = inside(&Work::ALL, &[], 64 * MIB);
        let bf16 = inside(&[Arithmetic, Memory], &[Bf16], 64 * MIB);
        let memory = inside(&[Arithmetic, Bf16], &[Memory], 64 * MIB);
        check(&[(all, Pass)], false);
        check(&[(bf16, Fail)], true);
        check(&[(bf16, Fail), (all, Pass)], false);
        check(&[(bf16, Fail), (all, CouldNotMeasure)], true);
        check(&[(bf16, Fail), (inside(&[Arithmetic], &[], 0), Pass)], true);
        check(&[(bf16, Fail), (inside(&[Bf16], &[], 0), Pass)], false);
        // As much memory, or it may be the rest that is wrong.
        check(
            &[(memory, Fail), (inside(&[Arithmetic, Bf16], &[], 0), Pass)],
            true,
        );
        check(
            &[(memory, Fail), (inside(&[Memory], &[], 63 * MIB), Pass)],
            true,
        );
        check(
            &[(memory, Fail), (inside(&[Memory], &[], 64 * MIB), Pass)],
            false,
        );
        // Two that failed: each is undone by itself, by a failure of another as well.
        let fp16 = inside(&[Bf16], &[Fp16], 0);
        check(
            &[(bf16, Fail), (fp16, Fail), (inside(&[Fp16], &[], 0), Pass)],
            false,
        );
        let elsewhere = inside(&[], &[Fp16], 0);
        check(
            &[
                (bf16, Fail),
                (elsewhere, Fail),
                (inside(&[Fp16], &[], 0), Pass),
            ],
            true,
        );
        // What is no result needs the GPU alone.
        let raised = inside(&Work::ALL, &[], 64 * MIB);
        let alone = Reach {
            is_alone: true,
            ..raised
        };
        check(&[(raised, Fail), (all, Pass)], true);
        check(&[(raised, Fail), (alone, Degraded)], false);
        check(&[(Reach::default(), Fail), (alone, Pass)], false);
        // So do copies that broke, and another GPU to make some with.
        let copied = |link| Reach { link, ..alone };
        let broke = (copied(Some(false)), Fail);
        check(&[broke, (copied(None), Pass)], true);
        check(&[broke, (copied(Some(false)), Pass)], true);
        check(&[broke, (copied(Some(true)), Pass)], false);
    }

    #[test]
    fn a_work_is_right_where_every_sm_did_it_and_would_have_said_otherwise() {
        use crate::measured::Check;
        let check = |work, covered, wrong, sees_errors| Check {
            work,
            covered,
            wrong,
            wrong_sms: Vec::new(),
            first: None,
            sees_errors,
            rate: None,
        };
        let measured = Measured {
            sms: 6,
            checked_bytes: 7,
            checks: vec![
                check(Work::Arithmetic, 6, 0, true),
                check(Work::Memory, 1, 0, true),
                check(Work::Fp16, 5, 0, true),
                check(Work::Bf16, 6, 0, false),
                check(Work::Tf32, 6, 3, true),
            ],
            ..Measured::default()
        };
        let expected = inside(&[Work::Arithmetic, Work::Memory], &[Work::Tf32], 7);
        assert_eq!(Reach::of(&measured, false), expected);
    }

    #[test]
    fn copies_with_other_gpus_go_well_where_there_were_some_and_none_broke() {
        use crate::measured::{Peer, Stage, Stopped, Why};
        let mut measured = Measured::default();
        assert_eq!(Reach::of(&measured, true).link, None);
        measured.peers.push(Peer {
            gpu: "GPU-b".to_owned(),
            link: 0,
            to: 1.0,
            from: 1.0,
        });
        assert_eq!(Reach::of(&measured, true).link, Some(true));
        let stopped = Stopped {
            stage: Stage::Between(0),
            why: Why::Hung(1),
        };
        measured.broke_with = Some(("GPU-b".to_owned(), stopped));
        assert_eq!(Reach::of(&measured, true).link, Some(false));
    }

    #[test]
    fn each_work_keeps_its_bit() {
        let bits = Work::ALL.map(|it| Works::of([it]).bits());
        // Arithmetic, memory, fp16, int8, bf16, tf32, fp8: regions of older packages have them so.
        assert_eq!(bits, [1, 64, 2, 4, 8, 16, 32]);
        assert!(Works::from_bits(8).has(Work::Bf16));
    }

    #[test]
    fn a_work_that_only_a_newer_package_knows_is_undone_by_a_probe_that_is_alone() {
        assert_eq!(Works::from_bits(u64::MAX), Works::of(Work::ALL));
        let newer = Reach {
            wrong: Works::from_bits(1 << 40),
            ..Reach::default()
        };
        let all = inside(&Work::ALL, &[], 64 * MIB);
        let alone = Reach {
            is_alone: true,
            ..all
        };
        check(&[(newer, Verdict::Fail), (all, Verdict::Pass)], true);
        check(&[(newer, Verdict::Fail), (alone, Verdict::Pass)], false);
    }
}
