//! Where the servers of a test keep their record: a file in its folder, or a database of its own on the
//! tests' PostgreSQL. A test that is to hold on both says so once, with [`crate::on_both_databases`].

use std::path::Path;
use std::process::Command;

use super::postgres::Database;

/// The variable with which a run has every test that does not choose itself on PostgreSQL:
/// `GPUFLEET_TEST_DATABASE=postgres`.
pub const VARIABLE: &str = "GPUFLEET_TEST_DATABASE";

/// One of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A file, `server.db`.
    Sqlite,
    /// A database that is dropped with the test's folder.
    Postgres,
}

/// The database of a test.
#[derive(Debug)]
pub(super) enum Record {
    Sqlite,
    Postgres(Database),
}

impl Kind {
    /// What a test is on that does not choose.
    ///
    /// # Panics
    /// When the variable has another value than `sqlite` and `postgres`.
    pub fn of_this_run() -> Self {
        match std::env::var(VARIABLE).as_deref() {
            Err(_) | Ok("sqlite") => Self::Sqlite,
            Ok("postgres") => Self::Postgres,
            Ok(other) => panic!("{VARIABLE}={other}: it is sqlite or postgres"),
        }
    }
}

impl Record {
    pub(super) fn new(kind: Kind) -> Self {
        match kind {
            Kind::Sqlite => Self::Sqlite,
            Kind::Postgres => Self::Postgres(Database::new()),
        }
    }

    pub(super) fn url(&self, file: &Path) -> String {
        match self {
            Self::Sqlite => format!("sqlite:{}", file.display()),
            Self::Postgres(database) => database.url(),
        }
    }

    pub(super) fn execute(&self, file: &Path, statement: &str) {
        match self {
            Self::Postgres(database) => database.execute(statement),
            Self::Sqlite => {
                let python = "import sqlite3, sys; it = sqlite3.connect(sys.argv[1], timeout=60); \
                    it.execute(sys.argv[2]); it.commit()";
                let mut command = Command::new("python3");
                let ran = command.args(["-c", python]).arg(file).arg(statement);
                let status = ran.status().expect("python3 is there");
                assert!(status.success(), "{statement}");
            }
        }
    }

    pub(super) fn everything(&self, file: &Path) -> Vec<u8> {
        match self {
            Self::Sqlite => std::fs::read(file).expect("a server has kept something"),
            Self::Postgres(database) => database.dump(),
        }
    }
}

/// Two tests of one function: `NAME::on_sqlite` and `NAME::on_postgres`, each with a [`World`] of its own
/// whose servers keep their record there.
///
/// [`World`]: crate::harness::World
#[macro_export]
macro_rules! on_both_databases {
    ($($test:ident),+ $(,)?) => {$(
        mod $test {
            use $crate::harness::World;
            use $crate::harness::database::Kind;

            #[test]
            fn on_sqlite() {
                super::$test(World::on(Kind::Sqlite));
            }

            #[test]
            fn on_postgres() {
                super::$test(World::on(Kind::Postgres));
            }
        }
    )+};
}
