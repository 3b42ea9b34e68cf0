//! Which functions the callbacks can reach, from the disassembly of the plugin as it ships: of the
//! profile `plugin`, in which a panic aborts.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// The callbacks, by parts of their names.
const CALLBACKS: [&str; 4] = [
    "callbacks::start_v4",
    "callbacks::start",
    "callbacks::stop",
    "callbacks::record",
];

/// What a callback must never reach, by parts of names.
const FORBIDDEN: [&str; 14] = [
    "panic",
    "unwrap",
    "expect_failed",
    "bounds",
    "alloc",
    "malloc",
    "free",
    "Mutex",
    "futex",
    "pthread",
    "syscall",
    "Once",
    "fmt",
    "unwind",
];

/// Functions of the C library that a callback may call: none enters the kernel.
const ALLOWED: [&str; 2] = ["memset", "memcpy"];

/// A function with what it calls; `*…` is a call through a pointer that only running code knows.
type Calls = BTreeMap<String, Vec<String>>;

/// What was found, as a sentence; an error where a callback reaches what it must not.
pub(crate) fn check() -> Result<String, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let target = program.ancestors().nth(3).unwrap_or(&program);
    let path = target.join("plugin/libgpufleet_nccl_profiler.so");
    if !path.exists() {
        return Err(format!(
            "{} is not there: cargo build --profile plugin -p gpufleet-nccl-profiler",
            path.display()
        ));
    }
    let objdump = |arguments: &[&str]| -> Result<String, std::io::Error> {
        let output = Command::new("objdump")
            .args(arguments)
            .arg(&path)
            .output()?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let code = objdump(&["-d", "-C", "--no-show-raw-insn"]);
    let (code, pointers) = match (code, objdump(&["-R"])) {
        (Ok(code), Ok(pointers)) => (code, pointers),
        (Err(error), _) | (_, Err(error)) => {
            return Ok(format!(
                "NOT RUN: machine code, objdump does not start: {error}"
            ));
        }
    };
    let calls = calls(&code, &pointers);
    let mut reached = BTreeSet::new();
    for callback in CALLBACKS {
        let found = calls.keys().find(|name| ends(name, callback));
        let found = found.ok_or_else(|| format!("{callback} is not in {}", path.display()))?;
        follow(found, &calls, &mut reached);
    }
    let is_bad = |name: &str| {
        // Nobody knows where a call through a pointer leads.
        name.starts_with('*')
            || !ALLOWED.iter().any(|it| name.contains(it))
                && FORBIDDEN.iter().any(|it| name.contains(it))
    };
    // Where the way leaves what is allowed: the rest follows from there.
    let mut bad = Vec::new();
    for name in reached.iter().filter(|name| !is_bad(name)) {
        let targets = calls.get(name).into_iter().flatten();
        bad.extend(
            targets
                .filter(|it| is_bad(it))
                .map(|it| format!("{name} -> {it}")),
        );
    }
    match bad.is_empty() {
        true => Ok(format!(
            "machine code: {} functions are reached by a callback, none waits, allocates, panics",
            reached.len()
        )),
        false => Err(format!("a callback can reach {bad:?}")),
    }
}

fn ends(name: &str, callback: &str) -> bool {
    // `gpufleet_nccl_profiler::callbacks::start`, or with a hash after it.
    let rest = name.split(callback).nth(1);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::h"))
}

fn follow(name: &str, calls: &Calls, reached: &mut BTreeSet<String>) {
    if !reached.insert(name.to_owned()) {
        return;
    }
    for target in calls.get(name).into_iter().flatten() {
        follow(target, calls, reached);
    }
}

/// What the loader writes into the table of pointers: an address of this library, or a name.
fn pointers(listing: &str) -> BTreeMap<u64, String> {
    let mut found = BTreeMap::new();
    for line in listing.lines() {
        let mut words = line.split_whitespace();
        if let (Some(at), Some(_kind), Some(value)) = (words.next(), words.next(), words.next())
            && let Ok(at) = u64::from_str_radix(at, 16)
        {
            found.insert(at, value.to_owned());
        }
    }
    found
}

/// Every function's calls, and its jumps to other functions.
fn calls(code: &str, listing: &str) -> Calls {
    let pointers = pointers(listing);
    let mut functions = BTreeMap::new();
    for line in code.lines() {
        if let Some((address, name)) = header(line) {
            functions.insert(address, name.to_owned());
        }
    }
    let named = |at: u64| -> Option<String> {
        let value = pointers.get(&at)?;
        let Some(address) = value.strip_prefix("*ABS*+0x") else {
            return Some(value.clone());
        };
        let address = u64::from_str_radix(address, 16).ok()?;
        functions.get(&address).cloned()
    };
    let mut found = Calls::new();
    let mut name = "";
    for line in code.lines() {
        if let Some((_, begun)) = header(line) {
            name = begun;
            found.entry(name.to_owned()).or_default();
        } else if let Some(target) = target(line, name, named) {
            found.entry(name.to_owned()).or_default().push(target);
        }
    }
    found
}

/// `0000000000012340 <name>:`
fn header(line: &str) -> Option<(u64, &str)> {
    let (address, name) = line.strip_suffix(">:")?.split_once(" <")?;
    Some((u64::from_str_radix(address, 16).ok()?, name))
}

/// Where a call or a jump out of `name` leads.
fn target(line: &str, name: &str, named: impl Fn(u64) -> Option<String>) -> Option<String> {
    let instruction = line.split_once(":\t")?.1.trim();
    let (operation, rest) = instruction.split_once(' ')?;
    if !operation.starts_with("call") && !operation.starts_with('j') {
        return None;
    }
    let rest = rest.trim();
    if rest.starts_with('*') {
        // `*0x2b8(%rip)        # 4f1b0 <_DYNAMIC+0x2b8>`
        let at = rest.split_once("# ").and_then(|it| it.1.split_once(' '));
        let at = at.and_then(|it| u64::from_str_radix(it.0, 16).ok());
        return Some(at.and_then(named).unwrap_or_else(|| format!("*{rest}")));
    }
    let target = rest.split_once('<')?.1.strip_suffix('>')?;
    // Inside the function: its own name, with a distance.
    let is_inside = target == name || target.starts_with(&format!("{name}+"));
    (!is_inside).then(|| target.to_owned())
}
