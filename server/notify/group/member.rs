//! An incident in a group: what is so of it, and what the receiver was told.

use std::time::Duration;

use gpufleet_analysis::incident::Incident;
use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::later;
use super::name::{Name, Names};
use crate::notify::settings::Way;

/// What a receiver was last told of an incident.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Delivered {
    /// Nothing.
    Nothing,
    /// That it is so, and how bad.
    Open,
    /// That it is over.
    Over,
}

/// An incident in a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// When it opened.
    pub opened_at: Timestamp,
    /// How bad it is.
    pub severity: Severity,
    /// When it was over.
    pub resolved_at: Option<Timestamp>,
    /// Until when nobody is to be told.
    pub silenced_until: Option<Timestamp>,
    /// What the receiver was told.
    pub told: Delivered,
    /// How bad the receiver was told that it is.
    pub told_severity: Severity,
    /// Whether a message that says it is so went out: where its answer was lost, or the server died
    /// meanwhile, the receiver may believe it although `told` says nothing.
    pub may_be_told: bool,
    /// Whether a message that says it is over went out, of which nobody knows whether it got through: the receiver may
    /// believe that, also where it has come back since.
    #[serde(default)]
    pub may_be_over: bool,
    /// What the receiver knows it by, of those that do not know it by its id.
    #[serde(default, skip_serializing_if = "Names::is_none")]
    pub names: Names,
    /// Whether the store knows that it is in the group.
    #[serde(skip)]
    pub is_linked: bool,
}

impl Member {
    /// What is known of an incident that has opened; `name` is for receivers that know it by that.
    pub fn of(incident: &Incident, name: Option<Name>, now: Timestamp) -> Self {
        Self {
            opened_at: incident.opened_at.unwrap_or(now),
            severity: incident.severity,
            resolved_at: incident.resolved_at,
            silenced_until: incident.silent_until(now),
            told: Delivered::Nothing,
            told_severity: Severity::Info,
            may_be_told: false,
            may_be_over: false,
            names: Names::default().become_now(name),
            is_linked: false,
        }
    }

    /// Whether it is so, and people are to be told.
    pub fn is_loud(&self) -> bool {
        self.resolved_at.is_none() && self.silenced_until.is_none()
    }

    /// Whether the receiver believes that it is so, rightly.
    pub(super) fn is_known(&self) -> bool {
        self.resolved_at.is_none() && self.told == Delivered::Open
    }

    /// Whether there is something of it that the receiver does not know.
    pub(super) fn is_news(&self) -> bool {
        let is_worse = self.told == Delivered::Open && self.severity > self.told_severity;
        let is_renamed = self.told == Delivered::Open && self.names.is_news();
        let is_unsure = self.told != Delivered::Open || self.may_be_over;
        self.is_loud() && (is_unsure || is_worse || is_renamed)
    }

    /// Whether it is over, and the receiver believes that it is not.
    pub(super) fn is_over_untold(&self) -> bool {
        self.resolved_at.is_some() && self.told == Delivered::Open
    }

    /// Whether it is over, and the receiver knows.
    pub(super) fn is_over_told(&self) -> bool {
        self.resolved_at.is_some() && self.told == Delivered::Over
    }

    /// Whether it is so, and the receiver surely heard nothing of it.
    pub(super) fn is_unheard(&self) -> bool {
        self.resolved_at.is_none() && self.told == Delivered::Nothing && !self.may_be_told
    }

    /// Whether it was so and is over without a word: the receiver could not be reached meanwhile.
    pub(super) fn is_missed(&self) -> bool {
        self.resolved_at.is_some() && self.told == Delivered::Nothing && !self.is_silent()
    }

    /// Whether the receiver surely heard nothing of it, and is to hear nothing.
    pub fn is_silent(&self) -> bool {
        self.told == Delivered::Nothing && self.silenced_until.is_some() && !self.may_be_told
    }

    /// Whether nothing is left to say of it.
    pub(super) fn is_done(&self, way: &Way, now: Timestamp) -> bool {
        let Some(resolved_at) = self.resolved_at else {
            return false;
        };
        let is_past = |by: Duration| later(resolved_at, by) <= now;
        let is_told = self.told == Delivered::Over && is_past(way.kind.keeps_over());
        self.is_silent() || is_told || is_past(way.gives_up())
    }

    pub(super) fn turned_back(&mut self, now: Timestamp) {
        self.opened_at = now.min(self.opened_at);
        self.resolved_at = self.resolved_at.map(|at| now.min(at));
    }
}
