# Sourced by the other scripts. `need COMMAND=PACKAGE ...` sees to it that the commands are there: it installs the Debian
# packages of those that are missing where it may, and names them where it may not. `pack DIRECTORY FILE` makes an archive. `options` and `refuse` look at arguments.

# Run by itself it has nothing to do.
case ${0##*/} in
    packages.sh)
        usage="usage: . scripts/packages.sh
A part of the other scripts, which read it: \`need COMMAND=PACKAGE ...\` installs
the Debian packages of commands that are missing where it may, and names them
where it may not. \`pack DIRECTORY FILE\` makes a .tar.gz of a directory, with
the time SOURCE_DATE_EPOCH. \`options ARGUMENT ...\` answers --help, and
\`refuse TEXT\` ends a script that was called wrongly."
        case ${1-} in
            --help | -h) echo "$usage"; exit 0 ;;
        esac
        printf 'packages.sh: nothing to do\n%s\n' "$usage" >&2
        exit 2
        ;;
esac

# Ends a script that was called wrongly. The script's function `usage` says how to call it.
refuse() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    usage >&2
    exit 2
}

# Answers `--help` among the arguments of a script that has no other option.
options() {
    for argument in "$@"; do
        case $argument in
            --help | -h) usage; exit 0 ;;
            -*) refuse "no such option: $argument" ;;
        esac
    done
}

need() {
    missing=""
    for pair in "$@"; do
        command=${pair%%=*}
        case $command in
            # A header file, not a command.
            /*) [ -e "$command" ] || missing="$missing ${pair#*=}" ;;
            *) command -v "$command" >/dev/null 2>&1 || missing="$missing ${pair#*=}" ;;
        esac
    done
    [ -n "$missing" ] || return 0

    become=""
    if [ "$(id -u)" != 0 ]; then
        if command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then become="sudo -n"; else become=no; fi
    fi
    if [ "$become" = no ] || ! command -v apt-get >/dev/null 2>&1; then
        echo "Please install these Debian packages, or what your system calls them:$missing" >&2
        return 1
    fi
    echo "Installing$missing" >&2
    # shellcheck disable=SC2086 # The words of $missing and $become are separate arguments.
    $become apt-get update -qq >/dev/null &&
        $become env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null || {
        echo "Could not install$missing" >&2
        return 1
    }
}

# The same bytes, whoever packs it, and when.
pack() {
    tar --sort=name --format=ustar --owner=0 --group=0 --numeric-owner --mode=u+rwX,go+rX,go-w --mtime="@$SOURCE_DATE_EPOCH" \
        -C "${1%/*}" -cf "$1.tar" "${1##*/}"
    gzip -9n <"$1.tar" >"$2"
    rm "$1.tar"
}
