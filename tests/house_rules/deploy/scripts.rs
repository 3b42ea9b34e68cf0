//! Slurm's scripts and the package do what they say, the image is built as the rest is.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use super::{all, text_at, workloads};
use crate::tree::root;

#[test]
fn the_image_is_built_with_our_toolchain_and_named_by_our_version() {
    let file = |path: &str| fs::read_to_string(root().join(path)).expect("it is there");
    let toolchain: toml::Table =
        toml::from_str(&file("rust-toolchain.toml")).expect("it can be read");
    let channel = toolchain["toolchain"]["channel"]
        .as_str()
        .expect("a channel");
    let dockerfile = file("deploy/Dockerfile");
    assert!(
        dockerfile.contains(&format!("FROM rust:{channel}-")),
        "another toolchain"
    );
    // Where no authorities are, no https receiver can be told anything.
    let (_, last) = dockerfile.rsplit_once("\nFROM ").expect("two stages");
    let copied = "COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/";
    assert!(
        last.lines().any(|it| it == copied),
        "the image trusts nobody"
    );
    let ignored = file(".dockerignore");
    let manifest: toml::Table = toml::from_str(&file("Cargo.toml")).expect("it can be read");
    let members = manifest["workspace"]["members"]
        .as_array()
        .expect("a list of crates");
    for member in members.iter().filter_map(toml::Value::as_str) {
        let first = member.split('/').next().unwrap_or_default();
        assert!(
            !ignored.lines().any(|it| it.trim_matches('/') == first),
            "{member} is ignored"
        );
    }
    let version = manifest["workspace"]["package"]["version"]
        .as_str()
        .expect("a version");
    let image = format!("gpufleet:{version}");
    for (overlay, objects) in all() {
        for (name, template) in workloads(&objects) {
            assert_eq!(
                text_at(template, "spec.containers.0.image"),
                image,
                "{overlay} {name}"
            );
        }
    }
}

/// What the driver writes in /proc of a GPU, in `jobs.gpus` of this folder.
fn of_the_driver(place: &Path, address: &str, uuid: &str, minor: &str) {
    let of_gpu = place.join("jobs.gpus").join(address);
    fs::create_dir_all(&of_gpu).expect("it can be made");
    let text = format!(
        "Model: \t\t NVIDIA H100 80GB HBM3\nGPU UUID: \t {uuid}\nBus Location: \t {address}\n\
         Device Minor: \t {minor}\nGPU Excluded:\t No\n"
    );
    fs::write(of_gpu.join("information"), text).expect("written");
}

/// Runs one of Slurm's scripts for a job, as slurmd does.
fn slurm(script: &str, folder: &Path, job: &str, gpus: &str) {
    let status = Command::new("sh")
        .args(["-c", "umask 077 && exec \"$0\""])
        .arg(super::folder().join("slurm").join(script))
        .env("GPUFLEET_JOB_FOLDER", folder)
        .env("GPUFLEET_NVIDIA_GPUS", folder.with_extension("gpus"))
        .env("SLURM_JOB_ID", job)
        .env("SLURM_JOB_GPUS", gpus)
        .status();
    assert!(
        status.expect("it can be run").success(),
        "a failure drains the node"
    );
}

#[test]
fn slurms_scripts_keep_one_line_a_job_in_a_file_a_gpu() {
    let folder = tempfile::tempdir().expect("a folder");
    let said = || -> BTreeMap<String, String> {
        let listed = fs::read_dir(folder.path()).expect("it can be listed");
        let paths = listed.map(|it| it.expect("an entry").path());
        paths
            .map(|path| {
                let name = path
                    .file_name()
                    .expect("a name")
                    .to_string_lossy()
                    .into_owned();
                (name, fs::read_to_string(&path).expect("it can be read"))
            })
            .collect()
    };
    let files = |of: &[(&str, &str)]| -> BTreeMap<String, String> {
        of.iter()
            .map(|(gpu, jobs)| ((*gpu).to_owned(), (*jobs).to_owned()))
            .collect()
    };
    slurm("prolog.sh", folder.path(), "7", "0-1,5");
    slurm("prolog.sh", folder.path(), "7", "0-1,5");
    slurm("prolog.sh", folder.path(), "17", "1");
    let both = files(&[("0", "7\n"), ("1", "7\n17\n"), ("5", "7\n")]);
    assert_eq!(said(), both);
    slurm("prolog.sh", folder.path(), "$(id)", "1");
    slurm("prolog.sh", folder.path(), "8", "../../x");
    slurm("epilog.sh", folder.path(), "../1", "");
    assert_eq!(said(), both);
    slurm("epilog.sh", folder.path(), "7", "");
    assert_eq!(said(), files(&[("1", "17\n")]));
    // The machine went down with the job on it: what its file says is of before.
    let old = fs::File::open(folder.path().join("1")).expect("it is there");
    old.set_modified(std::time::UNIX_EPOCH).expect("its own");
    slurm("prolog.sh", folder.path(), "18", "1");
    assert_eq!(said(), files(&[("1", "18\n")]));
    slurm("epilog.sh", folder.path(), "18", "1");
    assert_eq!(said(), files(&[]));
}

#[test]
fn slurms_prolog_names_a_gpu_by_its_uuid_too_where_the_driver_tells_it() {
    let place = tempfile::tempdir().expect("a folder");
    let folder = place.path().join("jobs");
    // Minor numbers are in the order of no address, and one GPU has not begun yet.
    for (address, uuid, minor) in [
        (
            "0000:19:00.0",
            "GPU-0a1b2c3d-0000-1111-2222-333344445555",
            "1",
        ),
        (
            "0000:3b:00.0",
            "GPU-11111111-0000-1111-2222-333344445555",
            "0",
        ),
        (
            "0000:4c:00.0",
            "GPU-????????-????-????-????-????????????",
            "2",
        ),
    ] {
        of_the_driver(place.path(), address, uuid, minor);
    }
    let named = || -> Vec<String> {
        let listed = fs::read_dir(&folder).expect("it can be listed");
        let names = listed.map(|it| it.expect("an entry").file_name());
        let mut names: Vec<String> = names.map(|it| it.to_string_lossy().into_owned()).collect();
        names.sort();
        names
    };
    slurm("prolog.sh", &folder, "7", "1-2");
    let of_second = "GPU-0a1b2c3d-0000-1111-2222-333344445555";
    // The agent, which is not root, may read all of it.
    let rights = |path: &Path| fs::metadata(path).expect("it is there").mode() & 0o777;
    assert_eq!(rights(&folder), 0o755);
    assert_eq!(rights(&folder.join(of_second)), 0o644);
    slurm("prolog.sh", &folder, "9", "1");
    slurm("epilog.sh", &folder, "9", "");
    assert_eq!(rights(&folder.join("1")), 0o644, "it was written anew");
    assert_eq!(named(), ["1", "2", of_second]);
    let text = fs::read_to_string(folder.join(of_second)).expect("it is there");
    assert_eq!(text, "7\n");
    slurm("epilog.sh", &folder, "7", "");
    assert_eq!(named(), [""; 0]);
}

#[test]
fn jobs_that_begin_and_end_on_a_gpu_at_once_lose_no_line() {
    const JOBS: u32 = 24;
    let folder = tempfile::tempdir().expect("a folder");
    for job in 100..100 + JOBS {
        slurm("prolog.sh", folder.path(), &job.to_string(), "0");
    }
    std::thread::scope(|scope| {
        for number in 0..JOBS {
            let folder = folder.path();
            let (begins, ends) = ((200 + number).to_string(), (100 + number).to_string());
            scope.spawn(move || slurm("prolog.sh", folder, &begins, "0"));
            scope.spawn(move || slurm("epilog.sh", folder, &ends, ""));
        }
    });
    let left = fs::read_to_string(folder.path().join("0")).expect("it can be read");
    let mut left: Vec<u32> = left.lines().map(|it| it.parse().expect("a job")).collect();
    left.sort_unstable();
    assert_eq!(left, (200..200 + JOBS).collect::<Vec<_>>());
}

#[test]
fn slurms_probe_fails_for_wrong_results_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let agent = folder.path().join("agent");
    let said = folder.path().join("said");
    // Slurm's numbers are those of device files, and the driver's own are in another order.
    for (minor, uuid) in [
        ("0", "GPU-0a"),
        ("1", "GPU-1b"),
        ("3", "GPU-3c"),
        ("5", "GPU-?"),
    ] {
        of_the_driver(folder.path(), &format!("0000:{minor}9:00.0"), uuid, minor);
    }
    for (code, gpus, is_let, options) in [
        (
            0,
            "0-1,3",
            true,
            "probe --gate --gpu GPU-0a --gpu GPU-1b --gpu GPU-3c\n",
        ),
        (20, "3", false, "probe --gate --gpu GPU-3c\n"),
        (30, "3", true, "probe --gate --gpu GPU-3c\n"),
        (1, "3", true, "probe --gate --gpu GPU-3c\n"),
        // One has not begun yet, and one is not there: others are not probed in their place.
        (20, "1,5,7", false, "probe --gate --gpu GPU-1b\n"),
        (20, "5,7", true, ""),
        (20, "$(id)", true, ""),
        (20, "", true, ""),
    ] {
        fs::write(&said, "").expect("written");
        let script = format!("#!/bin/sh\necho \"$@\" >{}\nexit {code}\n", said.display());
        fs::write(&agent, script).expect("written");
        fs::set_permissions(&agent, fs::Permissions::from_mode(0o755)).expect("its right");
        let status = Command::new(super::folder().join("slurm/probe.sh"))
            .env("GPUFLEET_AGENT", &agent)
            .env("GPUFLEET_NVIDIA_GPUS", folder.path().join("jobs.gpus"))
            .env("SLURM_JOB_GPUS", gpus)
            .status();
        assert_eq!(
            status.expect("it can be run").success(),
            is_let,
            "{code} {gpus}"
        );
        assert_eq!(
            fs::read_to_string(&said).expect("it is there"),
            options,
            "{gpus}"
        );
    }
}

#[test]
fn the_package_holds_all_programs_and_refuses_one_that_needs_a_newer_c_library() {
    let place = tempfile::tempdir().expect("a folder");
    let programs = place.path().join("programs");
    fs::create_dir(&programs).expect("it can be made");
    for program in ["gpufleet", "gpufleet-agent", "gpufleet-server"] {
        fs::copy("/bin/true", programs.join(program)).expect("a program that is everywhere");
    }
    let package = |floor: &str| {
        Command::new(root().join("scripts/package.sh"))
            .args(["--from".as_ref(), programs.as_os_str()])
            .args(["--into".as_ref(), place.path().as_os_str()])
            .env("GLIBC_FLOOR", floor)
            .output()
            .expect("it can be run")
    };
    let refused = package("2.2");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && said.contains("newer C library"),
        "{said}"
    );
    let made = package("9.9");
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    let listed = fs::read_dir(place.path()).expect("it can be listed");
    let mut paths = listed.map(|it| it.expect("an entry").path());
    let package = paths.find(|it| it.extension().is_some_and(|it| it == "deb"));
    let package = package.expect("a .deb");
    let recommends = Command::new("dpkg-deb")
        .arg("--field")
        .arg(&package)
        .arg("Recommends")
        .output();
    let recommends = recommends.expect("dpkg-deb is there").stdout;
    assert_eq!(String::from_utf8_lossy(&recommends), "ca-certificates\n");
    let listing = Command::new("dpkg-deb")
        .arg("--contents")
        .arg(&package)
        .output();
    let listing = String::from_utf8_lossy(&listing.expect("dpkg-deb is there").stdout).into_owned();
    for path in [
        "./usr/bin/gpufleet",
        "./usr/bin/gpufleet-agent",
        "./usr/bin/gpufleet-server",
        "./lib/systemd/system/gpufleet-agent.service",
        "./lib/systemd/system/gpufleet-server.service",
        "./etc/gpufleet/agent.toml",
        "./etc/gpufleet/server.toml",
        "./usr/share/gpufleet/slurm/prolog.sh",
        "./usr/share/gpufleet/alerts/rules/gpu.yml",
        "./usr/share/doc/gpufleet/runbooks/xid.md",
        "./usr/share/doc/gpufleet/LICENSE",
        "./usr/share/doc/gpufleet/copyright",
    ] {
        assert!(
            listing.lines().any(|it| it.ends_with(path)),
            "{path}\n{listing}"
        );
    }
    let unpacked = place.path().join("unpacked");
    let status = Command::new("dpkg-deb")
        .arg("--raw-extract")
        .args([&package, &unpacked])
        .status();
    assert!(status.expect("dpkg-deb is there").success());
    let notices = unpacked.join("usr/share/doc/gpufleet/THIRD-PARTY");
    let notices = fs::read_to_string(notices).expect("it is in the package");
    let is_of_tokio = |it: &str| it.starts_with("tokio v1.") && it.ends_with(" MIT");
    assert!(notices.lines().any(is_of_tokio), "{notices}");
    assert!(!notices.contains("gpufleet"), "our own are under LICENSE");
    // With their texts, each once behind all files that have it.
    let is_file_of_tokio = |it: &str| it.starts_with("tokio-1.") && it.ends_with("/LICENSE");
    assert!(notices.lines().any(is_file_of_tokio));
    assert!(notices.contains("Permission is hereby granted, free of charge"));
    let files = notices.lines().filter(|it| it.ends_with("/LICENSE-APACHE"));
    let texts = notices
        .lines()
        .filter(|it| it.contains("TERMS AND CONDITIONS FOR USE"));
    let (files, texts) = (files.count(), texts.count());
    assert!((1..files / 2).contains(&texts), "{texts} of {files}");
    assert!(
        notices.contains("/mimalloc/"),
        "C that a crate brings has its own text"
    );
    its_scripts_do_what_is_usual(&unpacked);
}

/// What the scripts of a package ask of systemd when it is installed, updated and removed.
fn its_scripts_do_what_is_usual(package: &Path) {
    let machine = tempfile::tempdir().expect("a folder");
    let (tools, said) = (machine.path().join("tools"), machine.path().join("said"));
    for folder in ["tools", "run/systemd/system"] {
        fs::create_dir_all(machine.path().join(folder)).expect("it can be made");
    }
    // A version that refuses the config that was good before: its unit does not come up.
    let systemctl = format!(
        "#!/bin/sh\necho \"$@\" >>{}\n[ \"$1\" != try-restart ]\n",
        said.display()
    );
    for (tool, text) in [
        ("systemctl", systemctl.as_str()),
        ("systemd-sysusers", "#!/bin/sh\n"),
        ("chown", "#!/bin/sh\n"),
    ] {
        let path = tools.join(tool);
        fs::write(&path, text).expect("it can be written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its right");
    }
    let run = |script: &str, word: &str| {
        fs::write(&said, "").expect("it can be written");
        let done = Command::new(package.join("DEBIAN").join(script))
            .arg(word)
            .env("DPKG_ROOT", machine.path())
            .env("PATH", format!("{}:/usr/bin:/bin", tools.display()))
            .output();
        let done = done.expect("it can be run");
        let told = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.success(), "{script} {word}: {told}");
        let asked = fs::read_to_string(&said).expect("it is there");
        (asked.lines().map(str::to_owned).collect::<Vec<_>>(), told)
    };
    let (asked, told) = run("postinst", "configure");
    let restarts = ["try-restart gpufleet-agent", "try-restart gpufleet-server"];
    assert_eq!(asked, ["daemon-reload", restarts[0], restarts[1]]);
    assert!(told.contains("journalctl -u gpufleet-server"), "{told}");
    let both = "gpufleet-agent gpufleet-server";
    let stops = [format!("stop {both}"), format!("--quiet disable {both}")];
    assert_eq!(run("prerm", "remove").0, stops);
    assert_eq!(run("postrm", "remove").0, ["daemon-reload"]);
    for (script, word) in [
        ("prerm", "upgrade"),
        ("postrm", "upgrade"),
        ("postrm", "purge"),
    ] {
        assert_eq!(run(script, word).0, [""; 0], "{script} {word}");
    }
}

/// What systemd says to our units, after `change` of each; nothing where it is content. None where there is no systemd.
fn verified(change: impl Fn(String) -> String) -> Option<String> {
    let place = tempfile::tempdir().expect("a folder");
    let units = place.path().join("etc/systemd/system");
    let programs = place.path().join("usr/bin");
    for folder in [&units, &programs] {
        fs::create_dir_all(folder).expect("it can be made");
    }
    for side in ["agent", "server"] {
        let name = format!("gpufleet-{side}");
        let unit = super::folder().join(format!("systemd/{name}.service"));
        let text = fs::read_to_string(unit).expect("it is there");
        fs::write(units.join(format!("{name}.service")), change(text)).expect("it can be written");
        fs::copy("/bin/true", programs.join(name)).expect("a program that is everywhere");
    }
    for target in [
        "sysinit",
        "basic",
        "shutdown",
        "network-online",
        "multi-user",
    ] {
        let unit = units.join(format!("{target}.target"));
        fs::write(unit, "[Unit]\n").expect("it can be written");
    }
    let verify = Command::new("systemd-analyze")
        .args(["verify", "--man=no", "--root"])
        .arg(place.path())
        .args(["gpufleet-agent.service", "gpufleet-server.service"])
        .output();
    Some(String::from_utf8_lossy(&verify.ok()?.stderr).into_owned())
}

#[test]
fn systemd_has_nothing_to_say_to_our_units() {
    let Some(said) = verified(|unit| unit) else {
        eprintln!("NOT RUN: our units by systemd, no systemd-analyze is on this machine");
        return;
    };
    assert_eq!(said, "");
    let said = verified(|unit| unit.replace("Restart=always", "Restart=maybe"));
    assert!(
        said.is_some_and(|it| it.contains("restart")),
        "what is wrong is found"
    );
}

#[test]
fn the_agents_unit_refuses_it_no_device() {
    // Each makes a list of the devices that may be opened, which has no /dev/nvidia*: ProtectClock too, before systemd 253
    // (Ubuntu 22.04 has 249).
    const LISTS: [&str; 4] = [
        "ProtectClock",
        "PrivateDevices",
        "DeviceAllow",
        "DevicePolicy",
    ];
    let unit = super::folder().join("systemd/gpufleet-agent.service");
    let unit = fs::read_to_string(unit).expect("it is there");
    let keys = unit.lines().filter_map(|it| it.split_once('='));
    let lists: Vec<&str> = keys
        .map(|it| it.0.trim())
        .filter(|it| LISTS.contains(it))
        .collect();
    assert_eq!(lists, [""; 0]);
    // What ProtectClock takes away is taken away without it.
    let is_bare = unit.lines().any(|it| it == "CapabilityBoundingSet=");
    assert!(is_bare, "or it could set the clock");
}
