//! What only a terminal gets: questions, colours, tables that fit, a progress bar. `script` gives the command one.
#![cfg(target_os = "linux")]

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

use crate::support::{Place, TextFile};

/// A command on a terminal.
pub(crate) struct OnTerminal {
    child: Child,
    shown: Vec<u8>,
}

impl OnTerminal {
    fn start(place: &Place, environment: &str, words: &str) -> OnTerminal {
        OnTerminal::of_width(60, place, environment, words)
    }

    /// A terminal with this many columns.
    pub(crate) fn of_width(columns: usize, place: &Place, environment: &str, words: &str) -> OnTerminal {
        let atta = env!("CARGO_BIN_EXE_atta");
        let command =
            format!("stty cols {columns} rows 20; {environment} {atta} {words} -c {}", place.db.url());
        let child = Command::new("script")
            .args(["--quiet", "--return", "--command", &command, "/dev/null"])
            .env("TERM", "xterm")
            .env_remove("NO_COLOR")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script starts");
        OnTerminal { child, shown: Vec::new() }
    }

    /// Reads the output until it contains this text.
    fn wait_for(&mut self, text: &str) {
        let out = self.child.stdout.as_mut().expect("its output is ours");
        while !String::from_utf8_lossy(&self.shown).contains(text) {
            let mut byte = [0];
            let read = out.read(&mut byte).expect("its output can be read");
            assert_ne!(read, 0, "{text:?} is not in {:?}", String::from_utf8_lossy(&self.shown));
            self.shown.push(byte[0]);
        }
    }

    fn answer(&mut self, text: &str) {
        let input = self.child.stdin.as_mut().expect("its input is ours");
        input.write_all(text.as_bytes()).expect("it reads its input");
    }

    /// Its exit code, and all that was shown.
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        let mut out = self.child.stdout.take().expect("its output is ours");
        out.read_to_end(&mut self.shown).expect("its output can be read");
        let status = self.child.wait().expect("it ends");
        (status.code(), String::from_utf8_lossy(&self.shown).replace('\r', ""))
    }
}

#[tokio::test]
async fn a_question_names_the_number_of_jobs_and_only_yes_changes_them() {
    let place = Place::with_jobs().await;
    for (answer, code, left) in [("n\n", 1, "1 2 3 4 5 6"), ("\n", 1, "1 2 3 4 5 6"), ("yes\n", 0, "1 2 5 6")]
    {
        let mut run = OnTerminal::start(&place, "", "complete --task resize");
        run.wait_for("complete 2 jobs? [y/N] ");
        run.answer(answer);
        let (ended, shown) = run.end();
        assert_eq!(ended, Some(code), "{shown}");
        assert_eq!(shown.contains("nothing was done"), code == 1, "{shown}");
        assert_eq!(place.ids().await, left);
    }
}

#[tokio::test]
async fn it_asks_before_a_migration_that_stops_older_releases() {
    let place = Place::new().await;
    let older = "delete from graphile_worker.migrations where id > 18";
    place.client.batch_execute(older).await.unwrap();
    for (answer, code, revision) in [("n\n", 1, 18), ("y\n", 0, 20)] {
        let mut run = OnTerminal::start(&place, "", "migrate");
        run.wait_for("migrate schema \"graphile_worker\"? [y/N] ");
        run.answer(answer);
        let (ended, shown) = run.end();
        assert_eq!(ended, Some(code), "{shown}");
        assert!(shown.contains("graphile-worker 0.16 and older stop working"), "{shown}");
        let sql = "select max(id) from graphile_worker.migrations";
        assert_eq!(place.client.query_one(sql, &[]).await.unwrap().get::<_, i32>(0), revision, "{shown}");
    }
}

#[tokio::test]
async fn a_job_that_changes_before_the_confirmation_is_skipped() {
    let place = Place::with_jobs().await;
    let mut run = OnTerminal::start(&place, "", "remove --state scheduled,retrying");
    run.wait_for("remove 2 jobs? [y/N] ");
    let change = "update graphile_worker._private_jobs set run_at = now() where id = 3";
    place.client.batch_execute(change).await.unwrap();
    run.answer("y\n");
    let (code, shown) = run.end();
    assert_eq!(code, Some(1), "{shown}");
    assert!(shown.contains("removed 1 job\n"), "{shown}");
    assert!(shown.contains("job 3 was skipped: it changed in the meantime"), "{shown}");
    assert_eq!(place.ids().await, "1 2 3 5 6");
}

#[tokio::test]
async fn a_table_fits_and_has_colours_unless_they_are_not_wanted() {
    let place = Place::with_jobs().await;
    let (code, coloured) = OnTerminal::start(&place, "", "jobs").end();
    assert_eq!(code, Some(0), "{coloured}");
    assert!(coloured.contains("\u{1b}[31mfailed"), "{coloured}");
    let (_, plain) = OnTerminal::start(&place, "NO_COLOR=1", "jobs --state retrying --limit 1").end();
    assert!(!plain.contains('\u{1b}'), "{plain}");
    let (_, plain) = OnTerminal::start(&place, "NO_COLOR=1", "jobs").end();
    assert!(plain.contains("\nno room for: "), "{plain}");
    assert_eq!(plain.lines().count(), 8, "{plain}");
    assert!(plain.lines().all(|line| line.chars().count() <= 60), "{plain}");
}

#[tokio::test]
async fn a_bulk_add_shows_how_far_it_is() {
    let place = Place::new().await;
    let lines: String = (0..20_000).map(|_| "{\"identifier\":\"t\"}\n").collect();
    let file = TextFile::new("progress.jsonl", &lines);
    let (code, shown) = OnTerminal::start(&place, "", &format!("add --bulk {}", file.path())).end();
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.contains("of 20,000 jobs") && shown.contains("added 20000 jobs\n"), "{shown}");
}
