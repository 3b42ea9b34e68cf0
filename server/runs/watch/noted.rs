//! What was judged of a run, kept with it for who shows it.

use super::Judged;
use crate::runs::{Run, RunKey, Runs};

impl Runs {
    /// Notes what was judged of a run that goes on.
    pub fn judge(&self, key: &RunKey, judged: Option<Judged>) {
        if let Some(run) = self.lock().runs.get_mut(key) {
            run.judged = judged;
        }
    }

    /// Notes who of a run makes the others wait by the times of its collectives.
    pub fn judge_collectives(&self, key: &RunKey, judged: Option<Judged>) {
        if let Some(run) = self.lock().runs.get_mut(key) {
            run.by_collectives = judged;
        }
    }

    /// Notes whether nothing shows of a run without steps whether it hangs.
    pub fn lacks_evidence(&self, key: &RunKey, lacks: bool) {
        if let Some(run) = self.lock().runs.get_mut(key) {
            run.lacks_evidence = lacks;
        }
    }

    /// Notes whether a run's nodes have traffic on the wrong network of which nothing shows that it is the run's.
    pub fn may_be_astray(&self, key: &RunKey, may_be: bool) {
        if let Some(run) = self.lock().runs.get_mut(key) {
            run.may_be_astray = may_be;
        }
    }
}

impl Run {
    /// Who makes the others wait, by steps or by collectives: what names somebody, else what can say it at all.
    pub fn who_waits(&self) -> Option<&Judged> {
        let both = [self.by_collectives.as_ref(), self.judged.as_ref()];
        let names = |it: &&Judged| !it.verdict.stragglers.is_empty();
        let mut known = both.into_iter().flatten();
        known.clone().find(names).or_else(|| known.next())
    }
}
