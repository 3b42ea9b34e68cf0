//! What answers mean, and what a configuration may say.

use google_cloud_gax::error::rpc::Status;
use google_cloud_wkt::Any;
use http::StatusCode;
use serde_json::json;

use super::judge::refused;
use super::*;

/// Points of the request that was answered.
const COUNT: u64 = 10;

fn answered(code: Code, message: &str) -> Verdict {
    judge(
        &Error::service(Status::default().set_code(code).set_message(message)),
        COUNT,
        "p-1",
    )
}

/// An answer with a summary as it comes over the wire.
fn summed_up(total: i64, success: i64, errors: &[(i32, i64)]) -> Verdict {
    said("One or more could not be written", (total, success), errors)
}

/// The same in these words.
fn said(words: &str, (total, success): (i64, i64), errors: &[(i32, i64)]) -> Verdict {
    let errors = errors.iter();
    let errors: Vec<_> = errors
        .map(|(code, count)| json!({"status": {"code": code}, "pointCount": count}))
        .collect();
    let payload = json!({"error": {
        "code": 400, "status": "INVALID_ARGUMENT", "message": words,
        "details": [{
            "@type": "type.googleapis.com/google.monitoring.v3.CreateTimeSeriesSummary",
            "totalPointCount": total, "successPointCount": success, "errors": errors,
        }],
    }});
    let details = payload["error"]["details"][0].clone();
    let any: Any = serde_json::from_value(details).unwrap();
    let status = Status::default().set_code(Code::InvalidArgument);
    let status = status.set_details([any]).set_message(words);
    judge(&Error::service(status), COUNT, "p-1")
}

#[test]
fn of_a_request_that_is_taken_in_part_what_breaks_a_rule_is_counted_by_reason_and_not_sent_again() {
    let by = |verdict| match verdict {
        Verdict::Refused { by, why } => {
            assert!(why.contains("could not be written"), "{why}");
            by
        }
        other => panic!("{other:?}"),
    };
    let (invalid, denied) = (3, 7);
    assert_eq!(
        by(summed_up(10, 6, &[(invalid, 3), (denied, 1)])),
        [(Reason::Refused, 3), (Reason::Denied, 1)]
    );
    assert_eq!(
        by(summed_up(10, 0, &[(invalid, 10)])),
        [(Reason::Refused, 10)]
    );
    // What it leaves unsaid, and more than there was.
    assert_eq!(by(summed_up(10, 8, &[])), [(Reason::Failed, 2)]);
    assert_eq!(
        by(summed_up(10, 8, &[(invalid, 500)])),
        [(Reason::Refused, 2)]
    );
    assert_eq!(summed_up(10, 10, &[]), Verdict::Taken);
    // What cannot be: the code alone counts.
    for nonsense in [
        summed_up(10, -1, &[]),
        summed_up(10, 11, &[]),
        summed_up(10, 1, &[(3, -5)]),
    ] {
        assert_eq!(by(nonsense), [(Reason::Refused, COUNT)]);
    }
}

#[test]
fn of_a_request_that_is_taken_in_part_what_failed_for_now_is_told_apart_and_named_where_it_is_said()
{
    let partly = |verdict| match verdict {
        Verdict::Partly(it) => it,
        other => panic!("{other:?}"),
    };
    for code in [
        Code::Cancelled,
        Code::DeadlineExceeded,
        Code::ResourceExhausted,
        Code::Aborted,
        Code::Internal,
        Code::Unavailable,
    ] {
        let found = partly(summed_up(10, 7, &[(code as i32, 2), (3, 1)]));
        let expected = (7, vec![(Reason::Refused, 1)], None);
        assert_eq!((found.taken, found.by, found.places), expected, "{code:?}");
    }
    // None was taken, and one of them never will be.
    let found = partly(summed_up(10, 0, &[(14, 9), (3, 1)]));
    assert_eq!((found.taken, found.by), (0, vec![(Reason::Refused, 1)]));
    for code in [Code::Unknown, Code::DataLoss, Code::Unimplemented] {
        let found = summed_up(10, 9, &[(code as i32, 1)]);
        assert!(matches!(found, Verdict::Refused { .. }), "{code:?}");
    }

    let places = |words: &str| partly(said(words, (10, 6), &[(13, 4)])).places;
    let four = Some([0, 1, 2, 7].into());
    assert_eq!(places("Internal error: timeSeries[0-2,7]"), four);
    assert_eq!(places("timeSeries[7]: one; two: timeSeries[0-2]."), four);
    // Not as many as were lost, beyond the request, or no numbers: then none is named.
    for words in [
        "timeSeries[0-2]",
        "timeSeries[7-10]",
        "timeSeries[a,b,c,d]",
        "timeSeries[1-4",
        "all",
    ] {
        assert_eq!(places(words), None, "{words}");
    }
}

#[test]
fn a_request_of_which_nothing_was_written_for_now_leaves_no_doubt() {
    let (unavailable, exhausted) = (14, 8);
    let verdict = summed_up(10, 0, &[(unavailable, 4), (exhausted, 6)]);
    let Verdict::Partly(Partly { taken, by, .. }) = verdict else {
        panic!("{verdict:?}");
    };
    assert_eq!((taken, by), (0, vec![]), "it says that it has none of it");
}

#[test]
fn errors_that_people_can_mend_say_how_and_are_tried_again_without_doubt() {
    let check = |code, words: &[&str]| match answered(code, "said\u{202e}") {
        Verdict::Later {
            why, is_in_doubt, ..
        } => {
            assert!(words.iter().all(|word| why.contains(word)), "{why}");
            assert!(why.contains("said\u{fffd}") && !is_in_doubt, "{why}");
        }
        other => panic!("{other:?}"),
    };
    check(
        Code::PermissionDenied,
        &[
            "roles/monitoring.metricWriter",
            "p-1",
            "monitoring.googleapis.com",
        ],
    );
    check(Code::Unauthenticated, &["revoked"]);
    check(Code::NotFound, &["p-1", "not found"]);
    check(Code::ResourceExhausted, &["quota", "p-1"]);
}

#[test]
fn errors_after_which_it_may_have_the_points_leave_a_doubt() {
    for code in [
        Code::Unavailable,
        Code::Internal,
        Code::DeadlineExceeded,
        Code::Unknown,
    ] {
        let verdict = answered(code, "");
        let is_in_doubt = matches!(
            verdict,
            Verdict::Later {
                is_in_doubt: true,
                ..
            }
        );
        assert!(is_in_doubt, "{verdict:?}");
    }
    for code in [Code::InvalidArgument, Code::OutOfRange] {
        let verdict = answered(code, "no");
        let expected = refused(Reason::Refused, COUNT, "no".to_owned());
        assert_eq!(verdict, expected, "it will be no better next time");
    }
}

#[test]
fn answers_that_are_not_cloud_monitorings_are_told_apart_by_their_status() {
    let answered = |status: u16| {
        let headers = [("retry-after", "7")].into_iter();
        let headers = headers.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        let body = bytes::Bytes::from_static(b"<html>");
        judge(&Error::http(status, headers.collect(), body), COUNT, "p-1")
    };
    for (status, in_doubt) in [(302, true), (403, false), (429, false), (502, true)] {
        let Verdict::Later {
            why,
            after,
            is_in_doubt,
        } = answered(status)
        else {
            panic!("{status}");
        };
        assert!(why.contains(&status.to_string()), "{why}");
        assert_eq!(
            (after, is_in_doubt),
            (Some(Duration::from_secs(7)), in_doubt),
            "{status}"
        );
    }
    assert!(matches!(answered(413), Verdict::Refused { .. }));
}

#[test]
fn what_the_credentials_cannot_be_is_refused_by_name_and_never_shown() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key.json");
    let refused = |held: &str, change: fn(&mut CloudMonitoringConfig), words: &[&str]| {
        std::fs::write(&file, held).unwrap();
        let mut config = CloudMonitoringConfig {
            project: "p-1".to_owned(),
            credentials_file: file.clone(),
            ..CloudMonitoringConfig::default()
        };
        change(&mut config);
        let error = Target::new(&config).expect_err("refused");
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
        assert!(!error.contains("a-secret"), "{error}");
    };
    refused(
        "a-secret",
        |_| {},
        &["cloud_monitoring.credentials_file", "not JSON"],
    );
    refused(
        r#"{"type": "a-secret"}"#,
        |_| {},
        &["credentials_file", "service_account"],
    );
    refused(
        "{}",
        |it| it.credentials_file = "/nowhere".into(),
        &["/nowhere"],
    );
    refused(
        "{}",
        |it| it.anonymous = true,
        &["credentials_file", "anonymous"],
    );
    refused(
        "{}",
        |it| it.project = "p/../q".to_owned(),
        &["cloud_monitoring.project"],
    );
    let http =
        |it: &mut CloudMonitoringConfig| it.endpoint = "http://monitoring.example.com".to_owned();
    let held = r#"{"type": "service_account"}"#;
    refused(held, http, &["cloud_monitoring.endpoint", "https"]);
    refused(
        held,
        |it| it.endpoint = "nowhere".to_owned(),
        &["cloud_monitoring.endpoint"],
    );
}

/// A token service and Cloud Monitoring on one port: which token is given out, none when it is revoked, and what
/// each token was told.
#[derive(Default)]
struct Google {
    gives: Option<&'static str>,
    takes: &'static str,
    /// What it answers to any other token.
    refuses: (StatusCode, &'static str),
    heard: Vec<String>,
}

type Shared = std::sync::Arc<std::sync::Mutex<Google>>;

async fn token(axum::extract::State(google): axum::extract::State<Shared>) -> (StatusCode, String) {
    match google.lock().unwrap().gives {
        Some(token) => {
            let issued = "urn:ietf:params:oauth:token-type:access_token";
            let said = json!({"access_token": token, "token_type": "Bearer", "expires_in": 3600,
                "issued_token_type": issued});
            (StatusCode::OK, said.to_string())
        }
        None => {
            let said = json!({"error": "invalid_grant", "error_description": "it was revoked"});
            (StatusCode::BAD_REQUEST, said.to_string())
        }
    }
}

async fn series(
    axum::extract::State(google): axum::extract::State<Shared>,
    headers: http::HeaderMap,
) -> (StatusCode, String) {
    let mut google = google.lock().unwrap();
    let said = headers["authorization"].to_str().unwrap().to_owned();
    let is_taken = said == format!("Bearer {}", google.takes);
    google.heard.push(said);
    match is_taken {
        true => (StatusCode::OK, "{}".to_owned()),
        false => {
            let (status, name) = google.refuses;
            let said = json!({"error": {"code": status.as_u16(), "status": name, "message": "no"}});
            (status, said.to_string())
        }
    }
}

/// Writes one request of one point.
async fn write(target: &mut Target) -> Verdict {
    let verdicts = target.write(vec![vec![TimeSeries::new()]]).await;
    let [verdict] = <[_; 1]>::try_from(verdicts).unwrap();
    verdict
}

#[tokio::test]
async fn credentials_that_are_refused_are_told_and_the_file_is_read_again() {
    _ = rustls::crypto::ring::default_provider().install_default();
    let google = Shared::default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let router = axum::Router::new()
        .route("/token", axum::routing::post(token))
        .route("/v3/projects/p-1/timeSeries", axum::routing::post(series))
        .with_state(std::sync::Arc::clone(&google));
    tokio::spawn(async move { axum::serve(listener, router).await });
    let folder = tempfile::tempdir().unwrap();
    let (subject, file) = (
        folder.path().join("subject"),
        folder.path().join("key.json"),
    );
    std::fs::write(&subject, "a-secret").unwrap();
    let held = json!({
        "type": "external_account",
        "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/x",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": format!("{address}/token"),
        "credential_source": {"file": subject},
    });
    std::fs::write(&file, held.to_string()).unwrap();
    let config = CloudMonitoringConfig {
        project: "p-1".to_owned(),
        endpoint: address,
        credentials_file: file,
        ..CloudMonitoringConfig::default()
    };
    let mut target = Target::new(&config).unwrap();
    let says = |gives, takes| {
        let mut google = google.lock().unwrap();
        (google.gives, google.takes) = (gives, takes);
    };
    let later = |verdict| match verdict {
        Verdict::Later {
            why, is_in_doubt, ..
        } => {
            assert!(!is_in_doubt && !why.contains("a-secret"), "{why}");
            why
        }
        other => panic!("{other:?}"),
    };
    google.lock().unwrap().refuses = (StatusCode::UNAUTHORIZED, "UNAUTHENTICATED");
    says(Some("t-1"), "t-1");
    assert_eq!(write(&mut target).await, Verdict::Taken);
    // The token is kept until it is refused; then another one is asked for.
    says(Some("t-2"), "t-2");
    let why = later(write(&mut target).await);
    assert!(why.contains("revoked"), "{why}");
    assert_eq!(write(&mut target).await, Verdict::Taken);
    let heard = ["Bearer t-1", "Bearer t-1", "Bearer t-2"];
    assert_eq!(google.lock().unwrap().heard, heard);
    // The account itself is gone.
    says(None, "t-3");
    later(write(&mut target).await);
    let why = later(write(&mut target).await);
    assert!(why.contains("cloud_monitoring.credentials_file"), "{why}");
    says(Some("t-3"), "t-3");
    assert_eq!(write(&mut target).await, Verdict::Taken);
    // It may not write, or finds no project; another account is put into the file.
    for (status, name, token) in [
        (StatusCode::FORBIDDEN, "PERMISSION_DENIED", "t-4"),
        (StatusCode::NOT_FOUND, "NOT_FOUND", "t-5"),
    ] {
        google.lock().unwrap().refuses = (status, name);
        says(Some(token), token);
        let why = later(write(&mut target).await);
        assert!(why.contains("p-1"), "{why}");
        assert_eq!(write(&mut target).await, Verdict::Taken, "{name}");
    }
}

#[tokio::test]
async fn a_target_that_is_gone_or_does_not_answer_is_given_up_in_time() {
    _ = rustls::crypto::ring::default_provider().install_default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let config = CloudMonitoringConfig {
        project: "p-1".to_owned(),
        endpoint: format!("http://{at}"),
        anonymous: true,
        ..CloudMonitoringConfig::default()
    };
    let mut target = Target::new(&config).unwrap();
    // It takes the connection and says nothing; the clock of the runtime runs by itself.
    tokio::time::pause();
    let verdict = write(&mut target).await;
    let Verdict::Later {
        why, is_in_doubt, ..
    } = verdict
    else {
        panic!("{verdict:?}");
    };
    assert!(
        is_in_doubt && why.contains("no answer within 10 s"),
        "{why}"
    );
    tokio::time::resume();
    drop(listener);
    let verdict = write(&mut target).await;
    let is_later = matches!(verdict, Verdict::Later { .. });
    assert!(is_later, "{verdict:?}");
}
