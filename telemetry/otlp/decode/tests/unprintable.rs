//! Control characters in each text of a request: an id is refused, another text is mended. A
//! database refuses NUL, and a commit that can never succeed would hold up all that come after it.

use super::events::{logs, record};
use super::*;

/// A text with the worst of them.
const NUL: &str = "a\0b";
/// What it is mended to.
const MENDED: &str = "a\u{fffd}b";

fn with(mut attributes: Vec<KeyValue>, key: &str, value: &str) -> Vec<KeyValue> {
    attributes.retain(|it| it.key != key);
    attributes.extend(pairs(&[(key, value)]));
    attributes
}

#[test]
fn an_id_with_a_control_character_is_refused_and_its_points_are_counted() {
    let power = |id: &str| metric("hw.power", gauge(vec![point(&[("hw.id", id)], 1.0)]));
    let own = |key| with(ours(), key, NUL);
    let link = point(&[("gpufleet.nvlink", NUL)], 1.0);
    let instance = [("UUID", "GPU-1"), ("GPU_I_ID", NUL)];
    for (resource, metric) in [
        (theirs(), power("GPU-\0")),
        (theirs(), power("GPU-\u{1b}[2J")),
        (theirs(), power("GPU-1\n")),
        (own("service.instance.id"), power("")),
        (own(names_of::NODE), power("")),
        (own(names_of::CLUSTER), power("")),
        (with(theirs(), "host.name", NUL), power("GPU-1")),
        (with(theirs(), names_of::CLUSTER, NUL), power("GPU-1")),
        (ours(), metric("gpufleet.gpu.nvlink_up", gauge(vec![link]))),
        (
            theirs(),
            metric(
                "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
                gauge(vec![point(&instance, 1.0)]),
            ),
        ),
    ] {
        let text = format!("{resource:?} {metric:?}");
        let decoded = decode_metrics(request(resource, vec![metric]), &Limits::default());
        let reasons: Vec<_> = decoded.rejected.iter().collect();
        assert_eq!(reasons, [(Reject::UnprintableId, 1)], "{text}");
        assert!(decoded.resources.iter().all(|it| it.points.is_empty()));
    }
}

#[test]
fn another_attribute_with_a_control_character_is_mended() {
    let dcgm = [("hw.id", "GPU-1"), ("Hostname", NUL), ("modelName", NUL)];
    let power = || metric("hw.power", gauge(vec![point(&dcgm, 1.0)]));
    for sender in [
        pairs(&[("service.name", NUL), ("rack\0", NUL)]),
        with(with(ours(), "rack\0", NUL), "lines", "a\n\tb"),
    ] {
        let decoded = decode_metrics(request(sender, vec![power()]), &Limits::default());
        assert_eq!(decoded.rejected.to_string(), "");
        let resource = &decoded.resources[0].resource;
        assert_eq!(resource.attribute("rack\u{fffd}"), Some(MENDED));
        for (key, value) in &resource.attributes {
            let is_clean = |text: &str| !text.contains('\0');
            assert!(is_clean(key) && is_clean(value), "{key} {value}");
        }
        if let Some(lines) = resource.attribute("lines") {
            assert_eq!(lines, "a\n\tb");
        }
    }
}

#[test]
fn an_event_is_refused_for_its_ids_and_mended_in_its_texts() {
    let about = |id: &str| pairs(&[(names_of::KIND, "gpu"), ("gpufleet.resource.id", id)]);
    let mut good = record("gpufleet.xid", with(about("GPU-1"), "process\0", NUL));
    good.body = any(Value::StringValue(format!("{NUL}\nc")));
    let mut bad = record("gpufleet.xid", about("GPU-\0"));
    bad.body = None;
    let mut sent = logs(vec![good, bad]);
    let decoded = decode_events(sent.clone(), &Limits::default());
    let reasons: Vec<_> = decoded.rejected.iter().collect();
    assert_eq!(reasons, [(Reject::UnprintableId, 1)]);
    let [kept] = decoded.events.as_slice() else {
        panic!("the other event is kept");
    };
    assert_eq!(kept.event.message, format!("{MENDED}\nc"));
    let attributes: Vec<_> = kept.event.attributes.iter().collect();
    assert_eq!(
        attributes,
        [(&"process\u{fffd}".to_owned(), &MENDED.to_owned())]
    );
    let sender = sent.resource_logs[0].resource.as_mut().expect("is set");
    sender.attributes = with(theirs(), "host.name", NUL);
    let decoded = decode_events(sent, &Limits::default());
    let reasons: Vec<_> = decoded.rejected.iter().collect();
    assert_eq!(
        (decoded.events.len(), reasons),
        (0, vec![(Reject::UnprintableId, 2)])
    );
}
