//! Which incidents change their group: those that there was no room for, and those that a message which calls people
//! said nothing of.

use std::collections::BTreeMap;

use gpufleet_telemetry::time::Timestamp;
use uuid::Uuid;

use super::{Outbox, Sending, new_id};
use crate::notify::group::{Group, Member};

impl Outbox {
    /// Incidents that groups had no room for and have by now. They are handed out once: those that are open are to be
    /// noted again.
    pub fn find_room(&mut self) -> Vec<Uuid> {
        let mut all = Vec::new();
        for group in self.groups.values_mut().filter(|it| it.over_at.is_none()) {
            let found = group.find_room();
            if !found.is_empty() {
                self.unwritten.entry(group.id).or_default();
            }
            all.extend(found);
        }
        all
    }

    /// Puts what a message said nothing of into a group like its own that nobody was told of yet.
    pub(super) fn regroup(
        &mut self,
        sent: &Sending,
        parted: BTreeMap<Uuid, Member>,
        now: Timestamp,
    ) {
        if parted.is_empty() {
            return;
        }
        let (of, way) = (&sent.group, &sent.way);
        let is_like = |it: &&Group| {
            let is_own = it.way == of.way && it.over_at.is_none() && it.notice.is_none();
            is_own && it.is_flood == of.is_flood && it.common == of.common
        };
        let mut like = self.groups.values().filter(is_like);
        let fits = like.find(|it| it.is_open_to_more(way)).map(|it| it.id);
        let id = fits.unwrap_or_else(|| new_id(of.id, way, now));
        let group = self.groups.entry(id).or_insert_with(|| {
            let mut group = Group::new(id, way, of.common.clone(), now);
            group.is_flood = of.is_flood;
            group
        });
        group.adopt(parted);
        self.unwritten.entry(id).or_default();
    }
}
