//! The libraries by which an application can use its database, each used as an application does.

use ::diesel_async::{AsyncConnection, AsyncPgConnection, SimpleAsyncConnection};
use ::sea_orm::{
    ConnectionTrait, Database as SeaOrm, DatabaseConnection, DatabaseTransaction, TransactionTrait,
};
use ::sqlx::pool::PoolConnection;
use ::sqlx::postgres::PgPoolOptions;
use ::sqlx::{Connection, Executor, PgConnection, Postgres};
use atta::{AddJobs, ConnectionSettings, Result};
use testkit::Database;
use tokio_postgres::Client;

const INSERT: &str = "insert into applied values (1)";

/// A connection that can add jobs, and its transactions.
pub(super) trait Caller: AddJobs + Sized {
    type Transaction<'a>: AddJobs
    where
        Self: 'a;

    async fn open(db: &Database) -> Self;
    /// Inserts a row of the application, without a transaction.
    async fn insert(&mut self);
    async fn begin(&mut self) -> Self::Transaction<'_>;
    async fn insert_in(transaction: &mut Self::Transaction<'_>);
    async fn commit(transaction: Self::Transaction<'_>);
    async fn rollback(transaction: Self::Transaction<'_>);
}

impl Caller for Client {
    type Transaction<'a> = tokio_postgres::Transaction<'a>;

    async fn open(db: &Database) -> Client {
        ConnectionSettings::new(&db.url()).unwrap().connect().await.unwrap()
    }

    async fn insert(&mut self) {
        self.batch_execute(INSERT).await.unwrap();
    }

    async fn begin(&mut self) -> Self::Transaction<'_> {
        self.transaction().await.unwrap()
    }

    async fn insert_in(transaction: &mut Self::Transaction<'_>) {
        transaction.batch_execute(INSERT).await.unwrap();
    }

    async fn commit(transaction: Self::Transaction<'_>) {
        transaction.commit().await.unwrap();
    }

    async fn rollback(transaction: Self::Transaction<'_>) {
        transaction.rollback().await.unwrap();
    }
}

impl Caller for deadpool_postgres::Object {
    type Transaction<'a> = deadpool_postgres::Transaction<'a>;

    async fn open(db: &Database) -> deadpool_postgres::Object {
        ConnectionSettings::new(&db.url()).unwrap().pool(1).unwrap().get().await.unwrap()
    }

    async fn insert(&mut self) {
        self.batch_execute(INSERT).await.unwrap();
    }

    async fn begin(&mut self) -> Self::Transaction<'_> {
        self.transaction().await.unwrap()
    }

    async fn insert_in(transaction: &mut Self::Transaction<'_>) {
        transaction.batch_execute(INSERT).await.unwrap();
    }

    async fn commit(transaction: Self::Transaction<'_>) {
        transaction.commit().await.unwrap();
    }

    async fn rollback(transaction: Self::Transaction<'_>) {
        transaction.rollback().await.unwrap();
    }
}

impl Caller for PgConnection {
    type Transaction<'a> = ::sqlx::Transaction<'a, Postgres>;

    async fn open(db: &Database) -> PgConnection {
        PgConnection::connect(&db.url()).await.unwrap()
    }

    async fn insert(&mut self) {
        self.execute(INSERT).await.unwrap();
    }

    async fn begin(&mut self) -> Self::Transaction<'_> {
        Connection::begin(self).await.unwrap()
    }

    async fn insert_in(transaction: &mut Self::Transaction<'_>) {
        transaction.execute(INSERT).await.unwrap();
    }

    async fn commit(transaction: Self::Transaction<'_>) {
        transaction.commit().await.unwrap();
    }

    async fn rollback(transaction: Self::Transaction<'_>) {
        transaction.rollback().await.unwrap();
    }
}

/// Its transactions are started by plain SQL, so sqlx does not know about them.
impl Caller for PoolConnection<Postgres> {
    type Transaction<'a> = ByHand<'a>;

    async fn open(db: &Database) -> PoolConnection<Postgres> {
        let pool = PgPoolOptions::new().max_connections(1).connect(&db.url()).await.unwrap();
        pool.acquire().await.unwrap()
    }

    async fn insert(&mut self) {
        self.execute(INSERT).await.unwrap();
    }

    async fn begin(&mut self) -> Self::Transaction<'_> {
        self.execute("begin").await.unwrap();
        ByHand(self)
    }

    async fn insert_in(transaction: &mut Self::Transaction<'_>) {
        transaction.0.execute(INSERT).await.unwrap();
    }

    async fn commit(transaction: Self::Transaction<'_>) {
        transaction.0.execute("commit").await.unwrap();
    }

    async fn rollback(transaction: Self::Transaction<'_>) {
        transaction.0.execute("rollback").await.unwrap();
    }
}

pub(super) struct ByHand<'a>(&'a mut PoolConnection<Postgres>);

impl AddJobs for ByHand<'_> {
    async fn query_text(&mut self, sql: &str, argument: String) -> Result<Vec<String>> {
        self.0.query_text(sql, argument).await
    }
}

impl Caller for DatabaseConnection {
    type Transaction<'a> = DatabaseTransaction;

    async fn open(db: &Database) -> DatabaseConnection {
        let mut options = ::sea_orm::ConnectOptions::new(db.url());
        options.max_connections(1);
        SeaOrm::connect(options).await.unwrap()
    }

    async fn insert(&mut self) {
        self.execute_unprepared(INSERT).await.unwrap();
    }

    async fn begin(&mut self) -> Self::Transaction<'_> {
        TransactionTrait::begin(self).await.unwrap()
    }

    async fn insert_in(transaction: &mut Self::Transaction<'_>) {
        transaction.execute_unprepared(INSERT).await.unwrap();
    }

    async fn commit(transaction: Self::Transaction<'_>) {
        transaction.commit().await.unwrap();
    }

    async fn rollback(transaction: Self::Transaction<'_>) {
        transaction.rollback().await.unwrap();
    }
}

impl Caller for AsyncPgConnection {
    type Transaction<'a> = InDiesel<'a>;

    async fn open(db: &Database) -> AsyncPgConnection {
        AsyncPgConnection::establish(&db.url()).await.unwrap()
    }

    async fn insert(&mut self) {
        self.batch_execute(INSERT).await.unwrap();
    }

    async fn begin(&mut self) -> Self::Transaction<'_> {
        self.batch_execute("begin").await.unwrap();
        InDiesel(self)
    }

    async fn insert_in(transaction: &mut Self::Transaction<'_>) {
        transaction.0.batch_execute(INSERT).await.unwrap();
    }

    async fn commit(transaction: Self::Transaction<'_>) {
        transaction.0.batch_execute("commit").await.unwrap();
    }

    async fn rollback(transaction: Self::Transaction<'_>) {
        transaction.0.batch_execute("rollback").await.unwrap();
    }
}

/// diesel-async lends its connection to a closure in a transaction.
pub(super) struct InDiesel<'a>(&'a mut AsyncPgConnection);

impl AddJobs for InDiesel<'_> {
    async fn query_text(&mut self, sql: &str, argument: String) -> Result<Vec<String>> {
        self.0.query_text(sql, argument).await
    }
}
