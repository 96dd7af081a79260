//! What happens to traces after they were compiled, and to the states that they belong to.

use super::*;

/// Runs a script to its end. What it prints comes back, without complaints.
fn run_script(luajit: impl AsRef<Path>, name: &str, options: &[&str], script: &str) -> (String, TmpFiles) {
    let path = scratch_dir("life").join(name);
    std::fs::write(&path, script).expect("write the script");
    let mut luajit = command(luajit.as_ref());
    luajit.args(options).arg(path);
    let (output, files) = finish(luajit);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    (stdout(&output), files)
}

/// LuaJIT patches exits of a trace when it attaches others to it. Only the targets of jumps differ then from what was
/// registered, and they lead to traces; so names, lines and frames stay as true as they were, and no trace is registered twice.
#[test]
fn patched_exits_change_nothing_but_targets_of_jumps() {
    let script = r#"
        local js, ju = require("jitsym"), require("jit.util")
        local function work(count)
          local sum = 0
          for i = 1, count do
            if i % 2 == 0 then sum = sum + i elseif i % 3 == 0 then sum = sum - i else sum = sum * 0.5 end
            if sum > 1e6 then sum = 0 end
          end
          return sum
        end
        for _ = 1, 50 do work(1000) end
        jit.off()
        for number = 1, 1000 do
          local code, addr = ju.tracemc(number)
          if code then
            io.write(("%d %x %s\n"):format(number, addr, (code:gsub(".", function(byte)
              return ("%02x"):format(byte:byte())
            end))))
          end
        end
        assert(js.flush())
        local stats = js.stats()
        assert(stats.registered == stats.traces and stats.overwritten == 0 and stats.failures == 0)
    "#;
    let (text, files) = run_script("luajit", "patched.lua", &["-ljitsym"], script);
    let codes = read_dump(files.0);
    let starts: Vec<u64> = codes.iter().map(|code| code.addr).collect();
    let mut patched = 0;
    assert_eq!(text.lines().count(), codes.len(), "{text}");
    for line in text.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let addr = u64::from_str_radix(fields[1], 16).expect("address");
        let byte = |at: usize| u8::from_str_radix(&fields[2][2 * at..2 * at + 2], 16).expect("byte");
        let now: Vec<u8> = (0..fields[2].len() / 2).map(byte).collect();
        let code = codes.iter().find(|code| code.addr == addr).expect("each trace is in the dump");
        assert!(code.name.starts_with(&format!("TRACE_{} ", fields[0])), "{}", code.name);
        assert_eq!(now.len(), code.code.len(), "{}", code.name);
        let mut at = 0;
        while let Some(different) = (at..now.len()).find(|&at| now[at] != code.code[at]) {
            // The operand of `jcc rel32` or `jmp rel32` begins at most three bytes before, where all of it differs.
            let operand = (different.saturating_sub(3)..=different)
                .filter(|&at| at >= 2 && at + 4 <= now.len())
                .filter(|&at| now[at - 1] == 0xe9 || now[at - 2] == 0x0f && now[at - 1] & 0xf0 == 0x80)
                .find(|&at| {
                    let offset = i32::from_le_bytes(now[at..at + 4].try_into().expect("four bytes"));
                    starts.contains(&(addr + at as u64 + 4).wrapping_add_signed(offset.into()))
                });
            let Some(operand) = operand else { panic!("{}: another instruction at {different}", code.name) };
            at = operand + 4;
            patched += 1;
        }
    }
    println!("{} traces, {patched} exits patched", codes.len());
    assert!(codes.len() >= 3 && patched >= 2, "{} traces, {patched} exits patched", codes.len());
}

/// Two Lua states in one process: each with its traces, which are unregistered when the state is closed.
#[test]
fn each_state_has_its_own_traces() {
    let script = r#"
        local js, ffi = require("jitsym"), require("ffi")
        ffi.cdef[[
          typedef struct lua_State lua_State;
          lua_State *luaL_newstate(void);
          void luaL_openlibs(lua_State *);
          int luaL_loadstring(lua_State *, const char *);
          int lua_pcall(lua_State *, int, int, int);
          void lua_close(lua_State *);
        ]]
        local C = ffi.C
        local state = C.luaL_newstate()
        C.luaL_openlibs(state)
        jit.off(true, true)
        local function here() for i = 1, 200 do end end
        jit.on(here)
        here()
        assert(C.luaL_loadstring(state, [=[
          local js = require("jitsym")
          for i = 1, 200 do end
          for i = 1, 200 do end
          assert(js.flush() and js.stats().traces == 2)
        ]=]) == 0)
        assert(C.lua_pcall(state, 0, 0, 0) == 0)
        local function counters()
          assert(js.flush())
          local stats = js.stats()
          io.write(stats.traces, " ", stats.registered, " ", stats.live, "\n")
        end
        counters()
        C.lua_close(state)
        counters()
    "#;
    for newer in [false, true] {
        let luajit = if newer { fetched("luajit") } else { "luajit".into() };
        let (text, files) = run_script(luajit, "states.lua", &["-ljitsym"], script);
        assert_eq!(text, "1 3 3\n1 3 1\n", "traces of this state, registered and live ones of both");
        assert_eq!(read_dump(files.0).len(), 3);
    }
}

/// Whatever becomes of a trace that is being recorded, and however the compiler is set: what it compiles in the end is
/// registered, once, with lines and frames.
#[test]
fn aborts_and_settings_of_the_compiler_lose_no_trace() {
    let script = r#"
        local aborts, stops = 0, 0
        -- The module goes on calling who was there before.
        jit.attach(function(what)
          if what == "abort" then aborts = aborts + 1 elseif what == "stop" then stops = stops + 1 end
        end, "trace")
        local js = require("jitsym")
        local function concatenate(list) local text = "" for i = 1, #list do text = text .. list[i] end return text end
        for _ = 1, 100 do
          concatenate { "a", "b", 3 }
          -- Not compiled, so that what calls it is given up, and in the end not tried any more.
          for i = 1, 100 do local made = function() return i end made() end
        end
        jit.off(concatenate, true)
        for _ = 1, 100 do concatenate { 1, 2, 3 } end
        jit.on(concatenate, true)
        jit.opt.start("hotloop=5", "maxside=2", "-fold")
        for round = 1, 5 do
          for i = 1, 300 do local x = i % (round + 2) == 0 and i * 2 or i / 3 end
          jit.flush()
        end
        jit.off()
        for i = 1, 300 do end
        jit.on()
        for i = 1, 300 do end
        assert(js.flush())
        local stats = js.stats()
        io.write(aborts, " ", stops, " ", stats.traces, " ", stats.refused + stats.failures, " ", stats.with_lines, " ",
          stats.with_unwind, "\n")
    "#;
    for options in [&[][..], &["-O1"], &["-Ohotloop=2,hotexit=1"], &["-O-loop,-fuse", "-Ominstitch=10"]] {
        let (text, files) = run_script("luajit", "settings.lua", options, script);
        println!("{options:?}: aborts, traces, registered, failures, with lines, with frames: {text}");
        let counts: Vec<u64> = text.split_whitespace().map(|count| count.parse().expect("count")).collect();
        let [aborts, stops, traces, failures, lines, unwind] = counts[..] else { panic!("{text}") };
        assert!(aborts >= 5 && stops >= 10 && failures == 0, "{text}");
        assert_eq!((traces, read_dump(files.0).len() as u64), (stops, stops), "{text}");
        assert!(lines * 100 >= traces * 95 && unwind == traces, "{text}");
    }
}
