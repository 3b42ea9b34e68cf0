//! A database of its own for each test, on either side.

use super::*;

/// One test's database and its right to write.
pub(crate) struct Bench {
    pub(crate) store: Store,
    pub(crate) config: StoreConfig,
    pub(crate) token: FencingToken,
    /// SQLite's folder, which goes with the test; none on PostgreSQL.
    _folder: Option<tempfile::TempDir>,
}

/// Makes a test for each database: `both! { async fn name(bench: Bench) { … } }`.
macro_rules! both {
    ($(#[$attribute:meta])* async fn $name:ident($bench:ident) $body:block) => {
        mod $name {
            use super::*;

            async fn test($bench: &Bench) $body

            #[tokio::test]
            async fn sqlite() {
                let bench = Bench::sqlite().await;
                test(&bench).await;
            }

            #[tokio::test]
            async fn postgres() {
                let bench = Bench::postgres().await;
                test(&bench).await;
                bench.drop_database().await;
            }
        }
    };
}
pub(crate) use both;

impl Bench {
    pub(crate) async fn sqlite() -> Self {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let config = StoreConfig::for_tests(folder.path());
        Self::open(config, Some(folder)).await
    }

    pub(crate) async fn postgres() -> Self {
        Self::postgres_made("").await
    }

    /// On a PostgreSQL that sorts as a dictionary does: what is no letter or digit counts for nothing.
    pub(crate) async fn postgres_by_words() -> Self {
        let order = "TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-u-ka-shifted'";
        Self::postgres_made(order).await
    }

    async fn postgres_made(order: &str) -> Self {
        let name = format!("test_{}", Uuid::new_v4().simple());
        administer(&format!("CREATE DATABASE {name} {order}")).await;
        let config = StoreConfig {
            url: format!("{}/{name}", server()),
            ..StoreConfig::default()
        };
        Self::open(config, None).await
    }

    async fn open(config: StoreConfig, folder: Option<tempfile::TempDir>) -> Self {
        let store = Store::open(&config).await.expect("a new database opens");
        let lease = store
            .acquire_lease("first", START.start(), Duration::from_secs(15))
            .await
            .expect("nobody has the lease of a new database");
        Self {
            store,
            config,
            token: lease.token,
            _folder: folder,
        }
    }

    /// Another database, empty and of the same kind. It goes with the folder, or with the throw-away
    /// server.
    pub(crate) async fn another_database(&self) -> StoreConfig {
        let url = match self.config.url.rsplit_once('/') {
            Some((before, _)) if self.store.kind() == "postgres" => {
                let name = format!("test_{}", Uuid::new_v4().simple());
                administer(&format!("CREATE DATABASE {name}")).await;
                format!("{before}/{name}")
            }
            _ => format!("{}.another", self.config.url),
        };
        StoreConfig {
            url,
            ..self.config.clone()
        }
    }

    /// A second server on the same database.
    pub(crate) async fn another(&self) -> Store {
        Store::open(&self.config)
            .await
            .expect("a known database opens")
    }

    /// The server that comes after this one, on the same database.
    pub(crate) async fn restarted(&self) -> Self {
        self.store.close().await;
        Self::open(self.config.clone(), None).await
    }

    pub(crate) async fn commit(&self, commit: &Commit) -> Committed {
        let done = self.store.commit(commit, self.token).await;
        done.expect("a commit of the present holder")
    }

    /// Runs SQL beside the store.
    pub(crate) async fn execute(&self, sql: &str) -> u64 {
        let mut transaction = self.store.write().await.expect("the database answers");
        let changed = transaction
            .execute(sql, &[])
            .await
            .expect("the SQL is right");
        transaction.commit().await.expect("the database answers");
        changed
    }

    /// Sets something of SQLite's writing connection.
    pub(crate) async fn pragma(&self, sql: &str) {
        let Database::Sqlite { writer, .. } = &self.store.0.database else {
            panic!("only SQLite has pragmas");
        };
        let done = sqlx::query(sqlx::AssertSqlSafe(sql)).execute(writer).await;
        done.expect("the pragma is right");
    }

    pub(crate) async fn int(&self, sql: &str) -> i64 {
        let mut transaction = self.store.read().await.expect("the database answers");
        let found = transaction
            .fetch_int(sql, &[])
            .await
            .expect("the SQL is right");
        found.expect("the SQL returns a number")
    }

    /// How the database finds a page of runs, in its own words.
    pub(crate) async fn plan_of_runs(&self, filter: &RunFilter) -> String {
        let database = &self.store.0.database;
        let (explain, column) = match database {
            Database::Sqlite { .. } => ("EXPLAIN QUERY PLAN SELECT *", 3),
            Database::Postgres(..) => ("EXPLAIN SELECT *", 0),
        };
        let (lease, page) = (&self.store.0.lease, (None, 40));
        let rows = super::super::runs::page_of(database, explain, lease, filter, page);
        let rows = rows.await.expect("it says how");
        let lines = rows.iter().map(|row| row.text(column).expect("a text"));
        lines.collect::<Vec<_>>().join("\n")
    }

    /// How the database finds the newest events of some resources, in its own words.
    pub(crate) async fn plan_of_events(&self, filters: &[EventFilter]) -> String {
        let database = &self.store.0.database;
        let (explain, column) = match database {
            Database::Sqlite { .. } => ("EXPLAIN QUERY PLAN ", 3),
            Database::Postgres(..) => ("EXPLAIN ", 0),
        };
        let lease = &self.store.0.lease;
        let rows = super::super::events::each(database, explain, lease, filters, 50).await;
        let rows = rows.expect("it says how");
        let lines = rows.iter().map(|row| row.text(column).expect("a text"));
        lines.collect::<Vec<_>>().join("\n")
    }

    /// A database that is left behind by a failed test goes with the throw-away server.
    pub(crate) async fn drop_database(self) {
        self.store.close().await;
        let (_, name) = self
            .config
            .url
            .rsplit_once('/')
            .expect("it was put together so");
        administer(&format!("DROP DATABASE {name} WITH (FORCE)")).await;
    }
}

fn server() -> String {
    let found = std::env::var("GPUFLEET_TEST_POSTGRES");
    found.unwrap_or_else(|_| {
        panic!(
            "GPUFLEET_TEST_POSTGRES is not set: run `make test`, or start a PostgreSQL for tests \
             with `eval \"$(scripts/postgres.sh start)\"` (needs apt-get install postgresql-15)"
        )
    })
}

async fn administer(sql: &str) {
    use sqlx::{Connection as _, Executor as _};
    let url = format!("{}/postgres", server());
    let mut connection = sqlx::PgConnection::connect(&url)
        .await
        .expect("the PostgreSQL of GPUFLEET_TEST_POSTGRES answers");
    let done = connection.execute(sqlx::AssertSqlSafe(sql)).await;
    done.expect("it lets us make and drop databases");
}
