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
complete -c jitsym -n "__fish_jitsym_needs_command" -f -a "check" -d 'Says what readers of jitdumps and perf maps would choke on, misattribute or silently stop at'
complete -c jitsym -n "__fish_jitsym_needs_command" -f -a "dump" -d 'Prints a block for each function: source lines, unwind rows and instructions side by side'
complete -c jitsym -n "__fish_jitsym_needs_command" -f -a "stat" -d 'Prints numbers, sizes and rates, and a picture of the addresses over time'
complete -c jitsym -n "__fish_jitsym_needs_command" -f -a "record" -d 'Records a program or a running process with perf, so that compiled code has names, stacks and lines'
complete -c jitsym -n "__fish_jitsym_needs_command" -f -a "verify" -d 'Runs a program, steps through its compiled code, and compares unwind tables and bytes with what is really executed'
complete -c jitsym -n "__fish_jitsym_needs_command" -f -a "callgrind" -d 'Gives names to the compiled code in a recording of valgrind\'s callgrind'
complete -c jitsym -n "__fish_jitsym_needs_command" -f -a "doctor" -d 'Says what the machine can do, what a process does or a recording has, why names or stacks are missing, and what to type next'
complete -c jitsym -n "__fish_jitsym_needs_command" -f -a "top" -d 'Shows what a process registers, how fast, and what it loses'
complete -c jitsym -n "__fish_jitsym_needs_command" -f -a "recover" -d 'Completes the files of processes that were killed'
complete -c jitsym -n "__fish_jitsym_needs_command" -f -a "clean" -d 'Removes maps, jitdumps, files of regions and spools of this user\'s dead processes'
complete -c jitsym -n "__fish_jitsym_needs_command" -f -a "version" -d 'Prints the version'
complete -c jitsym -n "__fish_jitsym_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c jitsym -n "__fish_jitsym_using_subcommand check" -l allow -d 'Leaves out a rule; several with commas' -r
complete -c jitsym -n "__fish_jitsym_using_subcommand check" -l all -d 'Every finding, not the first few of each rule, and all notes'
complete -c jitsym -n "__fish_jitsym_using_subcommand check" -l notes -d 'Notes too: what is odd, and harmless except where a reader is named'
complete -c jitsym -n "__fish_jitsym_using_subcommand check" -l json -d 'The same for programs: an object with "files", of which each has "findings" and "verdicts"'
complete -c jitsym -n "__fish_jitsym_using_subcommand check" -l rules -d 'Lists the rules, with the readers that each is about'
complete -c jitsym -n "__fish_jitsym_using_subcommand check" -s h -l help -d 'Print help'
complete -c jitsym -n "__fish_jitsym_using_subcommand dump" -l name -d 'Only code with that in its name' -r
complete -c jitsym -n "__fish_jitsym_using_subcommand dump" -l disassemble -d 'The instructions too, by objdump'
complete -c jitsym -n "__fish_jitsym_using_subcommand dump" -s h -l help -d 'Print help'
complete -c jitsym -n "__fish_jitsym_using_subcommand stat" -l top -d 'The N names that take the most bytes, too' -r
complete -c jitsym -n "__fish_jitsym_using_subcommand stat" -s h -l help -d 'Print help'
complete -c jitsym -n "__fish_jitsym_using_subcommand record" -s p -l pid -d 'Records this running process, and its children' -r
complete -c jitsym -n "__fish_jitsym_using_subcommand record" -l seconds -d 'Stops after so many seconds (with --pid)' -r
complete -c jitsym -n "__fish_jitsym_using_subcommand record" -s o -l output -d 'The recording; one that is there becomes FILE.old' -r -F
complete -c jitsym -n "__fish_jitsym_using_subcommand record" -s F -l frequency -d 'Samples a second' -r
complete -c jitsym -n "__fish_jitsym_using_subcommand record" -s g -l call-graph -d 'How stacks are found: dwarf, or dwarf,BYTES (unwind tables), fp (frame pointers), none' -r
complete -c jitsym -n "__fish_jitsym_using_subcommand record" -s e -l event -d 'What takes the samples, in perf\'s words; by default cycles, or cpu-clock where the processor\'s counters are not there' -r
complete -c jitsym -n "__fish_jitsym_using_subcommand record" -l flamegraph -d 'Writes a flame graph' -r -F
complete -c jitsym -n "__fish_jitsym_using_subcommand record" -l perf -d 'Another perf than the one in PATH' -r -F
complete -c jitsym -n "__fish_jitsym_using_subcommand record" -l adopt -d 'Sets JITSYM_ADOPT=1: code memory becomes a mapping of files that every profiler reads. Only for programs in which one thread at a time writes code'
complete -c jitsym -n "__fish_jitsym_using_subcommand record" -l top -d 'Prints the ten hottest functions with their callers'
complete -c jitsym -n "__fish_jitsym_using_subcommand record" -l json -d 'Prints what was found as `jitsym doctor --json` does, with "recording" and "status". What the command prints goes to the standard error output'
complete -c jitsym -n "__fish_jitsym_using_subcommand record" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c jitsym -n "__fish_jitsym_using_subcommand verify" -s f -l function -d 'Only functions with this name, in which * stands for anything; can be given several times' -r
complete -c jitsym -n "__fish_jitsym_using_subcommand verify" -l calls -d 'Calls of each function that are stepped' -r
complete -c jitsym -n "__fish_jitsym_using_subcommand verify" -l seconds -d 'Ends the steps after so many seconds' -r
complete -c jitsym -n "__fish_jitsym_using_subcommand verify" -l json -d 'The same for programs: an object with "findings". What the command prints goes to the standard error output'
complete -c jitsym -n "__fish_jitsym_using_subcommand verify" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c jitsym -n "__fish_jitsym_using_subcommand callgrind" -l map -d 'Takes names from this perf map' -r -F
complete -c jitsym -n "__fish_jitsym_using_subcommand callgrind" -l jitdump -d 'Takes names and lines from this jitdump' -r -F
complete -c jitsym -n "__fish_jitsym_using_subcommand callgrind" -s o -l output -d 'The copy; else callgrind.out.named.PID beside the recording' -r -F
complete -c jitsym -n "__fish_jitsym_using_subcommand callgrind" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c jitsym -n "__fish_jitsym_using_subcommand doctor" -l perf -d 'Another perf than the one in PATH' -r -F
complete -c jitsym -n "__fish_jitsym_using_subcommand doctor" -l proc -d 'Settings of the kernel are read below this directory' -r -F
complete -c jitsym -n "__fish_jitsym_using_subcommand doctor" -l json -d 'The same for programs: an object with "causes" and "type". What the command prints goes to the standard error output'
complete -c jitsym -n "__fish_jitsym_using_subcommand doctor" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c jitsym -n "__fish_jitsym_using_subcommand top" -l seconds -d 'Stops after so many seconds' -r
complete -c jitsym -n "__fish_jitsym_using_subcommand top" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c jitsym -n "__fish_jitsym_using_subcommand recover" -l dir -d 'Where the spools are; else JITSYM_SPOOL_DIR, else /dev/shm' -r -F
complete -c jitsym -n "__fish_jitsym_using_subcommand recover" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c jitsym -n "__fish_jitsym_using_subcommand clean" -l dir -d 'Where they are looked for, and nowhere else; without it in JITSYM_DIR or /tmp, and in the directory of the spools' -r -F
complete -c jitsym -n "__fish_jitsym_using_subcommand clean" -l older-than -d 'Only what was last written to so long ago: a number with s, m, h, d or w' -r
complete -c jitsym -n "__fish_jitsym_using_subcommand clean" -l dry-run -d 'Only says which'
complete -c jitsym -n "__fish_jitsym_using_subcommand clean" -l injected -d 'What perf has made for dead processes too, of which recordings then have no names: jitted-PID-N.so there, and their entries in ~/.debug'
complete -c jitsym -n "__fish_jitsym_using_subcommand clean" -s h -l help -d 'Print help'
complete -c jitsym -n "__fish_jitsym_using_subcommand version" -s h -l help -d 'Print help'
complete -c jitsym -n "__fish_jitsym_using_subcommand help; and not __fish_seen_subcommand_from check dump stat record verify callgrind doctor top recover clean version help" -f -a "check" -d 'Says what readers of jitdumps and perf maps would choke on, misattribute or silently stop at'
complete -c jitsym -n "__fish_jitsym_using_subcommand help; and not __fish_seen_subcommand_from check dump stat record verify callgrind doctor top recover clean version help" -f -a "dump" -d 'Prints a block for each function: source lines, unwind rows and instructions side by side'
complete -c jitsym -n "__fish_jitsym_using_subcommand help; and not __fish_seen_subcommand_from check dump stat record verify callgrind doctor top recover clean version help" -f -a "stat" -d 'Prints numbers, sizes and rates, and a picture of the addresses over time'
complete -c jitsym -n "__fish_jitsym_using_subcommand help; and not __fish_seen_subcommand_from check dump stat record verify callgrind doctor top recover clean version help" -f -a "record" -d 'Records a program or a running process with perf, so that compiled code has names, stacks and lines'
complete -c jitsym -n "__fish_jitsym_using_subcommand help; and not __fish_seen_subcommand_from check dump stat record verify callgrind doctor top recover clean version help" -f -a "verify" -d 'Runs a program, steps through its compiled code, and compares unwind tables and bytes with what is really executed'
complete -c jitsym -n "__fish_jitsym_using_subcommand help; and not __fish_seen_subcommand_from check dump stat record verify callgrind doctor top recover clean version help" -f -a "callgrind" -d 'Gives names to the compiled code in a recording of valgrind\'s callgrind'
complete -c jitsym -n "__fish_jitsym_using_subcommand help; and not __fish_seen_subcommand_from check dump stat record verify callgrind doctor top recover clean version help" -f -a "doctor" -d 'Says what the machine can do, what a process does or a recording has, why names or stacks are missing, and what to type next'
complete -c jitsym -n "__fish_jitsym_using_subcommand help; and not __fish_seen_subcommand_from check dump stat record verify callgrind doctor top recover clean version help" -f -a "top" -d 'Shows what a process registers, how fast, and what it loses'
complete -c jitsym -n "__fish_jitsym_using_subcommand help; and not __fish_seen_subcommand_from check dump stat record verify callgrind doctor top recover clean version help" -f -a "recover" -d 'Completes the files of processes that were killed'
complete -c jitsym -n "__fish_jitsym_using_subcommand help; and not __fish_seen_subcommand_from check dump stat record verify callgrind doctor top recover clean version help" -f -a "clean" -d 'Removes maps, jitdumps, files of regions and spools of this user\'s dead processes'
complete -c jitsym -n "__fish_jitsym_using_subcommand help; and not __fish_seen_subcommand_from check dump stat record verify callgrind doctor top recover clean version help" -f -a "version" -d 'Prints the version'
complete -c jitsym -n "__fish_jitsym_using_subcommand help; and not __fish_seen_subcommand_from check dump stat record verify callgrind doctor top recover clean version help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
