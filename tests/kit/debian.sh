# Sourced by the scripts that install what tests outside of Python need.

missing() { echo "not installed: $1; its tests will be skipped"; }

# debian PACKAGE COMMAND…: installs the package unless one of the commands is there.
debian() {
  local package=$1
  shift
  for command in "$@"; do command -v "$command" > /dev/null && return; done
  if ! command -v apt-get > /dev/null; then
    missing "$package (there is no apt-get here: install it by hand)"
  elif [ "$(id -u)" != 0 ]; then
    missing "$package (this user is not root: run sudo apt-get install $package)"
  else
    apt_get install "$package" || { apt_get update && apt_get install "$package"; } || missing "$package (apt-get failed)"
  fi
}

apt_get() { DEBIAN_FRONTEND=noninteractive apt-get --yes --quiet --quiet --no-install-recommends "$@" > /dev/null; }
