//! What a sender from outside may say of a rank: only that it claims so. What an agent proves, by the
//! kernel and the driver, stays an agent's to say.

use gpufleet_telemetry::identity::{ResourceKind, attribute};
use gpufleet_telemetry::training::Trust;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value::Value};
use opentelemetry_proto::tonic::resource::v1::Resource;

/// Marks what the resource of a rank says as claimed; others stay as they are.
pub(super) fn mark(resource: &mut Resource) {
    let has = |name| resource.attributes.iter().any(|it| it.key == name);
    let says_gpu = has(attribute::GPU_ID);
    let is_rank = resource.attributes.iter().any(|it| {
        let kind = it.value.as_ref().and_then(|it| it.value.as_ref());
        let is_rank =
            |it: &Value| matches!(it, Value::StringValue(it) if it == ResourceKind::Rank.name());
        it.key == attribute::KIND && kind.is_some_and(is_rank)
    });
    if !is_rank {
        return;
    }
    let marks = [attribute::TRUST, attribute::GPU_SOURCE];
    let attributes = &mut resource.attributes;
    attributes.retain(|it| !marks.contains(&it.key.as_str()));
    let said = marks
        .into_iter()
        .filter(|it| *it == attribute::TRUST || says_gpu);
    attributes.extend(said.map(|name| text(name, Trust::Claimed.name())));
}

/// An attribute with this text.
pub(super) fn text(key: &str, value: &str) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue {
            value: Some(Value::StringValue(value.to_owned())),
        }),
        ..KeyValue::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marked(attributes: &[(&str, &str)]) -> Vec<(String, String)> {
        let mut resource = Resource {
            attributes: attributes
                .iter()
                .map(|(key, value)| text(key, value))
                .collect(),
            ..Resource::default()
        };
        mark(&mut resource);
        let pairs = resource.attributes.into_iter().map(|it| {
            let value = it.value.and_then(|it| it.value);
            let Some(Value::StringValue(value)) = value else {
                panic!("{} is no text", it.key);
            };
            (it.key, value)
        });
        pairs.collect()
    }

    fn pairs(all: &[(&str, &str)]) -> Vec<(String, String)> {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        all.iter().map(owned).collect()
    }

    #[test]
    fn nobody_outside_proves_who_a_rank_is_or_where_it_computes() {
        let rank = (attribute::KIND, "rank");
        let gpu = (attribute::GPU_ID, "GPU-a");
        let found = marked(&[
            rank,
            (attribute::TRUST, "proved"),
            gpu,
            (attribute::GPU_SOURCE, "proved"),
        ]);
        let claimed = (attribute::TRUST, "claimed");
        let expected = [rank, gpu, claimed, (attribute::GPU_SOURCE, "claimed")];
        assert_eq!(found, pairs(&expected));
        assert_eq!(marked(&[rank]), pairs(&[rank, claimed]), "also unsaid");
    }

    #[test]
    fn what_is_no_rank_stays_as_it_is() {
        let gpu = [(attribute::KIND, "gpu"), (attribute::TRUST, "x")];
        assert_eq!(marked(&gpu), pairs(&gpu));
    }
}
