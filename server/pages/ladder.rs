//! A ladder: runs that were tagged as steps of one improvement, what each changed and brought.

use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use gpufleet_telemetry::identity::Origin;

use super::asked::Path;
use super::frame::{self, Frame};
use super::{compare, problem};
use crate::runs::RunKey;
use crate::runs::compare::{Against, Difference};
use crate::runs::ladder::{self, RUNG};
use crate::web::Web;
use crate::words::text::{self, Name, in_currency, segment};
use crate::words::{self, address};

/// Settings that differ, named in a row; the API has them all.
const NAMED: usize = 4;

#[derive(Template)]
#[template(path = "ladder.html")]
struct LadderPage {
    frame: Frame,
    title: Name,
    cluster: Name,
    cluster_address: String,
    api_address: String,
    rungs: Vec<Row>,
    left_out: usize,
    watermark: Option<&'static str>,
    watermark_sentence: &'static str,
    origin: Origin,
}

/// A run as a row.
struct Row {
    address: String,
    job: Name,
    attempt: u32,
    /// The mark of a run that is not live.
    mark: Option<&'static str>,
    origin: &'static str,
    changed: Option<Name>,
    differs: Vec<Differs>,
    more: usize,
    /// What it takes, or why that is not known.
    step: Result<String, &'static str>,
    /// Where it is held against the one before it.
    comparison: Option<String>,
    before: Gain,
    first: Gain,
    loss: Result<String, &'static str>,
    cost: Result<String, String>,
}

/// A setting that differs, with what it was and is.
struct Differs {
    words: Name,
    /// Whether both runs say it.
    is_told: bool,
}

/// A speed-up in words.
#[derive(Default)]
pub(super) struct Gain {
    pub(super) words: String,
    pub(super) is_worse: bool,
}

/// `GET /clusters/{cluster}/ladders/{name}`.
pub async fn show(
    State(web): State<Arc<Web>>,
    Path((cluster, name)): Path<(String, String)>,
    frame: Frame,
) -> Response {
    let cluster: Arc<str> = cluster.into();
    let found = match frame.grant.may_see(&cluster) {
        true => ladder::read(&web.app, &web.step_views, (&cluster, &name)).await,
        false => Ok(ladder::Ladder::default()),
    };
    let found = match found {
        Ok(found) if !found.rungs.is_empty() => found,
        Ok(_) => return not_found(frame, &name),
        Err(error) => return problem::store_failed(frame, &error),
    };
    let before = [None].into_iter();
    let before = before.chain(found.rungs.iter().map(|it| Some(&it.compared.key)));
    let origin = origin(&found);
    let page = LadderPage {
        title: Name::new(&name),
        cluster: Name::new(&cluster),
        cluster_address: address::cluster(&cluster),
        api_address: format!("/api/v1/ladders/{}/{}", segment(&cluster), segment(&name)),
        rungs: before
            .zip(&found.rungs)
            .map(|(before, it)| row(before, it, web.app.currency()))
            .collect(),
        left_out: found.left_out,
        watermark: words::watermark(origin),
        watermark_sentence: words::watermark_sentence(origin),
        origin,
        frame,
    };
    frame::page(StatusCode::OK, &page)
}

/// Where what is shown comes from: live only where each run is.
fn origin(found: &ladder::Ladder) -> Origin {
    let origins = found.rungs.iter().map(|it| it.compared.facts.origin);
    let origin = origins.max_by_key(|it| *it != Origin::Live);
    origin.unwrap_or_default()
}

fn not_found(frame: Frame, name: &str) -> Response {
    let name = text::harmless(name, text::SHOWN_CHARACTERS);
    problem::not_found(
        frame,
        format!("No ladder “{name}” in this cluster"),
        vec![
            "A ladder is made of runs with the same tag: gpufleet.init(tags={\"ladder\": …, \"rung\": …})."
                .to_owned(),
        ],
    )
}

fn row(before: Option<&RunKey>, rung: &ladder::Rung, currency: &str) -> Row {
    let it = &rung.compared;
    let key = &it.key;
    let differs = rung
        .step
        .as_ref()
        .map_or(&[][..], |it| it.differences.as_slice());
    let loss = rung.step.as_ref().and_then(|it| it.loss);
    Row {
        address: address::run(key),
        job: Name::new(&key.run.job.name),
        attempt: key.run.attempt,
        mark: words::watermark(it.facts.origin),
        origin: it.facts.origin.name(),
        changed: it.facts.tags.get(RUNG).map(|it| Name::new(it)),
        differs: differs.iter().take(NAMED).map(difference).collect(),
        more: differs.len().saturating_sub(NAMED),
        step: it
            .side
            .step_seconds()
            .map(text::pace)
            .ok_or("too few steps"),
        comparison: before.map(|it| compare::between(&[it], &[key])),
        before: gain(rung.step.as_ref()),
        first: gain(rung.whole.as_ref()),
        loss: loss
            .map(|it| format!("{:.4} → {:.4}", it.a, it.b))
            .ok_or("not comparable"),
        cost: match &it.usd_per_million_tokens {
            Ok(cost) => Ok(in_currency(currency, "", &format!("{cost:.4}"))),
            Err(why) => Err(why.clone()),
        },
    }
}

fn difference(it: &Difference) -> Differs {
    let said = |it: &Option<String>| it.clone().unwrap_or_else(|| "not said".to_owned());
    Differs {
        words: Name::new(&format!("{}: {} → {}", it.key, said(&it.a), said(&it.b))),
        is_told: it.a.is_some() && it.b.is_some(),
    }
}

/// How many times as fast, and how uncertain that is.
pub(super) fn gain(against: Option<&Against>) -> Gain {
    let Some(against) = against else {
        return Gain {
            words: "nothing before it".to_owned(),
            is_worse: false,
        };
    };
    let Some((speed_up, by)) = against.speed_up else {
        return Gain {
            words: "not known".to_owned(),
            is_worse: false,
        };
    };
    let about = match against.uncertainty {
        Some(it) => format!(" ± {:.3}", it * speed_up),
        None => String::new(),
    };
    Gain {
        words: format!("×{speed_up:.3}{about}, by {by}"),
        is_worse: speed_up + against.uncertainty.unwrap_or(0.0) * speed_up < 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn against(speed_up: f64, uncertainty: Option<f64>) -> Against {
        Against {
            differences: Vec::new(),
            is_told: true,
            speed_up: Some((speed_up, "tokens")),
            uncertainty,
            loss: None,
        }
    }

    #[test]
    fn a_rung_is_called_worse_only_where_it_is_beyond_what_is_uncertain() {
        for (speed_up, uncertainty, words, is_worse) in [
            (1.25, Some(0.01), "×1.250 ± 0.013, by tokens", false),
            (0.99, Some(0.02), "×0.990 ± 0.020, by tokens", false),
            (0.9, Some(0.02), "×0.900 ± 0.018, by tokens", true),
            (0.9, None, "×0.900, by tokens", true),
        ] {
            let found = gain(Some(&against(speed_up, uncertainty)));
            assert_eq!((found.words.as_str(), found.is_worse), (words, is_worse));
        }
        assert_eq!(gain(None).words, "nothing before it");
    }
}
