//! atta
fn main() {}
