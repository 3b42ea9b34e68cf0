//! When the provider said that it takes the machines of GPUs back: handed to the hours of these.
//!
//! One is gone half a minute later. What comes under its name is another machine, so a notice holds for
//! [`TAKEN_BACK_S`].
//!
//! Numbers: one look into an index for each node and hour of a round.

use std::collections::BTreeMap;

use gpufleet_analysis::ledger::MILLIS_PER_HOUR;
use gpufleet_analysis::states::{LOOKAHEAD_MINUTES, Span, TAKEN_BACK_S};
use gpufleet_telemetry::event::EventKind;
use gpufleet_telemetry::identity::attribute;

use super::database::{Column, Transaction};
use super::error::{Doing, StoreError};
use super::ledger::Inputs;

/// Hands each hour when its machine was about to be taken away.
pub(super) async fn read(
    transaction: &mut Transaction,
    lease: &str,
    inputs: &mut Inputs,
) -> Result<(), StoreError> {
    let doing = "reading which machines were taken back";
    let mut of: BTreeMap<(String, String, i64), Vec<(i64, i64)>> = BTreeMap::new();
    for (key, input) in inputs.iter() {
        if let Some(node) = input.resource.resource.attribute(attribute::NODE) {
            let cluster = input.resource.key.cluster.to_string();
            let asked = (cluster, node.to_owned(), key.0);
            of.entry(asked).or_default().push(*key);
        }
    }
    let of: Vec<_> = of.into_iter().collect();
    let first = |hour: i64| hour * MILLIS_PER_HOUR - TAKEN_BACK_S * 1_000;
    let until = |hour: i64| (hour + 1) * MILLIS_PER_HOUR + LOOKAHEAD_MINUTES * 60_000;
    let columns = [
        Column::Ints((0_i64..).take(of.len()).collect()),
        Column::Texts(vec![lease; of.len()]),
        Column::Texts(of.iter().map(|it| it.0.0.as_str()).collect()),
        Column::Texts(of.iter().map(|it| it.0.1.as_str()).collect()),
        Column::Ints(of.iter().map(|it| first(it.0.2)).collect()),
        Column::Ints(of.iter().map(|it| until(it.0.2)).collect()),
    ];
    let before = "WITH k (place, lease, cluster, node, from_ms, until_ms) AS (";
    let after = format!(
        ") SELECT k.place, e.at_ms FROM k CROSS JOIN event e
         WHERE e.lease = k.lease AND e.cluster = k.cluster AND e.resource_kind = 'node'
         AND e.resource_id = k.node AND e.at_ms >= k.from_ms AND e.at_ms < k.until_ms
         AND e.kind = '{}'",
        EventKind::PreemptionNoticed.name()
    );
    let rows = transaction.rows(before, &columns, &after).await;
    for row in rows.doing(doing)? {
        let place = usize::try_from(row.int(0).doing(doing)?).unwrap_or(usize::MAX);
        let said_s = row.int(1).doing(doing)?.div_euclid(1_000);
        for key in of.get(place).map_or(&[][..], |it| &it.1) {
            if let Some(input) = inputs.get_mut(key) {
                input.around.taken_back.push(Span::taken_back(said_s));
            }
        }
    }
    Ok(())
}
