//! The questions of docs/questions, clicked through: each page answers and says the promised words, each
//! command runs, each panel and each document is there.

use std::path::PathBuf;
use std::time::Duration;

use gpufleet_standin_nvml::Scenario;
use gpufleet_standin_nvml::load::Load;
use gpufleet_tests::harness::client::typed;
use gpufleet_tests::harness::simulator::{Simulator, steady_seed};
use gpufleet_tests::harness::{World, agent, repository, server, wait};
use gpufleet_tests::on_both_databases;
use serde_json::Value;

/// A node is live, and two hours of history and an incident of the simulated fleet are there.
const LIMIT: Duration = Duration::from_secs(180);

/// Whose questions there are.
const USERS: [&str; 4] = ["on-call", "ml-engineer", "platform-lead", "finops"];

/// Where pages are in the documents: a server as `make up` starts it.
const ROOT: &str = "http://127.0.0.1:8080";

/// A question, where its answer is, and the words that are promised there.
struct Row {
    user: &'static str,
    question: String,
    place: String,
    words: Option<String>,
}

fn rows() -> Vec<Row> {
    let of = |user: &'static str| {
        let file = repository().join(format!("docs/questions/{user}.md"));
        let text = std::fs::read_to_string(file).expect("each user has a document");
        let rows = text.lines().filter_map(move |line| {
            let cells: Vec<&str> = line
                .split(" | ")
                .map(|it| it.trim_matches([' ', '|']))
                .collect();
            let [number, question, place, words] = cells.as_slice() else {
                return None;
            };
            number.parse::<u32>().ok()?;
            Some(Row {
                user,
                question: (*question).to_owned(),
                place: (*place).to_owned(),
                words: quoted(words),
            })
        });
        rows.collect::<Vec<_>>()
    };
    USERS.into_iter().flat_map(of).collect()
}

/// What stands in backticks.
fn quoted(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('`')?;
    let (inside, _) = rest.split_once('`')?;
    Some(inside.to_owned())
}

/// What a link of a place leads to.
fn link(place: &str) -> Option<&str> {
    let (_, rest) = place.split_once("](")?;
    Some(rest.split_once(')')?.0)
}

/// What is found at a place.
fn found(server: &server::Server, place: &str) -> Result<String, String> {
    if let Some(command) = quoted(place).filter(|it| it.starts_with("gpufleet ")) {
        let said = typed(&server.place.web, command.split(' ').skip(1)).well();
        return said.map_err(|why| format!("{command}: {why}"));
    }
    let link = link(place).ok_or("it leads nowhere")?;
    if let Some(path) = link.strip_prefix(ROOT) {
        let mut answer = server.get(path);
        if let Some((_, name)) = place.split_once("), there *") {
            let name = name.trim_end_matches('*');
            let next = clicked(&answer.text(), name);
            answer = server.get(&next.ok_or_else(|| format!("{path} leads to no {name}"))?);
        }
        return match answer.status {
            200 => Ok(answer.text()),
            status => Err(format!("{path} answers {status}")),
        };
    }
    let file: PathBuf = repository().join("docs/questions").join(link);
    let text = std::fs::read_to_string(&file);
    let text = text.map_err(|error| format!("{}: {error}", file.display()))?;
    match place
        .strip_prefix("panel *")
        .and_then(|it| it.split_once('*'))
    {
        None => Ok(text),
        Some((panel, _)) => has_panel(&text, panel)
            .then_some(text)
            .ok_or_else(|| format!("{link} has no panel {panel}")),
    }
}

/// Why a question is not answered where its document says.
fn unanswered_because(server: &server::Server, row: &Row) -> Option<String> {
    match (found(server, &row.place), &row.words) {
        (Err(why), _) => Some(why),
        (Ok(text), Some(words)) if !text.contains(words.as_str()) => {
            Some(format!("“{words}” is not there"))
        }
        (Ok(_), _) => None,
    }
}

/// Where a link of a page leads that shows this name.
fn clicked(page: &str, name: &str) -> Option<String> {
    page.split("<a href=\"").skip(1).find_map(|link| {
        let (address, rest) = link.split_once('"')?;
        let (shown, _) = rest.split_once("</a>")?;
        shown.contains(name).then(|| address.to_owned())
    })
}

fn has_panel(dashboard: &str, title: &str) -> bool {
    let dashboard: Value = serde_json::from_str(dashboard).expect("a dashboard is JSON");
    let panels = dashboard["panels"].as_array().into_iter().flatten();
    panels.into_iter().any(|it| it["title"] == title)
}

on_both_databases!(each_question_of_each_user_is_answered_where_its_document_says);

fn each_question_of_each_user_is_answered_where_its_document_says(world: World) {
    let rows = rows();
    for user in USERS {
        let count = rows.iter().filter(|it| it.user == user).count();
        assert!(count >= 10, "{user} has {count} questions of at least ten");
    }
    let server = server::Place::new(&world)
        .with("fleet.commit_interval_s=2")
        .start();
    let endpoint = format!("http://{}", server.place.grpc);
    let place = agent::Place::new(&world, "live-node-1", &endpoint, "");
    place.show(&Scenario::of(8, "NVIDIA H100 80GB HBM3", Load::Training));
    let _agent = place.start();
    let more = ["--history-hours", "2", "--seed", &steady_seed()];
    let simulator = Simulator::start(&world, &endpoint, &more);
    simulator.fault("xid79");
    wait::until("there is an incident, a job and a month", LIMIT, || {
        let open = server.get("/api/v1/incidents?state=open").json();
        let has_job = server.get("/jobs").text().contains("llama-70b-pretrain");
        let month = server.get("/cost").text();
        let has = |it: &Value| !it["items"].as_array().is_none_or(Vec::is_empty);
        let has_hours = month.contains("GPU-hours");
        let has_live = server.get("/fleet").text().contains("live-node-1");
        (has(&open) && has_job && has_hours && has_live).then_some(())
    });
    // What is judged, accounted or made anew comes a tick after what it is of.
    let mut unanswered: Vec<&Row> = rows.iter().collect();
    wait::until("each question is answered", LIMIT, || {
        unanswered.retain(|row| {
            let why = unanswered_because(&server, row);
            if let Some(why) = &why {
                eprintln!("{}: {} {}: {why}", row.user, row.question, row.place);
            }
            why.is_some()
        });
        unanswered.is_empty().then_some(())
    });
    simulator.stop();
    server.stop();
}
