//! Traces in adopted memory: what perf says without the jitdump and without `perf inject`.

use object::{Object, ObjectSymbol};

use super::*;

const ADOPT: [(&str, &str); 1] = [("JITSYM_ADOPT", "1")];

/// Whether this is what perf calls the file of a region of the process.
fn is_region(recording: &Recording, object: &str) -> bool {
    let names = [format!("jit-{}-", recording.pid), format!("jitted-{}-r", recording.pid)];
    object.rsplit('/').next().is_some_and(|name| names.iter().any(|start| name.starts_with(start)))
}

/// `perf record --call-graph dwarf luajit -ljitsym PROGRAM`, and then the report alone, of an old perf and a new one.
#[test]
fn plain_perf_names_adopted_traces_and_unwinds_through_them() {
    let _serial = serial();
    let (recording, arguments) = until_enough(ENOUGH, |pace| {
        let arguments = [example("nbody.lua").into_os_string(), (2_500_000 * u64::from(pace)).to_string().into()];
        let recording = record_plainly(Path::new("luajit"), "plain", &ADOPT, &["--call-graph", "dwarf"], &arguments);
        let count = recording.samples(&recording.file).len();
        ((recording, arguments), count)
    });
    assert_eq!(recording.output, stdout(&run(command("luajit").args(&arguments))), "the result with the module");
    check_plain(perf, &recording);
    check_plain(hot::newer_perf(), &recording);
}

fn check_plain(perf: impl Fn(&str) -> Command, recording: &Recording) {
    let mut report = perf("report");
    report.args(["--stdio", "--no-children", "-g", "none", "-F", "sample,dso,sym", "-t", "\t", "-i"]);
    let text = stdout(&run(report.arg(&recording.file)));
    let (mut named, mut others) = (0, BTreeMap::new());
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
        // SAMPLES OBJECT [.] SYMBOL
        let fields: Vec<&str> = line.split('\t').map(str::trim).collect();
        let [samples, object, symbol] = fields[..] else { panic!("perf report printed {line:?}") };
        let samples: u64 = samples.parse().expect("number of samples");
        let symbol = symbol.split_once("] ").expect("kind of symbol").1;
        let is_code = is_region(recording, object);
        if is_code && is_trace_name(symbol, "nbody", 100) {
            named += samples;
        } else if is_code || ["anon", "unknown", "JIT", "perf-"].iter().any(|part| object.contains(part)) {
            *others.entry((object, symbol)).or_insert(0) += samples;
        }
    }
    let unnamed: u64 = others.values().sum();
    println!("nbody: {named} samples named in the report, {unnamed} not");
    assert!(named > 0 && unnamed * 100 <= named, "{named} named, but {others:?}\n{text}");

    let stacks = hot::stacks(&perf, recording, &recording.file);
    let in_traces: Vec<&hot::Stack> = stacks.iter().filter(|stack| recording.in_areas(stack.ip)).collect();
    let whole = |stack: &&&hot::Stack| hot::goes_through(stack, &["TRACE_", "lua_pcall", "main", "start"]);
    let (all, whole) = (in_traces.len(), in_traces.iter().filter(whole).count());
    println!("nbody: {whole} of {all} stacks whole");
    assert!(all >= ENOUGH && whole * 100 >= all * 99, "{whole} of {all} stacks whole");
}

/// The ground truth of `hot.lua`: all kinds of traces, what calls them and whom they call.
#[test]
fn lines_and_stacks_of_adopted_traces_are_right() {
    let newer_perf = hot::newer_perf();
    let recording = hot::record(Path::new("luajit"), "adopted", &ADOPT);
    let is_in_trace = |stack: &hot::Stack| recording.in_areas(stack.ip);
    // A new area has no name before the writer's next pass, which a busy machine delays.
    let unnamed = hot::IN_STUBS + 3;
    println!("perf with libunwind:");
    hot::check(&recording, &hot::stacks(perf, &recording, &recording.file), is_in_trace, unnamed);
    println!("perf with libdw:");
    hot::check(&recording, &hot::stacks(&newer_perf, &recording, &recording.file), is_in_trace, unnamed);
}

/// Machine code that comes and goes, thousands of traces, with the areas that they are in: each is adopted anew, and the names
/// are those of the functions that ran, one after the other.
#[test]
fn areas_are_adopted_anew_after_each_flush() {
    const FLUSHES: u32 = 10;
    let (recording, arguments) = until_enough(ENOUGH, |pace| {
        let turns = 100_000 * u64::from(pace);
        let arguments: Vec<OsString> =
            vec![example("churn.lua").into(), "10".into(), "350".into(), turns.to_string().into()];
        let _serial = serial();
        let recording = record_plainly(Path::new("luajit"), "churn", &ADOPT, &[], &arguments);
        let count = recording.samples(&recording.file).len();
        ((recording, arguments), count)
    });
    assert_eq!(recording.output, stdout(&run(command("luajit").args(&arguments))), "the result with the module");
    for perf in [perf("script"), hot::newer_perf()("script")] {
        let samples = recording.samples_by(perf, &recording.file);
        let (mut named, mut last, mut rounds) = (0, (0, 0), BTreeSet::new());
        let mut others: BTreeMap<(&str, &str), u32> = BTreeMap::new();
        for sample in &samples {
            let Some(place) = churned(&sample.symbol).filter(|_| is_region(&recording, &sample.dso)) else {
                // Of the program itself there are traces too.
                if !is_trace_name(&sample.symbol, "churn", 100) {
                    *others.entry((&sample.symbol, &sample.dso)).or_default() += 1;
                }
                continue;
            };
            named += 1;
            assert!(place >= last, "{} after function {last:?}", sample.symbol);
            last = place;
            rounds.insert(place.0);
        }
        println!("churn: {named} of {} samples in trace memory named, the others {others:?}", samples.len());
        assert!(
            samples.len() >= ENOUGH && named * 100 >= samples.len() * 99,
            "{named} of {}: {others:?}",
            samples.len()
        );
        assert_eq!(rounds.len() as u32, FLUSHES);
    }
}

/// The round and the number of a function of `churn.lua`, by the name of a trace.
fn churned(symbol: &str) -> Option<(u32, u32)> {
    let (_, place) = symbol.strip_prefix("TRACE_")?.split_once(" churn_")?;
    let (round, number) = place.split_once(".lua:")?.0.split_once('_')?;
    Some((round.parse().ok()?, number.parse().ok()?))
}

/// More areas than there may be regions at a time: nothing of those that LuaJIT has given back is mapped, and no trace was without a
/// region.
#[test]
fn nothing_stays_mapped_of_areas_that_are_gone() {
    let script = r#"
        local js = require("jitsym")
        arg = { "300", "20" }
        dofile(CHURN)
        assert(js.flush(60000))
        local mapped = 0
        for line in io.lines("/proc/self/maps") do
          mapped = mapped + (line:find("/jit%-%d+%-") and 1 or 0)
        end
        local stats = js.stats()
        io.write(mapped)
        for _, name in ipairs {
          "traces", "flushes", "registered", "region_code", "regions", "region_late", "region_refused",
          "region_left_out", "refused", "failures", "write_errors",
        } do
          io.write(" ", stats[name])
        end
    "#;
    let mut luajit = command("luajit");
    luajit.envs(ADOPT).args(["-ljitsym", "-e"]).arg(format!("CHURN = {:?}\n{script}", example("churn.lua")));
    let (output, _files) = finish(luajit);
    let text = stdout(&output);
    let numbers: Vec<u64> = text
        .lines()
        .last()
        .into_iter()
        .flat_map(str::split_whitespace)
        .map(|number| number.parse().expect("number"))
        .collect();
    let [mapped, traces, flushes, registered, in_regions, regions, failures @ ..] = &numbers[..] else {
        panic!("{text}")
    };
    println!("{text}");
    assert!(*traces >= 6000 && *flushes >= 300, "{text}");
    assert_eq!(registered, in_regions, "{text}");
    // Code and tables of what is there now. That the last areas are gone is seen with the next one.
    assert!(*mapped >= 1 && *mapped <= 2 * *regions && *regions <= 4, "{text}");
    assert!(failures.iter().all(|&number| number == 0), "{text}");
}

/// Areas at one and the same address, one after the other, before the writer has seen any of them: each file names the code that
/// was there in its time.
#[test]
fn areas_at_one_address_are_told_apart() {
    const AREAS: usize = 50;
    let script = r#"
        local ffi = require("ffi")
        ffi.cdef(HEADER)
        ffi.cdef[[
          void *mmap(void *, size_t, int, int, int, long);
          int mprotect(void *, size_t, int);
        ]]
        local lib = ffi.load(os.getenv("JITSYM_LIB"))
        local session, id = ffi.new("jitsym *[1]"), ffi.new("jitsym_id[1]")
        local function ok(status) assert(status == 0, status) end
        ok(lib.jitsym_init(nil, session))
        local size, addr = 65536, nil
        for i = 0, AREAS - 1 do
          -- Private and anonymous; from the second one on at the address of the first.
          local area = ffi.C.mmap(addr, size, 3, addr and 0x32 or 0x22, -1, 0)
          assert(not addr or area == addr)
          addr = area
          ffi.fill(area, 64, 0xc3)
          assert(ffi.C.mprotect(area, size, 5) == 0)
          local code, name = ffi.new("jitsym_code"), "area_" .. i
          code.struct_size, code.size, code.bytes, code.name = ffi.sizeof(code), 64, area, name
          code.addr = ffi.cast("uintptr_t", area)
          ok(lib.jitsym_register(session[0], code, id))
          ok(lib.jitsym_unregister(session[0], id[0]))
          -- As munmap would; but nothing else may take the place before the next area does.
          assert(ffi.C.mmap(area, size, 0, 0x32, -1, 0) == area)
        end
        ok(lib.jitsym_flush(session[0], 10000))
        local stats = ffi.new("jitsym_stats")
        stats.struct_size = ffi.sizeof(stats)
        ok(lib.jitsym_get_stats(session[0], stats))
        io.write(tonumber(stats.region_code), " ", tonumber(stats.region_late), " ", tonumber(stats.regions))
    "#;
    let header = std::fs::read_to_string(crate::support::plain_headers(&["jitsym.h"])).expect("header");
    let mut luajit = command("luajit");
    luajit.envs(ADOPT).arg("-e").arg(format!("AREAS = {AREAS} HEADER = [==[{header}]==]\n{script}"));
    let (output, files) = finish(luajit);
    // The last one is not looked for any more.
    assert_eq!(stdout(&output), format!("{AREAS} 0 1"));
    for number in 0..AREAS {
        // Which of the names depends on the area's neighbours.
        let names = [format!("/tmp/jit-{}-{number}.so", files.0), format!("/tmp/jitted-{}-r{number}.so", files.0)];
        let bytes = names.iter().find_map(|name| std::fs::read(name).ok()).expect("the file of an area");
        let file = object::File::parse(&*bytes).expect("an ELF file");
        let names: Vec<&str> = file.symbols().filter_map(|symbol| symbol.name().ok()).collect();
        let names: BTreeSet<&str> = names.into_iter().filter(|name| name.starts_with("area_")).collect();
        assert_eq!(names, BTreeSet::from([&*format!("area_{number}")]));
    }
}
