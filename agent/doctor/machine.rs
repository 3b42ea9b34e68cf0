//! What doctor asks of the machine: driver files, rights, folders, clock, and who answers.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::admin::ListenConfig;
use crate::attribute::SEE_PROCESSES;
use crate::config::Config;

use super::Finding;

/// NVIDIA's vendor id on the PCI bus.
const NVIDIA: &str = "0x10de";

/// The machine, and what the config says of it.
#[derive(Debug, Clone)]
pub(super) struct Machine {
    root: PathBuf,
    proc: PathBuf,
    sys: PathBuf,
    state_folder: PathBuf,
    /// Where training processes connect; none when they are not read.
    hooks_socket: Option<PathBuf>,
    /// Whether NCCL is asked in the network namespaces of pods.
    ras_in_pods: bool,
    listen: ListenConfig,
    endpoint: String,
}

impl Machine {
    pub(super) fn new(root: PathBuf, config: &Config) -> Self {
        let under_root = |path: &Path| root.join(path.strip_prefix("/").unwrap_or(path));
        Self {
            proc: under_root(&config.host.proc_folder),
            sys: under_root(&config.host.sys_folder),
            state_folder: under_root(&config.node.state_folder),
            hooks_socket: config
                .hooks
                .enabled
                .then(|| under_root(&config.hooks.socket_path)),
            ras_in_pods: config.hooks.ras_in_pods && config.hooks.ras_period_seconds > 0,
            listen: config.listen.clone(),
            endpoint: config.ship.endpoint.clone(),
            root,
        }
    }

    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Whether an NVIDIA card is on the PCI bus; none when the bus cannot be looked at.
    pub(super) fn has_nvidia_card(&self) -> Option<bool> {
        let devices = fs::read_dir(self.sys.join("bus/pci/devices")).ok()?;
        let mut vendors = devices
            .flatten()
            .filter_map(|it| fs::read_to_string(it.path().join("vendor")).ok());
        Some(vendors.any(|vendor| vendor.trim() == NVIDIA))
    }
}

pub(super) fn driver(machine: &Machine) -> Finding {
    const CHECK: &str = "driver";
    let version = fs::read_to_string(machine.proc.join("driver/nvidia/version"));
    let device = machine.path("/dev/nvidiactl").exists();
    match (version, device) {
        (Ok(text), true) => {
            // `NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.105.08  …`
            let words = text.split_ascii_whitespace();
            let version = words
                .skip_while(|word| *word != "Module")
                .find(|word| word.starts_with(|c: char| c.is_ascii_digit()));
            Finding::yes(
                CHECK,
                format!("loaded, version {}", version.unwrap_or("unknown")),
            )
        }
        (Ok(_), false) => Finding::no(
            CHECK,
            "loaded, but /dev/nvidiactl is not there",
            "run nvidia-modprobe -c 0 -u; in a container give it the device (privileged, CDI or the device plugin)",
        ),
        (Err(_), _) => match machine.has_nvidia_card() {
            Some(false) => Finding::skip(CHECK, "no NVIDIA card in this machine"),
            Some(true) => Finding::no(
                CHECK,
                "an NVIDIA card is there, but its driver is not loaded",
                "install the driver, or load it: modprobe nvidia",
            ),
            None => Finding::skip(CHECK, "not loaded, and the PCI bus cannot be looked at"),
        },
    }
}

pub(super) fn rights(machine: &Machine) -> Finding {
    const CHECK: &str = "rights";
    let root = rustix::process::geteuid().is_root();
    let device = machine.path("/dev/nvidiactl");
    if device.exists()
        && let Err(error) = fs::File::open(&device)
    {
        return Finding::no(
            CHECK,
            format!("/dev/nvidiactl: {error}"),
            "add the agent's user to the group that owns it, or run it as root",
        );
    }
    // Holders of GPUs are other users' processes: their command and cgroup must be readable.
    if fs::read_to_string(machine.proc.join("1/cgroup")).is_err() {
        return Finding::no(
            CHECK,
            "other users' processes cannot be seen, so holders of GPUs stay unknown",
            SEE_PROCESSES,
        );
    }
    let who = if root { "root" } else { "not root" };
    Finding::yes(
        CHECK,
        format!("{who}; devices and other users' processes can be read"),
    )
}

pub(super) fn pressure(machine: &Machine) -> Finding {
    const CHECK: &str = "pressure (PSI)";
    match fs::read_to_string(machine.proc.join("pressure/cpu")) {
        Ok(_) => Finding::yes(CHECK, "the kernel counts it"),
        Err(error) => Finding::no(
            CHECK,
            format!("/proc/pressure/cpu: {error}"),
            "boot the kernel with psi=1 (needs CONFIG_PSI)",
        ),
    }
}

pub(super) fn hooks(machine: &Machine) -> Finding {
    const CHECK: &str = "hooks folder";
    let Some(socket) = &machine.hooks_socket else {
        return Finding::skip(CHECK, "hooks.enabled = false");
    };
    let folder = socket.parent().unwrap_or(socket);
    let name = folder.display();
    if !folder.is_dir() {
        return Finding::skip(
            CHECK,
            format!(
                "{name} is not there, so training processes are not read; only training hooks need it"
            ),
        );
    }
    if answers(socket) {
        return Finding::yes(CHECK, format!("an agent listens at {}", socket.display()));
    }
    match try_write(folder) {
        Ok(()) => Finding::yes(
            CHECK,
            format!("{name} can be written; no agent listens there now"),
        ),
        Err(error) => Finding::no(
            CHECK,
            format!("{name}: {error}"),
            "chown it to the agent's user",
        ),
    }
}

/// Whether NCCL's RAS service can be asked where pods train.
pub(super) fn ras(machine: &Machine) -> Finding {
    const CHECK: &str = "NCCL RAS";
    /// Bit of CAP_SYS_ADMIN in the set of rights that a process has.
    const SYS_ADMIN: u64 = 1 << 21;
    if machine.hooks_socket.is_none() {
        return Finding::skip(CHECK, "hooks.enabled = false");
    }
    if !machine.ras_in_pods {
        let why =
            "asked in the agent's own network namespace only; hooks.ras_in_pods = true asks pods";
        return Finding::skip(CHECK, why);
    }
    let status = fs::read_to_string(machine.proc.join("self/status")).unwrap_or_default();
    let rights = status.lines().find_map(|it| it.strip_prefix("CapEff:"));
    let rights = rights.and_then(|it| u64::from_str_radix(it.trim(), 16).ok());
    match rights {
        Some(rights) if rights & SYS_ADMIN != 0 => {
            Finding::yes(CHECK, "the network namespaces of pods may be entered")
        }
        _ => Finding::no(
            CHECK,
            "hooks.ras_in_pods = true, and the agent lacks the right CAP_SYS_ADMIN",
            "add SYS_ADMIN to securityContext.capabilities (AmbientCapabilities in a unit), or set hooks.ras_in_pods = false",
        ),
    }
}

/// Whether someone takes connections of training processes there.
fn answers(socket: &Path) -> bool {
    let address = SocketAddrUnix::new(socket);
    let file = net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    );
    let connected = address.and_then(|address| net::connect(file?, &address));
    // A full queue has somebody behind it as well.
    matches!(connected, Ok(()) | Err(Errno::AGAIN))
}

pub(super) fn state_folder(machine: &Machine) -> Finding {
    const CHECK: &str = "state folder";
    let folder = &machine.state_folder;
    let name = folder.display();
    if let Err(error) = fs::create_dir_all(folder).and_then(|()| try_write(folder)) {
        return Finding::no(
            CHECK,
            format!("{name}: {error}"),
            format!("mkdir -p {name} and give it to the agent's user, or set node.state_folder"),
        );
    }
    let Ok(room) = rustix::fs::statvfs(folder) else {
        return Finding::yes(CHECK, format!("{name} can be written"));
    };
    let free_mib = room.f_bavail.saturating_mul(room.f_frsize) / (1 << 20);
    // The spool may take 1 GiB.
    if free_mib < 1024 {
        return Finding::no(
            CHECK,
            format!("{name}: {free_mib} MiB free, the spool may take 1024"),
            "make room: in a long outage the oldest data is dropped sooner",
        );
    }
    Finding::yes(CHECK, format!("{name} can be written, {free_mib} MiB free"))
}

fn try_write(folder: &Path) -> std::io::Result<()> {
    let file = folder.join(format!(".doctor-{}", std::process::id()));
    fs::write(&file, b"doctor")?;
    fs::remove_file(&file)
}

pub(super) fn clock(machine: &Machine) -> Finding {
    const CHECK: &str = "clock";
    let signs = [
        (
            "/run/systemd/timesync/synchronized",
            "systemd-timesyncd has set it",
        ),
        ("/run/chrony/chronyd.pid", "chronyd runs"),
        ("/var/run/chronyd.pid", "chronyd runs"),
        ("/run/chronyd.pid", "chronyd runs"),
        ("/run/ntpd.pid", "ntpd runs"),
        ("/run/ntpsec/ntpd.pid", "ntpd runs"),
    ];
    let found = signs.iter().find(|(path, _)| machine.path(path).exists());
    match found {
        Some((_, why)) => Finding::yes(CHECK, *why),
        None => Finding::skip(
            CHECK,
            "no time service can be seen from here (in a container the host's cannot); the server corrects up to an hour and says so",
        ),
    }
}

pub(super) async fn server(machine: &Machine) -> Finding {
    const CHECK: &str = "server";
    let endpoint = machine.endpoint.as_str();
    if endpoint.is_empty() {
        return Finding::skip(
            CHECK,
            "ship.endpoint is empty: nothing is sent, /metrics is served",
        );
    }
    // What stands before an @ may be a password, and what the doctor says is passed on.
    if endpoint.contains('@') {
        let line = "write it like http://server:4317 and put a token into ship.token_file";
        return Finding::no(CHECK, "ship.endpoint names somebody before its host", line);
    }
    let uri: Result<http::Uri, _> = endpoint.parse();
    let address = uri.ok().and_then(|uri| {
        let port = uri.port_u16();
        let by_scheme = if uri.scheme_str() == Some("https") {
            443
        } else {
            80
        };
        Some((uri.host()?.to_owned(), port.unwrap_or(by_scheme)))
    });
    let Some((host, port)) = address else {
        let why = format!("ship.endpoint `{endpoint}` is no address");
        return Finding::no(CHECK, why, "write it like http://server:4317");
    };
    let host = host.trim_matches(['[', ']']).to_owned();
    match tokio::net::TcpStream::connect((host.as_str(), port)).await {
        Ok(_) => Finding::yes(CHECK, format!("{endpoint} takes connections")),
        Err(error) => Finding::no(
            CHECK,
            format!("{endpoint}: {error}"),
            "is gpufleet-server running, is ship.endpoint right, is a firewall between?",
        ),
    }
}

pub(super) async fn listen(machine: &Machine) -> Finding {
    const CHECK: &str = "listen";
    let address: SocketAddr = match machine.listen.checked_address() {
        Ok(address) => address,
        Err(error) => {
            return Finding::no(CHECK, error.to_string(), "change [listen] in the config");
        }
    };
    match tokio::net::TcpListener::bind(address).await {
        Ok(_) => Finding::yes(CHECK, format!("{address} is free")),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => Finding::yes(
            CHECK,
            format!("{address} is taken, as it is when the agent runs"),
        ),
        Err(error) => Finding::no(CHECK, format!("{address}: {error}"), "set listen.address"),
    }
}
