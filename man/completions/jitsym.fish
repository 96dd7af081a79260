# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_jitsym_global_optspecs
    string join \n h/help V/version
end

function __fish_jitsym_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_jitsym_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_jitsym_using_subcommand
    set -l cmd (__fish_jitsym_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c jitsym -n "__fish_jitsym_needs_command" -s h -l help -d 'Print help'
complete -c jitsym -n "__fish_jitsym_needs_command" -s V -l version -d 'Print version'
complete -c jitsym -n "__fish_jitsym_needs_command" -f -a "check" -d 'Find problems in jitdumps and perf maps that make profilers fail, stop reading silently, or attribute samples wrongly'
complete -c jitsym -n "__fish_jitsym_needs_command" -f -a "dump" -d 'Print a block for each function: source lines and unwind rows side by side, with --disassemble also instructions'
complete -c jitsym -n "__fish_jitsym_needs_command" -f -a "stat" -d 'Print counts, sizes and rates of compiled code, and a chart of code addresses over time'
complete -c jitsym -n "__fish_jitsym_needs_command" -f -a "export" -d 'Write ELF files of compiled code, for addr2line, objdump, nm, readelf and gdb'
complete -c jitsym -n "__fish_jitsym_needs_command" -f -a "record" -d 'Record a program or a running process with perf, so that compiled code has names, stacks and lines'
complete -c jitsym -n "__fish_jitsym_needs_command" -f -a "inject" -d 'Put the code of jitdumps and regions into a recording of perf'
complete -c jitsym -n "__fish_jitsym_needs_command" -f -a "verify" -d 'Run a program, step through its compiled code, and compare unwind tables and code bytes with what is really executed'
complete -c jitsym -n "__fish_jitsym_needs_command" -f -a "callgrind" -d 'Name the compiled code in a recording of valgrind\'s callgrind'
complete -c jitsym -n "__fish_jitsym_needs_command" -f -a "doctor" -d 'Print the state of the machine and of a process or recording, why names or stacks are missing, and the command to type next'
complete -c jitsym -n "__fish_jitsym_needs_command" -f -a "top" -d 'Show once a second the code that a process registers, or print the hottest functions of a recording'
complete -c jitsym -n "__fish_jitsym_needs_command" -f -a "flamegraph" -d 'Draw the functions of a recording as a flame graph, with compiled code in green'
complete -c jitsym -n "__fish_jitsym_needs_command" -f -a "report" -d 'Show a recording or a bundle of `jitsym bundle` by `perf report`'
complete -c jitsym -n "__fish_jitsym_needs_command" -f -a "bundle" -d 'Make one file of a recording, to look at it on another machine'
complete -c jitsym -n "__fish_jitsym_needs_command" -f -a "recover" -d 'Complete the perf maps and jitdumps of killed processes'
complete -c jitsym -n "__fish_jitsym_needs_command" -f -a "clean" -d 'Remove libjitsym\'s perf maps, jitdumps, region files and spools of this user\'s dead processes'
complete -c jitsym -n "__fish_jitsym_needs_command" -f -a "version" -d 'Print the version'
complete -c jitsym -n "__fish_jitsym_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c jitsym -n "__fish_jitsym_using_subcommand check" -l allow -d 'Ignore this rule; separate several rules by commas' -r
complete -c jitsym -n "__fish_jitsym_using_subcommand check" -l all -d 'Print all findings, including all notes (default: the first 3 findings of each rule, and no notes)'
complete -c jitsym -n "__fish_jitsym_using_subcommand check" -l notes -d 'Print also the first note of each rule: an oddity that harms no profiler except those that the note names'
complete -c jitsym -n "__fish_jitsym_using_subcommand check" -l json -d 'Print JSON instead of text: an object with "files", each of which has "findings" and "verdicts"'
complete -c jitsym -n "__fish_jitsym_using_subcommand check" -l rules -d 'List all rules with the profilers that each rule concerns, and check no files'
complete -c jitsym -n "__fish_jitsym_using_subcommand check" -s h -l help -d 'Print help'
complete -c jitsym -n "__fish_jitsym_using_subcommand dump" -l name -d 'Print only functions with TEXT in their names' -r
complete -c jitsym -n "__fish_jitsym_using_subcommand dump" -l disassemble -d 'Print also the instructions of each function, disassembled by objdump'
complete -c jitsym -n "__fish_jitsym_using_subcommand dump" -s h -l help -d 'Print help'
complete -c jitsym -n "__fish_jitsym_using_subcommand stat" -l top -d 'Print also the N function names with the most bytes of code (default: 0)' -r
complete -c jitsym -n "__fish_jitsym_using_subcommand stat" -s h -l help -d 'Print help'
complete -c jitsym -n "__fish_jitsym_using_subcommand export" -s o -l output -d 'Write into this directory. If it does not exist, it is made for this user alone' -r -F
complete -c jitsym -n "__fish_jitsym_using_subcommand export" -l map -d 'Write a perf map instead (perf-PID.map): one plain line for each address range, with clean names, sorted by address'
complete -c jitsym -n "__fish_jitsym_using_subcommand export" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c jitsym -n "__fish_jitsym_using_subcommand record" -s p -l pid -d 'Record this running process and its descendants, instead of a command' -r
complete -c jitsym -n "__fish_jitsym_using_subcommand record" -l seconds -d 'Stop recording the process of --pid after S seconds, such as 0.5 (above 0; default: when the process ends)' -r
complete -c jitsym -n "__fish_jitsym_using_subcommand record" -s o -l output -d 'Write the recording to FILE, and rename an existing FILE to FILE.old' -r -F
complete -c jitsym -n "__fish_jitsym_using_subcommand record" -s F -l frequency -d 'Take N samples per second (at least 1)' -r
complete -c jitsym -n "__fish_jitsym_using_subcommand record" -s g -l call-graph -d 'Find stacks by unwind tables (dwarf) or frame pointers (fp), or record no stacks (none); dwarf,BYTES copies BYTES of stack per sample, 8 to 65528 in steps of 8 (dwarf alone: 8192) (default: dwarf, or fp for a runtime whose code keeps frame pointers)' -r
complete -c jitsym -n "__fish_jitsym_using_subcommand record" -s e -l event -d 'Sample this event, written as for `perf record -e` (default: cycles, or cpu-clock if the processor has no counters)' -r
complete -c jitsym -n "__fish_jitsym_using_subcommand record" -l flamegraph -d 'Write a flame graph of the recording to FILE.svg' -r -F
complete -c jitsym -n "__fish_jitsym_using_subcommand record" -l bundle -d 'Make a bundle of the recording, as `jitsym bundle` does' -r -F
complete -c jitsym -n "__fish_jitsym_using_subcommand record" -l perf -d 'Run this program instead of the perf in PATH' -r -F
complete -c jitsym -n "__fish_jitsym_using_subcommand record" -l adopt -d 'Set JITSYM_ADOPT=1, unless the variable is set: code memory becomes a mapping of ELF files, which every profiler reads. Use this only if one compiler, in one thread at a time, writes code'
complete -c jitsym -n "__fish_jitsym_using_subcommand record" -l no-runtime-setup -d 'Set no variables and arguments that make runtimes (Node.js, Deno, Python, wasmtime, Erlang, PHP, Java, .NET, MoarVM, Julia, Mono) write jitdumps or perf maps'
complete -c jitsym -n "__fish_jitsym_using_subcommand record" -l top -d 'Print the 10 hottest functions, each with its 3 most frequent callers'
complete -c jitsym -n "__fish_jitsym_using_subcommand record" -l json -d 'Print JSON as `jitsym doctor --json` does, with "recording" and "status" added; the recorded command prints to standard error'
complete -c jitsym -n "__fish_jitsym_using_subcommand record" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c jitsym -n "__fish_jitsym_using_subcommand inject" -s i -l input -d 'Read this recording' -r -F
complete -c jitsym -n "__fish_jitsym_using_subcommand inject" -s o -l output -d 'Write the new recording to FILE (default: jit.data beside perf.data, or NAME.jit.data beside NAME.data)' -r -F
complete -c jitsym -n "__fish_jitsym_using_subcommand inject" -l objects -d 'Write the objects that the new recording refers to into DIR (default: FILE.objects beside the new recording)' -r -F
complete -c jitsym -n "__fish_jitsym_using_subcommand inject" -l dump -d 'Use this jitdump, of the process with this PID or of the process whose pid the jitdump has. Can be repeated' -r
complete -c jitsym -n "__fish_jitsym_using_subcommand inject" -l search -d 'Search for jitdumps and files of regions in DIR before their recorded paths. Can be repeated' -r -F
complete -c jitsym -n "__fish_jitsym_using_subcommand inject" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c jitsym -n "__fish_jitsym_using_subcommand verify" -s f -l function -d 'Examine only functions with this name, where * matches any text; can be given several times' -r
complete -c jitsym -n "__fish_jitsym_using_subcommand verify" -l calls -d 'Step through N calls of each function (at least 1), but only through 1 call if the function has no unwind tables' -r
complete -c jitsym -n "__fish_jitsym_using_subcommand verify" -l seconds -d 'Stop stepping after S seconds, such as 0.5 (above 0; default: no limit)' -r
complete -c jitsym -n "__fish_jitsym_using_subcommand verify" -l json -d 'Print JSON instead of text: an object with "findings"; the examined command prints to standard error'
complete -c jitsym -n "__fish_jitsym_using_subcommand verify" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c jitsym -n "__fish_jitsym_using_subcommand callgrind" -l map -d 'Take names from this perf map, instead of searching for files by PID' -r -F
complete -c jitsym -n "__fish_jitsym_using_subcommand callgrind" -l jitdump -d 'Take names and lines from this jitdump, instead of searching for files by PID' -r -F
complete -c jitsym -n "__fish_jitsym_using_subcommand callgrind" -s o -l output -d 'Write the copy to FILE (default: callgrind.out.named.PID beside the recording)' -r -F
complete -c jitsym -n "__fish_jitsym_using_subcommand callgrind" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c jitsym -n "__fish_jitsym_using_subcommand doctor" -l perf -d 'Run this program instead of the perf in PATH' -r -F
complete -c jitsym -n "__fish_jitsym_using_subcommand doctor" -l proc -d 'Read settings of the kernel below this directory' -r -F
complete -c jitsym -n "__fish_jitsym_using_subcommand doctor" -l json -d 'Print JSON instead of text: an object with "causes" and "type" (the next command); the recorded command prints to standard error'
complete -c jitsym -n "__fish_jitsym_using_subcommand doctor" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c jitsym -n "__fish_jitsym_using_subcommand top" -l seconds -d 'Stop after S seconds, such as 0.5 (above 0; default: when the process or its last session ends)' -r
complete -c jitsym -n "__fish_jitsym_using_subcommand top" -l perf -d 'Run this program instead of the perf in PATH' -r -F
complete -c jitsym -n "__fish_jitsym_using_subcommand top" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c jitsym -n "__fish_jitsym_using_subcommand flamegraph" -s o -l output -d 'Write the picture to this file (default: FILE.svg)' -r -F
complete -c jitsym -n "__fish_jitsym_using_subcommand flamegraph" -l perf -d 'Run this program instead of the perf in PATH' -r -F
complete -c jitsym -n "__fish_jitsym_using_subcommand flamegraph" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c jitsym -n "__fish_jitsym_using_subcommand report" -l perf -d 'Run this program instead of the perf in PATH' -r -F
complete -c jitsym -n "__fish_jitsym_using_subcommand report" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c jitsym -n "__fish_jitsym_using_subcommand bundle" -s o -l output -d 'Write the bundle to this file (default: FILE.tar.gz)' -r -F
complete -c jitsym -n "__fish_jitsym_using_subcommand bundle" -l perf -d 'Run this program instead of the perf in PATH' -r -F
complete -c jitsym -n "__fish_jitsym_using_subcommand bundle" -l no-sources -d 'Leave out the source files'
complete -c jitsym -n "__fish_jitsym_using_subcommand bundle" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c jitsym -n "__fish_jitsym_using_subcommand recover" -l dir -d 'Read the spools in this directory (default: JITSYM_SPOOL_DIR, or /dev/shm if the variable is not set)' -r -F
complete -c jitsym -n "__fish_jitsym_using_subcommand recover" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c jitsym -n "__fish_jitsym_using_subcommand clean" -l dir -d 'Search this directory, instead of JITSYM_DIR (or /tmp) and JITSYM_SPOOL_DIR (or /dev/shm); can be given several times' -r -F
complete -c jitsym -n "__fish_jitsym_using_subcommand clean" -l older-than -d 'Remove only files that were last written more than TIME ago, such as 90s, 30m (minutes), 12h, 7d or 2w' -r
complete -c jitsym -n "__fish_jitsym_using_subcommand clean" -l dry-run -d 'Print the files that would be removed, and remove none'
complete -c jitsym -n "__fish_jitsym_using_subcommand clean" -l injected -d 'Remove also what `perf inject` and `jitsym inject` made for dead processes: jitted-PID-N.so and jitcode-PID-BUILDID.so in the searched directories, and entries in ~/.debug (also with --dir); recordings of these processes then lose names'
complete -c jitsym -n "__fish_jitsym_using_subcommand clean" -s h -l help -d 'Print help'
complete -c jitsym -n "__fish_jitsym_using_subcommand version" -s h -l help -d 'Print help'
complete -c jitsym -n "__fish_jitsym_using_subcommand help; and not __fish_seen_subcommand_from check dump stat export record inject verify callgrind doctor top flamegraph report bundle recover clean version help" -f -a "check" -d 'Find problems in jitdumps and perf maps that make profilers fail, stop reading silently, or attribute samples wrongly'
complete -c jitsym -n "__fish_jitsym_using_subcommand help; and not __fish_seen_subcommand_from check dump stat export record inject verify callgrind doctor top flamegraph report bundle recover clean version help" -f -a "dump" -d 'Print a block for each function: source lines and unwind rows side by side, with --disassemble also instructions'
complete -c jitsym -n "__fish_jitsym_using_subcommand help; and not __fish_seen_subcommand_from check dump stat export record inject verify callgrind doctor top flamegraph report bundle recover clean version help" -f -a "stat" -d 'Print counts, sizes and rates of compiled code, and a chart of code addresses over time'
complete -c jitsym -n "__fish_jitsym_using_subcommand help; and not __fish_seen_subcommand_from check dump stat export record inject verify callgrind doctor top flamegraph report bundle recover clean version help" -f -a "export" -d 'Write ELF files of compiled code, for addr2line, objdump, nm, readelf and gdb'
complete -c jitsym -n "__fish_jitsym_using_subcommand help; and not __fish_seen_subcommand_from check dump stat export record inject verify callgrind doctor top flamegraph report bundle recover clean version help" -f -a "record" -d 'Record a program or a running process with perf, so that compiled code has names, stacks and lines'
complete -c jitsym -n "__fish_jitsym_using_subcommand help; and not __fish_seen_subcommand_from check dump stat export record inject verify callgrind doctor top flamegraph report bundle recover clean version help" -f -a "inject" -d 'Put the code of jitdumps and regions into a recording of perf'
complete -c jitsym -n "__fish_jitsym_using_subcommand help; and not __fish_seen_subcommand_from check dump stat export record inject verify callgrind doctor top flamegraph report bundle recover clean version help" -f -a "verify" -d 'Run a program, step through its compiled code, and compare unwind tables and code bytes with what is really executed'
complete -c jitsym -n "__fish_jitsym_using_subcommand help; and not __fish_seen_subcommand_from check dump stat export record inject verify callgrind doctor top flamegraph report bundle recover clean version help" -f -a "callgrind" -d 'Name the compiled code in a recording of valgrind\'s callgrind'
complete -c jitsym -n "__fish_jitsym_using_subcommand help; and not __fish_seen_subcommand_from check dump stat export record inject verify callgrind doctor top flamegraph report bundle recover clean version help" -f -a "doctor" -d 'Print the state of the machine and of a process or recording, why names or stacks are missing, and the command to type next'
complete -c jitsym -n "__fish_jitsym_using_subcommand help; and not __fish_seen_subcommand_from check dump stat export record inject verify callgrind doctor top flamegraph report bundle recover clean version help" -f -a "top" -d 'Show once a second the code that a process registers, or print the hottest functions of a recording'
complete -c jitsym -n "__fish_jitsym_using_subcommand help; and not __fish_seen_subcommand_from check dump stat export record inject verify callgrind doctor top flamegraph report bundle recover clean version help" -f -a "flamegraph" -d 'Draw the functions of a recording as a flame graph, with compiled code in green'
complete -c jitsym -n "__fish_jitsym_using_subcommand help; and not __fish_seen_subcommand_from check dump stat export record inject verify callgrind doctor top flamegraph report bundle recover clean version help" -f -a "report" -d 'Show a recording or a bundle of `jitsym bundle` by `perf report`'
complete -c jitsym -n "__fish_jitsym_using_subcommand help; and not __fish_seen_subcommand_from check dump stat export record inject verify callgrind doctor top flamegraph report bundle recover clean version help" -f -a "bundle" -d 'Make one file of a recording, to look at it on another machine'
complete -c jitsym -n "__fish_jitsym_using_subcommand help; and not __fish_seen_subcommand_from check dump stat export record inject verify callgrind doctor top flamegraph report bundle recover clean version help" -f -a "recover" -d 'Complete the perf maps and jitdumps of killed processes'
complete -c jitsym -n "__fish_jitsym_using_subcommand help; and not __fish_seen_subcommand_from check dump stat export record inject verify callgrind doctor top flamegraph report bundle recover clean version help" -f -a "clean" -d 'Remove libjitsym\'s perf maps, jitdumps, region files and spools of this user\'s dead processes'
complete -c jitsym -n "__fish_jitsym_using_subcommand help; and not __fish_seen_subcommand_from check dump stat export record inject verify callgrind doctor top flamegraph report bundle recover clean version help" -f -a "version" -d 'Print the version'
complete -c jitsym -n "__fish_jitsym_using_subcommand help; and not __fish_seen_subcommand_from check dump stat export record inject verify callgrind doctor top flamegraph report bundle recover clean version help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
