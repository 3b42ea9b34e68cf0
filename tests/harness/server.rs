//! The real server.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::faketime;
use super::http::{self, Answer};
use super::process::Process;
use super::{World, built, free_port, wait};

/// How long it may take until its pages answer: migrations of a new database included.
const START_LIMIT: Duration = Duration::from_secs(90);

/// Where a server listens and keeps its data: the same before and after a kill.
#[derive(Debug, Clone)]
pub struct Place {
    /// Pages and API.
    pub web: String,
    /// OTLP over gRPC.
    pub grpc: String,
    /// OTLP over HTTP.
    pub http: String,
    /// The database's URL.
    pub database: String,
    /// Where its log is appended.
    pub log: PathBuf,
    /// Where its spool lies.
    pub spool: PathBuf,
    /// Further keys, `section.key=value`.
    pub set: Vec<String>,
    /// How much later it is on its clock than here, in libfaketime's words; empty: not at all.
    pub later: String,
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    /// Where it is.
    pub place: Place,
    process: Process,
}

impl Place {
    /// Free ports, the record in the world's database.
    pub fn new(world: &World) -> Self {
        Self::with_record(world, world.database())
    }

    /// Free ports, the record in SQLite whatever the world's database is.
    pub fn sqlite(world: &World) -> Self {
        let file = world.path("server.db");
        Self::with_record(world, format!("sqlite:{}", file.display()))
    }

    fn with_record(world: &World, database: String) -> Self {
        Self {
            web: format!("127.0.0.1:{}", free_port()),
            grpc: format!("127.0.0.1:{}", free_port()),
            http: format!("127.0.0.1:{}", free_port()),
            database,
            log: world.path("server.log"),
            spool: world.path("server-spool"),
            set: Vec::new(),
            later: String::new(),
        }
    }

    /// The same with its record in another database.
    #[must_use]
    pub fn on(mut self, database: &str) -> Self {
        self.database = database.to_owned();
        self
    }

    /// The same with one key set.
    #[must_use]
    pub fn with(mut self, key_and_value: &str) -> Self {
        self.set.push(key_and_value.to_owned());
        self
    }

    /// The same with a clock that is ahead by so much, such as `+15m`.
    #[must_use]
    pub fn later(mut self, by: &str) -> Self {
        self.later = by.to_owned();
        self
    }

    /// The command that starts it.
    pub fn command(&self) -> Command {
        let mut command = Command::new(built("gpufleet-server"));
        // Where the tests run in a pod, the server is in none.
        command.env_remove("KUBERNETES_SERVICE_HOST");
        if !self.later.is_empty() {
            command.envs(faketime::running("FAKETIME", &self.later));
        }
        let keys = [
            format!("web.listen={}", self.web),
            format!("ingest.grpc_listen={}", self.grpc),
            format!("ingest.http_listen={}", self.http),
            format!("ingest.spool_dir={}", self.spool.display()),
            format!("store.url={}", self.database),
        ];
        for key in keys.iter().chain(&self.set) {
            command.arg("--set").arg(key);
        }
        command
    }

    /// Starts it and waits until it answers.
    ///
    /// # Panics
    /// When it does not.
    pub fn start(&self) -> Server {
        self.start_until("/api/v1/health")
    }

    /// Starts it beside one that leads, and waits until it answers that it lives.
    ///
    /// # Panics
    /// When it does not.
    pub fn start_standby(&self) -> Server {
        let server = self.start_until("/healthz");
        wait::until("the server is a standby", START_LIMIT, || {
            server
                .get("/readyz")
                .text()
                .contains("standby")
                .then_some(())
        });
        server
    }

    fn start_until(&self, path: &str) -> Server {
        let mut process = Process::start("gpufleet-server", self.command(), &self.log);
        wait::until("the server answers", START_LIMIT, || {
            process.must_run();
            http::get(&self.web, path)
                .ok()
                .filter(|answer| answer.status == 200)
        });
        Server {
            place: self.clone(),
            process,
        }
    }
}

impl Server {
    /// kill -9.
    pub fn kill(self) -> Place {
        self.process.kill();
        self.place
    }

    /// Asks it to stop; it must do so in time and without an error.
    ///
    /// # Panics
    /// When it does not.
    pub fn stop(self) -> Place {
        let status = self.process.stop();
        assert!(status.success(), "the server stopped with {status}");
        self.place
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// What it printed.
    pub fn output(&self) -> String {
        self.process.output()
    }

    /// POST of JSON to the API.
    ///
    /// # Panics
    /// When it does not answer.
    pub fn post(&self, path: &str, body: &str) -> Answer {
        let headers = [("content-type", "application/json")];
        http::post(&self.place.web, path, &headers, body.as_bytes())
            .unwrap_or_else(|error| panic!("POST {path}: {error}\n{}", self.process.tail()))
    }

    /// GET of a page or of the API.
    ///
    /// # Panics
    /// When it does not answer.
    pub fn get(&self, path: &str) -> Answer {
        http::get(&self.place.web, path)
            .unwrap_or_else(|error| panic!("GET {path}: {error}\n{}", self.process.tail()))
    }
}
