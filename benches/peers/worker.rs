//! A worker: runs one contender through one measurement, checks what it has written, and prints its figures.

use crate::clock::Scale;
use crate::contenders::{
    Bare, Bulk, CPython, Channel, Contender, Crossed, Jitsym, Kind, Llvm, LuaJit, Memcpy, MoarVm, Wasmtime, V8,
};
use crate::measure::{self, Figures};
use crate::task::{Mode, Task};

/// `words`: what `Task::to_words` made.
pub fn run(words: &[String]) {
    let task = Task::from_words(words);
    task.pin.iter().for_each(|pin| pin.bind_all());
    let figures = match task.contender {
        Kind::Memcpy => measure::<Memcpy>(&task),
        Kind::Bare => measure::<Bare>(&task),
        Kind::Crossed => measure::<Crossed>(&task),
        Kind::Jitsym => measure::<Jitsym>(&task),
        Kind::CPython => measure::<CPython>(&task),
        Kind::V8 => measure::<V8>(&task),
        Kind::Llvm => measure::<Llvm>(&task),
        Kind::Wasmtime => measure::<Wasmtime>(&task),
        Kind::LuaJit => measure::<LuaJit>(&task),
        Kind::MoarVm => measure::<MoarVm>(&task),
        Kind::Channel => measure::<Channel>(&task),
        Kind::Bulk => measure::<Bulk>(&task),
    };
    for (name, value) in figures {
        println!("{name} {value}");
    }
}

fn measure<C: Contender>(task: &Task) -> Figures {
    let scale = Scale::calibrate();
    let mut figures = match task.setting.mode {
        Mode::Probe => measure::probe::<C>(task, &scale),
        Mode::Latency => measure::latency::<C>(task, &scale),
        Mode::Bursts => measure::bursts::<C>(task, &scale),
        Mode::Saturated => measure::saturated::<C>(task),
        Mode::Rate => measure::rate::<C>(task, &scale),
        Mode::Start => measure::start(task, &scale),
    };
    figures.insert("timer".into(), scale.overhead_ns());
    figures
}
