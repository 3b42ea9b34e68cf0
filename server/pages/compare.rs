//! Two runs side by side, or several of each, as `gpufleet compare` has them: what they are made of first, then how fast
//! they are, their loss at equal tokens, and what they cost. Which is chosen by a form that needs no scripts.

use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use gpufleet_telemetry::identity::Origin;

use super::asked::Query;
use super::frame::{self, Frame};
use super::run::{HOOKS, PRICES};
use super::{ladder, problem};
use crate::api::compare as named;
use crate::runs::attempts::Attempts;
use crate::runs::compare::{self, Against, AtTokens, Compared, NO_LOSS, NO_PACE, NOT_TOLD};
use crate::runs::repeats::{self, Repeated, Sides};
use crate::runs::{KnownRun, RunKey, cost, lookup, words as sentences};
use crate::store::{RunFilter, StoreError};
use crate::web::Web;
use crate::words::text::{self, Name, in_currency, money, segment};
use crate::words::{self, Said, address};

/// Runs to choose from, the last started first; any other is named in the address.
const CHOICES: usize = 100;

/// The runs of A, with which is compared, and of B, which are judged, as the API names them; a side may be left to be
/// chosen.
#[derive(Debug, Default)]
struct Asked([Vec<String>; 2]);

impl Asked {
    /// From an address: a form names each run by itself, a link all of a side with commas between them.
    fn read(pairs: &[(String, String)]) -> Self {
        Self(["a", "b"].map(|side| {
            let of_side = pairs.iter().filter(|it| it.0 == side && !it.1.is_empty());
            let all: Vec<&str> = of_side.map(|it| it.1.as_str()).collect();
            let all = all.join(",");
            let mut names = named::listed(&all);
            names.retain(|it| !it.is_empty());
            names
        }))
    }
}

#[derive(Template)]
#[template(path = "compare.html")]
struct ComparePage {
    frame: Frame,
    choices: Vec<Choice>,
    comparison: Option<Comparison>,
    watermark: Option<&'static str>,
    watermark_sentence: &'static str,
    origin: Origin,
}

/// A run to choose.
struct Choice {
    value: String,
    words: String,
    is_a: bool,
    is_b: bool,
}

/// Both, and what B is against A.
struct Comparison {
    sides: [Side; 2],
    repeats: Option<Repeats>,
    verdict: Result<ladder::Gain, &'static str>,
    /// At what that holds.
    held_by: &'static str,
    /// Which setting, and what each says of it; none where a run does not say it.
    differences: Vec<(Name, Option<Name>, Option<Name>)>,
    same: usize,
    /// Why some of what differs is not known.
    not_told: Option<&'static str>,
    rows: Vec<Row>,
    api_address: String,
}

/// What several runs of each say.
struct Repeats {
    sentence: String,
    is_slower: bool,
    /// All runs with how long a step takes each, or why that is not known, and how many steps that is of.
    runs: Vec<(Side, Result<String, &'static str>, String)>,
    /// The settings in which runs of a side differ.
    differ_in: [(&'static str, Vec<Name>); 2],
}

/// Which run, and how it stands.
struct Side {
    letter: &'static str,
    address: String,
    name: Name,
    attempt: u32,
    cluster: Name,
    cluster_address: String,
    sentence: Said,
}

/// A figure of both, or why there is none.
struct Row {
    what: &'static str,
    /// The line of the page Health that is about it where there is none.
    anchor: &'static str,
    cells: [Result<String, String>; 2],
}

/// Where runs are compared; without any of A these are to be chosen.
pub fn between(a: &[&RunKey], b: &[&RunKey]) -> String {
    let written = |keys: &[&RunKey]| {
        let names: Vec<String> = keys.iter().map(|it| named::name(it)).collect();
        segment(&names.join(","))
    };
    match a {
        [] => format!("/compare?b={}", written(b)),
        a => format!("/compare?a={}&b={}", written(a), written(b)),
    }
}

/// `GET /compare`.
pub async fn show(
    State(web): State<Arc<Web>>,
    Query(pairs): Query<Vec<(String, String)>>,
    frame: Frame,
) -> Response {
    let asked = Asked::read(&pairs);
    if asked.0.iter().any(|it| it.len() > repeats::MOST) {
        let why = format!("At most {} runs of a side are compared.", repeats::MOST);
        let title = "Too many runs";
        return problem::refused(frame, StatusCode::BAD_REQUEST, title, why, "/compare");
    }
    let choices = match choices(&web, &frame, &asked).await {
        Ok(choices) => choices,
        Err(error) => return problem::store_failed(frame, &error),
    };
    let mut found = [Vec::new(), Vec::new()];
    if asked.0.iter().all(|it| !it.is_empty()) {
        for (runs, names) in found.iter_mut().zip(&asked.0) {
            for raw in names {
                match one(&web, &frame, raw).await {
                    Ok(Some(run)) => runs.push(run),
                    Ok(None) => return not_found(frame, raw),
                    Err(error) => return problem::store_failed(frame, &error),
                }
            }
        }
    }
    let origins = found.iter().flatten().map(|it| it.facts.origin);
    let origin = origins.max_by_key(|it| *it != Origin::Live);
    let origin = origin.unwrap_or_default();
    let comparison = match found {
        [a, b] if !a.is_empty() => match comparison(&web, Sides::of(a, b)).await {
            Ok(comparison) => Some(comparison),
            Err(error) => return problem::store_failed(frame, &error),
        },
        _ => None,
    };
    let page = ComparePage {
        choices,
        comparison,
        watermark: words::watermark(origin),
        watermark_sentence: words::watermark_sentence(origin),
        origin,
        frame,
    };
    frame::page(StatusCode::OK, &page)
}

/// A run that this reader may see, with what is compared of it.
async fn one(web: &Web, frame: &Frame, raw: &str) -> Result<Option<Compared>, StoreError> {
    let key = named::parse(raw).filter(|it| frame.grant.may_see(&it.cluster));
    match key {
        Some(key) => {
            // For each run anew: others come between.
            let _permit = web.step_views.acquire().await;
            compare::one(&web.app, key).await
        }
        None => Ok(None),
    }
}

fn not_found(frame: Frame, raw: &str) -> Response {
    let raw = text::harmless(raw, text::SHOWN_CHARACTERS);
    problem::not_found(
        frame,
        format!("No such run “{raw}”"),
        vec![
            "A run is CLUSTER/NAMESPACE/NAME/UID/ATTEMPT, as /api/v1/jobs names them; the page /compare has the last ones to choose from."
                .to_owned(),
        ],
    )
}

/// The last runs, with those that were asked for chosen, else the newest and the one before it.
async fn choices(web: &Web, frame: &Frame, asked: &Asked) -> Result<Vec<Choice>, StoreError> {
    let filter = RunFilter {
        cluster: frame.grant.cluster.clone(),
        ..RunFilter::default()
    };
    let (known, _) = web.app.store.runs(&filter, None, CHOICES).await?;
    let mut choices: Vec<Choice> = known.into_iter().map(|it| choice(web, frame, it)).collect();
    for raw in asked.0.iter().flatten() {
        if choices.iter().all(|it| it.value != *raw) {
            choices.push(Choice {
                value: raw.clone(),
                words: text::harmless(raw, text::SHOWN_CHARACTERS),
                is_a: false,
                is_b: false,
            });
        }
    }
    let [a, b] = &asked.0;
    for choice in &mut choices {
        (choice.is_a, choice.is_b) = (a.contains(&choice.value), b.contains(&choice.value));
    }
    if b.is_empty()
        && let Some(free) = choices.iter_mut().find(|it| !it.is_a)
    {
        free.is_b = true;
    }
    if a.is_empty()
        && let Some(free) = choices.iter_mut().find(|it| !it.is_b)
    {
        free.is_a = true;
    }
    Ok(choices)
}

fn choice(web: &Web, frame: &Frame, known: KnownRun) -> Choice {
    let key = known.key.clone();
    let state = lookup::as_it_is(&web.app, known, |_, run| run.state(frame.at).name());
    let shown = |raw: &str| text::harmless(raw, text::SHOWN_CHARACTERS);
    Choice {
        value: named::name(&key),
        words: format!(
            "{}, attempt {}, {state}, in {}",
            shown(&key.run.job.name),
            key.run.attempt,
            shown(&key.cluster)
        ),
        is_a: false,
        is_b: false,
    }
}

async fn comparison(web: &Web, sides: Sides) -> Result<Comparison, StoreError> {
    let [a, b] = [&sides.a, &sides.b].map(|it| repeats::middle(it));
    let against = &sides.against;
    let said = |it: &Option<String>| it.as_deref().map(Name::new);
    let differences = against.differences.iter();
    let keys = a.facts.fingerprint.keys();
    let is_same = |key: &&String| against.differences.iter().all(|it| it.key != **key);
    let [keys_a, keys_b] =
        [&sides.a, &sides.b].map(|runs| runs.iter().map(|it| &it.key).collect::<Vec<_>>());
    let repeated = sides.repeated.as_ref();
    let mut gain = ladder::gain(Some(against));
    // What several runs do not tell apart is no slower for the figure's sake.
    if let Some(told) = repeated {
        gain.is_worse = told.is_slower();
    }
    Ok(Comparison {
        sides: [("A", a), ("B", b)].map(|(letter, it)| side(letter, it)),
        repeats: repeated.map(|it| several(&sides, it)),
        verdict: match against.speed_up {
            Some(_) => Ok(gain),
            None => Err(NO_PACE),
        },
        held_by: held_by(against.speed_up.map(|it| it.1)),
        differences: differences
            .map(|it| (Name::new(&it.key), said(&it.a), said(&it.b)))
            .collect(),
        same: keys.filter(is_same).count(),
        not_told: (!against.is_told).then_some(NOT_TOLD),
        rows: rows(web, [a, b], against).await?,
        api_address: format!("/api/v1/runs{}", between(&keys_a, &keys_b)),
    })
}

fn several(sides: &Sides, told: &Repeated) -> Repeats {
    let all = [("A", &sides.a), ("B", &sides.b)];
    let runs = all
        .into_iter()
        .flat_map(|(letter, runs)| runs.iter().map(move |it| (letter, it)));
    let row = |(letter, it): (&'static str, &Compared)| {
        let pace = it.side.step_seconds().map(text::pace);
        let steps = text::grouped(it.side.steps as f64);
        (side(letter, it), pace.ok_or(NO_PACE), steps)
    };
    let [a, b] = &told.differ_in;
    let named = |keys: &[String]| keys.iter().map(|it| Name::new(it)).collect();
    Repeats {
        sentence: told.sentence(),
        is_slower: told.is_slower(),
        runs: runs.map(row).collect(),
        differ_in: [("A", named(a)), ("B", named(b))],
    }
}

/// At what a speed-up holds: steps are the same work only where somebody saw to it.
fn held_by(by: Option<&str>) -> &'static str {
    match by {
        Some("tokens") => "at the same work",
        _ => "if a step of both is the same work (not both give their tokens)",
    }
}

fn side(letter: &'static str, it: &Compared) -> Side {
    Side {
        letter,
        address: address::run(&it.key),
        name: Name::new(&it.key.run.job.name),
        attempt: it.key.run.attempt,
        cluster: Name::new(&it.key.cluster),
        cluster_address: address::cluster(&it.key.cluster),
        sentence: it.sentence.shown(sentences::LISTED_CHARACTERS),
    }
}

/// What a run has cost with the attempts before it.
async fn spent(web: &Web, run: &Compared) -> Result<Result<String, String>, StoreError> {
    let attempts = Attempts::of(&web.app.store, &run.key).await?;
    let cost = cost::of(&attempts, &run.key, run.attempt.clone());
    Ok(cost.so_far().map(|it| money(web.app.currency(), it)))
}

/// The figures of both, each with its reason where there is none.
async fn rows(web: &Web, both: [&Compared; 2], against: &Against) -> Result<Vec<Row>, StoreError> {
    const NO_TOKENS: &str = "not said: the run gives no tokens";
    let loss = |of: fn(&AtTokens) -> f64| match &against.loss {
        Some(at) => Ok(format!(
            "{:.4} at {} tokens",
            of(at),
            text::grouped(at.tokens.round())
        )),
        None => Err(NO_LOSS.to_owned()),
    };
    let [a, b] = both;
    let spent = [spent(web, a).await?, spent(web, b).await?];
    let row = |what, of: &dyn Fn(&Compared) -> Result<String, String>| Row {
        what,
        anchor: HOOKS,
        cells: both.map(of),
    };
    Ok(vec![
        row("Step", &|it| {
            let pace = it.side.step_seconds().map(text::pace);
            pace.ok_or_else(|| NO_PACE.to_owned())
        }),
        row("Steps that is of", &|it| {
            Ok(text::grouped(it.side.steps as f64))
        }),
        row("Tokens a step", &|it| {
            let tokens = it.side.tokens_per_step.map(text::grouped);
            tokens.ok_or_else(|| NO_TOKENS.to_owned())
        }),
        Row {
            what: "Loss at equal tokens",
            anchor: HOOKS,
            cells: [loss(|it| it.a), loss(|it| it.b)],
        },
        Row {
            anchor: PRICES,
            ..row("A million tokens", &|it| {
                let cost = it.usd_per_million_tokens.clone();
                cost.map(|it| in_currency(web.app.currency(), "", &format!("{it:.4}")))
            })
        },
        Row {
            what: "Cost so far, all attempts",
            anchor: PRICES,
            cells: spent,
        },
    ])
}

#[cfg(test)]
mod tests {
    use gpufleet_analysis::regression::between::Pace;

    use super::*;
    use crate::runs::compare::{Side, speed_up};

    #[test]
    fn steps_are_not_called_the_same_work_where_a_run_gives_no_tokens() {
        let tokens = Side {
            pace: Pace::of(&[1e9; 20]),
            tokens_per_step: Some(4_096.0),
            ..Side::default()
        };
        let none = Side {
            tokens_per_step: None,
            ..tokens.clone()
        };
        let told = |a, b| held_by(speed_up(a, b).map(|it| it.1));
        assert_eq!(told(&tokens, &tokens), "at the same work");
        assert!(told(&tokens, &none).starts_with("if a step"));
    }
}
