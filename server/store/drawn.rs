//! What GPUs drew in somebody's hands, by the hours of the ledger.

use std::collections::BTreeMap;
use std::ops::Range;

use gpufleet_analysis::ledger::Energy;
use gpufleet_telemetry::identity::ResourceKind;

use super::Store;
use super::database::Column;
use super::error::{Doing, StoreError};

/// Most GPU-hours that are added up in one answer: 512 GPUs for a week.
pub const MAX_DRAWN: usize = 100_000;

/// Time of a holder, milliseconds, and what was drawn in it, as far as that was told.
pub type Drawn = BTreeMap<i64, (i64, Energy)>;

impl Store {
    /// What these GPUs or shares drew in a range of hours, by the number of who held them, 0 left out; none where that
    /// is more than [`MAX_DRAWN`] GPU-hours.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn drawn(
        &self,
        cluster: &str,
        gpus: &[&str],
        hours: Range<i64>,
    ) -> Result<Option<Drawn>, StoreError> {
        let doing = "reading what GPUs drew";
        let length = usize::try_from(hours.end - hours.start).unwrap_or(0);
        if length.saturating_mul(gpus.len()) > MAX_DRAWN {
            return Ok(None);
        }
        let mut transaction = self.read().await?;
        let keys: Vec<(&str, &str)> = [ResourceKind::Gpu, ResourceKind::Share]
            .into_iter()
            .flat_map(|kind| gpus.iter().map(move |gpu| (kind.name(), *gpu)))
            .collect();
        let columns = [
            Column::Texts(vec![self.0.lease.as_str(); keys.len()]),
            Column::Texts(vec![cluster; keys.len()]),
            Column::Texts(keys.iter().map(|it| it.0).collect()),
            Column::Texts(keys.iter().map(|it| it.1).collect()),
        ];
        let before = "WITH k (lease, cluster, kind, id) AS (";
        let after = ") SELECT s.id FROM k CROSS JOIN subject s WHERE s.lease = k.lease
            AND s.cluster = k.cluster AND s.kind = k.kind AND s.resource_id = k.id";
        let rows = transaction.rows(before, &columns, after).await;
        let rows = rows.doing(doing)?;
        let ids: Result<Vec<i64>, _> = rows.iter().map(|row| row.int(0)).collect();
        let ids = ids.doing(doing)?;
        let pairs = || {
            ids.iter()
                .flat_map(|id| hours.clone().map(move |hour| (*id, hour)))
        };
        let columns = [
            Column::Ints(pairs().map(|it| it.0).collect()),
            Column::Ints(pairs().map(|it| it.1).collect()),
        ];
        let before = "WITH k (subject, hour) AS (";
        let after = ") SELECT t.holder, CAST(SUM(t.time_ms) AS BIGINT),
                CAST(SUM(t.energy_mj) AS BIGINT), CAST(SUM(t.metered_ms) AS BIGINT)
            FROM k CROSS JOIN ledger_time t WHERE t.hour = k.hour AND t.subject = k.subject
            AND t.holder <> 0 GROUP BY t.holder";
        let rows = transaction.rows(before, &columns, after).await;
        let mut found = Drawn::new();
        // It comes in pieces, each with sums of its own.
        for row in rows.doing(doing)? {
            let (millis, energy) = found.entry(row.int(0).doing(doing)?).or_default();
            *millis += row.int(1).doing(doing)?;
            energy.add(Energy {
                millijoules: row.optional_int(2).doing(doing)?.unwrap_or(0),
                metered_millis: row.int(3).doing(doing)?,
            });
        }
        Ok(Some(found))
    }
}
