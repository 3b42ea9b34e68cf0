//! Minutes in pages of resources, for who pushes them to others or plays them again, and how far each way of
//! pushing is.

use std::ops::Range;

use gpufleet_telemetry::minute::MinuteRow;
use gpufleet_telemetry::time::Minute;

use super::database::Value;
use super::error::{Doing, StoreError};
use super::model::KnownResource;
use super::{Store, minutes, subjects};

/// Most resources of one page.
pub const MAX_EXPORTED: usize = 1_000;

/// How far last_seen of a resource may be behind its minutes, milliseconds: it is written at most once an
/// hour where only minutes come.
const SEEN_BEHIND_MS: i64 = 2 * 3_600_000;

/// One minute of some resources.
#[derive(Debug, Default)]
pub struct MinutePage {
    /// Those of which the minute is known.
    pub rows: Vec<(KnownResource, MinuteRow)>,
    /// Where to go on; none when these were the last.
    pub next: Option<i64>,
}

/// Some minutes of some resources.
#[derive(Debug, Default)]
pub struct MinutesPage {
    /// The resources.
    pub resources: Vec<KnownResource>,
    /// Those of their minutes that are known, each with the place of its resource; by minute.
    pub rows: Vec<(Minute, usize, MinuteRow)>,
    /// Where to go on; none when these were the last.
    pub next: Option<i64>,
    /// Rows that are there and could not be read.
    pub unreadable: usize,
}

impl Store {
    /// One minute of the resources behind `after`, in the order in which they were first stored; at most
    /// `limit` of them, and never more than [`MAX_EXPORTED`].
    ///
    /// # Errors
    /// When the database refuses. What cannot be read is set aside and left out.
    pub async fn minute_page(
        &self,
        minute: Minute,
        after: i64,
        limit: usize,
    ) -> Result<MinutePage, StoreError> {
        let minutes = minute..Minute(minute.0 + 1);
        let page = self.minutes_page(minutes, after, limit).await?;
        let known = &page.resources;
        let rows = page.rows.into_iter();
        Ok(MinutePage {
            rows: rows
                .map(|(_, place, row)| (known[place].clone(), row))
                .collect(),
            next: page.next,
        })
    }

    /// The same of several minutes.
    ///
    /// # Errors
    /// When the database refuses. What cannot be read is set aside and left out.
    pub async fn minutes_page(
        &self,
        minutes: Range<Minute>,
        after: i64,
        limit: usize,
    ) -> Result<MinutesPage, StoreError> {
        let doing = "reading minutes of all resources";
        let limit = limit.clamp(1, MAX_EXPORTED);
        let columns = subjects::COLUMNS;
        let sql = format!(
            "SELECT {columns} FROM subject s LEFT JOIN subject_seen n ON n.subject = s.id
             WHERE s.id > $1 AND s.lease = $2
               AND COALESCE(n.last_seen_ms, s.first_seen_ms) >= $3
             ORDER BY s.id LIMIT {limit}"
        );
        let values = [
            Value::Int(after),
            Value::Text(&self.0.lease),
            Value::Int(minutes.start.start().millis() - SEEN_BEHIND_MS),
        ];
        let mut transaction = self.read().await?;
        let rows = transaction.fetch(&sql, &values).await.doing(doing)?;
        let mut bad = Vec::new();
        let mut ids = Vec::with_capacity(rows.len());
        let mut page = MinutesPage::default();
        for row in &rows {
            if let Some(resource) = subjects::read(row, &mut bad)? {
                ids.push(row.int(0).doing(doing)?);
                page.resources.push(resource);
            }
        }
        let of = |minute: i64| ids.iter().map(move |id| (minute, *id));
        let keys = (minutes.start.0..minutes.end.0).flat_map(of);
        let (asked, of_ids): (Vec<i64>, Vec<i64>) = keys.unzip();
        let found = minutes::read(&mut transaction, asked, of_ids, &mut bad).await?;
        drop(transaction);
        self.set_aside(&bad).await?;
        page.unreadable = bad.len();
        page.next = match rows.last() {
            Some(row) if rows.len() == limit => Some(row.int(0).doing(doing)?),
            _ => None,
        };
        for (minute, id, row) in found {
            let place = ids.binary_search(&id).expect("only these were asked for");
            page.rows.push((Minute(minute), place, row));
        }
        Ok(page)
    }

    /// The last minute that went whole this way; none before the first.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn export_cursor(&self, way: &str) -> Result<Option<Minute>, StoreError> {
        let sql = "SELECT minute FROM export_cursor WHERE lease = $1 AND way = $2";
        let values = [Value::Text(&self.0.lease), Value::Text(way)];
        let mut transaction = self.read().await?;
        let minute = transaction.fetch_int(sql, &values).await;
        Ok(minute.doing("reading how far is pushed")?.map(Minute))
    }

    /// Keeps that this minute went whole this way, and all before it.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn keep_export_cursor(&self, way: &str, minute: Minute) -> Result<(), StoreError> {
        let doing = "keeping how far is pushed";
        let sql = "INSERT INTO export_cursor (lease, way, minute) VALUES ($1, $2, $3)
            ON CONFLICT (lease, way) DO UPDATE SET minute = excluded.minute";
        let values = [
            Value::Text(&self.0.lease),
            Value::Text(way),
            Value::Int(minute.0),
        ];
        let mut transaction = self.write().await?;
        transaction.execute(sql, &values).await.doing(doing)?;
        transaction.commit().await.doing(doing)
    }
}
