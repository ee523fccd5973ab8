//! The processes of `cargo xtask soak`: `full SECONDS` measures the highest speed of a worker and a producer, `work` is
//! the worker, `add RATE` adds that many jobs per second. The database is in `DATABASE_URL`.
//!
//! `work` and `add` answer each line of their input with one line of flat JSON that contains their counts. They shut
//! down when their input ends, so they end with the process that started them. The line `stop` ends the adding; the
//! answers continue.

mod add;
mod mix;
mod tasks;

use std::env;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use atta::WorkerUtils;
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};

use add::Producer;
use tasks::Tally;

pub(crate) type Result<T = (), E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

#[tokio::main]
async fn main() -> Result {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let url = env::var("DATABASE_URL").map_err(|_| "DATABASE_URL is not set")?;
    match words.as_slice() {
        ["full", seconds] => full(&url, Duration::from_secs(seconds.parse()?)).await,
        ["work"] => work(&url).await,
        ["add", rate] => add(&url, rate.parse()?).await,
        _ => Err("usage: full SECONDS | work | add RATE".into()),
    }
}

/// Runs worker and producer in one process for a while, and prints the highest rate that both sustain: the producer
/// waits when the worker can't keep up.
async fn full(url: &str, length: Duration) -> Result {
    let tally = Arc::new(Tally::default());
    let worker = tasks::worker(url, &tally).await?;
    let handle = worker.handle();
    let running = tokio::spawn(async move { worker.run().await });
    let rate = add::full_speed(&WorkerUtils::connect(url)?, &tally, length).await;
    // However it ended, the worker is shut down.
    handle.request_shutdown();
    running.await??;
    println!("{{\"per_second\":{:.1}}}", rate?);
    Ok(())
}

async fn work(url: &str) -> Result {
    let tally = Arc::new(Tally::default());
    let worker = tasks::worker(url, &tally).await?;
    let handle = worker.handle();
    let mut running = tokio::spawn(async move { worker.run().await });
    let mut questions = questions();
    loop {
        tokio::select! {
            question = questions.next_line() => match question? {
                Some(_) => println!("{}", tally.report()),
                None => break,
            },
            ended = &mut running => {
                ended??;
                return Err("the worker ended by itself".into());
            }
        }
    }
    handle.request_shutdown();
    Ok(running.await??)
}

async fn add(url: &str, rate: f64) -> Result {
    let producer = Arc::new(Producer::new(WorkerUtils::connect(url)?, rate));
    let mut adding = tokio::spawn(producer.clone().run());
    let mut questions = questions();
    loop {
        tokio::select! {
            question = questions.next_line() => match question?.as_deref() {
                Some("stop") => break,
                Some(_) => println!("{}", producer.report()),
                None => return Ok(()),
            },
            ended = &mut adding => {
                ended??;
                return Err("the producer ended by itself".into());
            }
        }
    }
    producer.stop();
    adding.await??;
    println!("{}", producer.report());
    while questions.next_line().await?.is_some() {
        println!("{}", producer.report());
    }
    Ok(())
}

fn questions() -> Lines<BufReader<Stdin>> {
    BufReader::new(tokio::io::stdin()).lines()
}
