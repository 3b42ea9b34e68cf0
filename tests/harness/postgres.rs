//! A database of its own on the tests' PostgreSQL.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::process::Command;

use super::World;
use super::small_disk::SmallDisk;

/// The variable with the URL of the tests' PostgreSQL, without a database.
pub const VARIABLE: &str = "GPUFLEET_TEST_POSTGRES";

/// A database that is dropped with this value.
#[derive(Debug)]
pub struct Database {
    server: String,
    name: String,
    /// Whether its tables lie in a tablespace of its own, of the same name.
    has_tablespace: bool,
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
        let database = Self {
            server,
            name,
            has_tablespace: false,
        };
        database.psql(&format!("CREATE DATABASE {}", database.name));
        database
    }

    /// A new, empty database whose tables lie on this disk; what PostgreSQL writes ahead does not. The
    /// disk is given back after it.
    ///
    /// # Panics
    /// As [`Self::new`], and when the disk cannot be given to the user that PostgreSQL runs as.
    pub fn on(world: &World, disk: &SmallDisk) -> Self {
        let mut database = Self::new();
        let folder = disk.path().join("tables");
        std::fs::create_dir(&folder).expect("an empty disk has room");
        let data = database.ask("SHOW data_directory");
        let owner = std::fs::metadata(data.trim()).expect("PostgreSQL's own folder");
        let mine = std::fs::metadata(&folder).expect("it was made here");
        if owner.uid() != mine.uid() {
            let given = std::os::unix::fs::chown(&folder, Some(owner.uid()), Some(owner.gid()));
            given.expect("PostgreSQL runs as another user only where the tests run as root");
            // That user must be able to walk there.
            let walkable = std::fs::Permissions::from_mode(0o711);
            std::fs::set_permissions(world.path(""), walkable).expect("the test's own folder");
        }
        let (name, folder) = (database.name.clone(), folder.display().to_string());
        database.psql(&format!("CREATE TABLESPACE {name} LOCATION '{folder}'"));
        database.has_tablespace = true;
        database.psql(&format!("ALTER DATABASE {name} SET TABLESPACE {name}"));
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

    /// Everything in it, as PostgreSQL writes it down.
    ///
    /// # Panics
    /// When it cannot be read.
    pub fn dump(&self) -> Vec<u8> {
        let result = Command::new("pg_dump").arg(self.url()).output();
        let result = result.expect("pg_dump comes with PostgreSQL");
        let complaint = String::from_utf8_lossy(&result.stderr);
        assert!(result.status.success(), "{complaint}");
        result.stdout
    }

    fn psql(&self, statement: &str) {
        self.psql_on("postgres", statement);
    }

    fn ask(&self, statement: &str) -> String {
        self.psql_on("postgres", statement)
    }

    fn psql_on(&self, database: &str, statement: &str) -> String {
        let result = Command::new("psql")
            .args(["-q", "-At", "-v", "ON_ERROR_STOP=1", "-c", statement])
            .arg(format!("{}/{database}", self.server))
            .output()
            .expect("psql comes with PostgreSQL");
        assert!(
            result.status.success(),
            "{statement}: {}",
            String::from_utf8_lossy(&result.stderr)
        );
        String::from_utf8_lossy(&result.stdout).into_owned()
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
            if self.has_tablespace {
                self.psql(&format!("DROP TABLESPACE {}", self.name));
            }
        }
    }
}
