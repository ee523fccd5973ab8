//! Which due jobs there may be that no durable claim has asked for. They are compared with the claimed jobs that wait
//! to start: without room for all, only more urgent ones are claimed.
//!
//! A hint leads to `Any`. A claim that returned less than it asked for changes nothing, so no wake-up is lost between
//! "found nothing" and "go to sleep".

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asking {
    Nothing,
    /// Jobs that are no more urgent than those that wait.
    LessUrgent,
    /// Only jobs that are more urgent than those that wait.
    MoreUrgent,
    Any,
}

impl Asking {
    /// Whether a claim of any number of jobs may find some.
    pub(super) fn has_less_urgent(self) -> bool {
        matches!(self, Asking::LessUrgent | Asking::Any)
    }

    pub(super) fn has_more_urgent(self) -> bool {
        matches!(self, Asking::MoreUrgent | Asking::Any)
    }

    pub(super) fn ask_less_urgent(&mut self) {
        *self = if self.has_more_urgent() { Asking::Any } else { Asking::LessUrgent };
    }

    pub(super) fn ask_more_urgent(&mut self) {
        *self = if self.has_less_urgent() { Asking::Any } else { Asking::MoreUrgent };
    }

    pub(super) fn ask_any(&mut self) {
        *self = Asking::Any;
    }

    /// A claim of any jobs was sent. `was_full` if the claim before brought all that it asked for: then there may be
    /// more.
    pub(super) fn on_sent(&mut self, was_full: bool) {
        *self = if was_full { Asking::LessUrgent } else { Asking::Nothing };
    }

    /// A claim of more urgent jobs was sent.
    pub(super) fn on_sent_more_urgent(&mut self) {
        *self = if self.has_less_urgent() { Asking::LessUrgent } else { Asking::Nothing };
    }
}

#[cfg(test)]
mod tests {
    use super::Asking::{Any, LessUrgent, MoreUrgent, Nothing};
    use super::*;

    #[test]
    fn each_event_leads_to_one_state() {
        type Event = (&'static str, fn(&mut Asking), [Asking; 4]);
        // The event, and the states that follow Nothing, LessUrgent, MoreUrgent and Any.
        let table: [Event; 6] = [
            ("ask for less urgent jobs", Asking::ask_less_urgent, [LessUrgent, LessUrgent, Any, Any]),
            ("ask for more urgent jobs", Asking::ask_more_urgent, [MoreUrgent, Any, MoreUrgent, Any]),
            ("ask for any jobs", Asking::ask_any, [Any; 4]),
            ("sent after a full claim", |asking| asking.on_sent(true), [LessUrgent; 4]),
            ("sent", |asking| asking.on_sent(false), [Nothing; 4]),
            (
                "sent for more urgent jobs",
                Asking::on_sent_more_urgent,
                [Nothing, LessUrgent, Nothing, LessUrgent],
            ),
        ];
        for (event, apply, expected) in table {
            for (before, after) in [Nothing, LessUrgent, MoreUrgent, Any].into_iter().zip(expected) {
                let mut asking = before;
                apply(&mut asking);
                assert_eq!(asking, after, "{event}, {before:?}");
            }
        }
    }
}
