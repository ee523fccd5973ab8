//! A task that decides when, and whether, its job is retried.

use std::time::Duration;

use atta::{
    IntoTaskHandlerResult, JobSpec, RetryPolicy, TaskError, TaskHandler, WorkerContext, WorkerOptions,
    testing,
};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct PrintInvoice {
    customer: Option<u32>,
}

impl TaskHandler for PrintInvoice {
    const IDENTIFIER: &'static str = "print_invoice";

    async fn run(self, _ctx: WorkerContext) -> impl IntoTaskHandlerResult {
        let Some(customer) = self.customer else {
            return Err(TaskError::new("no such customer").give_up());
        };
        if is_busy(customer) {
            return Err(TaskError::new("the printer is busy").retry_in(Duration::from_secs(5)));
        }
        Ok(())
    }

    // For errors that do not decide themselves: after a minute, or up to a quarter of a minute later.
    fn retry_policy() -> RetryPolicy {
        RetryPolicy::fixed(Duration::from_secs(60)).with_jitter(0.25)
    }
}

fn is_busy(customer: u32) -> bool {
    customer == 7
}

#[tokio::main]
async fn main() -> atta::Result<()> {
    let worker = WorkerOptions::default().concurrency(1).define_job::<PrintInvoice>().init().await?;
    let utils = worker.create_utils();
    for customer in [None, Some(7), Some(8)] {
        utils.add_job(PrintInvoice { customer }, JobSpec::default()).await?;
    }
    worker.run_once().await?;

    // The job of customer 8 is complete, so its row is deleted.
    for job in testing::jobs_of(&utils, "print_invoice").await? {
        let state = if job.is_permanently_failed() { "permanently failed" } else { "to be retried" };
        println!("{state}: {}", job.last_error().unwrap_or_default());
    }
    Ok(())
}
