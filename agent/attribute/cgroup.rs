//! The pod or Slurm job that a process is of, by the name of its cgroup: what the kernel says, and no
//! process of itself.
//!
//! Only what stands where the kubelet or slurmd alone can put it counts, at the root of the tree. Further
//! down users and containers make cgroups of any name.

/// Least length of a pod's uid: a static pod's has no hyphens.
const LEAST_UID: usize = 32;

/// Whose a cgroup is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// The pod with this uid: `/kubepods/burstable/pod<uid>/<container>`, with systemd
    /// `/kubepods.slice/…/kubepods-burstable-pod<uid with underscores>.slice/<container>`.
    Pod(String),
    /// The Slurm job: `/slurm/uid_1000/job_77/step_0`, newer
    /// `/system.slice/slurmstepd.scope/job_77/step_0/user/task_0`.
    Slurm(u64),
}

impl Owner {
    /// Whose the cgroup at this path is; none where it is of neither.
    pub fn of(path: &str) -> Option<Self> {
        let mut parts = path.split('/').filter(|it| !it.is_empty()).peekable();
        // So many steps up from the agent's own root, which only the kernel writes, and first.
        let mut is_beside = false;
        while parts.next_if_eq(&"..").is_some() {
            is_beside = true;
        }
        let root = *parts.peek()?;
        let is_kubelets = root == "kubepods" || root == "kubepods.slice";
        // Beside a pod's own cgroup, or beside the folder it is in, are the kubelet's others.
        let is_neighbour = root.starts_with("kubepods-")
            || is_beside && (CLASSES.contains(&root) || root.starts_with("pod"));
        if is_kubelets || is_neighbour {
            // The first: what a pod makes in its own is below it.
            let uid = parts.find_map(pod).filter(|it| is_uid(it))?;
            return Some(Self::Pod(uid));
        }
        parts.next_if_eq(&"system.slice");
        let of_slurm = parts.next()?;
        let is_step_daemon =
            of_slurm == "slurmstepd.scope" || of_slurm.ends_with("_slurmstepd.scope");
        let is_first_version = of_slurm == "slurm" || of_slurm.starts_with("slurm_");
        if is_first_version {
            parts.next()?.strip_prefix("uid_")?;
        }
        let job = parts
            .next()
            .filter(|_| is_step_daemon || is_first_version)?;
        job.strip_prefix("job_")?.parse().ok().map(Self::Slurm)
    }

    /// Its id: the pod's uid, the job's number.
    pub fn id(&self) -> String {
        match self {
            Self::Pod(uid) => uid.clone(),
            Self::Slurm(job) => job.to_string(),
        }
    }
}

/// The folders of pods that may have to make room for others; the rest have none.
const CLASSES: [&str; 2] = ["burstable", "besteffort"];

/// The pod that a part is named after: `pod<uid>`, or `kubepods-burstable-pod<uid with _>.slice`.
fn pod(part: &str) -> Option<String> {
    if let Some(pod) = part.strip_prefix("pod") {
        return Some(pod.to_owned());
    }
    let slice = part.strip_prefix("kubepods-")?.strip_suffix(".slice")?;
    let of_class = |class: &&str| slice.strip_prefix(class)?.strip_prefix('-');
    let of_class = CLASSES.iter().find_map(of_class);
    let pod = of_class.unwrap_or(slice).strip_prefix("pod")?;
    Some(pod.replace('_', "-"))
}

fn is_uid(text: &str) -> bool {
    let is_of_uid = |it: char| it.is_ascii_hexdigit() || it == '-';
    text.len() >= LEAST_UID && text.chars().all(is_of_uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str = "0a1b2c3d-0000-1111-2222-333344445555";

    fn check(path: &str, expected: &str) {
        let found = Owner::of(path).map(|it| it.id()).unwrap_or_default();
        assert_eq!(found, expected, "{path}");
    }

    #[test]
    fn a_cgroup_that_slurm_or_the_kubelet_made_names_its_job_or_its_pod() {
        let slice = "kubepods-burstable-pod0a1b2c3d_0000_1111_2222_333344445555.slice";
        let guaranteed = "kubepods-pod0a1b2c3d_0000_1111_2222_333344445555.slice";
        let container = "cri-containerd-1.scope";
        for path in [
            format!("/kubepods/burstable/pod{POD}/1234"),
            format!("/kubepods.slice/kubepods-burstable.slice/{slice}/{container}"),
            format!("/kubepods.slice/{guaranteed}/{container}"),
            // As an agent in a container sees them.
            format!("/../../{slice}/{container}"),
            format!("/../../../{guaranteed}/{container}"),
            format!("/../../../kubepods-burstable.slice/{slice}/{container}"),
            format!("/../../kubepods/pod{POD}"),
            format!("/../../pod{POD}/1234"),
            format!("/../../../besteffort/pod{POD}/1234"),
        ] {
            check(&path, POD);
        }
        let of_file = "0123456789abcdef0123456789abcdef";
        check(&format!("/kubepods/pod{of_file}/1"), of_file);
        for path in [
            "/slurm/uid_1000/job_77/step_0/task_0",
            "/slurm_n1/uid_1000/job_77/step_0",
            "/system.slice/slurmstepd.scope/job_77/step_0/user/task_0",
            "/system.slice/n1_slurmstepd.scope/job_77/step_0",
        ] {
            check(path, "77");
        }
    }

    #[test]
    fn a_cgroup_that_a_user_or_a_container_made_names_nobody_or_the_one_it_is_in() {
        let user = "/user.slice/user-1000.slice/user@1000.service";
        for path in [
            format!("{user}/job_77"),
            format!("{user}/slurm/job_77"),
            format!("{user}/slurm/uid_1000/job_77"),
            format!("{user}/slurmstepd.scope/job_77"),
            format!("{user}/kubepods/pod{POD}"),
            format!("/../..{user}/kubepods/pod{POD}"),
            format!("/../..{user}/pod{POD}"),
            format!("/kubepods{user}/xpod{POD}"),
            format!("/pod{POD}"),
            format!("/burstable/pod{POD}"),
            format!("/user.slice/pod{POD}"),
            // Of a pod whose uid is none: never of the one below it.
            format!("/kubepods.slice/kubepods-burstable-pod9.slice/{POD}/pod{POD}"),
            "/kubepods.slice/kubepods-burstable-pod9.slice/x.scope/job_77".to_owned(),
            "/kubepods/burstable/podman".to_owned(),
            "/kubepods.slice".to_owned(),
            "/slurm/job_77".to_owned(),
            "/slurm/job_1/job_77".to_owned(),
            "/slurm/uid_1/job_x".to_owned(),
            "/system.slice/job_77".to_owned(),
            "/system.slice/slurmstepd.scope/system".to_owned(),
            "/system.slice/slurmstepd.scope/x/job_77".to_owned(),
            "/..".to_owned(),
            String::new(),
        ] {
            check(&path, "");
        }
        let other = "11111111-0000-1111-2222-333344445555";
        check(&format!("/../../pod{POD}/1/kubepods/pod{other}"), POD);
        check(&format!("/kubepods/pod{POD}/1/slurm/uid_1/job_7"), POD);
    }
}
