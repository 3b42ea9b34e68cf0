//! Who wins, how values from outside the file are read, and what is refused with which words.

#![expect(unreachable_pub, reason = "the macros declare what a program shows")]

use super::*;

section! {
    /// The first section.
    pub struct FirstConfig {
        /// A name,
        /// in two lines.
        pub name: String = "default".to_owned(),
        /// A number.
        pub number: u64 = 1,
        /// Several names.
        pub names: Vec<String> = Vec::new(),
        /// May be left out.
        pub maybe: Option<u64> = None,
    }
}

section! {
    /// The second section.
    pub struct SecondConfig {
        /// Whether.
        pub on: bool = false,
    }
}

sections! {
    /// Two sections.
    pub struct Both {
        /// The first.
        pub first: FirstConfig,
        /// The second.
        pub second: SecondConfig,
    }
}

impl ProgramConfig for Both {
    const PROGRAM: &'static str = "both";

    fn check(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        match self.first.number {
            0 => Err("first.number is 0".into()),
            _ => Ok(()),
        }
    }

    fn rehearse(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(())
    }
}

fn load(file: &str, environment: &[(&str, &str)], set: &[&str]) -> anyhow::Result<Both> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("both.toml");
    std::fs::write(&path, file).expect("a file");
    let environment = environment
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let sources = Sources {
        file: Some(path),
        environment: environment.collect(),
        set: set.iter().map(|it| (*it).to_owned()).collect(),
    };
    Ok(sources.load()?)
}

#[test]
fn a_flag_beats_the_environment_which_beats_the_file() {
    let file = "[first]\nname = \"file\"\nnumber = 2\nmaybe = 2\n";
    let environment = [
        ("GPUFLEET_FIRST__NUMBER", "3"),
        ("GPUFLEET_FIRST__MAYBE", "3"),
        ("GPUFLEET_LOG", "debug"),
        ("PATH", "/bin"),
    ];
    let both = load(file, &environment, &["first.maybe=4", "first.maybe=5"]).expect("usable");
    let first = both.first;
    assert_eq!((first.name.as_str(), first.number), ("file", 3));
    assert_eq!(first.maybe, Some(5), "the later of two flags wins");
}

#[test]
fn a_value_from_outside_the_file_is_read_as_what_its_key_takes() {
    let check = |setting: &str, expected: FirstConfig| {
        let both = load("", &[], &[setting]).expect(setting);
        assert_eq!(both.first, expected, "{setting}");
    };
    let named = |name: &str| FirstConfig {
        name: name.to_owned(),
        ..FirstConfig::default()
    };
    let listed = |names: &[&str]| FirstConfig {
        names: names.iter().map(|it| (*it).to_owned()).collect(),
        ..FirstConfig::default()
    };
    check("first.name=17", named("17"));
    check("first.name=a=b, c", named("a=b, c"));
    check("first.name=\"quoted \\\" text\"", named("quoted \" text"));
    check("first.name=1\nnumber = 2", named("1\nnumber = 2"));
    check("first.names=[\"a\", \"b\"]", listed(&["a", "b"]));
    check("first.names=a, b", listed(&["a", "b"]));
    check("first.names=", listed(&[]));
}

#[test]
fn what_cannot_be_used_is_refused_with_its_name_and_the_way_out() {
    let check = |file: &str, environment: &[(&str, &str)], set: &[&str], words: &[&str]| {
        let error = load(file, environment, set).expect_err("refused");
        let message = format!("{error:#}");
        for word in words {
            assert!(message.contains(word), "`{word}` is not in: {message}");
        }
    };
    check(
        "[first]\nnmae = 1\n",
        &[],
        &[],
        &["both.toml", "nmae", "line 2"],
    );
    check("[frist]\n", &[], &[], &["both.toml", "frist"]);
    check(
        "first = 1\n",
        &[],
        &["first.number=2"],
        &["both.toml", "first"],
    );
    check("[first\n", &[], &[], &["both.toml", "line 1"]);
    check(
        "[first]\nnumber = 1\n  name = 'é' x\n",
        &[],
        &[],
        &["line 3, column 14", "`name`"],
    );
    let variable = "GPUFLEET_FIRST__NMAE";
    check("", &[(variable, "x")], &[], &[variable, "first.nmae"]);
    let variable = "GPUFLEET_FRIST__NAME";
    check("", &[(variable, "x")], &[], &[variable, "frist"]);
    check("", &[], &["first.number=soon"], &["first.number", "soon"]);
    check(
        "",
        &[],
        &["frist.number=1"],
        &["--set frist.number=1", "frist"],
    );
    check(
        "",
        &[],
        &["first=1"],
        &["--set first=1", "section.key=value"],
    );
    check("", &[], &["first.number"], &["section.key=value"]);
    check("", &[], &["first.number=0"], &["first.number is 0"]);
    let error = Sources {
        file: Some("/nowhere/both.toml".into()),
        ..Sources::default()
    };
    let error = error.load::<Both>().expect_err("no such file").to_string();
    assert!(error.contains("/nowhere/both.toml"), "{error}");
}

#[test]
fn a_broken_line_of_the_file_is_named_and_its_value_is_not() {
    for line in [
        "name = \"postgres://ada:s3cret@host",
        "name = 'postgres://ada:s3cret@host/?a=b' x",
        "name: postgres://ada:s3cret@host/?a=b",
        "postgres://ada:s3cret@host/?a=b",
    ] {
        let error = load(&format!("[first]\n{line}\n"), &[], &[]).expect_err("refused");
        let told = format!("{error:#}");
        assert!(told.contains("line 2"), "{told}");
        assert!(!told.contains("s3cret"), "{told}");
    }
}

#[test]
fn a_variable_of_another_program_is_left_alone() {
    let environment = [
        ("GPUFLEET_NODE__CLUSTER", "the agent's"),
        ("GPUFLEET_WEB__LISTEN", "the server's"),
    ];
    assert_eq!(
        load("", &environment, &[]).expect("usable"),
        Both::default()
    );
}

#[test]
fn the_default_file_has_every_key_with_its_documentation_and_default() {
    let text = Both::default_file();
    let body = text.split_once("\n\n").expect("a heading").1;
    assert_eq!(
        body,
        "# The first section.\n[first]\n\n\
         # A name,\n# in two lines.\nname = \"default\"\n\n\
         # A number.\nnumber = 1\n\n\
         # Several names.\nnames = []\n\n\
         # May be left out.\n# maybe = (not set)\n\n\
         # The second section.\n[second]\n\n\
         # Whether.\non = false\n"
    );
    assert!(text.starts_with("# gpufleet-both:"), "{text}");
    assert_eq!(load(&text, &[], &[]).expect("usable"), Both::default());
}
