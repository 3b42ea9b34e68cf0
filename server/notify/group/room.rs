//! Room in a group: what makes some, what waits for it, and what leaves for a group that nobody was told of.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::{Group, MAX_MEMBERS, Member};
use crate::notify::settings::Way;

impl Group {
    /// Whether what breaks now goes under its key. Where the first message of a key is the one that calls people, what
    /// joins later would call nobody while somebody has the alarm in hand.
    pub fn is_open_to_more(&self, way: &Way) -> bool {
        self.first_at.is_none() || !way.kind.calls_once()
    }

    /// How many more incidents it can take in: what is over and told makes room.
    fn room(&self) -> usize {
        let stay = self.members.values().filter(|it| !it.is_over_told());
        MAX_MEMBERS.saturating_sub(stay.count())
    }

    /// Takes in an incident that is new to it, for what was over first of what is over and told where it is full; counts
    /// it where there is no room. Whether that is a change.
    pub(super) fn take_new(&mut self, id: Uuid, member: Member) -> bool {
        let is_full = self.members.len() >= MAX_MEMBERS;
        if is_full && self.room() == 0 {
            let is_new = self.beyond.insert(id);
            self.left_out += u64::from(is_new);
            if self.beyond.len() > MAX_MEMBERS {
                self.beyond.pop_first();
            }
            return is_new;
        }
        if self.beyond.remove(&id) {
            self.left_out = self.left_out.saturating_sub(1);
        }
        if is_full {
            let over = self.members.iter().filter(|(_, it)| it.is_over_told());
            let first = over.min_by_key(|(_, it)| it.resolved_at);
            if let Some(first) = first.map(|(id, _)| *id) {
                self.members.remove(&first);
            }
        }
        self.members.insert(id, member);
        true
    }

    /// Incidents that were counted and that there is room for by now; they are counted no more. Whoever knows them tells
    /// of those that are open still.
    pub fn find_room(&mut self) -> Vec<Uuid> {
        if self.beyond.is_empty() {
            return Vec::new();
        }
        let room = self.room();
        let found: Vec<Uuid> = self.beyond.iter().copied().take(room).collect();
        for id in &found {
            self.beyond.remove(id);
            self.left_out = self.left_out.saturating_sub(1);
        }
        if self.beyond.is_empty() {
            // Those whose ids were not kept are no longer known.
            self.left_out = 0;
        }
        self.version += u64::from(!found.is_empty());
        found
    }

    /// Lets go of open incidents that the receiver surely heard nothing of: they came while the message was on its way,
    /// or are silent.
    pub fn part(&mut self) -> BTreeMap<Uuid, Member> {
        let all = std::mem::take(&mut self.members).into_iter();
        let (parted, stay): (BTreeMap<_, _>, BTreeMap<_, _>) =
            all.partition(|(_, it)| it.is_unheard());
        self.members = stay;
        parted
    }

    /// Takes in what another group has let go of.
    pub fn adopt(&mut self, parted: BTreeMap<Uuid, Member>) {
        for (id, mut member) in parted {
            member.is_linked = false;
            self.take_new(id, member);
        }
        self.version += 1;
    }
}
