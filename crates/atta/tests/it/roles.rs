//! The roles of `atta migrate --print-roles`: each can do what it is for, and no more.

mod support;
mod adder;
mod errors;
mod hidden;
mod worker;
mod looker;
mod script;
mod privileges;
mod slowly;
