//! Refusals as RFC 9457 problem+json: each names the thing and the way out.

use std::fmt::Display;
use std::sync::Arc;

use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Json, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use utoipa::ToSchema;

use crate::auth::{AuthError, Grant};
use crate::web::Web;

/// Longest detail, characters: it may quote what was asked for.
const DETAIL_CHARACTERS: usize = 500;

/// A refusal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Problem {
    /// What kind of problem: `about:blank`, the status says it.
    #[serde(rename = "type")]
    #[schema(example = "about:blank")]
    kind: &'static str,
    /// The kind in words.
    #[schema(example = "Not Found")]
    title: &'static str,
    /// The HTTP status.
    #[schema(example = 404)]
    status: u16,
    /// What is wrong with this request, and what to do.
    detail: String,
}

impl Problem {
    /// A refusal with this status.
    pub fn new(status: StatusCode, detail: impl Display) -> Self {
        let detail = detail.to_string();
        let cut = detail.chars().take(DETAIL_CHARACTERS).collect();
        Self {
            kind: "about:blank",
            title: status.canonical_reason().unwrap_or("Error"),
            status: status.as_u16(),
            detail: cut,
        }
    }

    /// Its HTTP status.
    pub fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// What is wrong, in words.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// 400: the request cannot be understood.
    pub fn bad(detail: impl Display) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// 404: no such thing.
    pub fn unknown(detail: impl Display) -> Self {
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    /// The cluster that is asked for by its name; of a token that is bound to one, that one where none is named.
    ///
    /// # Errors
    /// 404 when the token is bound to another: it is told neither what is there nor that it is empty.
    pub fn of_cluster(grant: &Grant, asked: Option<&str>) -> Result<Option<Arc<str>>, Self> {
        match (&grant.cluster, asked) {
            (Some(bound), Some(asked)) if !grant.may_see(asked) => Err(Self::unknown(
                format_args!("cluster={asked}: this token sees the cluster {bound} alone"),
            )),
            (_, Some(asked)) => Ok(Some(asked.into())),
            (bound, None) => Ok(bound.clone()),
        }
    }

    /// 503: the store does not answer. The truth goes to the log.
    pub fn store(error: &dyn Display) -> Self {
        tracing::error!(%error, "the API could not read the store");
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "the store does not answer; what is live is still served, the server's log says why",
        )
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.status(), Json(self)).into_response();
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}

/// 401 or 403 from the access check.
pub fn refused(error: &AuthError) -> Response {
    let status = match error {
        AuthError::Refused(_) | AuthError::Closed(_) => StatusCode::FORBIDDEN,
        _ => StatusCode::UNAUTHORIZED,
    };
    let mut response = Problem::new(status, error).into_response();
    if status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(
            header::WWW_AUTHENTICATE,
            HeaderValue::from_static("Bearer realm=\"gpufleet\""),
        );
    }
    response
}

/// A query string; what cannot be understood is a problem. Unknown parameters do not come this far
/// ([`super::parameters`]).
pub struct Asked<T>(pub T);

impl<T: DeserializeOwned + Send> FromRequestParts<Arc<Web>> for Asked<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, web: &Arc<Web>) -> Result<Self, Problem> {
        let Query(asked) = Query::<T>::from_request_parts(parts, web)
            .await
            .map_err(|error: QueryRejection| Problem::bad(error.body_text()))?;
        Ok(Self(asked))
    }
}

/// The parameters in a path.
pub struct Place<T>(pub T);

impl<T: DeserializeOwned + Send> FromRequestParts<Arc<Web>> for Place<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, web: &Arc<Web>) -> Result<Self, Problem> {
        let Path(place) = Path::<T>::from_request_parts(parts, web)
            .await
            .map_err(|error: PathRejection| Problem::bad(error.body_text()))?;
        Ok(Self(place))
    }
}

/// A JSON body.
pub struct Body<T>(pub T);

impl<T: DeserializeOwned> FromRequest<Arc<Web>> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, web: &Arc<Web>) -> Result<Self, Problem> {
        let Json(body) = Json::<T>::from_request(request, web)
            .await
            .map_err(|error: JsonRejection| Problem::new(error.status(), error.body_text()))?;
        Ok(Self(body))
    }
}
