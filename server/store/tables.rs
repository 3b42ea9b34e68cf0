//! Tables of prices, owners and budgets, kept as they were imported.

use gpufleet_telemetry::time::Timestamp;

use super::Store;
use super::database::Value;
use super::error::{Doing, StoreError};
use super::model::MoneyTable;

/// Most tables that are kept: each was imported by hand.
pub const MAX_TABLES: usize = 1_000;

impl Store {
    /// Every table in the order of their names, at most [`MAX_TABLES`].
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn money_tables(&self) -> Result<Vec<MoneyTable>, StoreError> {
        let doing = "reading tables of prices and owners";
        let mut transaction = self.read().await?;
        let sql = format!(
            "SELECT name, kind, content, imported_ms FROM money_table WHERE lease = $1
             ORDER BY name LIMIT {MAX_TABLES}"
        );
        let rows = transaction.fetch(&sql, &[Value::Text(&self.0.lease)]).await;
        let mut found = Vec::new();
        for row in rows.doing(doing)? {
            found.push(MoneyTable {
                name: row.text(0).doing(doing)?.to_owned(),
                kind: row.text(1).doing(doing)?.to_owned(),
                content: row.text(2).doing(doing)?.to_owned(),
                imported: Timestamp::from_millis(row.int(3).doing(doing)?),
            });
        }
        Ok(found)
    }

    /// The names of [`Self::money_tables`], each with when it was imported.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn money_table_names(&self) -> Result<Vec<(String, Timestamp)>, StoreError> {
        let doing = "reading the names of tables of prices and owners";
        let mut transaction = self.read().await?;
        let sql = format!(
            "SELECT name, imported_ms FROM money_table WHERE lease = $1 ORDER BY name LIMIT {MAX_TABLES}"
        );
        let rows = transaction.fetch(&sql, &[Value::Text(&self.0.lease)]).await;
        let mut found = Vec::new();
        for row in rows.doing(doing)? {
            let imported = Timestamp::from_millis(row.int(1).doing(doing)?);
            found.push((row.text(0).doing(doing)?.to_owned(), imported));
        }
        Ok(found)
    }

    /// Keeps a table in place of the one of its name.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn keep_table(&self, table: &MoneyTable) -> Result<(), StoreError> {
        let doing = "keeping a table of prices or owners";
        let mut transaction = self.write().await?;
        let values = [
            Value::Text(&self.0.lease),
            Value::Text(&table.name),
            Value::Text(&table.kind),
            Value::Text(&table.content),
            Value::Int(table.imported.millis()),
        ];
        let sql = "INSERT INTO money_table (lease, name, kind, content, imported_ms)
            VALUES ($1, $2, $3, $4, $5)
            ON CONFLICT (lease, name) DO UPDATE SET kind = excluded.kind,
                content = excluded.content, imported_ms = excluded.imported_ms";
        transaction.execute(sql, &values).await.doing(doing)?;
        transaction.commit().await.doing(doing)
    }

    /// Removes a table; false when there is none of this name.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn remove_table(&self, name: &str) -> Result<bool, StoreError> {
        let doing = "removing a table of prices or owners";
        let mut transaction = self.write().await?;
        let values = [Value::Text(&self.0.lease), Value::Text(name)];
        let sql = "DELETE FROM money_table WHERE lease = $1 AND name = $2";
        let gone = transaction.execute(sql, &values).await.doing(doing)?;
        transaction.commit().await.doing(doing)?;
        Ok(gone > 0)
    }
}
