//! As whom a request comes to the pages, so that they offer what can be done and nothing else.

use axum::http::HeaderMap;

use super::{Web, bearer, shown};
use crate::auth::Role;

/// As whom a request comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signed {
    /// As everyone: there are no token files, and nobody signs in.
    Open,
    /// As nobody: there are token files, but none of a role that looks at pages.
    Closed,
    /// As nobody: no token, or none that is good.
    Out,
    /// With a good token in its cookie.
    In(Role),
    /// With a bearer token in its header, which hides the cookie; no role where it is not good.
    Shown(Option<Role>),
}

impl Signed {
    /// From what a request shows. Of a token of both roles it is the one that allows more.
    pub fn of(web: &Web, headers: &HeaderMap) -> Self {
        const ROLES: [Role; 2] = [Role::Operate, Role::Read];
        let access = &web.app.access;
        if access.is_open() {
            return Self::Open;
        }
        if !ROLES.into_iter().any(|it| access.guards(it)) {
            return Self::Closed;
        }
        let shown = shown(headers);
        let is_good = |it: &Role| access.check(*it, shown.as_deref()).is_ok();
        let role = ROLES.into_iter().find(is_good);
        match (bearer(headers), role) {
            (Some(_), role) => Self::Shown(role),
            (None, Some(role)) => Self::In(role),
            (None, None) => Self::Out,
        }
    }

    /// The role of its token; none where it has none that is good, or none is asked for.
    pub const fn role(self) -> Option<Role> {
        match self {
            Self::In(role) | Self::Shown(Some(role)) => Some(role),
            Self::Open | Self::Closed | Self::Out | Self::Shown(None) => None,
        }
    }

    /// Whether it may look at pages.
    pub const fn may_look(self) -> bool {
        matches!(self, Self::Open) || self.role().is_some()
    }

    /// Whether a token that is signed in would count.
    pub const fn takes_form(self) -> bool {
        matches!(self, Self::Out | Self::In(_))
    }

    /// Whether there is something to sign out of.
    pub const fn is_in(self) -> bool {
        matches!(self, Self::In(_))
    }
}
