//! Title and text of a message, made by templates: ours, or files of the people who run it.
//!
//! The language is Jinja's; what a template may say is the message as docs/notify.md shows it. A name
//! that does not exist is an error and not an empty place, found when the server starts.
//!
//! Limits: [`FUEL`] steps, so that a loop without end ends; [`MAX_TEMPLATE_BYTES`].

use std::path::Path;

use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior, Value};

use super::message::Message;
use super::settings::ChannelConfig;

/// Steps that a template may take: ours takes less than a twentieth for a full message.
const FUEL: u64 = 200_000;
/// Longest template.
pub const MAX_TEMPLATE_BYTES: usize = 64 * 1024;

const TITLE: &str = include_str!("title.jinja");
const TEXT: &str = include_str!("text.jinja");

/// The templates of one channel.
#[derive(Debug)]
pub struct Templates(Environment<'static>);

impl Templates {
    /// Reads and compiles them.
    ///
    /// # Errors
    /// Names the key, the file, the line and what is wrong with it.
    pub fn read(channel: &ChannelConfig) -> Result<Self, String> {
        let name = &channel.name;
        let read = |key: &str, path: &Path, usual: &str| {
            if path.as_os_str().is_empty() {
                return Ok(usual.to_owned());
            }
            let refused =
                |why: String| format!("notify.channels, {name:?}: {key} {}: {why}", path.display());
            let text = std::fs::read_to_string(path).map_err(|error| refused(error.to_string()))?;
            match text.len() <= MAX_TEMPLATE_BYTES {
                true => Ok(text),
                false => Err(refused(format!(
                    "it is longer than {MAX_TEMPLATE_BYTES} bytes"
                ))),
            }
        };
        let title = read("title_file", &channel.title_file, TITLE)?;
        let text = read("text_file", &channel.text_file, TEXT)?;
        let templates = Self::compile(title, text)
            .map_err(|why| format!("notify.channels, {name:?}: {why}"))?;
        // A name that does not exist shows only when it is used.
        for message in super::example::messages() {
            templates
                .write(&message)
                .map_err(|why| format!("notify.channels, {name:?}: {why}"))?;
        }
        Ok(templates)
    }

    /// Ours.
    ///
    /// # Panics
    /// Never: a test compiles them.
    pub fn ours() -> Self {
        Self::compile(TITLE.to_owned(), TEXT.to_owned()).expect("ours compile")
    }

    fn compile(title: String, text: String) -> Result<Self, String> {
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_fuel(Some(FUEL));
        for (name, source) in [("title_file", title), ("text_file", text)] {
            environment
                .add_template_owned(name, source)
                .map_err(|error| format!("the template {error}"))?;
        }
        Ok(Self(environment))
    }

    /// Title and text of a message.
    ///
    /// # Errors
    /// When a template asks for what the message does not have, or goes on for ever.
    pub fn write(&self, message: &Message) -> Result<(String, String), String> {
        let context = Value::from(Serde(message));
        let one = |name: &str| {
            let template = self.0.get_template(name);
            let said = template.and_then(|it| it.render(context.clone()));
            said.map_err(|error| format!("the template {name} cannot be filled in: {error}"))
        };
        let title = one("title_file")?;
        let title = title.split_whitespace().collect::<Vec<_>>().join(" ");
        Ok((title, one("text_file")?.trim().to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notify::example;

    #[test]
    fn our_templates_say_what_where_since_when_why_what_it_costs_whose_it_is_and_what_helps() {
        let templates = Templates::ours();
        let message = &example::messages()[0];
        let (title, text) = templates.write(message).expect("they can be filled in");
        let one = &message.incidents[0];
        assert!(
            title.contains(&one.what) && title.contains(&one.place),
            "{title}"
        );
        for part in [
            &*one.what,
            &one.since,
            &one.evidence[0],
            &one.costs,
            &one.owner,
            &one.runbook,
            &one.link,
            one.grafana.as_deref().expect("the example has one"),
            &one.action,
            &message.silence,
        ] {
            assert!(text.contains(part), "{part} is not in:\n{text}");
        }
        for message in example::messages() {
            let (title, text) = templates.write(&message).expect("they can be filled in");
            assert!(!title.is_empty() && !text.is_empty());
            assert!(!text.contains("\n\n\n"), "{text}");
        }
    }

    #[test]
    fn a_template_that_does_not_compile_or_asks_for_what_is_not_there_is_refused_with_its_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("text");
        let mut channel = ChannelConfig::new("chat", crate::notify::settings::Kind::Slack);
        channel.text_file.clone_from(&path);
        let refused = |content: &str| {
            std::fs::write(&path, content).expect("written");
            Templates::read(&channel).expect_err("refused")
        };
        let said = refused("fine\n{% for x in %}");
        assert!(
            said.contains("chat") && said.contains("text_file:2"),
            "{said}"
        );
        let said = refused("{{ nothing.like.this }}");
        assert!(
            said.contains("chat") && said.contains("undefined"),
            "{said}"
        );
        let said = refused(
            "{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}",
        );
        assert!(said.contains("fuel"), "{said}");
        std::fs::write(&path, "{{ title }}{{ open }}").expect("written");
        Templates::read(&channel).expect("this one can be used");
    }
}
