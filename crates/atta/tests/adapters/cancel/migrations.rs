//! Installing the schema. After a drop, the schema is complete or absent.

use atta::{ConnectionSettings, Schema};
use futures_util::future::LocalBoxFuture;
use tokio_postgres::Client;

use super::world::World;
use super::{Drops, MOST_POLLS, poll_and_drop};

pub(super) const COVERED: &[&str] = &["migrate.rs migrate", "utils.rs migrate", "run.rs run_migrations"];

const ABSENT: &str = "0 0";
const INSTALLED: &str = "
    select concat_ws(
      ' ',
      (select count(*) from pg_class where relnamespace = to_regnamespace('graphile_worker')),
      (select count(*) from pg_proc where pronamespace = to_regnamespace('graphile_worker'))
    )
";

type Call = for<'a> fn(&'a World, &'a mut Client) -> LocalBoxFuture<'a, ()>;

/// Drops the call after 0 polls, `step` polls and so on, up to the number with which it ends.
async fn drop_each(call: Call, step: usize) {
    let world = World::empty().await;
    let mut client = ConnectionSettings::new(&world.db.url()).unwrap().connect().await.unwrap();
    call(&world, &mut client).await;
    let installed = world.text(INSTALLED).await;
    assert_ne!(installed, ABSENT);
    for drops in Drops::BOTH {
        for polls in (0..MOST_POLLS).step_by(step) {
            let what = format!("migrate, {drops:?}, {polls} polls");
            world.execute("drop schema if exists graphile_worker cascade; truncate applied").await;
            let ended = poll_and_drop(call(&world, &mut client), polls, drops).await.is_some();
            world.settle(&what).await;
            let now = world.text(INSTALLED).await;
            assert!(now == installed || (!ended && now == ABSENT), "half done: {what}: {now}");
            client.batch_execute("insert into applied values (1)").await.unwrap();
            let pooled = world.utils.pool().get().await.unwrap();
            pooled.batch_execute("insert into applied values (1)").await.unwrap();
            assert_eq!(world.count_applied().await, 2, "not committed: {what}");
            if ended {
                break;
            }
            assert!(polls + step < MOST_POLLS, "{what}");
        }
    }
}

#[tokio::test]
async fn a_dropped_migration_is_all_or_nothing() {
    drop_each(
        |_, client| Box::pin(async { drop(atta::migrate(client, &Schema::default()).await.unwrap()) }),
        1,
    )
    .await;
}

#[tokio::test]
async fn a_dropped_migration_on_the_pool_is_all_or_nothing() {
    drop_each(|world, _| Box::pin(async { drop(world.utils.migrate().await.unwrap()) }), 3).await;
}

#[tokio::test]
async fn a_dropped_migration_by_a_connection_string_is_all_or_nothing() {
    drop_each(|world, _| Box::pin(async { drop(atta::run_migrations(&world.db.url()).await.unwrap()) }), 5)
        .await;
}
