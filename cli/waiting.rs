//! A line on the terminal while the server is waited for, so that nobody takes long work for a program that
//! hangs: how long it is already, and what has come. It is erased before the answer is written.
//!
//! Limits: [`QUIET`], [`EACH`].

use std::cell::{Cell, RefCell};
use std::io::{IsTerminal as _, Write};
use std::time::Duration;

use tokio::time::Instant;

/// So long nothing is said: most answers are there before.
const QUIET: Duration = Duration::from_secs(2);
/// How often the line is written anew.
const EACH: Duration = Duration::from_secs(1);
/// Goes to the beginning of the line and erases it.
const ERASE: &str = "\r\x1b[K";

/// Says that it is waited.
pub(crate) struct Waiting {
    /// Where a person reads; none where nobody does.
    out: Option<RefCell<Box<dyn Write>>>,
    since: Cell<Option<Instant>>,
    /// Whether the line stands there.
    is_said: Cell<bool>,
    /// Items that have come.
    items: Cell<usize>,
}

impl Waiting {
    /// On standard error, where that is a terminal that can erase a line and the answer is for a person.
    pub(crate) fn on_terminal(is_for_person: bool) -> Self {
        let out = std::io::stderr();
        let erases = std::env::var_os("TERM").is_some_and(|it| it != "dumb");
        let is_read = is_for_person && erases && out.is_terminal();
        Self::on(is_read.then(|| Box::new(out) as Box<dyn Write>))
    }

    fn on(out: Option<Box<dyn Write>>) -> Self {
        Self {
            out: out.map(RefCell::new),
            since: Cell::new(None),
            is_said: Cell::new(false),
            items: Cell::new(0),
        }
    }

    /// What comes of it. The time counts from the first that was waited for since [`Self::is_over`].
    pub(crate) async fn until<T>(&self, what: impl Future<Output = T>) -> T {
        let Some(out) = &self.out else {
            return what.await;
        };
        let since = self.since.get().unwrap_or_else(Instant::now);
        self.since.set(Some(since));
        let mut what = std::pin::pin!(what);
        let mut next = QUIET.max(Instant::now() - since);
        loop {
            tokio::select! {
                done = &mut what => return done,
                () = tokio::time::sleep_until(since + next) => {
                    self.say(out, (Instant::now() - since).as_secs());
                    next += EACH;
                }
            }
        }
    }

    fn say(&self, out: &RefCell<Box<dyn Write>>, seconds: u64) {
        let came = match self.items.get() {
            0 => String::new(),
            items => format!(", {items} lines so far"),
        };
        let mut out = out.borrow_mut();
        // Whoever reads it may have gone, and the answer does not depend on it.
        let said = write!(out, "{ERASE}waiting for the server, {seconds} s{came}");
        self.is_said.set(said.and_then(|()| out.flush()).is_ok());
    }

    /// So many items of a long list have come.
    pub(crate) fn came(&self, items: usize) {
        self.items.set(items);
    }

    /// What was waited for is there: erases the line. What is waited for next is something else.
    pub(crate) fn is_over(&self) {
        self.since.set(None);
        self.items.set(0);
        if let Some(out) = self.out.as_ref().filter(|_| self.is_said.replace(false)) {
            let mut out = out.borrow_mut();
            let _ = write!(out, "{ERASE}").and_then(|()| out.flush());
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.is_over();
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use tokio::time::sleep;

    use super::*;

    #[derive(Clone, Default)]
    struct Terminal(Rc<RefCell<Vec<u8>>>);

    impl Write for Terminal {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.borrow_mut().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl Terminal {
        fn says(&self) -> String {
            String::from_utf8(std::mem::take(&mut *self.0.borrow_mut())).expect("text")
        }

        fn waiting(&self) -> Waiting {
            Waiting::on(Some(Box::new(self.clone())))
        }
    }

    fn line(seconds: u64, came: &str) -> String {
        format!("{ERASE}waiting for the server, {seconds} s{came}")
    }

    #[tokio::test(start_paused = true)]
    async fn what_takes_long_says_so_each_second_and_the_line_is_erased_in_the_end() {
        let terminal = Terminal::default();
        let waiting = terminal.waiting();
        let done = waiting.until(sleep(Duration::from_millis(1_900))).await;
        assert_eq!(((), String::new()), (done, terminal.says()));
        waiting.is_over();
        assert_eq!(
            terminal.says(),
            "",
            "nothing was written that had to be erased"
        );
        waiting.until(sleep(Duration::from_millis(4_500))).await;
        let lines = [line(2, ""), line(3, ""), line(4, "")];
        assert_eq!(terminal.says(), lines.concat());
        waiting.is_over();
        assert_eq!(terminal.says(), ERASE);
        waiting.is_over();
        assert_eq!(terminal.says(), "", "it is erased once");
    }

    #[tokio::test(start_paused = true)]
    async fn page_after_page_is_one_wait_that_says_what_has_come() {
        let terminal = Terminal::default();
        let waiting = terminal.waiting();
        waiting.until(sleep(Duration::from_millis(1_500))).await;
        waiting.came(1_000);
        waiting.until(sleep(Duration::from_millis(1_000))).await;
        waiting.came(2_000);
        waiting.until(sleep(Duration::from_millis(700))).await;
        let lines = [
            line(2, ", 1000 lines so far"),
            // Begun within the third second: said at once, not a second later.
            line(2, ", 2000 lines so far"),
        ];
        assert_eq!(terminal.says(), lines.concat());
        drop(waiting);
        assert_eq!(terminal.says(), ERASE);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_told_where_nobody_reads() {
        let waiting = Waiting::on(None);
        let done = waiting.until(async {
            sleep(Duration::from_secs(60)).await;
            7
        });
        assert_eq!(done.await, 7);
        assert!(!waiting.is_said.get());
    }
}
