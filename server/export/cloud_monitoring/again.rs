//! Points that failed for now, of a request of which others were taken: what is sent once more, and what it all comes
//! to.
//!
//! Cloud Monitoring counts what it does not take by code, and names the points only in its words. Where it names them,
//! those alone are sent again; else the whole request is, and what is there already or breaks a rule is refused again,
//! which is taken off the count. Rules of writing hold: the points are those of the same minute, one of each series, and
//! no later minute begins before they are through ([`crate::export::push`]).
//!
//! Limit: [`MOST_TIMES`].

use std::collections::BTreeSet;

use super::target::{Partly, Reason, Verdict};

/// How often points are sent again: with its pauses 14 s in all, so that the next minute is in time.
pub const MOST_TIMES: u32 = 3;

/// What is known of a piece of which some failed for now.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Again {
    /// How often it was sent again.
    times: u32,
    /// Points that are there, by their place in the piece.
    there: BTreeSet<usize>,
    /// How many more are there; which was not said.
    unnamed: u64,
    /// Points that will not be taken, by reason.
    lost: Vec<(Reason, u64)>,
}

/// What becomes of a piece.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// Some of it is to be sent again.
    Again,
    /// It is over, but for so many points that will not be taken, by reason.
    Over(Vec<(Reason, u64)>),
}

impl Again {
    /// Whether the point at this place of the piece is still to be sent.
    pub fn wants(&self, place: usize) -> bool {
        !self.there.contains(&place)
    }

    /// Hears what became of the points at these places of the piece. None where that is not known yet.
    pub fn hear(&mut self, asked: &[usize], verdict: &Verdict) -> Option<Next> {
        let count = asked.len() as u64;
        let (taken, by, places, is_passing) = match verdict {
            Verdict::Later { .. } => return None,
            Verdict::Taken => (count, &[][..], None, false),
            Verdict::Refused { by, .. } => (count.saturating_sub(sum(by)), &by[..], None, false),
            Verdict::Partly(Partly {
                taken, by, places, ..
            }) => (*taken, &by[..], places.as_ref(), true),
        };
        // It may be away as a whole: that is for the age of a minute to bound.
        if is_passing && taken == 0 && by.is_empty() && *self == Self::default() {
            return None;
        }
        self.lose(by);
        match places {
            Some(places) => {
                let taken = asked.iter().enumerate();
                let taken = taken.filter(|(place, _)| !places.contains(place));
                self.there.extend(taken.map(|(_, of)| *of));
            }
            None => self.unnamed += taken,
        }
        // What was named before is not asked for again, and not among these.
        let named = match places {
            Some(_) => taken,
            None => 0,
        };
        let left = count.saturating_sub(named + self.unnamed + sum(&self.lost));
        if is_passing && left > 0 && self.times < MOST_TIMES {
            self.times += 1;
            return Some(Next::Again);
        }
        if left > 0 {
            self.add(Reason::Failed, left);
        }
        Some(Next::Over(std::mem::take(&mut self.lost)))
    }

    /// Takes in what is refused, without what was before and what is refused because it is there.
    fn lose(&mut self, by: &[(Reason, u64)]) {
        let mut new = by.to_vec();
        let mut take_off = |from: Option<Reason>, most: u64| {
            let mut most = most;
            let of = |it: &&mut (Reason, u64)| from.is_none_or(|reason| it.0 == reason);
            for it in new.iter_mut().filter(of) {
                let same = most.min(it.1);
                (it.1, most) = (it.1 - same, most - same);
            }
            most
        };
        let mut before = 0;
        for (reason, count) in &self.lost {
            before += take_off(Some(*reason), *count);
        }
        before += take_off(Some(Reason::Refused), self.unnamed);
        take_off(None, before);
        for (reason, count) in new {
            self.add(reason, count);
        }
    }

    fn add(&mut self, reason: Reason, count: u64) {
        match self.lost.iter_mut().find(|it| it.0 == reason) {
            Some(known) => known.1 += count,
            None if count > 0 => self.lost.push((reason, count)),
            None => {}
        }
    }
}

fn sum(by: &[(Reason, u64)]) -> u64 {
    by.iter().map(|it| it.1).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partly(taken: u64, by: &[(Reason, u64)], places: Option<&[usize]>) -> Verdict {
        Verdict::Partly(Partly {
            taken,
            by: by.to_vec(),
            places: places.map(|it| it.iter().copied().collect()),
            why: "told so".to_owned(),
            after: None,
        })
    }

    fn refused(by: &[(Reason, u64)]) -> Verdict {
        Verdict::Refused {
            by: by.to_vec(),
            why: String::new(),
        }
    }

    /// What becomes of ten points that are answered so, one answer after the other.
    fn after(verdicts: &[Verdict]) -> (Option<Next>, Vec<usize>) {
        let mut again = Again::default();
        let mut next = None;
        let mut asked = Vec::new();
        for verdict in verdicts {
            asked = (0..10).filter(|it| again.wants(*it)).collect();
            next = again.hear(&asked, verdict);
        }
        (next, asked)
    }

    #[test]
    fn what_is_named_is_sent_again_alone_and_what_breaks_a_rule_counts_once() {
        use Reason::{Failed, Refused};
        // Of ten, two failed for now and one breaks a rule.
        let first = partly(7, &[(Refused, 1)], Some(&[2, 5, 9]));
        assert_eq!(after(std::slice::from_ref(&first)).0, Some(Next::Again));
        let (next, asked) = after(&[first.clone(), refused(&[(Refused, 1)])]);
        assert_eq!(asked, [2, 5, 9]);
        assert_eq!(next, Some(Next::Over(vec![(Refused, 1)])));
        // One of the two breaks a rule after all.
        let (next, _) = after(&[first.clone(), refused(&[(Refused, 2)])]);
        assert_eq!(next, Some(Next::Over(vec![(Refused, 2)])));
        // An answer that does not come changes nothing.
        let later = Verdict::Later {
            why: String::new(),
            after: None,
            is_in_doubt: true,
        };
        let (next, asked) = after(&[first.clone(), later.clone()]);
        assert_eq!((next, asked.len()), (None, 3));
        let (next, _) = after(&[first.clone(), later, refused(&[(Refused, 1)])]);
        assert_eq!(next, Some(Next::Over(vec![(Refused, 1)])));
        // One of the two goes on failing, of two and then of one.
        let second = partly(1, &[(Refused, 1)], Some(&[0, 2]));
        let third = partly(0, &[(Refused, 1)], Some(&[0, 1]));
        let (next, asked) = after(&[first, second, third.clone(), third]);
        assert_eq!(asked, [2, 9]);
        assert_eq!(next, Some(Next::Over(vec![(Refused, 1), (Failed, 1)])));
    }

    #[test]
    fn what_is_not_named_is_sent_again_whole_and_what_is_there_is_not_counted_as_refused() {
        use Reason::{Denied, Failed, Refused};
        let first = partly(7, &[(Denied, 1)], None);
        // All ten again: seven are there, one is denied, two are new.
        let (next, asked) = after(&[first.clone(), refused(&[(Refused, 7), (Denied, 1)])]);
        assert_eq!(asked.len(), 10);
        assert_eq!(next, Some(Next::Over(vec![(Denied, 1)])));
        // One of the two is refused now.
        let (next, _) = after(&[first.clone(), refused(&[(Refused, 8), (Denied, 1)])]);
        assert_eq!(next, Some(Next::Over(vec![(Denied, 1), (Refused, 1)])));
        // One is new, and the other fails until it is given up.
        let on = partly(1, &[(Refused, 7), (Denied, 1)], None);
        let still = partly(0, &[(Refused, 8), (Denied, 1)], None);
        let (next, _) = after(&[first.clone(), on, still.clone(), still]);
        assert_eq!(next, Some(Next::Over(vec![(Denied, 1), (Failed, 1)])));
        // Those that are there fail for now as well: nothing is left to send.
        let (next, _) = after(&[first, partly(2, &[(Denied, 1)], None)]);
        assert_eq!(next, Some(Next::Over(vec![(Denied, 1)])));
    }

    #[test]
    fn a_request_of_which_all_failed_for_now_is_sent_again_as_it_is_without_a_bound() {
        let nothing = partly(0, &[], None);
        let often = vec![nothing.clone(); 2 * MOST_TIMES as usize];
        assert_eq!(after(&often), (None, (0..10).collect()));
        // What is left of one that was taken in part has the bound of those.
        let first = partly(9, &[], Some(&[4]));
        let (next, asked) = after(&[first, nothing.clone(), nothing.clone(), nothing]);
        assert_eq!(asked, [4]);
        assert_eq!(next, Some(Next::Over(vec![(Reason::Failed, 1)])));
    }

    #[test]
    fn a_request_of_which_nothing_failed_for_now_is_over_at_once() {
        use Reason::{Failed, Refused};
        assert_eq!(after(&[Verdict::Taken]).0, Some(Next::Over(vec![])));
        let by = [(Refused, 2), (Failed, 1)];
        let (next, _) = after(&[refused(&by)]);
        assert_eq!(next, Some(Next::Over(by.to_vec())));
    }
}
