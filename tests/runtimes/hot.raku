# A guest with ground truth: it prints which function burned from when to when.
#
#   raku hot.raku SECONDS GENERATIONS
#
# Each of the first phases takes so many seconds. Then that many functions are compiled, run and forgotten, one after the other.
use NativeCall;
sub clock_gettime(int32, CArray[int64] --> int32) is native { * }

# CLOCK_MONOTONIC, as perf takes the time of samples with `-k 1`.
my $time = CArray[int64].new(0, 0);
sub seconds() {
    clock_gettime(1, $time);
    $time[0] + $time[1] / 1e9
}

sub first_or_second(int $turns, int $which) {
    my int $sum = 0;
    my int $i = 0;
    if $which == 0 {
        while $i < $turns { $sum = $sum + ($i +& 7); $i = $i + 1; } # first
    }
    else {
        while $i < $turns { $sum = $sum +^ ($i +& 15); $i = $i + 1; } # second
    }
    $sum
}

sub numbers(int $turns, int $which) {
    my num $x = 1e0;
    my int $i = 0;
    while $i < $turns { $x = $x * 0.5e0 + sqrt($x); $i = $i + 1; } # numbers
    $x
}

# The time goes by in C, called by compiled code.
my $big = 7 ** 4000;
sub big_numbers(int $turns, int $which) {
    my $product = 1;
    my int $i = 0;
    while $i < $turns { $product = $big * $big; $i = $i + 50_000; } # big
    $product
}

my num $seconds = (@*ARGS[0] // 0.3).Num;

sub phase($name, &burn, int $which) {
    # Until it is compiled.
    my num $warm = seconds() + 0.3e0;
    burn(200_000, $which) while seconds() < $warm;
    my num $from = seconds();
    my num $end = $from + $seconds;
    my num $now = $from;
    while $now < $end {
        burn(2_000_000, $which);
        $now = seconds();
    }
    printf "%s %.9f %.9f\n", $name, $from, $now;
}

if $seconds > 0e0 {
    phase('first', &first_or_second, 0);
    phase('second', &first_or_second, 1);
    phase('numbers', &numbers, 0);
    phase('big', &big_numbers, 0);
}

# Code that comes and goes, at addresses that are used again.
for 1 .. (@*ARGS[1] // 60).Int -> $n {
    my $source = 'sub generation_' ~ $n ~ '(int $turns) {
        my int $sum = ' ~ $n ~ ';
        my int $i = 0;
        while $i < $turns { $sum = $sum + ($i +& 7); $i = $i + 1; }
        $sum
    }
    for ^100 -> int $i { generation_' ~ $n ~ '(1_000) }';
    my num $from = seconds();
    use MONKEY-SEE-NO-EVAL;
    EVAL $source;
    printf "generation_%d %.9f %.9f\n", $n, $from, seconds();
}
