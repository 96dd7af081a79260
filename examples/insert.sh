# Functions that insert lines into the source of a runtime in $build, and remove lines that the runtime no longer needs. The
# scripts that build runtimes with the library source this file. Each anchor line must exist exactly once in its file,
# otherwise the script ends.

# `set_up FILE SOURCE PREFIX`: copies SOURCE to $build, a directory in $prefix. SOURCE must contain FILE.
set_up() {
    marker=$1
    shift
    case ${1-} in
        --help | -h) echo "$usage"; exit 0 ;;
    esac
    if [ $# != 2 ] || [ ! -f "$1/$marker" ]; then
        echo "$usage" >&2
        exit 2
    fi

    here=$(cd "$(dirname "$0")" && pwd)
    include=$(cd "$here/../../include" && pwd)
    source=$(cd "$1" && pwd)
    mkdir -p "$2/bin"
    prefix=$(cd "$2" && pwd)
    build=$prefix/build

    if [ ! -d "$build" ]; then
        rm -rf "$build.new"
        cp -R "$source" "$build.new"
        mv "$build.new" "$build"
    fi
}

# `add DIRECTORY FILE...`: copies files of this project to the directory in $build.
changed=no
add() {
    dir=$build/$1
    shift
    for added in "$@"; do
        cmp -s "$added" "$dir/${added##*/}" || { cp "$added" "$dir/"; changed=yes; }
    done
}

# `begin FILE`: begins the changes of a file, from the form in which it was delivered.
begin() {
    file=$build/$1
    [ -f "$file.delivered" ] || cp "$file" "$file.delivered"
    cp "$file.delivered" "$file.new"
}

# `after LINE INSERTED...` and `before LINE INSERTED...`: insert lines after or before a line.
after() { insert after "$@"; }
before() { insert before "$@"; }

insert() {
    where=$1 anchor=$2
    shift 2
    count=$(grep -cFx -e "$anchor" "$file.new" || :)
    if [ "$count" != 1 ]; then
        echo "$file: $count lines are \"$anchor\", and not one: this version is another one" >&2
        exit 1
    fi
    [ $# != 0 ] || return 0
    lines=$(printf '%s\n' "$@")
    # The values are passed in the environment, because awk would interpret backslashes in other variables.
    anchor=$anchor lines=$lines where=$where awk '
        $0 == ENVIRON["anchor"] && ENVIRON["where"] == "before" { print ENVIRON["lines"] }
        { print }
        $0 == ENVIRON["anchor"] && ENVIRON["where"] == "after" { print ENVIRON["lines"] }' "$file.new" >"$file.newer"
    mv "$file.newer" "$file.new"
}

# `without NAME`: removes each block from `#ifdef NAME` to its `#endif`.
without() {
    if ! grep -qFx -e "#ifdef $1" "$file.new"; then
        echo "$file: no line is \"#ifdef $1\": this version is another one" >&2
        exit 1
    fi
    awk -v begin="#ifdef $1" '
        $0 == begin { depth = 1; next }
        depth && /^#if/ { depth++ }
        depth && /^#endif/ { depth--; next }
        !depth { print }' "$file.new" >"$file.newer"
    mv "$file.newer" "$file.new"
}

# `between FROM TO`: removes the lines between FROM, which exists exactly once, and the next TO.
between() {
    insert after "$1"
    from=$1 to=$2 awk '
        $0 == ENVIRON["to"] { inside = 0 }
        !inside { print }
        $0 == ENVIRON["from"] { inside = 1 }' "$file.new" >"$file.newer"
    mv "$file.newer" "$file.new"
}

at_the_end() { printf '%s\n' "$@" >>"$file.new"; }

# If this file and the added files are unchanged, the file keeps its date, so that make does not compile it again.
end() {
    if [ $changed = no ] && cmp -s "$file.new" "$file"; then rm "$file.new"; else mv "$file.new" "$file"; fi
}
