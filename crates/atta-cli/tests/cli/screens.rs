//! What a terminal of 60, 80 and 120 columns shows: names and ids are whole, however long they are.
//!
//! The screens are compared with the files in `screens/`. After a change that is meant, write them anew:
//! `ATTA_WRITE_SCREENS=1 cargo test -p atta-cli --test cli screens`.

use crate::support::Place;
use crate::terminal::OnTerminal;

const TASKS: [&str; 3] =
    ["billing.send_monthly_invoice_to_customer", "通知メールを全員に送信する", "resize"];
const QUEUES: [&str; 3] = ["customer:acme-industries-europe-gmbh", "注文の処理を順番に行う列", "q"];
const WORKERS: [&str; 3] = ["atta-8fe1e1d53ddbe524", "atta-00000000000000aa", "worker-3f1b9cd2e0a84d7f9c"];

/// Times are relative to the present, and far from the limits at which they are rounded differently.
async fn place() -> Place {
    let place = Place::new().await;
    let [invoice, mail, resize] = TASKS;
    let [acme, orders, q] = QUEUES;
    let [alive, silent, foreign] = WORKERS;
    let fill = format!(
        "select graphile_worker.add_job('{invoice}', queue_name := '{acme}', job_key := 'invoice-2026-05-for-customer-4711');
        select graphile_worker.add_job('{invoice}', queue_name := '{acme}', job_key := 'invoice-2026-05-for-customer-4712');
        select graphile_worker.add_job('{mail}', queue_name := '{orders}', run_at := now() + interval '3 hours');
        select graphile_worker.add_job('{mail}', job_key := '鍵', run_at := now() + interval '5 minutes');
        select graphile_worker.add_job('{resize}', '{{\"width\": 640}}', queue_name := '{q}', max_attempts := 3);
        select graphile_worker.add_job('{resize}');
        update graphile_worker._private_jobs set run_at = now() - interval '4 hours' where id in (1, 2);
        update graphile_worker._private_jobs set attempts = 1, locked_at = now() - interval '10 minutes', locked_by = '{alive}'
          where id = 1;
        update graphile_worker._private_jobs set attempts = 2, updated_at = now() - interval '30 minutes',
          last_error = 'the server mail.example.com did not answer within 30 seconds, and neither did its replacement' where id = 3;
        update graphile_worker._private_jobs set attempts = 3, last_error = 'no such file: /var/images/4711.png',
          run_at = '2026-05-01 08:00:00Z', created_at = '2026-05-01 07:00:00Z', updated_at = '2026-05-01 08:00:00Z' where id = 5;
        update graphile_worker._private_jobs set attempts = 1, locked_at = now() - interval '5 hours', locked_by = '{foreign}',
          run_at = now() - interval '6 hours' where id = 6;
        update graphile_worker._private_job_queues set locked_at = now() - interval '10 minutes', locked_by = '{alive}'
          where queue_name = '{acme}';
        insert into graphile_worker._atta_workers (id, host, pid, version, task_identifiers, slots, started_at, heartbeat_at)
        values
          ('{alive}', 'worker-7d9f8c6b5-x2x4z.production', 7, '1.0', array['{invoice}', '{mail}'], 4,
            now() - interval '3 days', now() + interval '1 hour'),
          ('{silent}', 'box', 12345, '1.0', array['{resize}'], 10, now() - interval '3 days', now() - interval '10 minutes')"
    );
    place.client.batch_execute(&fill).await.expect("jobs are added");
    place
}

/// What is shown, without how long ago the fixed times are.
fn screen(place: &Place, columns: usize, words: &str) -> String {
    let (code, shown) = OnTerminal::of_width(columns, place, "NO_COLOR=1", words).end();
    assert_eq!(code, Some(0), "{shown}");
    let lines = shown.lines().map(|line| match line.split_once("Z (") {
        Some((time, _)) => format!("{time}Z (…)\n"),
        None => format!("{line}\n"),
    });
    lines.collect()
}

#[tokio::test]
async fn screens_are_as_they_were() {
    let place = place().await;
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/screens");
    for words in ["jobs", "queues", "workers", "tasks", "stats", "show 5"] {
        for columns in [60, 80, 120] {
            let shown = screen(&place, columns, words);
            let file = format!("{folder}/{}-{columns}.txt", words.replace(' ', "-"));
            if std::env::var_os("ATTA_WRITE_SCREENS").is_some() {
                std::fs::create_dir_all(folder).unwrap();
                std::fs::write(&file, &shown).unwrap();
            }
            let kept = std::fs::read_to_string(&file).unwrap_or_default();
            assert_eq!(shown, kept, "`atta {words}` in {columns} columns has changed; see the head of this file");
        }
    }
}

#[tokio::test]
async fn names_and_ids_are_whole_in_every_width() {
    let place = place().await;
    for columns in [20, 60, 80, 120] {
        for (words, names) in
            [("queues", QUEUES), ("tasks", TASKS), ("workers", WORKERS), ("stats", TASKS), ("stats", QUEUES), ("jobs", TASKS)]
        {
            let shown = screen(&place, columns, words);
            for name in names {
                assert!(shown.contains(name), "{name} in {columns} columns:\n{shown}");
            }
        }
    }
}
