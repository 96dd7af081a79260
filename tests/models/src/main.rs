//! Runs the models of the library's protocols (`src/writer/models.rs`), each as it is and then with the order taken away from one
//! access after the other: then it has to fail.
//!
//! `jitsym-models` runs all of them; `jitsym-models MODEL [FILE:LINE]` one, weakened at a place; `jitsym-models sweep` says for
//! each place in a model whose order can be taken away whether the model notices.

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let well = match arguments[..] {
        [] => jitsym::models::run_all(),
        ["sweep"] => jitsym::models::sweep(),
        [model] => jitsym::models::run(model, None),
        [model, place] => jitsym::models::run(model, Some(place)),
        _ => false,
    };
    std::process::exit(i32::from(!well));
}
