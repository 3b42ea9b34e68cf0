//! What panels show of many: none of their few places is taken by what is well, or by what cannot be compared, a card
//! that is cut into instances is one card, and no number is lost or hidden by those of others.

use gpufleet_telemetry::catalog::{Kind, gpu};

use super::{answers, dashboards, none, query_of};

#[test]
fn a_card_and_its_instances_are_told_apart_wherever_both_tell_something() {
    let (mut seen, mut broken) = (0, Vec::new());
    let told = gpu::ALL.iter();
    let told = told.filter(|it| gpu::shares_have(it) && it.kind != Kind::SecondBits);
    let told: Vec<String> = told.map(|it| format!("{}{{", it.name)).collect();
    for (name, source) in dashboards() {
        for panel in source.panels() {
            for query in &panel.queries {
                let selectors = told.iter().flat_map(|it| query.expr.split(it).skip(1));
                for selector in selectors.filter_map(|it| it.split('}').next()) {
                    seen += 1;
                    let is_of_cards = selector.contains("parent=\"\"");
                    let is_of_instances = selector.contains("parent!=\"\"")
                        && query.legend.contains("{{mig_profile}} {{uuid}}");
                    if !is_of_cards && !is_of_instances {
                        broken.push(format!("{name}: {}: {}", panel.title, query.expr));
                    }
                }
            }
        }
    }
    assert!(seen > 10, "only {seen} queries are of what instances tell");
    none("no card is counted or named twice", &broken);
}

#[test]
fn a_lost_card_is_one_however_many_instances_are_lost_with_it() {
    let query = query_of("health", "GPUs lost or hanging");
    let missing = |uuid: &str, more: &str| {
        format!(
            "gpufleet_agent_missing_reading_flag{{cluster='c', node='n', gpu='3', uuid='{uuid}', metric='gpufleet_gpu_processes', reason='gpu_lost'{more}}}"
        )
    };
    let names = [
        missing("GPU-3", ""),
        missing("MIG-1", ", parent='GPU-3'"),
        missing("MIG-2", ", parent='GPU-3'"),
    ];
    let series = names.each_ref().map(|it| (it.as_str(), "1x9"));
    assert_eq!(answers(&query, &series, 5, Some(("{}", 1.0))), None);
}

#[test]
fn a_node_that_generates_nothing_takes_no_place_among_those_that_take_most_for_a_token() {
    let query = query_of("serving", "Watts per generated token a second");
    let power = ["a", "b"]
        .map(|node| format!("gpufleet_gpu_power_watts{{cluster='c', node='{node}', gpu='0'}}"));
    let tokens = ["a", "b"].map(|node| {
        format!("gpufleet_serving_generated_tokens_total{{cluster='c', node='{node}'}}")
    });
    let series = [
        (power[0].as_str(), "300x9"),
        (power[1].as_str(), "300x9"),
        (tokens[0].as_str(), "0+60x9"),
        (tokens[1].as_str(), "9x9"),
    ];
    let expected = Some(("{cluster=\"c\", node=\"a\"}", 300.0));
    assert_eq!(answers(&query, &series, 8, expected), None);
}

#[test]
fn a_gpu_misses_the_links_that_its_like_have_whatever_other_models_have() {
    let query = query_of("health", "NVLinks missing");
    let links = |model: &str, gpu: u32| {
        format!("gpufleet_gpu_nvlinks_active{{cluster='c', model='{model}', gpu='{gpu}'}}")
    };
    let names = [
        links("H100", 0),
        links("H100", 1),
        links("H100", 2),
        links("A40", 3),
    ];
    for (values, expected) in [
        (["18x9", "18x9", "18x9", "4x9"], None),
        (
            ["18x9", "18x9", "16x9", "4x9"],
            Some(("{cluster=\"c\", model=\"H100\", gpu=\"2\"}", 2.0)),
        ),
    ] {
        let series: Vec<_> = names.iter().map(String::as_str).zip(values).collect();
        let wrong = answers(&query, &series, 5, expected);
        assert_eq!(wrong, None, "{values:?}");
    }
}

#[test]
fn what_is_allocated_is_shown_of_the_ranks_whose_held_memory_is_shown() {
    let query = query_of("training", "Device memory");
    let of = |what: &str, rank: u32| {
        format!(
            "gpufleet_training_memory_{what}_bytes{{cluster='c', job='j', attempt='0', rank='{rank}'}}"
        )
    };
    // The first holds least and has allocated most of it; of the others nothing else is told.
    let names: Vec<String> = (0..=20)
        .map(|rank| of("reserved", rank))
        .chain([of("allocated", 0), of("allocated", 1)])
        .collect();
    let values = std::iter::once("5x9")
        .chain(std::iter::repeat_n("8x9", 20))
        .chain(["4x9", "3x9"]);
    let series: Vec<_> = names.iter().map(String::as_str).zip(values).collect();
    let labels = "gpufleet_training_memory_allocated_bytes{cluster=\"c\", job=\"j\", attempt=\"0\", rank=\"1\"}";
    assert_eq!(answers(&query, &series, 5, Some((labels, 3.0))), None);
}

#[test]
fn a_server_that_lives_hides_none_that_stands_still() {
    for (title, metric) in [
        ("Server heartbeat", "heartbeat"),
        ("Last judged", "detect_last"),
    ] {
        let names = ["a", "b"].map(|server| {
            format!("gpufleet_server_{metric}_timestamp_seconds{{instance='{server}:8080'}}")
        });
        let series = [
            (names[0].as_str(), "0+60x70"),
            (names[1].as_str(), "0+60x10 600x60"),
        ];
        let query = query_of("self", title);
        let wrong = answers(&query, &series, 70, Some(("{}", 3_600.0)));
        assert_eq!(wrong, None, "{title}");
    }
}

#[test]
fn a_rank_that_finishes_no_step_takes_no_number_from_the_others() {
    let query = query_of("training", "Step time");
    let names = ["step_wall_seconds", "steps"].map(|what| {
        [0, 1].map(|rank| {
            format!(
                "gpufleet_training_{what}_total{{cluster='c', job='j', attempt='0', rank='{rank}'}}"
            )
        })
    });
    let names = names.as_flattened();
    for (values, expected) in [
        (["0+180x9", "9x9", "0+60x9", "9x9"], Some(("{}", 3.0))),
        // Nobody finishes one: no number, and not one that is none.
        (["9x9", "9x9", "9x9", "9x9"], None),
    ] {
        let series: Vec<_> = names.iter().map(String::as_str).zip(values).collect();
        assert_eq!(answers(&query, &series, 8, expected), None, "{values:?}");
    }
}

#[test]
fn what_would_be_lost_is_all_that_was_done_before_the_first_checkpoint() {
    let query = query_of("training", "Would be lost now");
    let of = |what: &str| {
        format!("gpufleet_training_{what}{{cluster='c', job='j', attempt='0', rank='0'}}")
    };
    let (step, done) = (
        of("last_step_timestamp_seconds"),
        of("step_wall_seconds_total"),
    );
    let saved = of("checkpoint_timestamp_seconds");
    let at_work = [(step.as_str(), "0+60x9"), (done.as_str(), "0+50x9")];
    let wrong = answers(&query, &at_work, 8, Some(("{}", 400.0)));
    assert_eq!(wrong, None, "none was saved");
    let safe = [at_work[0], at_work[1], (saved.as_str(), "60x9")];
    assert_eq!(answers(&query, &safe, 8, Some(("{}", 420.0))), None);
}
