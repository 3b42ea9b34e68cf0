//! What stands in `store.url`: how it is shown, the folder of its file, and the bounds it may set itself.

use std::str::FromStr;

use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;

use super::error::StoreError;

/// Longest time one statement may take on PostgreSQL, and may wait for a lock, milliseconds: nothing
/// waits without end, and what was given up is tried again. A URL that says its own keeps it
/// (`?options[statement_timeout]=…`).
const BOUNDS: [(&str, &str); 3] = [
    ("statement_timeout", "60000"),
    ("lock_timeout", "15000"),
    ("idle_in_transaction_session_timeout", "60000"),
];

/// Whether it is that of a PostgreSQL.
pub(super) fn is_postgres(url: &str) -> bool {
    url.starts_with("postgres://") || url.starts_with("postgresql://")
}

/// Refuses what is no address of a database. Nothing is opened.
pub(super) fn check(url: &str) -> Result<(), StoreError> {
    let refused = |why: String| StoreError::Url {
        url: without_password(url),
        why,
    };
    let parsed = if is_postgres(url) {
        PgConnectOptions::from_str(url).map(|_| ())
    } else if url.starts_with("sqlite:") {
        SqliteConnectOptions::from_str(url).map(|_| ())
    } else {
        return Err(refused("neither SQLite nor PostgreSQL".to_owned()));
    };
    parsed.map_err(|error| refused(error.to_string()))
}

/// The statements that set the bounds which a URL does not set itself; for every new connection, because
/// a pooler such as PgBouncer refuses them as options of the start.
pub(super) fn bounds(url: &str) -> String {
    let ours = BOUNDS.into_iter().filter(|(name, _)| !url.contains(name));
    let statements = ours.map(|(name, value)| format!("SET {name} = {value};"));
    statements.collect()
}

pub(super) fn make_folder(file: &std::path::Path) -> std::io::Result<()> {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => std::fs::create_dir_all(folder),
        _ => Ok(()),
    }
}

/// The address without its password: what stands between `:` and `@`, and every setting after `?`,
/// where a password may stand too.
pub(super) fn without_password(url: &str) -> String {
    let (url, settings) = match url.split_once('?') {
        Some((url, _)) => (url, "?…"),
        None => (url, ""),
    };
    let Some((scheme, rest)) = url.split_once("://") else {
        return format!("{url}{settings}");
    };
    match rest.rsplit_once('@') {
        Some((user, host)) => {
            let user = user.split(':').next().unwrap_or_default();
            format!("{scheme}://{user}@{host}{settings}")
        }
        None => format!("{url}{settings}"),
    }
}
