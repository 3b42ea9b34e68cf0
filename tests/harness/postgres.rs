//! A database of its own on the tests' PostgreSQL.

use std::process::Command;

/// The variable with the URL of the tests' PostgreSQL, without a database.
pub const VARIABLE: &str = "GPUFLEET_TEST_POSTGRES";

/// A database that is dropped with this value.
#[derive(Debug)]
pub struct Database {
    server: String,
    name: String,
}

impl Database {
    /// A new, empty database.
    ///
    /// # Panics
    /// When no PostgreSQL runs for the tests: the message says how to start one.
    pub fn new() -> Self {
        let server = std::env::var(VARIABLE).unwrap_or_else(|_| {
            panic!("{VARIABLE} is not set; run: eval \"$(scripts/postgres.sh start)\"")
        });
        let name = format!("test_{}", uuid::Uuid::new_v4().simple());
        let database = Self { server, name };
        database.psql(&format!("CREATE DATABASE {}", database.name));
        database
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("{}/{}", self.server, self.name)
    }

    /// Runs SQL in it, beside the servers.
    ///
    /// # Panics
    /// When it fails.
    pub fn execute(&self, statement: &str) {
        self.psql_on(&self.name, statement);
    }

    fn psql(&self, statement: &str) {
        self.psql_on("postgres", statement);
    }

    fn psql_on(&self, database: &str, statement: &str) {
        let result = Command::new("psql")
            .args(["-q", "-v", "ON_ERROR_STOP=1", "-c", statement])
            .arg(format!("{}/{database}", self.server))
            .output()
            .expect("psql comes with PostgreSQL");
        assert!(
            result.status.success(),
            "{statement}: {}",
            String::from_utf8_lossy(&result.stderr)
        );
    }
}

impl Default for Database {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.psql(&format!("DROP DATABASE {} WITH (FORCE)", self.name));
        }
    }
}
