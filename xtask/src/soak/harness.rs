//! A process of the soak: it answers each line with a line of numbers, and ends when its input ends.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Stdio};

use atta_cluster::OwnedChild;

use super::PACKAGE;
use crate::Result;
use crate::bench::{binary, numbers};

#[derive(Debug)]
pub(super) struct Harness {
    name: &'static str,
    /// Killed with this value: if it has not ended by then, the soak has failed and its server is about to be removed.
    process: OwnedChild,
    /// None once the process must end.
    questions: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Harness {
    pub(super) fn start(name: &'static str, words: &[&str], url: &str) -> Result<Harness> {
        let mut command = binary(PACKAGE);
        command.args(words).env("DATABASE_URL", url).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process =
            OwnedChild::spawn(&mut command).map_err(|error| format!("starting the {name}: {error}"))?;
        let questions = process.stdin.take();
        let answers = process.stdout.take().ok_or_else(|| format!("the {name} has no output"))?;
        Ok(Harness { name, process, questions, answers: BufReader::new(answers) })
    }

    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Sends a line, and returns the counts in the answer.
    pub(super) fn ask(&mut self, question: &str) -> Result<Vec<(String, f64)>> {
        let mut answer = String::new();
        if let Some(questions) = &mut self.questions {
            let asked = writeln!(questions, "{question}").and_then(|()| questions.flush());
            asked
                .and_then(|()| self.answers.read_line(&mut answer))
                .map_err(|error| format!("asking the {}: {error}", self.name))?;
        }
        if answer.is_empty() {
            return Err(format!("the {} has ended; its output is above", self.name));
        }
        numbers(&answer)
    }

    /// Waits until the process has shut down.
    pub(super) fn end(mut self) -> Result {
        drop(self.questions.take());
        let status =
            self.process.wait().map_err(|error| format!("waiting for the {}: {error}", self.name))?;
        if !status.success() {
            return Err(format!("the {} failed: {status}", self.name));
        }
        Ok(())
    }
}
