//! The connections and transactions through which jobs are added: those of tokio-postgres and deadpool-postgres. The
//! adapters for other libraries are in [`super::adapters`].

use std::future::Future;

use bytes::{Bytes, BytesMut};
use futures_util::SinkExt;
use tokio_postgres::CopyInSink;
use tokio_postgres::types::Type;

use crate::{Error, Result};

/// A connection or transaction through which jobs can be added.
///
/// Implemented for tokio-postgres and deadpool clients and transactions, and behind features for those of sqlx,
/// diesel-async and sea-orm. Jobs that were added through a transaction are gone if it is rolled back.
///
/// You can implement it for the connections of any other library: only [`AddJobs::query_text`] is required. Use
/// [`Error::driver`] to convert the errors of the library.
pub trait AddJobs: Send {
    /// Runs a statement with one text argument and returns its one column of text.
    fn query_text(&mut self, sql: &str, argument: String)
    -> impl Future<Output = Result<Vec<String>>> + Send;

    /// Whether [`AddJobs::copy`] works here. Default: no; then many jobs are added through the SQL function.
    fn can_copy(&self) -> bool {
        false
    }

    /// Runs a COPY with these data.
    fn copy(&mut self, sql: &str, data: BytesMut) -> impl Future<Output = Result<()>> + Send {
        let _ = (sql, data);
        std::future::ready(Err(Error::invalid_input("adding jobs: this connection does not support COPY")))
    }
}

/// If a COPY ends early because its future is dropped, the server treats it as an error. Without a savepoint, that
/// error would abort the caller's transaction: its commit would then be a rollback, which reports success.
const SAVEPOINT: &str = "atta_copy";

impl AddJobs for tokio_postgres::Transaction<'_> {
    async fn query_text(&mut self, sql: &str, argument: String) -> Result<Vec<String>> {
        texts(self.query_typed(sql, &[(&argument, Type::TEXT)]).await)
    }

    fn can_copy(&self) -> bool {
        true
    }

    async fn copy(&mut self, sql: &str, data: BytesMut) -> Result<()> {
        let savepoint = self.savepoint(SAVEPOINT).await.map_err(failed)?;
        copy(&savepoint, sql, data).await?;
        savepoint.commit().await.map_err(failed)
    }
}

impl AddJobs for tokio_postgres::Client {
    async fn query_text(&mut self, sql: &str, argument: String) -> Result<Vec<String>> {
        texts(self.query_typed(sql, &[(&argument, Type::TEXT)]).await)
    }
}

impl AddJobs for deadpool_postgres::Transaction<'_> {
    async fn query_text(&mut self, sql: &str, argument: String) -> Result<Vec<String>> {
        texts(self.query_typed(sql, &[(&argument, Type::TEXT)]).await)
    }

    fn can_copy(&self) -> bool {
        true
    }

    async fn copy(&mut self, sql: &str, data: BytesMut) -> Result<()> {
        let savepoint = self.savepoint(SAVEPOINT).await.map_err(failed)?;
        copy(&savepoint, sql, data).await?;
        savepoint.commit().await.map_err(failed)
    }
}

impl AddJobs for deadpool_postgres::Object {
    async fn query_text(&mut self, sql: &str, argument: String) -> Result<Vec<String>> {
        texts(self.query_typed(sql, &[(&argument, Type::TEXT)]).await)
    }
}

/// A transaction that is used for one add only. If a COPY fails, or its future is dropped, the whole transaction is
/// rolled back, so that it needs no savepoint: two round trips less.
pub(super) struct Own<'a>(deadpool_postgres::Transaction<'a>);

impl<'a> Own<'a> {
    pub(super) async fn begin(client: &'a mut deadpool_postgres::Object) -> Result<Own<'a>> {
        Ok(Own(client.transaction().await.map_err(failed)?))
    }

    pub(super) async fn commit(self) -> Result<()> {
        self.0.commit().await.map_err(failed)
    }
}

impl AddJobs for Own<'_> {
    async fn query_text(&mut self, sql: &str, argument: String) -> Result<Vec<String>> {
        self.0.query_text(sql, argument).await
    }

    fn can_copy(&self) -> bool {
        true
    }

    async fn copy(&mut self, sql: &str, data: BytesMut) -> Result<()> {
        copy(&self.0, sql, data).await
    }
}

/// A pooled connection that keeps its prepared statements.
pub(super) struct Preparing(pub(super) deadpool_postgres::Object);

impl AddJobs for Preparing {
    async fn query_text(&mut self, sql: &str, argument: String) -> Result<Vec<String>> {
        let prepared = self.0.prepare_typed_cached(sql, &[Type::TEXT]).await;
        let statement = prepared.map_err(failed)?;
        texts(self.0.query(&statement, &[&argument]).await)
    }
}

/// After a COPY that was refused, PgBouncer 1.18 has a wrong count of the answers that are still to come. A statement
/// that is sent before these answers have arrived, such as a rollback or the caller's next statement, may never be
/// answered. Therefore nothing else is sent until an empty statement has been answered.
async fn copy(transaction: &tokio_postgres::Transaction<'_>, sql: &str, data: BytesMut) -> Result<()> {
    let copied = match transaction.copy_in(sql).await {
        Ok(sink) => send_all(sink, data).await,
        Err(error) => Err(failed(error)),
    };
    if copied.is_err() {
        let _ = transaction.batch_execute("").await;
    }
    copied
}

/// Sends the data in pieces, so that the connection's task can send one while the next is handed over.
async fn send_all(sink: CopyInSink<Bytes>, data: BytesMut) -> Result<()> {
    let mut sink = std::pin::pin!(sink);
    let mut data = data.freeze();
    while !data.is_empty() {
        let piece = data.split_to(data.len().min(1 << 18));
        sink.send(piece).await.map_err(failed)?;
    }
    sink.finish().await.map(drop).map_err(failed)
}

fn texts(rows: Result<Vec<tokio_postgres::Row>, tokio_postgres::Error>) -> Result<Vec<String>> {
    Ok(rows.map_err(failed)?.iter().map(|row| row.get(0)).collect())
}

fn failed(error: tokio_postgres::Error) -> Error {
    Error::database("adding jobs", error)
}
