//! The flags that every program has for its config.

use std::path::{Path, PathBuf};

use super::{ConfigError, FOLDER, ProgramConfig, Sources};

/// The flags that every program has for its config.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ConfigFlags {
    /// The config file; without it the one in /etc/gpufleet if it is there, else the defaults.
    #[arg(long, global = true, env = "GPUFLEET_CONFIG")]
    config: Option<PathBuf>,
    /// One key of the config, `section.key=value`; beats environment and file.
    #[arg(long, global = true, value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
    /// Says whether the config can be used, having built of it all that a start would, and goes.
    #[arg(long)]
    check_config: bool,
    /// Prints the documented default config, and goes.
    #[arg(long)]
    print_default_config: bool,
}

impl ConfigFlags {
    /// Reads the config, with `settings` of other flags before those of `--set`. None when the
    /// program was asked to print or to check, which then is done.
    ///
    /// # Errors
    /// When the config cannot be used.
    #[expect(clippy::print_stdout, reason = "a program asked to print prints")]
    pub fn load<C: ProgramConfig>(
        self,
        settings: Vec<String>,
    ) -> Result<Option<(Sources, C)>, ConfigError> {
        if self.print_default_config {
            print!("{}", C::default_file());
            return Ok(None);
        }
        let usual = Path::new(FOLDER).join(format!("{}.toml", C::PROGRAM));
        let sources = Sources {
            file: self.config.or_else(|| usual.exists().then_some(usual)),
            environment: std::env::vars().collect(),
            set: [settings, self.set].concat(),
        };
        let config: C = sources.load()?;
        if self.check_config {
            config.rehearse().map_err(ConfigError::Check)?;
            for doubt in config.doubts() {
                println!("warning: {doubt}");
            }
            println!("the config can be used");
            return Ok(None);
        }
        Ok(Some((sources, config)))
    }
}
