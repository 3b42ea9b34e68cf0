//! How many processes the kernel killed for want of memory where a process ran, as cgroups count them.
//!
//! Version 2 counts in `memory.events`, what is below a cgroup included. The cgroup of a container is mostly gone when its
//! end is read, so of a pod or a Slurm job those above it are looked at as well, as far as they are of the same one. Version
//! 1 counts in `memory.oom_control` of its hierarchy `memory`, each cgroup its own alone.
//!
//! The kernel names a cgroup from the root that the agent sees: on the host and with privileges the host's, in another
//! container the agent's own, `/../../kubepods-…`. Where that lies in the host's tree its inode number says.
//!
//! Limits: [`MAX_FOLDERS`].

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::attribute::cgroup::Owner;

/// Most cgroups that are looked at for the agent's own: a node of 250 pods has some 2,000.
const MAX_FOLDERS: usize = 20_000;

/// Where cgroups are.
#[derive(Debug)]
pub(super) struct Cgroups {
    /// Where processes say which they are in.
    proc: PathBuf,
    /// The host's.
    host: PathBuf,
    /// What the agent sees as all of them.
    seen: PathBuf,
    /// Where the root of what it sees lies in the host's tree, once that was looked for.
    root: Option<Option<PathBuf>>,
}

/// The counts of a process' cgroup and of those above it that are of the same pod or job, the nearest first, and what each
/// was when the process was met.
#[derive(Debug, Default)]
pub(super) struct Kills(Vec<(PathBuf, u64)>);

impl Cgroups {
    /// Those below this `/sys`, which is the host's.
    pub(super) fn below(sys: &Path) -> Self {
        Self {
            proc: PathBuf::from("/proc"),
            host: sys.join("fs/cgroup"),
            seen: PathBuf::from("/sys/fs/cgroup"),
            root: None,
        }
    }

    /// Counts from now on where this process runs.
    pub(super) fn count(&mut self, pid: i32) -> Kills {
        let said = fs::read_to_string(self.proc.join(format!("{pid}/cgroup")));
        let files = said.ok().and_then(|it| self.files(&it)).unwrap_or_default();
        let counts = files.into_iter().filter_map(|file| {
            let kills = kills(&file)?;
            Some((file, kills))
        });
        Kills(counts.collect())
    }

    /// The files that count for a process whose cgroups are these, the nearest first.
    fn files(&mut self, said: &str) -> Option<Vec<PathBuf>> {
        let fields = |line: &str| {
            let mut fields = line.splitn(3, ':').skip(1);
            Some((fields.next()?.to_owned(), fields.next()?.to_owned()))
        };
        let groups: Vec<(String, String)> = said.lines().filter_map(fields).collect();
        let is_of_memory = |it: &&(String, String)| it.0.split(',').any(|name| name == "memory");
        // Where version 1 counts memory, version 2 does not.
        if let Some((_, path)) = groups.iter().find(is_of_memory) {
            let place = self.place("memory", path)?;
            let folder = self.host.join("memory").join(place);
            return Some(vec![folder.join("memory.oom_control")]);
        }
        let (_, path) = groups.iter().find(|it| it.0.is_empty())?;
        let place = self.place("", path)?;
        let owner = place.to_str().and_then(Owner::of);
        let is_of_owner = |it: &&Path| owner.is_some() && it.to_str().and_then(Owner::of) == owner;
        let above = place.ancestors().skip(1).take_while(is_of_owner);
        let all = std::iter::once(place.as_path()).chain(above);
        Some(
            all.map(|it| self.host.join(it).join("memory.events"))
                .collect(),
        )
    }

    /// Where a cgroup that the kernel names so lies below the root of a hierarchy of the host.
    fn place(&mut self, hierarchy: &str, path: &str) -> Option<PathBuf> {
        let mut parts = path.split('/').filter(|it| !it.is_empty()).peekable();
        let mut place = match parts.peek() {
            Some(&"..") => {
                let (host, seen) = (self.host.join(hierarchy), self.seen.join(hierarchy));
                let root = self.root.get_or_insert_with(|| place_of(&seen, &host));
                root.clone()?
            }
            _ => PathBuf::new(),
        };
        while parts.next_if_eq(&"..").is_some() {
            if !place.pop() {
                return None;
            }
        }
        place.extend(parts);
        Some(place)
    }
}

impl Kills {
    /// Processes that were killed since they were counted first; none where no count is left.
    pub(super) fn since(&self) -> Option<u64> {
        let grown = |(file, before): &(PathBuf, u64)| kills(file)?.checked_sub(*before);
        self.0.iter().find_map(grown)
    }
}

/// The count of one cgroup; none where it is gone or does not count.
fn kills(file: &Path) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|it| it.strip_prefix("oom_kill "))?;
    line.trim().parse().ok()
}

/// Where a folder lies below another one that is reached by another mount.
fn place_of(folder: &Path, top: &Path) -> Option<PathBuf> {
    let id = |path: &Path| fs::metadata(path).ok().map(|it| (it.dev(), it.ino()));
    let sought = id(folder)?;
    let mut waiting = vec![top.to_owned()];
    for _ in 0..MAX_FOLDERS {
        let path = waiting.pop()?;
        if id(&path) == Some(sought) {
            return path.strip_prefix(top).ok().map(Path::to_owned);
        }
        let below = fs::read_dir(&path).into_iter().flatten().flatten();
        let folders = below.filter(|it| it.file_type().is_ok_and(|it| it.is_dir()));
        waiting.extend(folders.map(|it| it.path()));
    }
    None
}

#[cfg(test)]
impl Cgroups {
    /// Those of a made machine: its `proc`, its `host`, and what the agent sees, `seen`.
    pub(super) fn for_tests(folder: &Path) -> Self {
        Self {
            proc: folder.join("proc"),
            host: folder.join("host"),
            seen: folder.join("seen"),
            root: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const SLICE: &str = "kubepods-burstable-pod0a1b2c3d_0000_1111_2222_333344445555.slice";
    const PODS: &str = "kubepods.slice/kubepods-burstable.slice";
    const JOB: &str = "system.slice/slurmstepd.scope/job_77";
    const UID: &str = "0a1b2c3d-0000-1111-2222-333344445555";
    /// The agent's own cgroup, where it is a pod.
    const AGENT: &str =
        "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1.slice/a.scope";

    /// A machine with a process, number 7, whose `/proc/7/cgroup` says this.
    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new(said: &str) -> Self {
            let machine = Self(tempfile::tempdir().expect("a folder"));
            machine.write("proc/7/cgroup", said);
            machine
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            let folder = path.parent().expect("it lies in one");
            fs::create_dir_all(folder).expect("made");
            fs::write(path, text).expect("written");
        }

        /// Version 2 says so many of a cgroup.
        fn events(&self, group: &str, kills: u64) {
            let text = format!("low 0\nhigh 0\nmax 9\noom 5\noom_kill {kills}\noom_group_kill 8\n");
            self.write(&format!("host/{group}/memory.events"), &text);
        }

        /// The agent's own cgroup is the root of what it sees.
        fn sees_its_own(&self, hierarchy: &str) {
            let own = self.0.path().join("host").join(hierarchy).join(AGENT);
            fs::create_dir_all(&own).expect("made");
            let mut seen = self.0.path().join("seen");
            if !hierarchy.is_empty() {
                fs::create_dir(&seen).expect("made");
                seen.push(hierarchy);
            }
            symlink(own, seen).expect("linked");
        }

        fn removes(&self, group: &str) {
            fs::remove_dir_all(self.0.path().join("host").join(group)).expect("removed");
        }

        fn count(&self) -> Kills {
            Cgroups::for_tests(self.0.path()).count(7)
        }
    }

    #[test]
    fn what_is_killed_in_a_cgroup_of_version_2_is_counted_from_when_the_process_was_met() {
        let of_user = "user.slice/user-1000.slice/session-3.scope";
        let of_pod = format!("{PODS}/{SLICE}/c.scope");
        let of_files = format!("kubepods/burstable/pod{UID}/c");
        let cases = [
            (format!("/{of_user}"), of_user, false),
            (format!("/{of_pod}"), of_pod.as_str(), false),
            // As an agent without privileges sees it: with systemd's folders, and with those of the kubelet alone.
            (
                format!("/../../../kubepods-burstable.slice/{SLICE}/c.scope"),
                of_pod.as_str(),
                true,
            ),
            (
                format!("/../../../../kubepods/burstable/pod{UID}/c"),
                of_files.as_str(),
                true,
            ),
            (format!("/../../../../{of_user}"), of_user, true),
        ];
        for (named, group, is_beside) in cases {
            let machine = Machine::new(&format!("0::{named}\n"));
            if is_beside {
                machine.sees_its_own("");
            }
            machine.events(group, 3);
            let counted = machine.count();
            assert_eq!(counted.since(), Some(0), "{named}");
            machine.events(group, 5);
            assert_eq!(counted.since(), Some(2), "{named}");
        }
    }

    #[test]
    fn in_version_1_the_hierarchy_of_memory_counts_wherever_else_the_process_is() {
        let of_job = "slurm/uid_1000/job_77/step_0";
        let of_pod = format!("{PODS}/{SLICE}/c.scope");
        let beside = format!("/../../../kubepods-burstable.slice/{SLICE}/c.scope");
        for (named, group, is_beside) in [
            (format!("/{of_job}"), of_job, false),
            (format!("/{of_pod}"), of_pod.as_str(), false),
            (beside, of_pod.as_str(), true),
        ] {
            let elsewhere = "1:name=systemd:/system.slice/slurmd.service\n0::/system.slice\n";
            let machine = Machine::new(&format!("9:memory:{named}\n4:cpu,cpuacct:/\n{elsewhere}"));
            if is_beside {
                machine.sees_its_own("memory");
            }
            let counts = |kills: u64| {
                let text = format!("oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n");
                machine.write(&format!("host/memory/{group}/memory.oom_control"), &text);
            };
            counts(1);
            let counted = machine.count();
            counts(2);
            assert_eq!(counted.since(), Some(1), "{named}");
            machine.removes(&format!("memory/{group}"));
            assert_eq!(counted.since(), None, "{named}");
        }
    }

    #[test]
    fn where_a_cgroup_is_gone_the_nearest_one_above_it_of_the_same_pod_or_job_still_counts() {
        let (step, pod) = (format!("{JOB}/step_0"), format!("{PODS}/{SLICE}"));
        for (group, nearest, above) in [
            (format!("{pod}/c.scope"), pod.as_str(), PODS),
            (format!("{step}/user/task_0"), step.as_str(), JOB),
        ] {
            let machine = Machine::new(&format!("0::/{group}\n"));
            let counts = |own: u64, rest: u64| {
                machine.events(above, rest);
                machine.events(nearest, own);
                machine.events(&group, own);
            };
            counts(4, 10);
            let counted = machine.count();
            counts(5, 20);
            machine.removes(&group);
            assert_eq!(counted.since(), Some(1), "{group}");
            machine.removes(nearest);
            // Of all pods nobody asks: what was killed there is of others.
            let of_job = (above == JOB).then_some(10);
            assert_eq!(counted.since(), of_job, "{group}");
        }
    }

    #[test]
    fn of_what_is_no_pods_and_no_jobs_nothing_above_counts() {
        let machine = Machine::new("0::/system.slice/docker-1.scope\n");
        machine.events("system.slice", 1);
        machine.events("system.slice/docker-1.scope", 0);
        let counted = machine.count();
        machine.events("system.slice", 2);
        machine.removes("system.slice/docker-1.scope");
        assert_eq!(counted.since(), None);
    }

    #[test]
    fn where_nothing_is_counted_or_the_agents_own_place_is_not_found_nothing_is_said() {
        let beside = format!("0::/../../../kubepods-burstable.slice/{SLICE}/c.scope\n");
        for said in ["0::/\n", "4:cpu,cpuacct:/a\n", "", beside.as_str()] {
            let machine = Machine::new(said);
            machine.events(&format!("{PODS}/{SLICE}/c.scope"), 1);
            assert_eq!(machine.count().since(), None, "{said}");
        }
        let too_high = Machine::new("0::/../../../../../x\n");
        too_high.sees_its_own("");
        too_high.events("x", 1);
        assert_eq!(too_high.count().since(), None);
    }
}
