//! Which reader each metric of a GPU is taken from, said on its resource where several report it.

use std::sync::Arc;

use gpufleet_telemetry::catalog::producers;
use gpufleet_telemetry::identity::{ResourceKind, attribute};

use super::{Entry, Source};

impl Entry {
    /// Says of a GPU that several readers report which metric is taken from which.
    pub(super) fn name_producers(&mut self) {
        let is_gpu = matches!(self.resource.kind, ResourceKind::Gpu | ResourceKind::Share);
        // Who only says who holds it is the source of no metric.
        let measuring = |it: &&Source| it.resource.attribute(attribute::SOURCE).is_some();
        let readers = self.sources.iter().filter(measuring).count();
        if readers < 2 || !is_gpu {
            return;
        }
        let name_of = |reader: usize| {
            let source = self.sources.iter().find(|it| it.reader == reader)?;
            source.resource.attribute(attribute::SOURCE)
        };
        let told = self.series.iter();
        let told = told.filter_map(|it| Some((it.metric.id, name_of(it.producer)?)));
        let text = producers::text(told);
        if self.resource.attribute(attribute::METRIC_SOURCES) == text.as_deref() {
            return;
        }
        let resource = Arc::make_mut(&mut self.resource);
        let name = attribute::METRIC_SOURCES.to_owned();
        match text {
            Some(text) => resource.attributes.insert(name, text),
            None => resource.attributes.remove(&name),
        };
    }
}
