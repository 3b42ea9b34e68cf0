//! Money that hangs on training runs: what Spot saved, and whose goodput it is.

use gpufleet_analysis::chargeback::MILLIS_PER_DAY;
use gpufleet_telemetry::catalog::{Metric, training};
use gpufleet_telemetry::gpu_specs::Specs;
use gpufleet_telemetry::training::{JobId, RunId};

use super::hours::at;
use super::money::{node_of_eight, table, tables, terms};
use super::*;
use crate::money::report::{Asked, Form, What, read, render};
use crate::runs::facts::EndingFacts;
use crate::runs::{KnownRun, RankFacts, RunFacts, RunKey};

/// An attempt of `a` on six GPUs, whose ranks say what it did.
fn attempt(
    number: u32,
    from_s: i64,
    until_s: i64,
    cause: &str,
    told: &[(Metric, f64)],
) -> KnownRun {
    let job = JobId::parse("of-a/a/u1").expect("an id");
    let readings = || {
        let told = told.iter().map(|(metric, it)| (metric.id, *it));
        let mut readings: Vec<_> = told.collect();
        readings.sort_by_key(|it| it.0);
        readings
    };
    let rank = |rank: u32| {
        let facts = RankFacts {
            node: "node-1".into(),
            gpu: format!("GPU-{rank}").into(),
            readings: readings(),
            ..RankFacts::default()
        };
        (rank, facts)
    };
    KnownRun {
        key: RunKey {
            cluster: "live".into(),
            run: RunId {
                job,
                attempt: number,
            },
        },
        facts: RunFacts {
            started: Some(at(from_s)),
            heard: at(until_s),
            ended: Some(at(until_s)),
            ending: Some(EndingFacts {
                cause: cause.to_owned(),
                steps_lost: (cause == "preempted").then_some(30),
                ..EndingFacts::default()
            }),
            world: 6,
            ..RunFacts::default()
        },
        ranks: (0..6).map(rank).collect(),
        is_part: false,
    }
}

both! {
    async fn a_preempted_run_is_taken_off_what_spot_saved_and_goodput_is_its_teams(bench) {
        let mut all = node_of_eight();
        for known in all.resources.iter_mut().filter(|it| it.key.kind == ResourceKind::Node) {
            let spot = (*known.resource).clone().with("gpufleet.provisioning", "spot");
            known.resource = Arc::new(spot);
        }
        let steps = |count: f64| [(training::STEPS, count), (training::STEP_WALL, count * 10.0)];
        let second = [&steps(300.0)[..], &[(training::PHASE_STARTUP, 600.0)]].concat();
        all.runs = vec![
            attempt(0, 0, 3_600, "preempted", &steps(330.0)),
            attempt(1, 3_600, 7_200, "finished", &second),
        ];
        // The provider said so of the machine that the first was on, and later of the one in its place.
        for second in [3_590, 7_000] {
            let mut noticed = event(EventKind::PreemptionNoticed, "node-1", at(second));
            noticed.event.resource_kind = ResourceKind::Node;
            all.events.push(noticed);
        }
        bench.commit(&all).await;
        bench.compute(at(2 * 3_600 + 90)).await;
        let rates = "machine_type,region,basis,currency,hour,gpu_hour,from,until,quality,source\n\
            a3-highgpu-8g,us-central1,on_demand,USD,80,,2026-01-01,,list,contract\n\
            a3-highgpu-8g,us-central1,spot,USD,40,,2026-01-01,,list,contract\n";
        let mut stored = tables();
        stored[0] = table("mine.csv", "rates", rates);
        let (terms, now) = (terms(stored), at(3 * 3_600));
        let month: String = gpufleet_analysis::table::moment_text(now.millis()).chars().take(7).collect();
        let mut told = Vec::new();
        for what in [What::Chargeback, What::Efficiency] {
            let asked = Asked::new(what, Form::Json, &month, "team", Some("live".to_owned()), now).unwrap();
            assert!(asked.days.end * MILLIS_PER_DAY > now.millis());
            let days = read(&bench.store, &Specs::default(), &asked).await.unwrap();
            let text = render(&asked, &days, &terms, None, now).text;
            told.push(serde_json::from_str::<serde_json::Value>(&text).unwrap());
        }
        // Two node-hours for 40 instead of 80; 30 steps of 10 s and a start of 600 s on six GPUs of 5 an hour.
        let spot = &told[0]["spot"];
        assert_eq!((&spot["saved"], &spot["lost"]), (&"80.0".into(), &"7.5".into()), "{spot}");
        assert_eq!((&spot["net_saved"], &spot["preemptions"]), (&"72.5".into(), &2.into()));
        let runs = ["preempted_runs", "preemptions_without_runs", "preempted_runs_of_unknown_loss"];
        assert_eq!(runs.map(|it| spot[it].as_i64()), [Some(1), Some(1), Some(0)], "{spot}");
        // 3,000 s of 3,600 in both: of the first 300 of 3,300 were lost, of the second 600 its start.
        let teams = told[1]["teams"].as_array().unwrap();
        let science = teams.iter().find(|it| it["team"] == "science").unwrap();
        assert_eq!((&science["goodput"], &science["training_runs"]), (&"0.833333".into(), &2.into()));
        assert_eq!(science["goodput_covered_ratio"], "1.0");
        assert!(science["mfu"].is_null(), "it says no FLOPs");
        assert!(teams.iter().filter(|it| it["team"] != "science").all(|it| it["goodput"].is_null()));
    }
}
