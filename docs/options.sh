# Sourced, not run: the options of the scripts that have --data DIR and --runs DIR.
#
#   read_options "data runs seeds" "$@"    sets a variable for each --NAME VALUE; data and runs are folders, and needed

read_options() {
  local names=" $1" name
  shift
  while [ $# -gt 0 ]; do
    name=${1#--}
    if [[ $1 != --* || "$names " != *" $name "* ]]; then
      echo "error: $1 is none of the options:${names// / --}" >&2
      exit 2
    fi
    if [ $# -lt 2 ]; then
      echo "error: $1 needs a value" >&2
      exit 2
    fi
    printf -v "$name" %s "$2"
    shift 2
  done
  if [ -z "${data-}" ] || [ -z "${runs-}" ]; then
    echo "error: --data and --runs are needed: bash $0 --data DIR --runs DIR" >&2
    exit 2
  fi
  if [ ! -d "$data" ]; then
    echo "error: --data $data: no such folder" >&2
    exit 2
  fi
  data=$(realpath "$data")
  runs=$(realpath -m "$runs")
}
