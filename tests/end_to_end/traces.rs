//! What the programs say of their own doing: spans of agent and server at a receiver, each with the name
//! of its program, and the server's part of a request under the agent's.

use std::time::Duration;

use gpufleet_tests::harness::agent;
use gpufleet_tests::harness::server::Place;
use gpufleet_tests::harness::{World, wait};
use gpufleet_tests::receiver::Receiver;
use opentelemetry_proto::tonic::trace::v1::Span;

/// A tick and a commit pass before all spans were made; they are sent every five seconds.
const TRACED: Duration = Duration::from_secs(90);

/// A kind of span: whose it is, and its name.
type Kind = (&'static str, &'static str);

/// Each kind of span, and the kind that it is a part of.
const EXPECTED: [(&str, &str, Option<Kind>); 9] = [
    ("gpufleet-agent", "read", None),
    ("gpufleet-agent", "tick", None),
    ("gpufleet-agent", "spool", None),
    (
        "gpufleet-agent",
        "append",
        Some(("gpufleet-agent", "spool")),
    ),
    ("gpufleet-agent", "send", None),
    (
        "gpufleet-server",
        "accept",
        Some(("gpufleet-agent", "send")),
    ),
    (
        "gpufleet-server",
        "fold",
        Some(("gpufleet-server", "accept")),
    ),
    ("gpufleet-server", "commit", None),
    ("gpufleet-server", "page", None),
];

/// What of [`EXPECTED`] is not among these spans.
fn missing(spans: &[(String, Span)]) -> Vec<(&'static str, &'static str)> {
    let parent = |span: &Span| {
        let is_it = |it: &&(String, Span)| {
            it.1.span_id == span.parent_span_id && it.1.trace_id == span.trace_id
        };
        let (service, span) = spans.iter().find(is_it)?;
        Some((service.as_str(), span.name.as_str()))
    };
    let is_there = |service: &str, name: &str, of: Option<(&str, &str)>| {
        spans.iter().any(|(by, span)| {
            let is_root = of.is_none() && span.parent_span_id.is_empty();
            by == service && span.name == name && (is_root || of.is_some() && parent(span) == of)
        })
    };
    let expected = EXPECTED.into_iter();
    let missing = expected.filter(|(service, name, of)| !is_there(service, name, *of));
    missing.map(|(service, name, _)| (service, name)).collect()
}

fn rounds(spans: &[(String, Span)]) -> usize {
    let of_jobs =
        |(service, span): &&(String, Span)| service == "gpufleet-server" && span.name == "round";
    spans.iter().filter(of_jobs).count()
}

#[test]
fn both_programs_send_their_spans_with_their_names_and_a_request_is_one_trace_of_both() {
    let world = World::new();
    let receiver = Receiver::start();
    let traces = format!("trace.endpoint={}", receiver.endpoint());
    let server = Place::new(&world).with(&traces).start();
    let traced = format!("[trace]\nendpoint = \"{}\"", receiver.endpoint());
    let endpoint = format!("http://{}", server.place.grpc);
    let place = agent::Place::new(&world, "node-1", &endpoint, &traced);
    place.show(&agent::gpus(0, 1));
    let agent = place.start();
    wait::until("every kind of span was sent", TRACED, || {
        let spans = receiver.spans();
        (missing(&spans).is_empty() && rounds(&spans) > 0).then_some(())
    });
    // What a program did last is sent before it ends.
    agent.stop();
    let before = receiver.spans().len();
    let last = server.get("/jobs");
    assert_eq!(last.status, 200);
    server.stop();
    let of_last = |(_, span): &(String, Span)| {
        let routes = span.attributes.iter().filter(|it| it.key == "route");
        span.name == "page"
            && routes
                .into_iter()
                .any(|it| format!("{it:?}").contains("/jobs"))
    };
    assert!(receiver.spans()[before..].iter().any(of_last));
}
