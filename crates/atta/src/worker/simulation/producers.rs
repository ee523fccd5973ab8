//! The applications that add jobs, and their notifications.

use chrono::TimeDelta;

use super::super::planner::Event;
use super::model::{AddMode, Spec, WorkerNumber};
use super::setup::TASKS;
use super::world::{FORBIDDEN, MS, Step, World};

impl World {
    /// The next jobs are added, and announced.
    pub(super) fn add(&mut self) {
        let count = self.setup.batch.max(1).min(self.setup.jobs - self.added);
        (0..count).for_each(|_| self.add_one());
        self.notify(count);
    }

    fn add_one(&mut self) {
        let now = self.now();
        let (queues, is_exact, flagged) = (self.setup.queues, self.setup.is_exact, self.setup.flagged);
        let random = &mut self.random.adds;
        let priority = random.i16(-2..3);
        let late = if random.u8(..) < 40 && !is_exact { random.u32(0..2000) } else { 0 };
        let task = TASKS[random.usize(..TASKS.len())];
        let flag = match random.f64() / flagged {
            0.0..1.0 => Some(FORBIDDEN),
            1.0..2.0 => Some("allowed"),
            _ => None,
        };
        let (is_queued, queue) = (random.bool(), random.i32(0..queues.max(1)));
        let queue = (queues > 0 && is_queued).then_some(queue);
        let run_at = self.database.clock(now) + TimeDelta::milliseconds(late.into());
        let spec = Spec {
            task: task.to_owned(),
            priority,
            run_at,
            queue,
            max_attempts: 25,
            key: None,
            mode: AddMode::Replace,
            flags: flag.map(|flag| [(flag.to_owned(), true.into())].into_iter().collect()),
        };
        let id = self.database.add(now, spec);
        self.added += 1;
        self.note(|world| {
            let order = world.database.rows()[&id].job.order();
            format!(
                "job {id} of task {task} is added: priority {}, due in {late} ms, queue {queue:?}",
                order.0
            )
        });
        self.statistics.on_added(id, now + MS * late);
    }

    /// NOTIFY: to all workers, or lost, late or twice.
    pub(super) fn notify(&mut self, count: usize) {
        let workers: Vec<WorkerNumber> = self.workers.keys().copied().collect();
        for worker in workers {
            let losses = &mut self.random.losses;
            let (is_unheard, is_late, is_double) = (
                losses.f64() < self.setup.unheard,
                losses.f64() < self.setup.late_notifications,
                losses.f64() < self.setup.duplicated,
            );
            let lateness = if is_late { losses.u32(0..3000) } else { 0 };
            if is_unheard || !self.can_reach(worker) {
                continue;
            }
            for _ in 0..=usize::from(is_double) {
                let at = self.soon() + MS * lateness;
                self.plan(at, worker, Step::Deliver(Event::Announced(count)));
            }
        }
    }
}
