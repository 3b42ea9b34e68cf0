//! The stand-in takes what Cloud Monitoring takes and refuses what it refuses.

use super::*;

/// A moment, Unix seconds: 2026-09-21T14:13:20Z.
const NOW: i64 = 1_790_000_000;

fn time(seconds: i64) -> String {
    let at = OffsetDateTime::from_unix_timestamp(seconds).expect("a time");
    at.format(&Rfc3339).expect("a text")
}

fn described(kind: i64) -> CloudMonitoring {
    let mut project = CloudMonitoring::new("p");
    let (status, said) = project.describe(&json!({
        "type": "custom.googleapis.com/energy",
        "metricKind": kind, "valueType": DOUBLE, "unit": "J", "description": "Energy.",
        "labels": [{"key": "gpu"}, {"key": "writer"}],
    }));
    assert_eq!(status, 200, "{said}");
    project
}

fn series(kind: i64, start: Option<i64>, end: i64, value: f64) -> Value {
    let mut interval = json!({"endTime": time(end)});
    if let Some(start) = start {
        interval["startTime"] = time(start).into();
    }
    json!({
        "metric": {"type": "custom.googleapis.com/energy", "labels": {"gpu": "GPU-1", "writer": "w"}},
        "resource": {"type": "k8s_node",
                     "labels": {"location": "us-central1-a", "cluster_name": "c", "node_name": "n"}},
        "metricKind": kind, "valueType": DOUBLE,
        "points": [{"interval": interval, "value": {"doubleValue": value}}],
    })
}

/// Each time so late that no series is written too soon.
fn written(project: &mut CloudMonitoring, series: &[Value]) -> Reply {
    let points: u64 = project.messages.values().sum();
    let before = i64::try_from(points).expect("few points");
    written_at(project, series, NOW + PACE * before)
}

fn written_at(project: &mut CloudMonitoring, series: &[Value], now: i64) -> Reply {
    let body = json!({"timeSeries": series}).to_string();
    project.take(
        "/v3/projects/p/timeSeries",
        &HeaderMap::new(),
        body.as_bytes(),
        now,
    )
}

#[test]
fn a_series_is_written_each_five_seconds_at_most() {
    let mut project = described(GAUGE);
    let mut at = |end: i64, after: i64| {
        let one = series(GAUGE, None, end, 1.0);
        let (status, said) = written_at(&mut project, &[one], NOW + after);
        (status, said.contains("a moment ago"))
    };
    assert_eq!(at(NOW - 180, 0), (200, false));
    assert_eq!(at(NOW - 120, 4), (400, true));
    assert_eq!(at(NOW - 120, 5), (200, false));
    assert_eq!(at(NOW - 60, 9), (400, true));
    assert_eq!(project.broken.len(), 2);
}

#[test]
fn points_in_order_are_taken_and_what_comes_again_is_told_from_what_breaks_a_rule() {
    let mut project = described(GAUGE);
    for end in [NOW - 120, NOW - 60] {
        assert_eq!(
            written(&mut project, &[series(GAUGE, None, end, 1.0)]).0,
            200
        );
    }
    assert_eq!(
        written(&mut project, &[series(GAUGE, None, NOW - 60, 1.0)]).0,
        400
    );
    assert_eq!((project.repeats, &*project.broken), (1, &[] as &[String]));
    assert_eq!(
        written(&mut project, &[series(GAUGE, None, NOW - 60, 2.0)]).0,
        400
    );
    assert_eq!(project.broken.len(), 1, "another value at the same time");
}

#[test]
fn every_rule_of_a_point_is_kept() {
    let broken = |kind, before: &[Value], one: Value, words: &str| {
        let mut project = described(kind);
        for it in before {
            assert_eq!(written(&mut project, std::slice::from_ref(it)).0, 200);
        }
        let (status, said) = written(&mut project, &[one]);
        assert_eq!(status, 400, "{words}");
        assert!(said.contains(words), "{words}: {said}");
        assert_eq!(project.broken.len(), 1, "{words}: {:?}", project.broken);
    };
    let gauge = |end| series(GAUGE, None, end, 1.0);
    let counter = |start, end, value| series(CUMULATIVE, Some(start), end, value);
    broken(GAUGE, &[], gauge(NOW - PAST - 1), "s ago");
    broken(GAUGE, &[], gauge(NOW + FUTURE + 1), "s ago");
    broken(GAUGE, &[gauge(NOW)], gauge(NOW + 9), "too soon");
    broken(GAUGE, &[gauge(NOW)], gauge(NOW - 60), "not after the last");
    broken(
        GAUGE,
        &[],
        series(GAUGE, Some(NOW - 60), NOW, 1.0),
        "start of its own",
    );
    broken(
        CUMULATIVE,
        &[],
        counter(NOW, NOW, 1.0),
        "not before the end",
    );
    let first = [counter(NOW - 120, NOW - 60, 5.0)];
    broken(CUMULATIVE, &first, counter(NOW - 120, NOW, 4.0), "falls");
    broken(CUMULATIVE, &first, counter(NOW - 60, NOW, 4.0), "new start");
    broken(CUMULATIVE, &[], gauge(NOW), "not the kind");
    let changed = |change: fn(&mut Value)| {
        let mut one = gauge(NOW);
        change(&mut one);
        one
    };
    for (one, words) in [
        (
            changed(|it| it["metric"]["type"] = "custom.googleapis.com/x".into()),
            "no descriptor",
        ),
        (
            changed(|it| it["metric"]["labels"]["x"] = "y".into()),
            "has no label x",
        ),
        (
            changed(|it| it["metric"]["labels"]["writer"] = "".into()),
            "who writes it",
        ),
        (
            changed(|it| it["metric"]["labels"]["gpu"] = "x".repeat(VALUE + 1).into()),
            "value of label",
        ),
        (
            changed(|it| it["resource"]["type"] = "k8s".into()),
            "a resource",
        ),
        (
            changed(|it| it["resource"]["labels"]["location"] = "".into()),
            "k8s_node with",
        ),
        (
            changed(|it| it["resource"]["labels"]["x"] = "y".into()),
            "k8s_node with",
        ),
        (
            changed(|it| it["resource"]["labels"]["location"] = "rack-7".into()),
            "Unrecognized region or location",
        ),
        (
            changed(|it| it["points"][0]["value"] = json!({"int64Value": "1"})),
            "another type",
        ),
        (
            changed(|it| it["points"][0]["interval"] = json!({})),
            "the time",
        ),
    ] {
        broken(GAUGE, &[], one, words);
    }
}

#[test]
fn a_new_start_behind_the_last_end_is_a_reset_and_taken() {
    let mut project = described(CUMULATIVE);
    let mut reset = series(CUMULATIVE, Some(NOW - 60), NOW, 1.0);
    assert_eq!(
        written(
            &mut project,
            &[series(CUMULATIVE, Some(NOW - 120), NOW - 60, 5.0)]
        )
        .0,
        200
    );
    reset["points"][0]["interval"]["startTime"] =
        format!("{}.001Z", time(NOW - 60).trim_end_matches('Z')).into();
    assert_eq!(written(&mut project, &[reset]).0, 200);
}

#[test]
fn a_request_that_is_none_is_refused_as_a_whole() {
    let refused = |series: &[Value]| {
        let mut project = described(GAUGE);
        let (status, said) = written(&mut project, series);
        assert_eq!((status, project.series.len()), (400, 0), "{said}");
        assert!(!said.contains("Summary"), "{said}");
    };
    let one = series(GAUGE, None, NOW, 1.0);
    refused(&[]);
    refused(&vec![one.clone(); SERIES + 1]);
    refused(&[one.clone(), one.clone()]);
    let mut two = one;
    two["points"] = json!([two["points"][0], two["points"][0]]);
    refused(&[two]);
}

#[test]
fn what_can_be_is_taken_and_the_answer_counts_the_rest() {
    let mut project = described(GAUGE);
    project.taken_by_another = Some("GPU-2".to_owned());
    let one = series(GAUGE, None, NOW, 1.0);
    let mut other = one.clone();
    other["metric"]["labels"]["gpu"] = "GPU-2".into();
    let (status, said) = written(&mut project, &[one, other]);
    assert_eq!((status, project.refused, project.series.len()), (400, 1, 1));
    let said: Value = serde_json::from_str(&said).expect("JSON");
    let summary = &said["error"]["details"][0];
    assert_eq!(
        (&summary["totalPointCount"], &summary["successPointCount"]),
        (&json!(2), &json!(1))
    );
}

#[test]
fn a_descriptor_that_breaks_a_rule_or_changes_is_refused() {
    let good = json!({
        "type": "custom.googleapis.com/energy", "metricKind": CUMULATIVE, "valueType": DOUBLE,
        "unit": "J", "description": "Energy.", "labels": [{"key": "writer"}],
    });
    let refused = |change: fn(&mut Value)| {
        let mut project = CloudMonitoring::new("p");
        let mut changed = good.clone();
        change(&mut changed);
        let (status, said) = project.describe(&changed);
        assert_eq!(status, 400, "{changed}: {said}");
    };
    refused(|it| it["type"] = "compute.googleapis.com/energy".into());
    refused(|it| it["type"] = "custom.googleapis.com/Energy watts".into());
    refused(|it| it["metricKind"] = 2.into());
    refused(|it| it["unit"] = "joules".into());
    refused(|it| it["description"] = "".into());
    refused(|it| {
        it["labels"] = (0..=LABELS)
            .map(|it| json!({"key": format!("l{it}")}))
            .collect()
    });
    refused(|it| it["labels"] = json!([{"key": "writer"}, {"key": "writer"}]));
    let mut project = CloudMonitoring::new("p");
    assert_eq!(project.describe(&good).0, 200);
    assert_eq!(project.describe(&good).0, 200, "again is no harm");
    let mut changed = good.clone();
    changed["metricKind"] = GAUGE.into();
    assert_eq!(project.describe(&changed).0, 400);
}

#[test]
fn points_that_fail_for_now_are_named_apart_and_taken_when_they_come_again_in_their_order() {
    let mut project = described(GAUGE);
    project.fails.insert("\"gpu\":\"GPU-2\"".to_owned(), 1);
    let of = |gpu: &str, end: i64| {
        let mut one = series(GAUGE, None, end, 1.0);
        one["metric"]["labels"]["gpu"] = gpu.into();
        one
    };
    let both = ["GPU-1", "GPU-2"].map(|gpu| of(gpu, NOW - 120));
    let (status, said) = written(&mut project, &both);
    let said: Value = serde_json::from_str(&said).expect("JSON");
    let summary = &said["error"]["details"][0];
    assert_eq!((status, &summary["successPointCount"]), (400, &json!(1)));
    assert_eq!(summary["errors"][0]["status"]["code"], 13, "{said}");
    let words = said["error"]["message"].as_str().expect("words");
    assert!(words.ends_with("timeSeries[1]"), "{words}");
    assert_eq!(written(&mut project, &both[1..]).0, 200);
    assert_eq!(project.broken, [] as [String; 0]);
    // One that comes again behind a later one is out of order.
    written(&mut project, &[of("GPU-2", NOW - 60)]);
    written(&mut project, &[of("GPU-2", NOW)]);
    written(&mut project, &[of("GPU-2", NOW)]);
    written(&mut project, &[of("GPU-2", NOW - 60)]);
    assert_eq!(project.broken.len(), 1, "{:?}", project.broken);
}

#[test]
fn a_token_a_project_and_a_path_of_others_are_refused() {
    let mut project = described(GAUGE);
    project.token = Some("t".to_owned());
    let body = json!({"timeSeries": [series(GAUGE, None, NOW, 1.0)]}).to_string();
    let mut asked = |path: &str, token: &str| {
        let mut headers = HeaderMap::new();
        let value = format!("Bearer {token}").parse().expect("a header");
        headers.insert("authorization", value);
        project.take(path, &headers, body.as_bytes(), NOW).0
    };
    assert_eq!(asked("/v3/projects/p/timeSeries", "x"), 401);
    assert_eq!(asked("/v3/projects/q/timeSeries", "t"), 403);
    assert_eq!(asked("/v4/x", "t"), 404);
    assert_eq!(asked("/v3/projects/p/timeSeries", "t"), 200);
}
