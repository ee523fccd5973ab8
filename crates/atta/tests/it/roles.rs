//! The roles of `atta migrate --print-roles`: each can do what it is meant for, and no more.

mod support;
mod producer;
mod errors;
mod hidden;
mod worker;
mod reader;
mod script;
mod privileges;
mod slowly;
