//! What people take back: that they work on an incident, and that nobody is told of it.

use super::*;

const HOUR_NS: i64 = 3_600_000_000_000;

/// A world with one open incident, its id, and the moment.
fn open_one() -> (World, Uuid, Timestamp) {
    let mut world = World::new();
    world.tick(&[signal(Family::GpuFault, gpu(7, 3))]);
    let now = world.now;
    (world, Uuid::from_u128(1), now)
}

#[test]
fn a_silence_by_hand_is_ended_by_hand_and_the_log_says_so() {
    let (mut world, id, now) = open_one();
    let book = &mut world.book;
    assert_eq!(book.unsilence(id, "ada", now), Err(Refused::Loud));
    let hour = now.shifted(HOUR_NS);
    assert_eq!(book.silence(id, "ada", hour, now), Ok(()));
    assert_eq!(book.unsilence(id, " ", now), Err(Refused::Person));
    let silent = book.get(id).expect("it is open");
    let (until, line) = silent.silenced_alone(now).expect("it is silent");
    assert_eq!(
        (until, line.and_then(|it| it.who.as_deref())),
        (hour, Some("ada"))
    );
    assert_eq!(
        silent.silenced_alone(hour),
        None,
        "it is over by then, though nobody has ended it"
    );
    let until = [now, hour].map(|at| silent.silent_until(at));
    assert_eq!(until, [Some(hour), None]);
    assert!(line.is_some_and(|it| !it.ends_silence()));
    assert_eq!(book.unsilence(id, "bob", now), Ok(()));
    let loud = book.get(id).expect("it is open");
    assert!(loud.is_loud(now));
    assert_eq!(
        (loud.silenced_until, loud.silenced_alone_until),
        (None, None)
    );
    let last = loud.log.last().expect("it has lines");
    assert_eq!(last.who.as_deref(), Some("bob"));
    assert_eq!(last.happened, Happened::Silenced(now));
    assert!(last.ends_silence());
}

#[test]
fn who_silenced_one_alone_is_known_also_after_a_longer_silence_by_pattern() {
    let (mut world, id, now) = open_one();
    let book = &mut world.book;
    let (hour, longer) = (now.shifted(HOUR_NS), now.shifted(2 * HOUR_NS));
    assert_eq!(book.silence(id, "ada", hour, now), Ok(()));
    assert_eq!(book.silence_with_others(id, "mira", longer, now), Ok(()));
    assert_eq!(book.end_silence(id, "mira", now), Ok(()));
    let silent = book.get(id).expect("it is open");
    let (until, line) = silent.silenced_alone(now).expect("it is silent");
    assert_eq!(
        (until, line.and_then(|it| it.who.as_deref())),
        (hour, Some("ada"))
    );
}

#[test]
fn what_somebody_has_in_hand_is_released_by_anybody_and_only_then() {
    let (mut world, id, now) = open_one();
    let book = &mut world.book;
    assert_eq!(book.release(id, "ada", now), Err(Refused::Free));
    assert_eq!(book.acknowledge(id, "ada", now), Ok(()));
    assert_eq!(book.release(id, "bob", now), Ok(()));
    let free = book.get(id).expect("it is open");
    assert_eq!(free.acknowledged_by, None);
    let last = free.log.last().expect("it has lines");
    assert_eq!(last.who.as_deref(), Some("bob"));
    let note = Happened::Note("released: nobody works on it now".to_owned());
    assert_eq!(last.happened, note);
    assert_eq!(book.release(id, "bob", now), Err(Refused::Free));
    let unknown = Uuid::from_u128(9);
    assert_eq!(
        book.release(unknown, "bob", now),
        Err(Refused::Unknown(unknown))
    );
}

#[test]
fn a_silence_holds_where_the_incident_itself_becomes_worse() {
    let mut world = World::new();
    let warning = Signal {
        severity: Severity::Warning,
        ..signal(Family::GpuFault, gpu(7, 3))
    };
    world.tick(std::slice::from_ref(&warning));
    let (id, now) = (Uuid::from_u128(1), world.now);
    let until = now.shifted(HOUR_NS);
    assert_eq!(world.book.acknowledge(id, "ada", now), Ok(()));
    assert_eq!(world.book.silence(id, "ada", until, now), Ok(()));
    let error = Signal {
        severity: Severity::Error,
        ..warning
    };
    assert_eq!(world.tick(&[error]), [Change::Updated(id)]);
    let worse = world.book.get(id).expect("it is open");
    assert_eq!(worse.severity, Severity::Error);
    assert!(!worse.is_loud(world.now));
    assert_eq!(worse.acknowledged_by.as_deref(), Some("ada"));
}

#[test]
fn who_silenced_a_warning_has_not_silenced_the_error_that_it_comes_from() {
    for (severity, is_kept) in [(Severity::Warning, true), (Severity::Error, false)] {
        let mut world = World::new();
        let waits = of_run(Family::Straggler, Some(59), Some(gpu(7, 3)));
        world.tick(std::slice::from_ref(&waits));
        let (id, now) = (Uuid::from_u128(1), world.now);
        let until = now.shifted(HOUR_NS);
        assert_eq!(world.book.acknowledge(id, "ada", now), Ok(()));
        assert_eq!(world.book.silence(id, "ada", until, now), Ok(()));
        let fault = Signal {
            severity,
            ..signal(Family::GpuFault, gpu(7, 3))
        };
        assert_eq!(world.tick(&[waits, fault]), [Change::Updated(id)]);
        let told = world.book.get(id).expect("it is open");
        assert_eq!((told.family, told.severity), (Family::GpuFault, severity));
        assert_eq!(told.is_loud(world.now), !is_kept, "{severity:?}");
        assert_eq!(told.acknowledged_by.is_some(), is_kept);
        assert_eq!(told.silenced_alone_until, is_kept.then_some(until));
        let ends = told.log.iter().filter(|it| it.ends_silence());
        assert_eq!(ends.count(), usize::from(!is_kept), "the log says so");
    }
}
