//! What people say to an incident on its page, by a form that needs no scripts: the same words as the API's,
//! through the same function, with the same row in the audit.

use std::sync::Arc;

use axum::extract::{Extension, Form, Path, State};
use axum::http::header::LOCATION;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use gpufleet_analysis::incident::{Incident, MAX_NOTE_BYTES, MAX_PERSON_BYTES, State as Life};
use serde::Deserialize;
use uuid::Uuid;

use crate::api::audit;
use crate::api::incidents::say::{NOTE, SILENCE, Said, said};
use crate::auth::Role;
use crate::pages::frame::Frame;
use crate::pages::problem;
use crate::web::{self, Web, same_origin};
use crate::words::text;

/// How long it can be silent, in seconds with words; the API takes any time up to 7 days.
const SILENCES: [(i64, &str); 5] = [
    (3_600, "1 hour"),
    (4 * 3_600, "4 hours"),
    (86_400, "1 day"),
    (3 * 86_400, "3 days"),
    (7 * 86_400, "7 days"),
];

/// The form on the page; none where there is nothing to say any more.
pub(super) struct SayForm {
    pub(super) address: String,
    /// Whether it is still so: else a note is all.
    pub(super) is_open: bool,
    /// Whether somebody works on it, so that it can be given out of hand.
    pub(super) is_in_hand: bool,
    /// Whether somebody has silenced it alone, so that this can be ended here: a pattern's silence is of more than it.
    pub(super) is_silenced: bool,
    /// Whether the sender says who it is: no proxy does.
    pub(super) asks_who: bool,
    /// Why this reader may not say anything.
    pub(super) why_not: Option<String>,
    /// Where it can sign in with a token that may; none where that cannot be.
    pub(super) sign_in: Option<String>,
    pub(super) silences: [(i64, &'static str); SILENCES.len()],
    pub(super) note_bytes: usize,
    pub(super) person_bytes: usize,
}

/// What the form sends.
#[derive(Debug, Deserialize)]
pub struct Sent {
    what: String,
    #[serde(default)]
    who: String,
    #[serde(default)]
    note: String,
    for_s: Option<i64>,
}

impl SayForm {
    /// What this reader can say to the incident now.
    pub(super) fn of(
        web: &Web,
        (headers, frame): (&HeaderMap, &Frame),
        incident: &Incident,
    ) -> Option<Self> {
        // Of history nothing is held that could be changed.
        web.app.incidents.get(incident.id)?;
        let why_not = web::may(web, headers, Role::Operate).err();
        let could = why_not.is_some() && web.app.access.guards(Role::Operate);
        Some(Self {
            address: format!("/incidents/{}/say", incident.id),
            is_open: incident.state == Life::Open,
            is_in_hand: incident.acknowledged_by.is_some(),
            is_silenced: incident.silenced_alone(web.app.clock.now()).is_some(),
            asks_who: web.app.config.auth.user_header.is_empty(),
            why_not: why_not.map(|error| error.to_string()),
            sign_in: frame.sign_in().filter(|_| could),
            silences: SILENCES,
            note_bytes: MAX_NOTE_BYTES,
            person_bytes: MAX_PERSON_BYTES,
        })
    }
}

/// `POST /incidents/{id}/say`.
pub async fn say(
    State(web): State<Arc<Web>>,
    Path(id): Path<String>,
    headers: HeaderMap,
    peer: Option<Extension<audit::From>>,
    frame: Frame,
    Form(sent): Form<Sent>,
) -> Response {
    let back = format!("/incidents/{}", text::segment(&id));
    let refused = |status: StatusCode, why: String| {
        problem::refused(frame.clone(), status, "Nothing was changed", why, &back)
    };
    if !same_origin::is_own(&headers) {
        let why = "This form was not sent by a page of this server; programs use POST /api/v1/incidents/{id}/say.";
        return refused(StatusCode::FORBIDDEN, why.to_owned());
    }
    let Ok(number) = Uuid::parse_str(&id) else {
        return refused(
            StatusCode::NOT_FOUND,
            "There is no such incident.".to_owned(),
        );
    };
    let grant = match web::may(&web, &headers, Role::Operate) {
        Ok(grant) => grant,
        Err(error) => return refused(StatusCode::FORBIDDEN, format!("{error}.")),
    };
    for word in sent.words() {
        let done = said(&web, (&headers, peer.clone()), &grant, number, &word).await;
        if let Err(problem) = done {
            return refused(problem.status(), format!("{}.", problem.detail()));
        }
    }
    (StatusCode::SEE_OTHER, [(LOCATION, back)]).into_response()
}

impl Sent {
    /// What is said, in order: a note that was written is not lost when another button was pressed.
    fn words(&self) -> Vec<Said> {
        let said = |what: &str| Said {
            what: what.to_owned(),
            who: Some(self.who.clone()),
            note: (what == NOTE).then(|| self.note.clone()),
            until: None,
            for_s: self.for_s.filter(|_| what == SILENCE),
        };
        let has_note = self.what != NOTE && !self.note.trim().is_empty();
        let note = has_note.then(|| said(NOTE));
        std::iter::once(said(&self.what)).chain(note).collect()
    }
}
