//! What a terminal of 60, 80 and 120 columns shows: names and ids are whole, however long they are.
//!
//! The screens are compared with the files in `screens/`. After a change that is meant, write them anew:
//! `ATTA_WRITE_SCREENS=1 cargo test -p atta-cli --test cli screens`.

use crate::support::Place;
use crate::terminal::OnTerminal;

const TASKS: [&str; 3] = ["billing.send_monthly_invoice_to_customer", "通知メールを全員に送信する", "resize"];
const QUEUES: [&str; 3] = ["customer:acme-industries-europe-gmbh", "注文の処理を順番に行う列", "q"];
const WORKERS: [&str; 3] = ["atta-8fe1e1d53ddbe524", "atta-00000000000000aa", "worker-3f1b9cd2e0a84d7f9c"];

/// Times are relative to the present, and in hours: they look the same for half an hour.
async fn place() -> Place {
    let place = Place::new().await;
    let [invoice, mail, resize] = TASKS;
    let [acme, orders, q] = QUEUES;
    let [alive, silent, foreign] = WORKERS;
    let fill = format!(
        "select graphile_worker.add_job('{invoice}', queue_name := '{acme}', job_key := 'invoice-2026-05-for-customer-4711');
        select graphile_worker.add_job('{invoice}', queue_name := '{acme}', job_key := 'invoice-2026-05-for-customer-4712');
        select graphile_worker.add_job('{resize}', queue_name := '{q}', run_at := now() + interval '3 hours');
        select graphile_worker.add_job('{mail}', job_key := '鍵', run_at := now() + interval '5 hours');
        select graphile_worker.add_job('{mail}', '{{\"to\": \"everybody\"}}', queue_name := '{orders}', max_attempts := 3,
          job_key := '五月のお知らせ-2026-05-01-to-everybody-in-the-list');
        select graphile_worker.add_job('{resize}');
        update graphile_worker._private_jobs set run_at = now() - interval '4 hours' where id in (1, 2);
        update graphile_worker._private_jobs set attempts = 1, locked_at = now() - interval '3 hours', locked_by = '{alive}'
          where id = 1;
        update graphile_worker._private_jobs set attempts = 2, updated_at = now() - interval '6 hours',
          last_error = 'the server mail.example.com did not answer within 30 seconds, and neither did its replacement' where id = 3;
        update graphile_worker._private_jobs set attempts = 3, run_at = now() - interval '7 hours',
          updated_at = now() - interval '7 hours', last_error = 'no such file: /var/letters/4711.txt' where id = 5;
        update graphile_worker._private_jobs set attempts = 1, locked_at = now() - interval '5 hours', locked_by = '{foreign}',
          run_at = now() - interval '6 hours' where id = 6;
        update graphile_worker._private_job_queues set locked_at = now() - interval '3 hours', locked_by = '{alive}'
          where queue_name = '{acme}';
        insert into graphile_worker._atta_workers
          (id, host, pid, version, task_identifiers, slots, started_at, heartbeat_at, recovery_threshold)
        values
          ('{alive}', 'worker-7d9f8c6b5-x2x4z.production', 7, '1.0', array['{invoice}', '{mail}'], 4,
            now() - interval '3 days', now() - interval '3 hours', '1 day'),
          ('{silent}', 'box', 12345, '1.0', array['{resize}'], 10, now() - interval '3 days', now() - interval '5 hours', '30 s')"
    );
    place.client.batch_execute(&fill).await.expect("jobs are added");
    place
}

/// `atta show` prints whole times, so these are fixed.
async fn fix_times(place: &Place) {
    let fix = "update graphile_worker._private_jobs set run_at = '2026-05-01 08:00:00Z', created_at = '2026-05-01 07:00:00Z',
        updated_at = '2026-05-01 08:00:00Z' where id = 5";
    place.client.batch_execute(fix).await.expect("a job is changed");
}

/// What is shown, without how long ago fixed times are.
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
async fn screens_match_the_stored_ones() {
    let place = place().await;
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/screens");
    for words in ["jobs", "queues", "workers", "tasks", "stats", "show 5"] {
        if words == "show 5" {
            fix_times(&place).await;
        }
        for columns in [60, 80, 120] {
            let shown = screen(&place, columns, words);
            let file = format!("{folder}/{}-{columns}.txt", words.replace(' ', "-"));
            if std::env::var_os("ATTA_WRITE_SCREENS").is_some() {
                std::fs::create_dir_all(folder).unwrap();
                std::fs::write(&file, &shown).unwrap();
            }
            let kept = std::fs::read_to_string(&file).unwrap_or_default();
            assert_eq!(
                shown, kept,
                "`atta {words}` in {columns} columns has changed; see the head of this file"
            );
        }
    }
}

#[tokio::test]
async fn names_and_ids_are_whole_in_every_width() {
    let place = place().await;
    for columns in [20, 60, 80, 120] {
        for (words, names) in [
            ("queues", QUEUES),
            ("tasks", TASKS),
            ("workers", WORKERS),
            ("stats", TASKS),
            ("stats", QUEUES),
            ("jobs", TASKS),
        ] {
            let shown = screen(&place, columns, words);
            for name in names {
                assert!(shown.contains(name), "{name} in {columns} columns:\n{shown}");
            }
        }
    }
}
