//! stub, to be replaced
use chrono::{DateTime, Utc};
/// x
#[derive(Clone, Debug)]
pub struct Cron {}
impl Cron {
    /// x
    pub fn identifier(&self) -> &str {
        ""
    }
}
/// x
#[derive(Clone, Debug)]
pub enum CronEvent {}
#[derive(Clone, Debug, Default)]
pub(crate) struct CronItems {}
impl CronItems {
    pub(crate) fn new(_: Vec<Cron>) -> Self {
        CronItems {}
    }
    pub(crate) fn is_empty(&self) -> bool {
        true
    }
}
/// x
pub fn parse_crontab(_: &str) -> crate::Result<Vec<Cron>> {
    Ok(vec![])
}
pub(crate) async fn run_schedule(
    _: deadpool_postgres::Pool,
    _: crate::Schema,
    _: CronItems,
    _: impl Fn() -> DateTime<Utc> + Send + Sync + 'static,
    _: tokio_util::sync::CancellationToken,
    _: impl Fn(CronEvent) + Send + Sync,
) {
}
