//! The runbooks, out of this binary: what to do about an incident is at hand where nothing else is.
//!
//! They are docs/runbooks, as this version was built with. Their Markdown is ours; what would be HTML in it stands
//! as text all the same.

use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use pulldown_cmark::{CowStr, Event, Options, Parser, Tag, html};
use rust_embed::RustEmbed;

use super::asked::Path;
use super::frame::{self, Frame};
use super::problem;
use crate::web::Web;
use crate::words::{address, text};

#[derive(RustEmbed)]
#[folder = "../docs/runbooks/"]
struct Runbooks;

#[derive(Template)]
#[template(path = "runbook.html")]
struct RunbookPage {
    frame: Frame,
    /// None of the list of all.
    title: Option<String>,
    /// HTML that was made of our own Markdown.
    body: String,
}

/// `GET /runbooks`.
pub async fn list(State(_): State<Arc<Web>>, frame: Frame) -> Response {
    let mut all: Vec<(String, String)> = Runbooks::iter()
        .filter_map(|file| {
            let name = file.strip_suffix(".md")?.to_owned();
            Some((title(&markdown(&name)?), name))
        })
        .collect();
    all.sort();
    let lines = all
        .iter()
        .map(|(title, name)| format!("- [{title}]({name}.md)\n"));
    let page = RunbookPage {
        frame,
        title: None,
        body: rendered(&lines.collect::<String>()),
    };
    frame::page(StatusCode::OK, &page)
}

/// `GET /runbooks/{name}`, with or without `.md`.
pub async fn show(Path(name): Path<String>, frame: Frame) -> Response {
    let name = name.strip_suffix(".md").unwrap_or(&name);
    let Some(source) = markdown(name) else {
        let name = text::harmless(name, text::SHOWN_CHARACTERS);
        let title = format!("No runbook is called “{name}”");
        let ways = vec!["/runbooks has those of this version.".to_owned()];
        return problem::not_found(frame, title, ways);
    };
    let page = RunbookPage {
        frame,
        title: Some(title(&source)),
        body: rendered(&source),
    };
    frame::page(StatusCode::OK, &page)
}

fn markdown(name: &str) -> Option<String> {
    let file = Runbooks::get(&format!("{name}.md"))?;
    String::from_utf8(file.data.into_owned()).ok()
}

/// The text of its first line.
fn title(source: &str) -> String {
    let first = source.lines().next().unwrap_or_default();
    first.trim_start_matches(['#', ' ']).to_owned()
}

/// Markdown as HTML. A link to another runbook leads to its page; one to a document that is not here is its words.
fn rendered(source: &str) -> String {
    let mut is_away = false;
    let events = Parser::new_ext(source, Options::ENABLE_TABLES).filter_map(|event| match event {
        Event::Html(it) | Event::InlineHtml(it) => Some(Event::Text(it)),
        Event::Start(Tag::Link {
            link_type,
            dest_url,
            title,
            id,
        }) => {
            let its = dest_url.strip_suffix(".md").map(address::runbook);
            is_away = its.is_none() || dest_url.contains('/');
            let dest_url = CowStr::from(its.unwrap_or_default());
            let link = Tag::Link {
                link_type,
                dest_url,
                title,
                id,
            };
            (!is_away).then_some(Event::Start(link))
        }
        Event::End(pulldown_cmark::TagEnd::Link) if is_away => None,
        other => Some(other),
    });
    let mut body = String::new();
    html::push_html(&mut body, events);
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_between_runbooks_lead_to_pages_and_markup_is_text() {
        let body = rendered("# Hot\n\n<b>x</b> see [heat](heat.md) and [how](../standby.md).\n");
        assert!(body.contains("<h1>Hot</h1>"), "{body}");
        assert!(body.contains("&lt;b&gt;x&lt;/b&gt;"), "{body}");
        assert!(
            body.contains("<a href=\"/runbooks/heat\">heat</a>"),
            "{body}"
        );
        assert!(body.contains("and how."), "{body}");
    }

    #[test]
    fn every_link_of_every_runbook_leads_to_one_that_is_there() {
        for file in Runbooks::iter() {
            let name = file.strip_suffix(".md").expect("only those are in it");
            let body = rendered(&markdown(name).expect("it is text"));
            for link in body.split("href=\"").skip(1) {
                let to = link.split('"').next().unwrap_or_default();
                let to = to.strip_prefix("/runbooks/").expect("others are words");
                assert!(markdown(to).is_some(), "{file} leads to {to}");
            }
        }
    }
}
