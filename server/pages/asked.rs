//! What the address of a page asks for. One that cannot be understood is answered with a page that says why, as
//! everything else is.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::Response;
use serde::de::DeserializeOwned;

use super::frame::Frame;
use super::problem;
use crate::web::Web;

/// The query string.
pub struct Query<T>(pub T);

/// What stands in the place of names in the path.
pub struct Path<T>(pub T);

impl<T: DeserializeOwned + Send> FromRequestParts<Arc<Web>> for Query<T> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, web: &Arc<Web>) -> Result<Self, Response> {
        match axum::extract::Query::from_request_parts(parts, web).await {
            Ok(axum::extract::Query(asked)) => Ok(Self(asked)),
            Err(error) => {
                let back = parts.uri.path().to_owned();
                Err(refused(parts, web, error.body_text(), &back).await)
            }
        }
    }
}

impl<T: DeserializeOwned + Send> FromRequestParts<Arc<Web>> for Path<T> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, web: &Arc<Web>) -> Result<Self, Response> {
        match axum::extract::Path::from_request_parts(parts, web).await {
            Ok(axum::extract::Path(place)) => Ok(Self(place)),
            Err(error) => Err(refused(parts, web, error.body_text(), "/fleet").await),
        }
    }
}

/// What a line of a form asks for: one that is left empty is sent too, and asks for nothing.
pub(super) fn given(line: Option<String>) -> Option<String> {
    let text = line?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}

async fn refused(parts: &mut Parts, web: &Arc<Web>, why: String, back: &str) -> Response {
    let Ok(frame) = Frame::from_request_parts(parts, web).await;
    let title = "This address cannot be understood";
    problem::refused(frame, StatusCode::BAD_REQUEST, title, why, back)
}
