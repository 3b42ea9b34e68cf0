//! The server's config: its sections, each owned by its module.

use std::collections::BTreeMap;
use std::error::Error;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;

use axum::http::Uri;
use gpufleet_program::clock::SystemClock;
use gpufleet_program::config::ProgramConfig;
use gpufleet_program::log;
use gpufleet_program::traces::TraceConfig;
use gpufleet_program::{section, sections};
use gpufleet_telemetry::gpu_specs::Specs;
use gpufleet_telemetry::time::Clock;

use crate::auth::{Access, AuthConfig, Role, person};
use crate::detect::DetectConfig;
use crate::detect::{limits, prices, tuned};
use crate::export::cloud_monitoring::CloudMonitoring;
use crate::export::remote_write::RemoteWrite;
use crate::export::{CloudMonitoringConfig, RemoteWriteConfig};
use crate::fleet::FleetConfig;
use crate::handoff::HandoffConfig;
use crate::inventory::InventoryConfig;
use crate::ledger::LedgerConfig;
use crate::money::CostConfig;
use crate::money::terms::{self, Terms};
use crate::notify::Channels;
use crate::notify::heartbeat;
use crate::notify::settings::{NotifyConfig, Settings};
use crate::retention::RetentionConfig;
use crate::store::StoreConfig;

sections! {
    /// Everything the server can be told.
    pub struct Config {
        /// Where data comes in.
        pub ingest: IngestConfig,
        /// Live state and commits.
        pub fleet: FleetConfig,
        /// Pages and API.
        pub web: WebConfig,
        /// What is known of the cards themselves.
        pub gpu: GpuConfig,
        /// Who may do what, and TLS.
        pub auth: AuthConfig,
        /// Where the record is kept.
        pub store: StoreConfig,
        /// What the cluster has beside what agents tell.
        pub inventory: InventoryConfig,
        /// Where the time of every GPU went.
        pub ledger: LedgerConfig,
        /// What is judged, and what a GPU costs.
        pub detect: DetectConfig,
        /// Who is told of incidents, by which way.
        pub notify: NotifyConfig,
        /// What Kubernetes is told of nodes that are to be drained.
        pub handoff: HandoffConfig,
        /// Prices, and who pays.
        pub cost: CostConfig,
        /// Minutes of the record, pushed to others.
        pub remote_write: RemoteWriteConfig,
        /// Minutes of the record, pushed to Google Cloud Monitoring.
        pub cloud_monitoring: CloudMonitoringConfig,
        /// How long what is kept.
        pub retention: RetentionConfig,
        /// Where the server's own traces go.
        pub trace: TraceConfig,
    }
}

section! {
    /// Where data comes in: OTLP over gRPC and HTTP.
    pub struct IngestConfig {
        /// Address and port of OTLP over gRPC.
        pub grpc_listen: String = "127.0.0.1:4317".to_owned(),
        /// Address and port of OTLP over HTTP.
        pub http_listen: String = "127.0.0.1:4318".to_owned(),
        /// The cluster of data that names none and whose token is bound to none.
        pub default_cluster: String = "default".to_owned(),
        /// Folder of the server's own spool, where foreign OTLP is made durable before the reply.
        pub spool_dir: String = "/var/lib/gpufleet/server/spool".to_owned(),
        /// Requests worked on at the same time; more wait, and are refused when the wait is long.
        pub max_concurrent_requests: usize = 64,
        /// Longest time one request may take, milliseconds.
        pub request_timeout_ms: u64 = 10_000,
    }
}

section! {
    /// The pages, the API and the server's own /metrics.
    pub struct WebConfig {
        /// Address and port of pages, API and /metrics.
        pub listen: String = "127.0.0.1:8080".to_owned(),
    }
}

section! {
    /// What is known of the cards themselves.
    pub struct GpuConfig {
        /// Dense peak rates of cards that the table lacks, one line for each, by its name as NVML
        /// spells it: "NVIDIA X" = "bf16 989.4, fp8 1979, memory_gbs 3350, power_watts 700".
        pub peaks: BTreeMap<String, String> = BTreeMap::new(),
    }
}

impl ProgramConfig for Config {
    const PROGRAM: &'static str = "server";

    fn check(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        Specs::with(&self.gpu.peaks)?;
        Access::load(&self.auth)?;
        person::check(&self.auth)?;
        self.retention.check()?;
        self.cost.check()?;
        prices::check(&self.detect.gpu_hour_usd)?;
        limits::check(&self.detect.limits)?;
        tuned::check(&self.detect)?;
        self.store.check()?;
        self.inventory.check()?;
        self.handoff.check()?;
        log::rehearse(&self.trace)?;
        Settings::read(&self.notify)?;
        Ok(())
    }

    fn rehearse(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        let access = Access::load(&self.auth)?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
        Channels::new(&self.notify, &clock)?;
        heartbeat::address_of(&self.notify)?;
        RemoteWrite::new(&self.remote_write, &clock)?;
        CloudMonitoring::new(&self.cloud_monitoring, &self.store.lease)?;
        let mut taken: BTreeMap<SocketAddr, &str> = BTreeMap::new();
        for (key, address, role) in self.doors() {
            let refused = |error: std::io::Error| {
                format!("{key} = {address:?} is not an address and port: {error}")
            };
            for address in address.to_socket_addrs().map_err(refused)? {
                access.permit(&self.auth, key, address, role)?;
                if let Some(other) = taken.insert(address, key).filter(|_| address.port() != 0) {
                    return Err(format!("{key} and {other} are both {address}").into());
                }
            }
        }
        Ok(())
    }

    /// The owner rules in the database are not seen here, so that nothing of it is needed: the doctor sees all.
    fn doubts(&self) -> Vec<String> {
        let Ok(settings) = Settings::read(&self.notify) else {
            return Vec::new();
        };
        let terms = Terms::of(terms::Sources::of(self).read());
        let now = SystemClock::start().now();
        let strangers = settings.strangers(&terms.owners, now).into_iter();
        // What a label may name is most likely meant so, and the page Health says it too.
        let named_by_none = strangers.filter(|it| !it.is_perhaps);
        let named_by_none =
            named_by_none.map(|it| format!("{}, as far as this config says", it.words()));
        let has_channels = !self.notify.channels.is_empty();
        let dead_links = self.dead_links().filter(|_| has_channels);
        named_by_none.chain(dead_links).collect()
    }
}

impl Config {
    /// The keys of what is listened on, the addresses, and for whom the doors are.
    fn doors(&self) -> [(&'static str, &str, Role); 3] {
        [
            ("ingest.grpc_listen", &self.ingest.grpc_listen, Role::Ingest),
            ("ingest.http_listen", &self.ingest.http_listen, Role::Ingest),
            ("web.listen", &self.web.listen, Role::Read),
        ]
    }

    /// That links in messages open on this machine alone, though the pages are for others too; none where they are not.
    pub fn dead_links(&self) -> Option<String> {
        let is_here = |host: &str| {
            let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
            host == "localhost" || address.is_ok_and(|it| it.is_loopback())
        };
        let (page, listen) = (&self.notify.page_url, &self.web.listen);
        let uri: Uri = page.parse().ok()?;
        let (listens_on, _) = listen.rsplit_once(':')?;
        (is_here(uri.host()?) && !is_here(listens_on)).then(|| {
            format!(
                "notify.page_url = {page:?}: links in messages open on this machine alone, and web.listen = {listen:?} is for others too; set it to the address under which people open the pages"
            )
        })
    }

    /// A configuration for tests: every port chosen by the system.
    pub fn for_tests() -> Self {
        let mut config = Self::default();
        for listen in [
            &mut config.ingest.grpc_listen,
            &mut config.ingest.http_listen,
            &mut config.web.listen,
        ] {
            *listen = "127.0.0.1:0".to_owned();
        }
        // Where the tests run in a pod, the server is in none.
        config.inventory.source = "off".to_owned();
        config
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_program::config::assert_refused;

    use super::*;
    use crate::notify::settings::{ChannelConfig, Kind};

    #[test]
    fn links_in_messages_that_open_on_this_machine_alone_are_doubted_where_others_read_the_pages() {
        for (page, listen, is_dead) in [
            ("http://127.0.0.1:8080", "0.0.0.0:8080", true),
            ("http://localhost:8080/", "[::]:8080", true),
            ("https://[::1]", "10.0.0.7:8080", true),
            ("http://127.0.0.1:8080", "127.0.0.1:8080", false),
            ("http://127.0.0.1:8080", "localhost:8080", false),
            ("https://gpufleet.example.com", "0.0.0.0:8080", false),
        ] {
            let mut config = Config::for_tests();
            config.notify.page_url = page.to_owned();
            config.web.listen = listen.to_owned();
            assert_eq!(config.doubts(), [""; 0], "{page}: nobody is told");
            let pager = ChannelConfig::new("pager", Kind::Pagerduty);
            config.notify.channels.push(pager);
            let doubts = config.doubts();
            assert_eq!(doubts.len(), usize::from(is_dead), "{page}: {doubts:?}");
            let names_it = |it: &String| it.contains("notify.page_url");
            assert!(doubts.iter().all(names_it), "{doubts:?}");
        }
    }

    #[test]
    fn a_value_that_cannot_be_meant_is_refused_by_name() {
        let check = assert_refused::<Config>;
        check(
            "retention.events_d=0",
            &["retention.events_d = 0", "at least 1"],
        );
        check(
            "retention.minute_rows_h=-5",
            &["retention.minute_rows_h = -5", "at least 3"],
        );
        check(
            "cost.dashboard_url=\"javascript:x\"",
            &["cost.dashboard_url = \"javascript:x\"", "https://"],
        );
        check(
            "inventory.source=\"kubernetess\"",
            &["inventory.source = \"kubernetess\"", "static or off"],
        );
        check(
            "inventory.nodes={ \"n\" = \"H100\" }",
            &["inventory.nodes", "\"n\" = \"H100\"", "how many GPUs"],
        );
        check(
            "inventory.agent_within_s=5",
            &["inventory.agent_within_s = 5", "at least 10"],
        );
        check(
            "inventory.kubernetes_url=\"http://10.0.0.1\"",
            &["inventory.kubernetes_url", "without TLS"],
        );
        check(
            "detect.straggler_ratio=1",
            &["detect.straggler_ratio = 1", "1.01 to 3"],
        );
        check(
            "gpu.peaks={ \"NVIDIA X\" = \"warp 9\" }",
            &["NVIDIA X", "warp"],
        );
        check(
            "auth.tokens=[{ role = \"read\", file = \"/nowhere/token\" }]",
            &["token file", "/nowhere/token"],
        );
    }
    #[test]
    fn what_the_start_would_fail_at_is_refused_before_anything_is_opened() {
        let refused = |change: fn(&mut Config), words: &[&str]| {
            let mut config = Config::for_tests();
            change(&mut config);
            let outcome = config.check().and_then(|()| config.rehearse());
            let error = outcome.expect_err("refused").to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        };
        refused(
            |it| it.store.url = "mysql://host/x".to_owned(),
            &["store.url mysql://host/x"],
        );
        refused(
            |it| it.store.url = "postgres://user:secret@host:no-port/x".to_owned(),
            &["store.url postgres://user@host"],
        );
        refused(|it| it.store.lease.clear(), &["store.lease is empty"]);
        refused(
            |it| it.trace.endpoint = "nonsense".to_owned(),
            &["trace.endpoint", "nonsense"],
        );
        refused(
            |it| it.web.listen = "nowhere".to_owned(),
            &["web.listen", "nowhere"],
        );
        refused(
            |it| it.web.listen = "0.0.0.0:8080".to_owned(),
            &["web.listen", "0.0.0.0:8080", "TLS and token files"],
        );
        refused(
            |it| {
                it.ingest.grpc_listen = "127.0.0.1:4317".to_owned();
                it.ingest.http_listen = "127.0.0.1:4317".to_owned();
            },
            &["ingest.grpc_listen", "ingest.http_listen", "127.0.0.1:4317"],
        );
        Config::for_tests().rehearse().expect("this one may start");
    }
}
