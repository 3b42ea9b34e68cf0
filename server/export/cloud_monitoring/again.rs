//! Points that failed for now, of a request of which others were taken: what is sent once more, and what it all comes
//! to.
//!
//! Cloud Monitoring counts what it does not take by code, and names the points only in its words. Where it names them,
//! the others leave the piece and those alone are sent again; else all of it is, and what is there already is refused,
//! which is taken off the count. What breaks a rule breaks it each time: the last answer has all of it. Rules of writing
//! hold: the points are those of the same minute, one of each series, and no later minute begins before they are through
//! ([`crate::export::push`]).
//!
//! Limit: [`MOST_TIMES`].

use super::target::{Reason, Verdict};

/// How often points are sent again: with its pauses 14 s in all, so that the next minute is in time.
pub const MOST_TIMES: u32 = 3;

/// What is known of a piece of which some failed for now.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Again {
    /// How often it was sent again.
    times: u32,
    /// Points that were taken and have left it.
    left: u64,
    /// How many of those in it are there as well; which was not said.
    unnamed: u64,
}

/// What became of a piece.
#[derive(Debug, PartialEq, Eq)]
pub struct Over {
    /// How many points were taken.
    pub taken: u64,
    /// How many will not be, by reason.
    pub lost: Vec<(Reason, u64)>,
}

impl Again {
    /// Hears what became of the points of a piece, all of which were sent, and takes out those of which it is said that
    /// they are there. None while the others are to be sent again.
    pub fn hear<P>(&mut self, points: &mut Vec<P>, verdict: &Verdict) -> Option<Over> {
        let count = points.len() as u64;
        let (taken, by, passing) = match verdict {
            Verdict::Later { .. } => return None,
            Verdict::Taken => (count, &[][..], None),
            Verdict::Refused { by, .. } => (count.saturating_sub(sum(by)), &by[..], None),
            Verdict::Partly(it) => (it.taken, &it.by[..], Some(it)),
        };
        // It may be away as a whole: that is for the age of a minute to bound.
        if passing.is_some() && taken == 0 && by.is_empty() && *self == Self::default() {
            return None;
        }
        let mut lost = without(by, self.unnamed);
        match passing.and_then(|it| it.places.as_ref()) {
            Some(places) => {
                let mut place = 0;
                points.retain(|_| {
                    place += 1;
                    places.contains(&(place - 1))
                });
                self.left += taken;
            }
            None => self.unnamed += taken,
        }
        let count = points.len() as u64;
        let failed = count.saturating_sub(self.unnamed + sum(&lost));
        if passing.is_some() && failed > 0 && self.times < MOST_TIMES {
            self.times += 1;
            return None;
        }
        if failed > 0 {
            lost.push((Reason::Failed, failed));
        }
        Some(Over {
            taken: self.left + count.saturating_sub(sum(&lost)),
            lost,
        })
    }
}

/// What is refused, without so many that are because they are there.
fn without(by: &[(Reason, u64)], there: u64) -> Vec<(Reason, u64)> {
    let mut there = there;
    let mut lost = by.to_vec();
    for (_, count) in lost.iter_mut().filter(|it| it.0 == Reason::Refused) {
        let same = there.min(*count);
        (*count, there) = (*count - same, there - same);
    }
    lost.retain(|it| it.1 > 0);
    lost
}

fn sum(by: &[(Reason, u64)]) -> u64 {
    by.iter().map(|it| it.1).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::cloud_monitoring::target::Partly;

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

    /// What becomes of ten points that are answered so, one answer after the other, and those that are in the piece then.
    fn after(verdicts: &[Verdict]) -> (Option<Over>, Vec<usize>) {
        let mut again = Again::default();
        let mut points: Vec<usize> = (0..10).collect();
        let mut over = None;
        for verdict in verdicts {
            assert_eq!(over, None, "it is over");
            over = again.hear(&mut points, verdict);
        }
        (over, points)
    }

    fn over(taken: u64, lost: &[(Reason, u64)]) -> Option<Over> {
        let lost = lost.to_vec();
        Some(Over { taken, lost })
    }

    #[test]
    fn what_is_named_is_sent_again_alone_and_what_breaks_a_rule_counts_once() {
        use Reason::{Failed, Refused};
        // Of ten, two failed for now and one breaks a rule.
        let first = partly(7, &[(Refused, 1)], Some(&[2, 5, 9]));
        assert_eq!(after(std::slice::from_ref(&first)), (None, vec![2, 5, 9]));
        let (end, _) = after(&[first.clone(), refused(&[(Refused, 1)])]);
        assert_eq!(end, over(9, &[(Refused, 1)]));
        // One of the two breaks a rule after all.
        let (end, _) = after(&[first.clone(), refused(&[(Refused, 2)])]);
        assert_eq!(end, over(8, &[(Refused, 2)]));
        // An answer that does not come changes nothing.
        let later = Verdict::Later {
            why: String::new(),
            after: None,
            is_in_doubt: true,
        };
        let without_answer = after(&[first.clone(), later.clone()]);
        assert_eq!(without_answer, (None, vec![2, 5, 9]));
        let (end, _) = after(&[first.clone(), later, refused(&[(Refused, 1)])]);
        assert_eq!(end, over(9, &[(Refused, 1)]));
        // One of the two goes on failing, of two and then of one.
        let second = partly(1, &[(Refused, 1)], Some(&[0, 2]));
        let third = partly(0, &[(Refused, 1)], Some(&[0, 1]));
        let (end, points) = after(&[first, second, third.clone(), third]);
        assert_eq!(points, [2, 9]);
        assert_eq!(end, over(8, &[(Refused, 1), (Failed, 1)]));
    }

    #[test]
    fn what_is_not_named_is_sent_again_whole_and_what_is_there_is_not_counted_as_refused() {
        use Reason::{Denied, Failed, Refused};
        let first = partly(7, &[(Denied, 1)], None);
        // All ten again: seven are there, one is denied, two are new.
        assert_eq!(after(std::slice::from_ref(&first)).1.len(), 10);
        let (end, _) = after(&[first.clone(), refused(&[(Refused, 7), (Denied, 1)])]);
        assert_eq!(end, over(9, &[(Denied, 1)]));
        // One of the two is refused now.
        let (end, _) = after(&[first.clone(), refused(&[(Refused, 8), (Denied, 1)])]);
        assert_eq!(end, over(8, &[(Refused, 1), (Denied, 1)]));
        // One is new, and the other fails until it is given up.
        let on = partly(1, &[(Refused, 7), (Denied, 1)], None);
        let still = partly(0, &[(Refused, 8), (Denied, 1)], None);
        let (end, _) = after(&[first.clone(), on, still.clone(), still]);
        assert_eq!(end, over(8, &[(Denied, 1), (Failed, 1)]));
        // Those that are there fail for now as well: nothing is left to send.
        let (end, _) = after(&[first.clone(), partly(2, &[(Denied, 1)], None)]);
        assert_eq!(end, over(9, &[(Denied, 1)]));
        // The second answer names what it did not take: the seven, the one that is denied and one that fails.
        let named = [0, 1, 2, 3, 4, 5, 6, 7, 8];
        let on = partly(1, &[(Refused, 7), (Denied, 1)], Some(&named));
        assert_eq!(after(&[first.clone(), on.clone()]), (None, named.to_vec()));
        let (end, _) = after(&[first, on, refused(&[(Refused, 7), (Denied, 1)])]);
        assert_eq!(end, over(9, &[(Denied, 1)]));
    }

    #[test]
    fn a_request_of_which_all_failed_for_now_is_sent_again_as_it_is_without_a_bound() {
        let nothing = partly(0, &[], None);
        let often = vec![nothing.clone(); 2 * MOST_TIMES as usize];
        assert_eq!(after(&often), (None, (0..10).collect()));
        // What is left of one that was taken in part has the bound of those.
        let first = partly(9, &[], Some(&[4]));
        let (end, points) = after(&[first, nothing.clone(), nothing.clone(), nothing]);
        assert_eq!(points, [4]);
        assert_eq!(end, over(9, &[(Reason::Failed, 1)]));
    }

    #[test]
    fn a_request_of_which_nothing_failed_for_now_is_over_at_once() {
        use Reason::{Failed, Refused};
        assert_eq!(after(&[Verdict::Taken]).0, over(10, &[]));
        let by = [(Refused, 2), (Failed, 1)];
        assert_eq!(after(&[refused(&by)]).0, over(7, &by));
    }
}
