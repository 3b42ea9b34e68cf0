//! What was read, beside an incident: of what runs out or is counted the last, of what comes and goes the first.

use gpufleet_telemetry::catalog::Unit;

use super::*;

fn read(family: Family, severity: Severity, value: f64) -> Signal {
    Signal {
        severity,
        readings: vec![Reading::new("used up in", value, None, Unit::Seconds)],
        ..signal(family, gpu(7, 3))
    }
}

#[test]
fn what_runs_out_or_is_counted_is_told_as_it_was_read_last() {
    let hours = |it: f64| it * 3_600.0;
    for (family, expected) in [
        (Family::Leak, hours(23.5)),
        (Family::GpuFault, hours(23.5)),
        (Family::Slower, hours(60.0)),
    ] {
        let mut world = World::new();
        world.tick(&[read(family, Severity::Info, hours(60.0))]);
        let id = world.open()[0].id;
        world.tick(&[read(family, Severity::Info, hours(24.5))]);
        let soon = [read(family, Severity::Warning, hours(23.5))];
        assert_eq!(world.tick(&soon), [Change::Updated(id)], "{family:?}");
        let evidence = &world.open()[0].evidence;
        let told: Vec<f64> = evidence.iter().map(|it| it.readings[0].value).collect();
        assert_eq!(told, [expected], "{family:?}");
    }
}

#[test]
fn an_xid_that_comes_again_and_again_says_how_often() {
    let came = |count: Option<f64>| {
        let count = count.map(|it| Reading::new("count", it, None, Unit::Count));
        Signal {
            readings: count.into_iter().collect(),
            ..signal(Family::GpuFault, gpu(7, 3))
        }
    };
    let mut world = World::new();
    for count in [None, Some(2.0), Some(500.0)] {
        world.tick(&[came(count)]);
    }
    let evidence = &world.open()[0].evidence;
    assert_eq!(evidence.len(), 1);
    assert_eq!(evidence[0].readings, came(Some(500.0)).readings);
}
