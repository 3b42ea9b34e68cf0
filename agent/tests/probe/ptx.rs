//! The committed PTX is what its source makes, and ptxas takes it for every card, wherever NVIDIA's
//! compiler was set up (`scripts/ptx.sh setup`). Where it was not, that is said: nothing is downloaded.

use std::path::Path;
use std::process::Command;

#[test]
fn the_committed_ptx_is_what_its_source_makes_and_every_card_takes_it() {
    /// The script's exit code where there is no compiler.
    const NO_COMPILER: i32 = 3;
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the repository");
    let output = Command::new("sh")
        .args(["scripts/ptx.sh", "check"])
        .current_dir(root)
        .output()
        .expect("a shell");
    let told = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(NO_COMPILER) {
        eprintln!("NOT RUN: {errors}");
        return;
    }
    assert!(output.status.success(), "{told}{errors}");
    for line in [
        "base sm_75",
        "base sm_121",
        "mma_sm80 sm_80",
        "mma_sm89 sm_121",
    ] {
        assert!(told.contains(line), "{line}: {told}");
    }
}
