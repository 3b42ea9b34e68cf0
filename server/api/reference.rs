//! `/api`: the reference page, made from the same document that programs read.

use std::sync::LazyLock;

use askama::Template;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::Value;

use crate::pages::frame::{self, Frame};

#[derive(Template)]
#[template(path = "reference.html")]
struct ReferencePage {
    frame: Frame,
    of: &'static Reference,
}

/// What the page says, whoever asks.
struct Reference {
    about: String,
    groups: Vec<Group>,
    shapes: Vec<Shape>,
}

struct Group {
    name: String,
    about: String,
    routes: Vec<Route>,
}

struct Route {
    method: String,
    path: String,
    about: String,
    parameters: Vec<Field>,
    body: Option<String>,
    answers: Vec<Answer>,
}

struct Answer {
    status: String,
    shape: String,
}

/// A parameter, or a field of a shape.
struct Field {
    name: String,
    kind: String,
    about: String,
}

struct Shape {
    name: String,
    about: String,
    fields: Vec<Field>,
}

/// It never changes, and everyone may have it: it is made once.
static REFERENCE: LazyLock<Reference> = LazyLock::new(|| {
    let document: Value = serde_json::from_slice(&super::DOCUMENT).unwrap_or_default();
    Reference {
        about: text(&document["info"]["description"]),
        groups: groups(&document),
        shapes: shapes(&document),
    }
});

/// `GET /api`.
pub async fn show(frame: Frame) -> Response {
    let of = &*REFERENCE;
    frame::page(StatusCode::OK, &ReferencePage { frame, of })
}

fn groups(document: &Value) -> Vec<Group> {
    let tags = document["tags"].as_array().map_or(&[][..], Vec::as_slice);
    tags.iter()
        .map(|tag| {
            let name = text(&tag["name"]);
            let routes = objects(&document["paths"])
                .flat_map(|(path, methods)| {
                    objects(methods).map(move |(method, route)| (path, method, route))
                })
                .filter(|(_, _, route)| route["tags"][0] == name.as_str())
                .map(|(path, method, description)| route(path, method, description))
                .collect();
            Group {
                about: text(&tag["description"]),
                name,
                routes,
            }
        })
        .collect()
}

fn route(path: &str, method: &str, described: &Value) -> Route {
    let parameters = described["parameters"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    Route {
        method: method.to_uppercase(),
        path: path.to_owned(),
        about: joined(described),
        parameters: parameters
            .iter()
            .map(|it| Field {
                name: text(&it["name"]),
                kind: format!("{}, {}", text(&it["in"]), kind(&it["schema"])),
                about: text(&it["description"]),
            })
            .collect(),
        body: objects(&described["requestBody"]["content"])
            .next()
            .map(|(_, content)| kind(&content["schema"])),
        answers: objects(&described["responses"])
            .map(|(status, answer)| Answer {
                status: status.clone(),
                shape: objects(&answer["content"])
                    .next()
                    .map_or_else(String::new, |(_, content)| kind(&content["schema"])),
            })
            .collect(),
    }
}

fn shapes(document: &Value) -> Vec<Shape> {
    objects(&document["components"]["schemas"])
        .map(|(name, schema)| {
            // A flattened shape is a list of parts: its own fields are in the last one.
            let parts = schema["allOf"]
                .as_array()
                .map_or(std::slice::from_ref(schema), Vec::as_slice);
            let own = parts.iter().flat_map(|part| objects(&part["properties"]));
            let mut fields: Vec<Field> = own
                .map(|(name, property)| Field {
                    name: name.clone(),
                    kind: kind(property),
                    about: text(&property["description"]),
                })
                .collect();
            for part in parts.iter().filter(|part| part["$ref"].is_string()) {
                fields.insert(
                    0,
                    Field {
                        name: "…".to_owned(),
                        kind: kind(part),
                        about: "every field of it".to_owned(),
                    },
                );
            }
            Shape {
                name: name.clone(),
                about: text(&schema["description"]),
                fields,
            }
        })
        .collect()
}

/// A schema in a word or two.
fn kind(schema: &Value) -> String {
    if let Some(reference) = schema["$ref"].as_str() {
        return reference.rsplit('/').next().unwrap_or(reference).to_owned();
    }
    let choices = schema["oneOf"].as_array().or(schema["anyOf"].as_array());
    if let Some(choices) = choices {
        let words: Vec<String> = choices.iter().map(kind).collect();
        return words.join(" or ");
    }
    let names: Vec<&str> = match &schema["type"] {
        Value::String(name) => vec![name],
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let name = names.join(" or ");
    match (name.as_str(), schema["format"].as_str()) {
        ("array", _) => format!("list of {}", kind(&schema["items"])),
        ("object", _) if schema["additionalProperties"].is_object() => {
            format!("map of {}", kind(&schema["additionalProperties"]))
        }
        (_, Some("date-time")) => format!("{name}, RFC 3339"),
        _ => name,
    }
}

fn joined(described: &Value) -> String {
    let (summary, rest) = (text(&described["summary"]), text(&described["description"]));
    if rest.is_empty() {
        summary
    } else {
        format!("{summary} {rest}")
    }
}

fn objects(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
