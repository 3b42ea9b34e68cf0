//! The questions of docs/questions, clicked through: each page answers and says the promised words, each
//! command runs, each panel and each document is there.
//!
//! Of promised words `#` stands for a digit and `…` for whatever stands between, so that they promise what is known and
//! not its heading. They have to stand in one piece of the page, a row or a paragraph or a line, that leaves nothing
//! open. The server knows a live node, a commitment and a budget, a cluster that has a queue, and a fleet of which a node
//! is on Spot and a GPU broke.

use std::path::PathBuf;
use std::time::Duration;

use gpufleet_standin_nvml::Scenario;
use gpufleet_standin_nvml::load::Load;
use gpufleet_tests::harness::client::typed;
use gpufleet_tests::harness::simulator::{Simulator, steady_seed};
use gpufleet_tests::harness::{World, agent, queue, repository, server, wait};
use gpufleet_tests::on_both_databases;
use serde_json::Value;

use crate::peers::percent_encoded;

/// A node is live, and two hours of history and an incident of the simulated fleet are there.
const LIMIT: Duration = Duration::from_secs(180);

/// Whose questions there are.
const USERS: [&str; 4] = ["on-call", "ml-engineer", "platform-lead", "finops"];

/// Where pages are in the documents: a server as `make up` starts it.
const ROOT: &str = "http://127.0.0.1:8080";

/// Tables that the server is given: what is paid for and what may be spent.
const TABLES: [(&str, &str); 3] = [
    (
        "commitments.csv",
        "id,machine_type,region,nodes,basis,currency,hour,from,until,owner\n\
         c-1,a3-highgpu-8g,us-central1,1,commitment_1y,USD,60,2025-01-01,2099-01-01,\n",
    ),
    (
        "budgets.csv",
        "from,until,team,amount,currency\n2025-01-01,,foundation-models,100000,USD\n",
    ),
    (
        "quotas.csv",
        "from,until,cluster,team,gpus\n2025-01-01,,demo,foundation-models,32\n",
    ),
];

/// A table that is kept at the prompt, so that there is somebody who did.
const OWNERS: &str = "from,until,kind,key,value,team\n2025-01-01,,namespace,,research,science\n";

/// By what the live node has a price.
const MACHINE: &str =
    "cluster = \"test\"\nmachine_type = \"a3-highgpu-8g\"\nregion = \"us-central1\"";

/// What is typed before anybody asks.
const TYPED_BEFORE: [&str; 1] = ["gpufleet silence node=demo-node-7 --for 2h --note cooling"];

/// What a place says where two runs that are offered are to be compared.
const OF_TWO: &str = ", of two";

/// What a place says that is asked before anything breaks.
const WHILE_IT_RUNS: &str = ", while it runs";

/// What a place says whose answer needs what the fleet of this test does not have: a day of measurements, a fault before,
/// a job that stands. That the place is there is asked here, its words of a page that has them, in
/// `server/web/tests/questions.rs`.
const NOT_IN_THE_DEMO: &str = ", not in the demo";

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
                words: quoted(words).filter(|_| !place.ends_with(NOT_IN_THE_DEMO)),
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

/// Where a page's pieces begin: what a person reads as one.
const PIECES: [&str; 12] = [
    "tr", "li", "p", "dt", "h1", "h2", "h3", "section", "article", "label", "header", "ul",
];

/// Words of an answer that is none.
const OPEN: [&str; 6] = [
    "Not measured",
    "not known",
    "not told",
    "not said",
    "no price",
    "without a price",
];

/// The pieces of a page, or the lines of what is none.
fn pieces(text: &str) -> Vec<String> {
    let one_space = |it: &str| it.split_whitespace().collect::<Vec<_>>().join(" ");
    if !text.trim_start().starts_with("<!") {
        return text.lines().map(one_space).collect();
    }
    let mut all = vec![String::new()];
    for part in text.split('<') {
        let (tag, words) = part.split_once('>').unwrap_or(("", part));
        if PIECES.contains(&tag.split(' ').next().unwrap_or_default()) {
            all.push(String::new());
        }
        let last = all.last_mut().expect("there is the first");
        last.push(' ');
        last.push_str(words);
    }
    all.iter().map(|it| one_space(it)).collect()
}

/// Whether a piece has the promised words and leaves nothing open.
fn answers(piece: &str, promised: &str) -> bool {
    let is_like =
        |(have, want): (char, char)| have == want || (want == '#' && have.is_ascii_digit());
    let mut rest = piece;
    for part in promised.split('…').map(str::trim) {
        let length = part.chars().count();
        let begins = rest.char_indices().find(|(at, _)| {
            let here = rest[*at..].chars();
            here.clone().count() >= length && here.zip(part.chars()).all(is_like)
        });
        let Some((at, _)) = begins else {
            return false;
        };
        let end = rest[at..].char_indices().nth(length);
        rest = end.map_or("", |(more, _)| &rest[at + more..]);
    }
    OPEN.iter().all(|it| !piece.contains(it))
}

#[test]
fn words_are_found_in_one_piece_that_leaves_nothing_open() {
    let page =
        "<!doctype html><h1>It is</h1><tr><td>a</td><td>12 free</td></tr><p>no price of b</p>";
    for (promised, is_there) in [
        ("a # free", false),
        ("a ## free", true),
        ("a … free", true),
        ("It is … free", false),
        ("It is", true),
        ("of b", false),
    ] {
        let found = pieces(page).iter().any(|it| answers(it, promised));
        assert_eq!(found, is_there, "{promised}");
    }
}

/// What is found at a place.
fn found(server: &server::Server, place: &str) -> Result<String, String> {
    if let Some(command) = quoted(place).filter(|it| it.starts_with("gpufleet ")) {
        let said = typed(&server.place.web, command.split(' ').skip(1)).well();
        return said.map_err(|why| format!("{command}: {why}"));
    }
    if let Some(command) = quoted(place).filter(|it| it.starts_with("gpufleet-server ")) {
        let mut ours = server.place.command();
        let output = ours.args(command.split(' ').skip(1)).output();
        let output = output.map_err(|error| format!("{command}: {error}"))?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        return match output.status.success() {
            true => Ok(said),
            false => Err(format!(
                "{command}: {}",
                String::from_utf8_lossy(&output.stderr)
            )),
        };
    }
    let link = link(place).ok_or("it leads nowhere")?;
    if let Some(path) = link.strip_prefix(ROOT) {
        let mut answer = server.get(path);
        if let Some((_, rest)) = place.split_once("), there *") {
            let (name, then) = rest.split_once('*').unwrap_or((rest, ""));
            let next = clicked(&answer.text(), name);
            answer = server.get(&next.ok_or_else(|| format!("{path} leads to no {name}"))?);
            if then == OF_TWO {
                let next = compared(&answer.text());
                answer = server.get(&next.ok_or("there are no two runs")?);
            }
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
        (Ok(text), Some(words)) if !pieces(&text).iter().any(|it| answers(it, words)) => {
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
        shown.contains(name).then(|| address.replace("&#38;", "&"))
    })
}

/// Where the form of a page leads that compares two runs: the first that it offers, and the first of another job.
fn compared(page: &str) -> Option<String> {
    let (_, offered) = page.split_once("<select id=\"a\"")?;
    let values = offered.split("<option value=\"").skip(1);
    let values: Vec<String> = values
        .filter_map(|it| Some(it.split('"').next()?.replace("&#38;", "&")))
        .collect();
    let job = |it: &str| it.split('/').nth(2).map(str::to_owned);
    let a = values.first()?;
    let b = values.iter().find(|it| job(it) != job(a))?;
    let (a, b) = (percent_encoded(a), percent_encoded(b));
    Some(format!("/compare?a={a}&b={b}"))
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
    let cluster = queue::cluster();
    let tables: Vec<String> = TABLES
        .iter()
        .map(|(name, text)| world.file(name, text).display().to_string())
        .collect();
    let server = queue::asked(server::Place::new(&world), &world, &cluster)
        .with("fleet.commit_interval_s=2")
        .with(&format!("cost.tables={tables:?}"))
        .start();
    let endpoint = format!("http://{}", server.place.grpc);
    let place = agent::Place::new(&world, "live-node-1", &endpoint, "");
    place.replace_in_config("cluster = \"test\"", MACHINE);
    place.show(&Scenario::of(8, "NVIDIA H100 80GB HBM3", Load::Training));
    let _agent = place.start();
    let more = ["--history-hours", "2", "--seed", &steady_seed()];
    let simulator = Simulator::start(&world, &endpoint, &more);
    // What is asked of a run that goes on.
    let mut unanswered: Vec<&Row> = rows.iter().collect();
    let is_of_running = |it: &Row| it.place.ends_with(WHILE_IT_RUNS);
    wait::until(
        "the questions of a run that goes on are answered",
        LIMIT,
        || {
            unanswered
                .retain(|row| !is_of_running(row) || unanswered_because(&server, row).is_some());
            (!unanswered.iter().any(|it| is_of_running(it))).then_some(())
        },
    );
    simulator.fault("xid79");
    wait::until("there is an incident, a job and a month", LIMIT, || {
        let open = server.get("/api/v1/incidents?state=open&family=gpu_fault");
        let open = open.json();
        let has_job = server.get("/jobs").text().contains("llama-70b-pretrain");
        let month = server.get("/cost").text();
        let has = |it: &Value| !it["items"].as_array().is_none_or(Vec::is_empty);
        let has_hours = month.contains("GPU-hours");
        let has_live = server.get("/fleet").text().contains("live-node-1");
        (has(&open) && has_job && has_hours && has_live).then_some(())
    });
    for typed_before in TYPED_BEFORE {
        let said = typed(&server.place.web, typed_before.split(' ').skip(1)).well();
        said.unwrap_or_else(|why| panic!("{typed_before}: {why}"));
    }
    let owners = world.file("owners.csv", OWNERS).display().to_string();
    let mut import = server.place.command();
    let import = import.args(["prices", "import", &owners]).output();
    assert!(import.expect("it can be started").status.success());
    // What is judged, accounted or made anew comes a tick after what it is of.
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
