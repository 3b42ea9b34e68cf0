//! What the probe of a GPU found, as an incident.

use gpufleet_telemetry::catalog::own;

use super::*;

#[tokio::test]
async fn a_probe_that_failed_is_one_incident_that_names_the_sm_until_a_later_one_passes() {
    let mut world = World::new().await;
    let probed = |verdict: f64, at: Timestamp, sm: Option<f64>| {
        move |live: &mut Live| {
            if !is_gpu(live, "node-1", 2) {
                return;
            }
            set(live, &own::PROBE_VERDICT, verdict);
            set(live, &own::PROBE_AT, at.0 as f64 / 1e9);
            live.values.retain(|it| it.metric != own::PROBE_SM.id);
            if let Some(sm) = sm {
                set(live, &own::PROBE_SM, sm);
            }
        }
    };
    let began = world.hand.now();
    world.ticks(6, probed(1.0, began, None));
    assert_eq!(world.open(), [], "one that passed is none");
    world.ticks(6, probed(4.0, began, None));
    assert_eq!(world.open(), [], "nor is one that could not measure");
    let failed_at = world.hand.now();
    world.ticks(1, probed(3.0, failed_at, Some(77.0)));
    let open = world.open();
    assert_eq!(open.len(), 1, "{open:?}");
    let incident = &open[0];
    let (family, cause) = (incident.family, incident.cause);
    assert_eq!((family, cause), (Family::GpuFault, Cause::GpuFault));
    assert_eq!(incident.what, "the probe found SM 77 wrong");
    let place = Place::gpu("prod", "node-1", "GPU-prod-node-1-0002");
    assert_eq!(incident.place, place);
    assert_eq!(incident.losing.nano_usd_per_hour(), Some(36_000_000_000));
    world.ticks(20, probed(3.0, failed_at, Some(77.0)));
    assert_eq!(world.open().len(), 1, "it is the same one");
    let id = world.open()[0].id;
    let passed_at = world.hand.now();
    world.ticks(10, probed(1.0, passed_at, None));
    assert_eq!(world.open(), []);
    let over = world.app.incidents.get(id).expect("it was lately");
    assert_eq!(over.state, State::Resolved);
}
