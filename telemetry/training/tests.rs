//! Ids go there and back, and nothing else is taken for one.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::catalog::training::PHASES;

fn rank(namespace: &str, name: &str, uid: &str) -> RankId {
    RankId {
        job: JobId {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
        },
        attempt: 2,
        rank: 1_023,
    }
}

#[test]
fn an_id_is_its_parts_and_any_name_fits_into_one() {
    for (rank, expected) in [
        (rank("team-a", "llama", "0c1f"), "team-a/llama/0c1f/2/1023"),
        (rank("", "4711", ""), "/4711//2/1023"),
        (rank("a/b", "x y", "é%"), "a%2Fb/x%20y/%C3%A9%25/2/1023"),
    ] {
        assert_eq!(rank.checked().as_deref(), Ok(expected));
        assert_eq!(RankId::parse(expected), Ok(rank.clone()));
        let run = rank.run();
        assert_eq!(RunId::parse(&run.to_string()), Ok(run.clone()));
        assert_eq!(JobId::parse(&run.job.to_string()), Ok(run.job));
    }
}

#[test]
fn what_is_no_id_is_named() {
    let long = "n".repeat(MAX_NAME_BYTES + 1);
    for (id, expected) in [
        ("", "`` is no id of a rank: it has 1 parts instead of 5"),
        ("a/b/c/0", "`a/b/c/0` is no id of a rank: it has 4 parts"),
        ("a//c/0/0", "`` is no name: 1 to 64 bytes"),
        ("a/b c/c/0/0", "`b c` is no name"),
        ("a/b/%2f/0/0", "`%2f` is no name"),
        ("a/b/%61/0/0", "`%61` is no name"),
        ("a/b/%FF/0/0", "`%FF` is no name"),
        ("a/b/%4/0/0", "`%4` is no name"),
        ("a/b/c/-1/0", "`-1` is no number"),
        ("a/b/c/0/01", "`01` is no number"),
        ("a/b/c/0/4294967296", "`4294967296` is no number"),
        (&format!("a/{long}/c/0/0"), "`nnnnnnnn"),
        (
            &format!("a/b/{}/0/0", "%20".repeat(90)),
            "an id of 278 bytes is longer than the 256",
        ),
    ] {
        let error = RankId::parse(id).expect_err(id).to_string();
        assert!(error.starts_with(expected), "{id}: {error}");
    }
    assert!(rank("a", &long, "c").checked().is_err());
    let wide = "€".repeat(21);
    assert!(rank(&wide, &wide, "c").checked().is_err());
}

proptest! {
    #[test]
    fn any_short_names_go_there_and_back(
        namespace in ".{0,7}", name in ".{1,7}", uid in ".{0,7}", attempt: u32, number: u32,
    ) {
        let rank = RankId { attempt, rank: number, ..rank(&namespace, &name, &uid) };
        prop_assert_eq!(RankId::parse(&rank.to_string()), Ok(rank));
    }

    #[test]
    fn what_is_taken_for_an_id_is_written_the_same_way(id in "[a-z%0-9A-F/]{0,20}/0/1") {
        if let Ok(rank) = RankId::parse(&id) {
            prop_assert_eq!(rank.to_string(), id);
        }
    }

    #[test]
    fn a_fingerprint_goes_through_an_event(
        pairs in proptest::collection::btree_map("[a-z.]{1,9}", "[ -~]{0,90}", 0..60),
    ) {
        let (attributes, left_out) = fingerprint_attributes(&pairs);
        prop_assert_eq!(left_out, 0);
        let attributes: BTreeMap<_, _> = attributes.into_iter().collect();
        prop_assert!(attributes.values().all(|text| text.len() <= MAX_FINGERPRINT_BYTES));
        prop_assert_eq!(fingerprint_of(&attributes), pairs);
    }
}

#[test]
fn a_fingerprint_that_is_too_large_says_how_many_pairs_it_left_out() {
    let pair = |number: usize| (format!("key{number:03}"), "v".repeat(990));
    let mut pairs: BTreeMap<_, _> = (0..13).map(pair).collect();
    pairs.insert("two".to_owned(), "a\nb".to_owned());
    let (attributes, left_out) = fingerprint_attributes(&pairs);
    let names: Vec<_> = attributes.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["fingerprint", "fingerprint.2", "fingerprint.3"]);
    assert_eq!(left_out, 2);
}

#[test]
fn a_place_that_is_not_known_is_left_out_and_stays_unknown() {
    let mesh = Mesh {
        dp: Some(Place { at: 3, of: 8 }),
        tp: Some(Place { at: 1, of: 0 }),
        ..Mesh::default()
    };
    assert_eq!(mesh.to_string(), "dp=3/8 tp=1");
    assert_eq!(Mesh::parse("dp=3/8 tp=1"), mesh);
    assert_eq!(Mesh::parse("dp=8/8 pp=-1/2 x=1/2 tp cp=a"), Mesh::default());
    assert_eq!(Mesh::default().to_string(), "");
}

#[test]
fn every_phase_has_its_metric_in_its_own_place() {
    assert_eq!(Phase::ALL.len(), PHASES.len());
    for (phase, metric) in Phase::ALL.iter().zip(PHASES) {
        let name = format!("gpufleet_training_phase_{}_seconds_total", phase.name());
        assert_eq!(metric.name, name);
        assert_eq!(phase.seconds(), &metric);
        assert_eq!(Phase::parse(phase.name()), Some(*phase));
    }
}
