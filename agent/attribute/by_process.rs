//! Whose the processes on a GPU or share are: the kernel's word on who holds it.

use std::collections::BTreeSet;

use gpufleet_telemetry::holder::Unknown;

use super::SEE_PROCESSES;
use super::held::{Answer, Known, Names, listed};
use super::processes::{Looked, Process, Whose};
use super::users::Card;

/// The Slurm jobs whose processes are on it.
pub(super) fn jobs_on(card: &Card, looked: &Looked) -> BTreeSet<u64> {
    let ids = card.processes.iter().flatten();
    let seen = ids.filter_map(|it| looked.processes.get(it));
    let jobs = seen.filter_map(|it| match it.whose {
        Whose::Slurm(job) => Some(job),
        Whose::Pod(_) | Whose::User { .. } => None,
    });
    jobs.collect()
}

impl<N: Names> Known<'_, N> {
    /// Whose processes are on it; none where none are, or the driver does not say.
    pub(super) fn by_process(&self, card: &Card) -> Option<Answer> {
        let ids = card.processes.as_ref().filter(|it| !it.is_empty())?;
        let seen = ids.iter();
        let seen: Vec<&Process> = seen
            .filter_map(|it| self.looked.processes.get(it))
            .collect();
        let is_of_user = |it: &&&Process| matches!(it.whose, Whose::User { .. });
        let groups = seen.iter().filter(|it| !is_of_user(it));
        let groups: BTreeSet<&Whose> = groups.map(|it| &it.whose).collect();
        let groups: Vec<Answer> = groups.into_iter().map(|it| self.group(it)).collect();
        if groups.len() > 1 {
            let names = groups.iter().map(Answer::words);
            return Some(Answer::Unknown(Unknown::Shared, listed(names)));
        }
        if let Some(group) = groups.into_iter().next() {
            return Some(group);
        }
        // Users share it as jobs do; of the processes of one the one that came first names him until it goes.
        let users = seen.iter().filter_map(|it| match &it.whose {
            Whose::User { user, .. } => Some(user.as_str()),
            Whose::Pod(_) | Whose::Slurm(_) => None,
        });
        let users: BTreeSet<&str> = users.collect();
        if users.len() > 1 {
            let names = users.into_iter().map(|it| format!("process:{it}"));
            return Some(Answer::Unknown(Unknown::Shared, listed(names)));
        }
        let oldest = seen.into_iter().min_by_key(|it| it.started);
        Some(match oldest.map(|it| &it.whose) {
            Some(Whose::User { user, name, .. }) => Answer::Process {
                user: user.clone(),
                name: name.clone(),
            },
            _ => self.unseen(ids),
        })
    }

    /// Why none of these processes is there.
    fn unseen(&self, ids: &[i32]) -> Answer {
        let unseen = ids.iter().filter(|it| self.looked.unseen.contains(it));
        match unseen.count() {
            // Listed before they ended, or looked at before they began.
            0 => Answer::Unknown(
                Unknown::NotHeard,
                "the processes on it ended or began in this round".to_owned(),
            ),
            count => {
                let words = format!("{count} processes that the agent cannot see; {SEE_PROCESSES}");
                Answer::Unknown(Unknown::Unnamed, words)
            }
        }
    }

    /// The pod or job that a process is of.
    fn group(&self, whose: &Whose) -> Answer {
        match whose {
            Whose::Slurm(job) => Answer::Job(*job),
            Whose::User { user, name, .. } => Answer::Process {
                user: user.clone(),
                name: name.clone(),
            },
            Whose::Pod(uid) => match self.names.pod_of(uid) {
                Some((namespace, name)) => Answer::Pod {
                    namespace,
                    name,
                    container: String::new(),
                },
                None => {
                    let words = format!("a pod with uid {uid}, which the API server did not name");
                    Answer::Unknown(Unknown::Unnamed, words)
                }
            },
        }
    }
}
