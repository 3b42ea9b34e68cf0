//! `/today`: what the first page of the day says, for programs.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, State};
use gpufleet_telemetry::identity::Origin;
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::shape::StateCounts;
use crate::auth::Grant;
use crate::health;
use crate::today::blind::{self, BlindSpot};
use crate::today::{self, Change, OverBudget, Section, Waste};
use crate::web::Web;
use crate::words::text;

/// What there is to know in the morning.
#[derive(Debug, Serialize, ToSchema)]
pub struct Today {
    /// When it began to be made. An answer serves for 10 s.
    #[schema(format = DateTime)]
    pub at: String,
    /// What money is counted in, as ISO 4217 has it. All money is in its billionths.
    #[schema(example = "USD")]
    pub currency: String,
    /// Teams that spent more in the month that runs than their budget has, or will by the month's forecast.
    pub budgets: Vec<BudgetRow>,
    /// What is live, then what is simulated; each only where there is some.
    pub sections: Vec<TodaySection>,
    /// GPUs played back from recordings: in no section.
    pub recorded_gpus: usize,
    /// Whether runs that broke off and changes are known. When not, the store does not answer.
    pub past_known: bool,
    /// Since when the detectors judge nothing: what broke since then is not known, so that no incident is not that nothing
    /// is wrong. Null while they judge. States, waste and money are true all the same.
    #[schema(format = DateTime)]
    pub detectors_stand_since: Option<String>,
}

/// A team over its budget.
#[derive(Debug, Serialize, ToSchema)]
pub struct BudgetRow {
    /// The team.
    pub team: String,
    /// The cluster that its budget names; null where it is of all live clusters together.
    pub cluster: Option<String>,
    /// `warning` where it is over, `info` where it will be.
    pub severity: &'static str,
    /// What is the case.
    pub what: String,
    /// What was spent so far; null where that is not known.
    pub spent_nano: Option<i64>,
    /// The budget; null where that is not known.
    pub budget_nano: Option<i64>,
    /// What the month will come to; null before there was a whole day.
    pub forecast_nano: Option<i64>,
    /// Since when.
    #[schema(format = DateTime)]
    pub since: String,
    /// What to do.
    pub action: String,
    /// How it stands.
    pub status: String,
    /// Its incident.
    pub incident: Uuid,
}

/// The clusters of one origin.
#[derive(Debug, Serialize, ToSchema)]
pub struct TodaySection {
    /// `live` or `simulated`.
    pub origin: &'static str,
    /// Their nodes that report.
    pub nodes: usize,
    /// Their GPUs counted.
    pub counts: StateCounts,
    /// That the nodes tell of no GPU, and what says why, in a sentence; null where there is a GPU.
    pub no_gpus: Option<String>,
    /// Incidents that are open.
    pub open_incidents: usize,
    /// On how many nodes they are; one of a run is on a node where one is suspected.
    pub nodes_with_incidents: usize,
    /// What the GPUs with a price cost a day; null when none has one.
    pub nano_per_day: Option<i64>,
    /// What of it goes to waste; null when no GPU has a price.
    pub waste_nano_per_day: Option<i64>,
    /// Where it goes, the dearest first.
    pub waste: Vec<WasteRow>,
    /// Rows beyond those.
    pub more_waste: usize,
    /// What is in no sum, because it is not measured or not known whose it is.
    pub not_measured: Vec<NotMeasured>,
    /// What of the live fleet is not seen. Of what is simulated nothing is said.
    pub blind_spots: Vec<NotMeasured>,
    /// What changed in the last day, the newest first.
    pub changes: Vec<ChangeRow>,
    /// Changes beyond those.
    pub more_changes: usize,
}

/// One thing that costs money for nothing.
#[derive(Debug, Serialize, ToSchema)]
pub struct WasteRow {
    /// `free`, `draining`, `parked`, `held_empty`, `stalled`, `broken`, `throttled`, `hang`, `straggler`, `slower`,
    /// `training`, `failed_run`, `below_target` or `right_size`.
    pub kind: &'static str,
    /// Whether it is in the sum: all but what is active and could do more, or with less.
    pub is_in_sum: bool,
    /// Its cluster.
    pub cluster: Arc<str>,
    /// Where: a GPU, a job, a cluster, in words.
    pub place: String,
    /// The page of the place.
    pub page: String,
    /// What is the case.
    pub what: String,
    /// How many GPUs it takes; of a run that broke off, as if it had taken them all day.
    pub gpus: f64,
    /// What it costs a day, of what of it has a price; null when nothing has.
    pub nano_per_day: Option<i64>,
    /// GPUs of it without a price.
    pub unpriced_gpus: usize,
    /// Since when at least.
    #[schema(format = DateTime)]
    pub since: Option<String>,
    /// A team, `platform`, `unowned`, `nobody` or `not known`.
    pub owner: String,
    /// What to do.
    pub action: String,
    /// How it stands.
    pub status: String,
    /// Its incident, where it has one.
    pub incident: Option<Uuid>,
}

/// Something that is not measured or not seen.
#[derive(Debug, Serialize, ToSchema)]
pub struct NotMeasured {
    /// What.
    pub what: String,
    /// What mends it.
    pub fix: String,
}

/// Something that changed.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChangeRow {
    /// When; of several the last.
    #[schema(format = DateTime)]
    pub at: String,
    /// `incident_opened`, `incident_over`, `new_nodes`, `nodes_gone`, `nodes_cordoned`, `nodes_not_ready`, `nodes_anew`, `nodes_changed`, or the kind of an event: `driver_changed`.
    pub kind: &'static str,
    /// What.
    pub what: String,
    /// The page about it.
    pub page: Option<String>,
    /// `info`, `warning` or `error`.
    pub severity: &'static str,
}

/// The fleet in one line, waste ranked by money a day, what is not measured, changes since yesterday.
#[utoipa::path(get, path = "/api/v1/today", tag = "Fleet",
    responses((status = 200, body = Today)))]
pub async fn today(State(web): State<Arc<Web>>, Extension(grant): Extension<Grant>) -> Json<Today> {
    let view = web.views.get(&web.app).await.seen_with(&grant);
    let today = web.todays.get(&web.app, &view, &web.specs, &grant);
    let today = today.await;
    Json(Today {
        at: text::rfc3339(today.at),
        currency: today.currency.clone(),
        budgets: today.budgets.iter().map(budget).collect(),
        sections: today
            .sections
            .iter()
            .map(|it| section(it, || blind::with_inventory(&web.app, &grant, &view)))
            .collect(),
        recorded_gpus: today.recorded,
        past_known: !today.past_failed,
        detectors_stand_since: health::detectors_stand_since(&web.app).map(text::rfc3339),
    })
}

fn budget(it: &OverBudget) -> BudgetRow {
    BudgetRow {
        team: it.team.clone(),
        cluster: it.cluster.clone(),
        severity: it.severity.name(),
        what: it.what.clone(),
        spent_nano: it.spent,
        budget_nano: it.budget,
        forecast_nano: it.forecast,
        since: text::rfc3339(it.since),
        action: it.action.clone(),
        status: it.status.clone(),
        incident: it.incident,
    }
}

fn section(section: &Section, blind: impl Fn() -> Vec<BlindSpot>) -> TodaySection {
    let blind = match section.origin {
        Origin::Live => blind(),
        Origin::Recorded | Origin::Simulated => Vec::new(),
    };
    TodaySection {
        origin: section.origin.name(),
        nodes: section.nodes,
        counts: StateCounts::from(&section.counts),
        no_gpus: section.no_gpus(),
        open_incidents: section.incidents,
        nodes_with_incidents: section.hurt_nodes.0,
        nano_per_day: nano(section.day_cost),
        waste_nano_per_day: nano(section.wasted),
        waste: section.waste.iter().map(waste).collect(),
        more_waste: section.more_waste,
        not_measured: section.unmeasured.iter().map(not_measured).collect(),
        blind_spots: blind
            .into_iter()
            .map(|it| NotMeasured {
                what: it.what,
                fix: it.fix,
            })
            .collect(),
        changes: section.changes.iter().map(change).collect(),
        more_changes: section.more_changes,
    }
}

/// Beyond nine billion a day an amount stays where it is.
fn nano(amount: Option<i128>) -> Option<i64> {
    amount.map(|it| i64::try_from(it).unwrap_or(i64::MAX))
}

fn waste(it: &Waste) -> WasteRow {
    WasteRow {
        kind: it.kind.name(),
        is_in_sum: it.kind.is_waste(),
        cluster: Arc::clone(&it.cluster),
        place: it.place.clone(),
        page: it.address.clone(),
        what: it.what.clone(),
        gpus: it.milli_gpus as f64 / 1_000.0,
        nano_per_day: nano(it.day_cost),
        unpriced_gpus: it.unpriced,
        since: it.since.map(text::rfc3339),
        owner: it.owner.clone(),
        action: it.action.clone(),
        status: it.status.clone(),
        incident: it.incident,
    }
}

fn not_measured(it: &today::Unmeasured) -> NotMeasured {
    NotMeasured {
        what: it.what.clone(),
        fix: it.fix.to_owned(),
    }
}

fn change(it: &Change) -> ChangeRow {
    ChangeRow {
        at: text::rfc3339(it.at),
        kind: it.kind,
        what: it.what.clone(),
        page: it.address.clone(),
        severity: it.severity.name(),
    }
}
