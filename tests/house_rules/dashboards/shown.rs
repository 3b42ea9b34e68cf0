//! What panels show of many: none of their few places is taken by what is well, or by what cannot be compared.

use super::{answers, query_of};

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
