#!/bin/sh
# Check a trace against a baseline and against limits, and write what was found.
#
#   ci/gate.sh TRACE [BASELINE]
#
# MAX_SLOWDOWN  step time that BASELINE may be exceeded by, significantly: 3%
# FAIL_ON       rules of `traceana advise` that must not hold, with commas
# MAX           limits of figures, with spaces: "idle=10% exposed_copy=5%"
# OUTPUT        folder for gate.md, comment.md and gate.html: gate
#
# The exit code is that of the first gate that failed, 31, or of the first error.
set -u
trace=${1:?a trace, and its baseline: ci/gate.sh TRACE [BASELINE]}
baseline=${2:-}
for name in "$trace" "$baseline"; do
  case $name in
    -*)
      echo "$name: an option, not a trace; for a file of that name give ./$name" >&2
      exit 2
      ;;
  esac
done
output=${OUTPUT:-gate}
mkdir -p "$output" || exit 1
failed=0

# Keep the first exit code that is not 0.
keep() {
  code=$?
  if [ "$failed" -eq 0 ]; then failed=$code; fi
}

no_page() {
  echo "no page with charts: gate.md has the tables" >&2
}

if [ -n "$baseline" ]; then
  traceana diff "$baseline" "$trace" --fail-if-slower "${MAX_SLOWDOWN:-3%}" \
    -o "$output/gate.md" --force || keep
  traceana diff "$baseline" "$trace" --comment --fail-if-slower "${MAX_SLOWDOWN:-3%}" \
    -o "$output/comment.md" --force 2> /dev/null || true
  # Charts need the extra html; the comment does not.
  traceana diff "$baseline" "$trace" -o "$output/gate.html" --force || no_page
else
  traceana report "$trace" -o "$output/gate.md" --force || keep
  cp "$output/gate.md" "$output/comment.md" || true
  traceana report "$trace" -o "$output/gate.html" --force || no_page
fi

if [ -n "${FAIL_ON:-}${MAX:-}" ]; then
  set --
  if [ -n "${FAIL_ON:-}" ]; then set -- --fail-on "$FAIL_ON"; fi
  for limit in ${MAX:-}; do set -- "$@" --max "$limit"; done
  traceana advise "$trace" "$@" || keep
fi
exit "$failed"
