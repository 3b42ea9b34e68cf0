//! Refuses parameters that a route does not have: one that is spelled wrong would be passed over, and the answer would be
//! of everything.
//!
//! The document says which there are, so that no route can forget. Pages pass over what they do not know: links to them
//! come back from mails and chats with more than was put into them.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::{MatchedPath, Query, Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use utoipa::openapi::path::{Operation, ParameterIn};
use utoipa::openapi::{OpenApi, RefOr};

use super::problem::Problem;
use crate::words::text;

/// Longest name of an unknown parameter that is told, characters.
const NAME_CHARACTERS: usize = 40;

/// The parameters that each route takes, by path and method.
pub struct Known(HashMap<(String, Method), Vec<String>>);

impl Known {
    /// As the document has them.
    pub fn of(document: &OpenApi) -> Self {
        let mut known = HashMap::new();
        for (path, item) in &document.paths.paths {
            for (method, operation) in [(Method::GET, &item.get), (Method::POST, &item.post)] {
                if let Some(operation) = operation {
                    known.insert((path.clone(), method), names(operation));
                }
            }
        }
        Self(known)
    }
}

fn names(operation: &Operation) -> Vec<String> {
    let all = operation.parameters.iter().flatten();
    let asked = all.filter_map(|it| match it {
        RefOr::T(it) if it.parameter_in == ParameterIn::Query => Some(it.name.clone()),
        _ => None,
    });
    asked.collect()
}

/// Refuses a request with a parameter that its route does not have.
pub async fn refuse_others(
    State(known): State<Arc<Known>>,
    request: Request,
    next: Next,
) -> Response {
    match unknown(&known, &request) {
        Some(refused) => refused.into_response(),
        None => next.run(request).await,
    }
}

fn unknown(known: &Known, request: &Request) -> Option<Problem> {
    request.uri().query()?;
    let route = request.extensions().get::<MatchedPath>()?;
    let method = match *request.method() {
        Method::HEAD => Method::GET,
        ref other => other.clone(),
    };
    let known = known.0.get(&(route.as_str().to_owned(), method))?;
    // What is no query at all is refused by whoever reads it.
    let Query(asked) = Query::<Vec<(String, String)>>::try_from_uri(request.uri()).ok()?;
    let (other, _) = asked.into_iter().find(|(name, _)| !known.contains(name))?;
    let other = text::harmless(&other, NAME_CHARACTERS);
    let taken = match known.is_empty() {
        true => "none".to_owned(),
        false => known.join(", "),
    };
    Some(Problem::bad(format_args!(
        "“{other}” is no parameter of this route, which takes {taken}"
    )))
}
