//! Whose a process on a GPU is, as the kernel says: the pod or Slurm job that its cgroup is named
//! after, else its user and program.
//!
//! The cgroup is read in every round: a process may be moved into its job's after it began. Its user and
//! program are kept while it lives.
//! Limits: [`MAX_PROCESSES`], [`MAX_BYTES`].

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use gpufleet_hooks_shm::process::start_of;

use super::cgroup::Owner;

/// Most processes that are known at once: the 256 that are told of each of 16 GPUs.
const MAX_PROCESSES: usize = 4_096;

/// Most bytes read of one file of a process. Nested containers have cgroups of some hundred; a program
/// chooses its own command line.
const MAX_BYTES: u64 = 4_096;

/// Most bytes read of the list of users; larger ones are a directory's, which is not in a file.
const MAX_USERS_BYTES: u64 = 1 << 20;

/// Longest name of a program, bytes: the kernel's own are 15.
const MAX_NAME_BYTES: usize = 64;

/// Whose a process is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Whose {
    /// Of the pod with this uid.
    Pod(String),
    /// Of this Slurm job.
    Slurm(u64),
    /// Of nobody but its user.
    User {
        /// The user's name, or number where nobody has a name for it.
        user: String,
        /// The number, where the machine's own file has no name for it.
        unnamed: Option<u32>,
        /// The program.
        name: String,
    },
}

/// A process, with what tells the oldest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Process {
    /// When it started, clock ticks since boot.
    pub(super) started: u64,
    pub(super) whose: Whose,
}

/// The processes that were looked at.
#[derive(Debug, Clone)]
pub(super) struct Processes {
    proc: PathBuf,
    users: PathBuf,
    known: BTreeMap<i32, Process>,
    missing: BTreeSet<i32>,
}

/// What a look found.
#[derive(Debug, Clone, Default)]
pub(super) struct Looked {
    /// Those that are there.
    pub(super) processes: BTreeMap<i32, Process>,
    /// Those that were not there in this look and the one before: they are not just gone, they cannot be
    /// seen.
    pub(super) unseen: BTreeSet<i32>,
}

impl Looked {
    /// Whether one of them is of a Slurm job.
    pub(super) fn has_slurm(&self) -> bool {
        let mut all = self.processes.values();
        all.any(|it| matches!(it.whose, Whose::Slurm(_)))
    }

    /// Gives users the names that the machine's own file does not have; the numbers of all users that it does not name.
    pub(super) fn name(&mut self, names: &BTreeMap<u32, String>) -> BTreeSet<u32> {
        let mut numbers = BTreeSet::new();
        for process in self.processes.values_mut() {
            if let Whose::User {
                user,
                unnamed: Some(number),
                ..
            } = &mut process.whose
            {
                let number = *number;
                numbers.insert(number);
                if let Some(name) = names.get(&number) {
                    user.clone_from(name);
                }
            }
        }
        numbers
    }
}

impl Processes {
    /// Processes below `proc`, users by the names in `users` (/etc/passwd).
    pub(super) fn new(proc: &Path, users: &Path) -> Self {
        Self {
            proc: proc.to_owned(),
            users: users.to_owned(),
            known: BTreeMap::new(),
            missing: BTreeSet::new(),
        }
    }

    /// Looks at these.
    pub(super) fn look(&mut self, ids: &BTreeSet<i32>) -> Looked {
        self.known.retain(|id, _| ids.contains(id));
        let mut missing = BTreeSet::new();
        for id in ids.iter().take(MAX_PROCESSES) {
            let known = self.known.remove(id);
            match self.process(*id, known) {
                Some(process) => _ = self.known.insert(*id, process),
                None => _ = missing.insert(*id),
            }
        }
        let before = std::mem::replace(&mut self.missing, missing);
        Looked {
            processes: self.known.clone(),
            unseen: self.missing.intersection(&before).copied().collect(),
        }
    }

    /// What this process is now; none where it is gone, or what the kernel says of it cannot be read.
    fn process(&self, id: i32, known: Option<Process>) -> Option<Process> {
        let folder = self.proc.join(id.to_string());
        let started = start_of(&read(&folder.join("stat"), MAX_BYTES)?)?;
        let cgroup = read(&folder.join("cgroup"), MAX_BYTES)?;
        let mut paths = cgroup.lines().filter_map(|it| it.splitn(3, ':').nth(2));
        let whose = match paths.find_map(Owner::of) {
            Some(Owner::Pod(uid)) => Whose::Pod(uid),
            Some(Owner::Slurm(job)) => Whose::Slurm(job),
            None => {
                let same = known.filter(|it| it.started == started).map(|it| it.whose);
                let of_user = same.filter(|it| matches!(it, Whose::User { .. }));
                of_user.or_else(|| whose_user(&folder, &self.users))?
            }
        };
        Some(Process { started, whose })
    }
}

/// The user and program of a process.
fn whose_user(folder: &Path, users: &Path) -> Option<Whose> {
    let status = read(&folder.join("status"), MAX_BYTES)?;
    let line = |name: &str| status.lines().find_map(|it| it.strip_prefix(name));
    let uid = line("Uid:")?.split_ascii_whitespace().next()?;
    let command = read(&folder.join("cmdline"), MAX_BYTES).unwrap_or_default();
    let name = match program(&command) {
        "" => line("Name:")?.trim(),
        program => program,
    };
    let user = user(uid, users);
    Some(Whose::User {
        unnamed: match user {
            Some(_) => None,
            None => uid.parse().ok(),
        },
        user: user.unwrap_or_else(|| uid.to_owned()),
        name: name[..name.floor_char_boundary(MAX_NAME_BYTES)].to_owned(),
    })
}

/// The program in a command line. Only it: what follows may be a secret, after a NUL as the kernel has it,
/// or after a blank or `=` where the process has written a title of its own over it.
fn program(command: &str) -> &str {
    let ends = |it: char| it == '\0' || it == '=' || it.is_whitespace();
    let first = command.trim_start().split(ends).next();
    first
        .and_then(|it| it.rsplit('/').next())
        .unwrap_or_default()
}

/// The name of a user; none where the file has none, as in a container or of one that a directory knows.
fn user(uid: &str, users: &Path) -> Option<String> {
    let text = read(users, MAX_USERS_BYTES).unwrap_or_default();
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1) == Some(uid) && !name.is_empty()).then(|| name.to_owned())
    })
}

/// Whether the files of a process, one a line, say whose it is: its stat, its command line, its cgroup.
pub fn understands(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.lines();
    let mut next = || lines.next().unwrap_or_default();
    let (stat, command, cgroup) = (start_of(next()), program(next()).len(), next());
    let path = cgroup.splitn(3, ':').nth(2);
    stat.is_some() && command > 0 && path.and_then(Owner::of).is_some()
}

fn read(path: &Path, most: u64) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(path)
        .ok()?
        .take(most)
        .read_to_end(&mut bytes)
        .ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const POD: &str = "0a1b2c3d-0000-1111-2222-333344445555";

    #[test]
    fn of_a_command_line_the_program_is_told_and_never_what_follows_it() {
        for (command, expected) in [
            ("/usr/bin/python3\0--token=secret\0", "python3"),
            ("python train.py --api-key=secret", "python"),
            ("ray::train /data/secret", "ray::train"),
            ("/opt/vllm serve\tsecret", "vllm"),
            ("key=secret", "key"),
            ("  /bin/a b", "a"),
            ("", ""),
            ("\0x", ""),
        ] {
            assert_eq!(program(command), expected, "{command:?}");
        }
    }

    /// A process in a folder that looks like /proc.
    fn write(root: &Path, id: i32, started: u64, cgroup: &str, command: &str) {
        let folder = root.join(id.to_string());
        fs::create_dir_all(&folder).expect("a folder");
        let zeros = "0 ".repeat(18);
        let stat = format!("{id} (a) b) S {zeros}{started} 0\n");
        let files = [
            ("stat", stat.as_str()),
            ("cgroup", cgroup),
            ("cmdline", command),
            ("status", "Name:\tpt_main\nUid:\t1000\t1000\t1000\t1000\n"),
        ];
        for (name, text) in files {
            fs::write(folder.join(name), text).expect("written");
        }
    }

    #[test]
    fn a_process_is_its_pods_or_its_jobs_or_its_users_and_is_forgotten_when_it_is_another() {
        let root = tempfile::tempdir().expect("a folder");
        let root = root.path();
        let users = root.join("passwd");
        fs::write(&users, "root:x:0:0::/:\nada:x:1000:1000::/:\n").expect("written");
        let pod = format!("0::/kubepods/pod{POD}/1\n");
        write(root, 1, 10, &pod, "python3\0");
        write(
            root,
            2,
            20,
            "1:name=x:/slurm/uid_0/job_9/step_0\n0::/\n",
            "",
        );
        write(
            root,
            3,
            30,
            "0::/user.slice\n",
            "/usr/bin/python3\0--token=secret\0",
        );
        write(root, 4, 40, "0::/user.slice\n", "");
        let mut processes = Processes::new(root, &users);
        let user = |name: &str| Whose::User {
            user: "ada".to_owned(),
            unnamed: None,
            name: name.to_owned(),
        };
        let all = BTreeSet::from([1, 2, 3, 4, 5]);
        let looked = processes.look(&all);
        assert_eq!(looked.unseen, BTreeSet::new(), "5 may just have ended");
        let found: Vec<_> = looked
            .processes
            .iter()
            .map(|(id, it)| (*id, it.started, it.whose.clone()))
            .collect();
        let expected = [
            (1, 10, Whose::Pod(POD.to_owned())),
            (2, 20, Whose::Slurm(9)),
            (3, 30, user("python3")),
            (4, 40, user("pt_main")),
        ];
        assert_eq!(found, expected);
        // The number was given to another process meanwhile, and the names are gone.
        write(root, 1, 11, "0::/\n", "bash\0");
        fs::remove_file(&users).expect("removed");
        let looked = processes.look(&BTreeSet::from([1, 5]));
        assert_eq!(looked.unseen, BTreeSet::from([5]), "in two looks");
        let stranger = |user: &str| Whose::User {
            user: user.to_owned(),
            unnamed: Some(1_000),
            name: "bash".to_owned(),
        };
        assert_eq!(looked.processes.len(), 1);
        assert_eq!(looked.processes[&1].whose, stranger("1000"));
        // A directory may know what the file does not; that is heard later, of a process that is known by then.
        let mut looked = processes.look(&BTreeSet::from([1]));
        let of_directory = BTreeMap::from([(1_000, "ada".to_owned())]);
        assert_eq!(looked.name(&BTreeMap::new()), BTreeSet::from([1_000]));
        assert_eq!(looked.processes[&1].whose, stranger("1000"));
        assert_eq!(looked.name(&of_directory), BTreeSet::from([1_000]));
        assert_eq!(looked.processes[&1].whose, stranger("ada"));
    }
    #[test]
    fn a_process_that_is_moved_into_its_job_is_the_job_s_and_without_a_cgroup_it_is_nobody_s() {
        let root = tempfile::tempdir().expect("a folder");
        let root = root.path();
        write(root, 1, 10, "0::/user.slice\n", "python3\0");
        let mut processes = Processes::new(root, &root.join("passwd"));
        let only = BTreeSet::from([1]);
        let mut look = || {
            processes
                .look(&only)
                .processes
                .remove(&1)
                .map(|it| it.whose)
        };
        assert!(matches!(look(), Some(Whose::User { .. })));
        let of_job = "0::/system.slice/slurmstepd.scope/job_9/step_0\n";
        fs::write(root.join("1/cgroup"), of_job).expect("written");
        assert_eq!(look(), Some(Whose::Slurm(9)));
        fs::write(root.join("1/cgroup"), "0::/user.slice\n").expect("written");
        assert!(matches!(look(), Some(Whose::User { .. })), "and out of it");
        fs::remove_file(root.join("1/cgroup")).expect("removed");
        assert_eq!(look(), None);
    }
}
