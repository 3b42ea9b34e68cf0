//! What every route may be refused with, written into the document in one place: no route says it for itself, and none
//! forgets it.

use utoipa::openapi::path::Operation;
use utoipa::openapi::{ContentBuilder, OpenApi, Ref, RefOr, ResponseBuilder};

/// What stands around every route, also those that need no right.
const EVERY: [(u16, &str); 4] = [
    (
        400,
        "A parameter that the route does not have, or that cannot be understood.",
    ),
    (
        405,
        "Another method than those that this address takes; the header Allow names them.",
    ),
    (413, "A body that is too long."),
    (500, "Something broke on the server; its log says what."),
];

/// What guards every route that reads.
const READ: [(u16, &str); 3] = [
    (401, "No token where one is needed."),
    (403, "A token that is not known or does not allow this."),
    (
        503,
        "The server does not lead, its store does not answer, or the answer took too long.",
    ),
];

/// What one is refused with that can be asked for a cluster.
const OF_CLUSTER: [(u16, &str); 1] = [(
    404,
    "There is no such thing, or the token is bound to another cluster.",
)];

/// What guards every route that changes something besides: its body.
const BODY: [(u16, &str); 2] = [
    (415, "A body that is not said to be JSON."),
    (422, "JSON of another shape."),
];

/// Says of every route what stands around it.
pub fn describe_all(document: &mut OpenApi) {
    for item in document.paths.paths.values_mut() {
        for operation in [&mut item.get, &mut item.post].into_iter().flatten() {
            add(operation, &EVERY);
        }
    }
}

/// Says of every route of this document, all of which need a right, what guards it.
pub fn describe(document: &mut OpenApi) {
    for item in document.paths.paths.values_mut() {
        for operation in [&mut item.get, &mut item.post].into_iter().flatten() {
            add(operation, &READ);
            let mut parameters = operation.parameters.iter().flatten();
            if parameters.any(|it| matches!(it, RefOr::T(it) if it.name == "cluster")) {
                add(operation, &OF_CLUSTER);
            }
        }
        for operation in item.post.iter_mut() {
            add(operation, &BODY);
        }
    }
}

fn add(operation: &mut Operation, refusals: &[(u16, &str)]) {
    for (status, about) in refusals {
        let shape = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem")));
        let response = ResponseBuilder::new()
            .description(*about)
            .content("application/problem+json", shape.build());
        let all = &mut operation.responses.responses;
        all.insert(status.to_string(), response.into());
    }
}
