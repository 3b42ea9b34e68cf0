//! What Cloud Monitoring's answers mean.
//!
//! Limit: [`SAID`] of what is told of an answer.

use std::collections::BTreeSet;
use std::time::Duration;

use google_cloud_gax::error::rpc::{Code, Status, StatusDetails};
use google_cloud_monitoring_v3::Error;
use google_cloud_monitoring_v3::model::CreateTimeSeriesSummary;

use super::{Partly, Reason, Verdict, WITHIN};
use crate::words::text::harmless;

/// How much of an answer is told, characters: a sentence that says why.
const SAID: usize = 300;

pub(super) fn later(why: String) -> Verdict {
    Verdict::Later {
        why,
        after: None,
        is_in_doubt: false,
    }
}

pub(super) fn unanswered(is_in_doubt: bool) -> Verdict {
    Verdict::Later {
        why: format!("no answer within {} s", WITHIN.as_secs()),
        after: None,
        is_in_doubt,
    }
}

/// What an error says, and all that lies behind it, as one short harmless line.
pub(super) fn told(error: &(dyn std::error::Error + 'static)) -> String {
    let mut said = error.to_string();
    let mut behind = error.source();
    while let Some(cause) = behind {
        let cause_said = cause.to_string();
        if !said.contains(&cause_said) {
            said = format!("{said}: {cause_said}");
        }
        behind = cause.source();
    }
    harmless(said.trim(), SAID)
}

/// What an answer means, or that there was none.
pub(super) fn judge(error: &Error, count: u64, project: &str) -> Verdict {
    let after = asked_pause(error);
    if let Some(status) = error.status() {
        return judge_status(status, count, project, after);
    }
    if error.is_authentication() {
        return later(format!(
            "there are no credentials that it would take: {}; check cloud_monitoring.credentials_file, or that the pod or machine has a service account",
            told(error)
        ));
    }
    if error.is_connect() {
        return later(told(error));
    }
    if error.is_binding() || error.is_serialization() {
        return refused(Reason::Refused, count, told(error));
    }
    // An answer of somebody in between, or none.
    let why = match error.http_status_code() {
        Some(status) => format!("it answered {status}, and not as Cloud Monitoring does"),
        None => told(error),
    };
    match error.http_status_code() {
        Some(400 | 413 | 414 | 431) => refused(Reason::Refused, count, why),
        status => Verdict::Later {
            why,
            after,
            is_in_doubt: status.is_none_or(|it| !(400..500).contains(&it)),
        },
    }
}

pub(super) fn refused(reason: Reason, count: u64, why: String) -> Verdict {
    Verdict::Refused {
        by: vec![(reason, count)],
        why,
    }
}

fn judge_status(status: &Status, count: u64, project: &str, after: Option<Duration>) -> Verdict {
    let said = harmless(status.message.trim(), SAID);
    if let Some(summary) = summary(status)
        && let Some(verdict) = judge_summary(&summary, count, status, after)
    {
        return verdict;
    }
    let code = status.code;
    match code {
        Code::InvalidArgument | Code::OutOfRange | Code::AlreadyExists => {
            refused(Reason::Refused, count, said)
        }
        Code::Unauthenticated => later(format!(
            "it does not take the credentials: {said}; the key was revoked or has expired, or is not Google's"
        )),
        Code::PermissionDenied => later(format!(
            "it may not be written to: {said}; grant roles/monitoring.metricWriter on project {project} to the account, and see that monitoring.googleapis.com is enabled there"
        )),
        Code::NotFound => later(format!("project {project} is not found: {said}")),
        Code::ResourceExhausted => Verdict::Later {
            why: format!("a quota of project {project} is used up: {said}"),
            after,
            is_in_doubt: false,
        },
        code => Verdict::Later {
            why: format!("it failed with {}: {said}", code.name()),
            after,
            is_in_doubt: !matches!(
                code,
                Code::FailedPrecondition | Code::Aborted | Code::Unimplemented
            ),
        },
    }
}

/// What was written of a request, where it says so.
fn summary(status: &Status) -> Option<CreateTimeSeriesSummary> {
    status.details.iter().find_map(|it| match it {
        StatusDetails::Other(any) => any.to_msg::<CreateTimeSeriesSummary>().ok(),
        _ => None,
    })
}

/// Whether the same point may be taken a moment later.
const fn passes(code: Code) -> bool {
    matches!(
        code,
        Code::Unavailable
            | Code::ResourceExhausted
            | Code::Internal
            | Code::DeadlineExceeded
            | Code::Aborted
            | Code::Cancelled
    )
}

/// None when what it says cannot be: then the code alone counts.
fn judge_summary(
    summary: &CreateTimeSeriesSummary,
    count: u64,
    status: &Status,
    after: Option<Duration>,
) -> Option<Verdict> {
    let why = harmless(status.message.trim(), SAID);
    let taken = u64::try_from(summary.success_point_count).ok()?;
    let lost = count.checked_sub(taken)?;
    let (mut by, mut passing): (Vec<(Reason, u64)>, u64) = (Vec::new(), 0);
    let mut left = lost;
    for error in &summary.errors {
        let code = Code::from(error.status.as_ref().map_or(2, |it| it.code));
        let points = u64::try_from(error.point_count).ok()?.min(left);
        left -= points;
        match passes(code) {
            true => passing += points,
            false => by.push((Reason::of(code), points)),
        }
    }
    if left > 0 {
        by.push((Reason::Failed, left));
    }
    Some(match (lost, passing) {
        (0, _) => Verdict::Taken,
        (_, 0) => Verdict::Refused { by, why },
        _ => Verdict::Partly(Partly {
            taken,
            by,
            places: places(&status.message, lost, count),
            why,
            after,
        }),
    })
}

/// The points that its words name, `timeSeries[0-2,7]`; none where they are not as many as were lost of so many.
fn places(said: &str, lost: u64, count: u64) -> Option<BTreeSet<usize>> {
    let mut places = BTreeSet::new();
    for named in said.split("timeSeries[").skip(1) {
        let (inside, _) = named.split_once(']')?;
        for one in inside.split(',') {
            let (first, last) = one.split_once('-').unwrap_or((one, one));
            let (first, last): (u64, u64) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
            // So a range is no longer than the request.
            if last >= count {
                return None;
            }
            places.extend((first..=last).filter_map(|it| usize::try_from(it).ok()));
        }
    }
    (places.len() as u64 == lost).then_some(places)
}

/// How long an answer asks to be left alone.
fn asked_pause(error: &Error) -> Option<Duration> {
    let header = error.http_headers().and_then(|it| it.get("retry-after"));
    let header = header.and_then(|it| it.to_str().ok()?.trim().parse().ok());
    let details = error.status().map(|it| it.details.as_slice());
    let told = details.unwrap_or_default().iter().find_map(|it| match it {
        StatusDetails::RetryInfo(info) => {
            let delay = info.retry_delay.as_ref()?;
            u64::try_from(delay.seconds()).ok()
        }
        _ => None,
    });
    told.or(header).map(Duration::from_secs)
}
