//! After how many ticks an incident opens, where somebody has set that.

use super::*;

#[test]
fn an_incident_opens_after_the_ticks_that_are_set_for_its_family_alone() {
    for (family, ticks) in [
        (Family::Link, 2),
        (Family::Straggler, 4),
        (Family::Heat, Family::Heat.ticks() as usize),
    ] {
        let mut world = World::new();
        let set = BTreeMap::from([(Family::Link, 2), (Family::Straggler, 4)]);
        world.book.open_after(set);
        let trouble = [signal(family, gpu(7, 3))];
        assert_eq!(world.ticks(ticks - 1, &trouble), [], "{family:?}");
        assert_eq!(world.tick(&trouble).len(), 1, "{family:?}");
    }
}

#[test]
fn an_incident_is_as_sure_as_its_detector_said_last_of_the_surest_part() {
    let mut world = World::new();
    let of = |confidences: &[Option<Confidence>]| -> Vec<Signal> {
        let of = |confidence: &Option<Confidence>| Signal {
            confidence: *confidence,
            ..of_run(Family::Straggler, Some(3), Some(gpu(1, 1)))
        };
        confidences.iter().map(of).collect()
    };
    let (low, high) = (Some(Confidence::Low), Some(Confidence::High));
    for (told, expected) in [
        (&[low][..], low),
        (&[low, None], low),
        (&[low, high], high),
        (&[None], None),
    ] {
        let before = world.open().first().and_then(|it| it.confidence);
        let changes = world.tick(&of(told));
        assert_eq!(world.open()[0].confidence, expected, "{told:?}");
        let is_told = !changes.is_empty();
        assert!(is_told || before == expected, "what changes is written");
    }
}

#[test]
fn however_many_teams_are_over_their_budgets_each_has_an_incident_of_its_own() {
    let mut world = World::new();
    let team = |it| Place::node("team budgets", &format!("team-{it}"));
    let over: Vec<Signal> = (0..7).map(|it| signal(Family::Budget, team(it))).collect();
    assert_eq!(world.tick(&over).len(), 7);
    let id = world.open()[0].id;
    for owner in [Some("team-0".to_owned()), None] {
        world.book.give(id, owner);
        let known = world.open()[0].owner.clone();
        assert_eq!(known.as_deref(), Some("team-0"), "it stays whose it is");
    }
    // The same trouble of so many nodes would be their cluster's.
    let nodes: Vec<Signal> = (0..7).map(|it| signal(Family::Idle, team(it))).collect();
    assert_eq!(world.tick(&[over, nodes].concat()).len(), 1);
    assert_eq!(world.open().len(), 8);
}

#[test]
fn an_incident_comes_back_after_as_many_ticks_in_a_row_as_it_opens_after() {
    for family in [Family::Link, Family::Heat, Family::GpuFault] {
        let mut world = World::new();
        let mut trouble = signal(family, gpu(7, 3));
        let enough = family.ticks() as usize;
        world.ticks(enough, std::slice::from_ref(&trouble));
        let id = world.open()[0].id;
        assert_eq!(world.ticks(31, &[]), [Change::Resolved(id)], "{family:?}");
        let over = world.book.get(id).expect("it was lately").clone();
        trouble.severity = Severity::Error;
        let again = [trouble];
        for _ in 0..3 {
            assert_eq!(world.ticks(enough - 1, &again), [], "{family:?}");
            world.ticks(1, &[]);
        }
        if enough > 1 {
            let still = world.book.get(id).expect("it was lately");
            assert_eq!(
                (still.state, still.severity),
                (State::Resolved, over.severity)
            );
            assert_eq!((still.losing, &still.log), (over.losing, &over.log));
        }
        let back = world.ticks(enough, &again);
        assert_eq!(back, [Change::Opened(id)], "{family:?}");
        assert_eq!(world.open()[0].severity, Severity::Error);
    }
}
