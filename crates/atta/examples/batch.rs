//! Many items in one job: they collect under a job key until it runs, and only those that fail are retried.

use atta::{
    BatchTaskHandler, IntoBatchResult, JobKeyMode, JobSpecBuilder, WorkerContext, WorkerOptions, testing,
};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Invoice {
    id: u32,
}

impl BatchTaskHandler for Invoice {
    const IDENTIFIER: &'static str = "send_invoices";

    async fn run_batch(items: Vec<Invoice>, _ctx: WorkerContext) -> impl IntoBatchResult {
        println!("sending {} invoices", items.len());
        let send = |invoice: &Invoice| if invoice.id % 2 == 1 { Ok(()) } else { Err("no address") };
        items.iter().map(send).collect::<Vec<_>>()
    }
}

#[tokio::main]
async fn main() -> atta::Result<()> {
    let worker = WorkerOptions::default().define_batch_job::<Invoice>().init().await?;
    let utils = worker.create_utils();

    // The second add finds the first job by its key, and adds its items to it.
    let spec = JobSpecBuilder::new().job_key("invoices").job_key_mode(JobKeyMode::PreserveRunAt).build();
    utils.add_batch_job(&[Invoice { id: 1 }, Invoice { id: 2 }], spec.clone()).await?;
    utils.add_batch_job(&[Invoice { id: 3 }], spec).await?;

    worker.run_once().await?;

    let left = testing::assert_added(&utils, "send_invoices").await;
    println!("left: {} after {:?}", left.payload_json(), left.last_error().unwrap_or_default());
    Ok(())
}
