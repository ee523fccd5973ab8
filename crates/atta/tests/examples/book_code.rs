//! Rust code in the book and in the README is code that tests run: each block is a part of an example or of a test.

use testkit::Database;
use testkit::book::{Block, blocks, files, read, root};

/// The blocks of Rust code in all pages, each with its place.
fn rust_blocks() -> Vec<(String, Block)> {
    let mut pages = files("docs", &["md"]);
    pages.push("README.md".into());
    let blocks =
        pages.iter().flat_map(|page| blocks(&read(page)).into_iter().map(move |block| (page, block)));
    let is_rust = |block: &Block| block.language.split(',').next() == Some("rust");
    blocks
        .filter(|(_, block)| is_rust(block))
        .map(|(page, block)| (format!("{page}:{}", block.line), block))
        .collect()
}

/// Code without its indentation.
fn lines(code: &str) -> Vec<&str> {
    code.lines().map(str::trim).collect()
}

#[test]
fn every_block_of_rust_is_a_part_of_an_example_or_a_test() {
    let sources: Vec<String> = ["crates/atta/examples", "crates/atta/tests", "crates/atta-tasks/examples"]
        .iter()
        .flat_map(|folder| files(folder, &["rs"]))
        .map(|path| read(&path))
        .collect();
    let found = rust_blocks();
    assert!(found.len() > 10, "the blocks are found");
    for (place, block) in found {
        let wanted = lines(&block.code);
        let is_part = |source: &String| lines(source).windows(wanted.len()).any(|part| part == wanted);
        assert!(
            sources.iter().any(is_part),
            "{place}: this code is in no example and in no test:\n{}",
            block.code
        );
    }
}

#[test]
fn every_test_that_the_page_about_faults_names_exists() {
    let page = read("docs/concepts/how-queues-go-wrong.md");
    let is_name = |text: &&str| {
        let is_identifier = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        is_identifier && text.matches('_').count() > 2
    };
    let names: Vec<&str> = page.split('`').skip(1).step_by(2).filter(is_name).collect();
    assert!(names.len() > 100, "{} names", names.len());
    let sources: String = files("crates", &["rs"]).iter().map(|path| read(path)).collect();
    let missing: Vec<_> = names.iter().filter(|name| !sources.contains(&format!("fn {name}()"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// With `ATTA_WRITE_BOOK=1`, writes the file into the page.
#[test]
fn book_reference_blocks_that_are_whole_files_equal_them() {
    let is_writing = std::env::var_os("ATTA_WRITE_BOOK").is_some();
    for (place, block) in rust_blocks() {
        let Some(path) = block.comment.strip_prefix("same as: ") else { continue };
        let file = read(path);
        if is_writing {
            let page = place.split(':').next().expect("it has a path");
            let text = read(page).replace(&block.code, &file);
            std::fs::write(root().join(page), text).expect("the page is written");
        } else {
            assert_eq!(block.code, file, "{place} is not {path}: run `cargo xtask book --write`");
        }
    }
}

#[tokio::test]
async fn the_quickstart_for_rust_prints_what_its_page_says() {
    let page = blocks(&read("docs/start/rust.md"));
    let comment = "expect: in the output of crates/atta/examples/quickstart.rs";
    let expected = page.iter().find(|block| block.comment == comment).expect("the page has the output");
    assert_eq!(super::output("quickstart").await, expected.code);
    let program = page.iter().find(|block| block.comment.starts_with("same as: ")).expect("the program");
    assert_eq!(program.comment, "same as: crates/atta/examples/quickstart.rs");
}

/// The SQL in these pages needs nothing but the schema and a table of users.
#[tokio::test]
async fn the_sql_in_the_guides_runs() {
    let pages = ["adding-jobs", "batches", "job-keys", "queues"].map(|page| format!("docs/guides/{page}.md"));
    for page in pages {
        let db = Database::migrated().await;
        let client = db.client().await;
        client.batch_execute("create table users (id int primary key)").await.expect("a table is created");
        let sql: Vec<Block> =
            blocks(&read(&page)).into_iter().filter(|block| block.language == "sql").collect();
        assert!(!sql.is_empty(), "{page} has SQL");
        for block in sql {
            let ran = client.batch_execute(&block.code).await;
            ran.unwrap_or_else(|error| panic!("{page}:{}: {error:?}", block.line));
        }
    }
}
