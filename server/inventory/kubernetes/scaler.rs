//! What the cluster autoscaler says of pods that wait: events, which the API server forgets after an hour.

use gpufleet_analysis::inventory::{Scaled, Scaling, cut};
use serde::Deserialize;

use super::super::moment;
use super::objects::Meta;

/// An event, of which this much is read.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct EventObject {
    pub(super) metadata: Meta,
    involved_object: Involved,
    reason: String,
    message: String,
    last_timestamp: Option<String>,
    event_time: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Involved {
    uid: String,
}

/// Of which pod it is, and what is said; none where it says nothing of nodes.
pub(super) fn event(object: &EventObject) -> Option<(&str, Scaled)> {
    let what = match object.reason.as_str() {
        "TriggeredScaleUp" => Scaling::Adds,
        "NotTriggerScaleUp" => Scaling::Refuses,
        "FailedScaleUp" => Scaling::Failed,
        _ => return None,
    };
    let times = [
        &object.last_timestamp,
        &object.event_time,
        &object.metadata.creation_timestamp,
    ];
    let at = times.into_iter().flatten().find_map(|it| moment(it));
    let pod = object.involved_object.uid.as_str();
    let scaled = Scaled {
        at: at.unwrap_or_default(),
        what,
        words: cut(&object.message),
    };
    (!pod.is_empty()).then_some((pod, scaled))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn an_event_says_of_which_pod_it_is_and_what_becomes_of_it() {
        let read = |reason: &str, more: Value| {
            let mut object = json!({"metadata": {"name": "p.1", "creationTimestamp": "2026-11-22T09:00:00Z"},
                "involvedObject": {"kind": "Pod", "uid": "p-1"}, "reason": reason,
                "message": "pod didn't trigger scale-up: 1 max node group size reached",
                "lastTimestamp": "2026-11-22T10:00:00Z"});
            for (key, value) in more.as_object().into_iter().flatten() {
                object[key] = value.clone();
            }
            let object: EventObject = serde_json::from_value(object).expect("it is an event");
            event(&object).map(|(pod, it)| (pod.to_owned(), it))
        };
        for (reason, expected) in [
            ("TriggeredScaleUp", Scaling::Adds),
            ("NotTriggerScaleUp", Scaling::Refuses),
            ("FailedScaleUp", Scaling::Failed),
        ] {
            let (pod, scaled) = read(reason, json!({})).expect("it is one of a pod");
            assert_eq!((pod.as_str(), scaled.what), ("p-1", expected));
            assert_eq!(Some(scaled.at), moment("2026-11-22T10:00:00Z"));
            assert!(scaled.words.ends_with("size reached"));
        }
        // New events have a time of their own and `null` where the old one was.
        let new = json!({"lastTimestamp": null, "eventTime": "2026-11-22T10:00:00.123456Z"});
        let (_, scaled) = read("FailedScaleUp", new).expect("it is one of a pod");
        assert_eq!(Some(scaled.at), moment("2026-11-22T10:00:00.123456Z"));
        assert_eq!(read("ScaleDown", json!({})), None);
        assert_eq!(read("FailedScaleUp", json!({"involvedObject": {}})), None);
    }
}
