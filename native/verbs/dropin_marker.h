#pragma once

namespace millrace::verbs {

/**
 * A data symbol that the drop-in `libibverbs.so.1` (native/dropin) exports and the system's library
 * does not. A loader that finds it (dlsym) in the library it has just opened, or already in the
 * process, is inside `millrace verbs`, and keeps to the software device that is linked into it: the
 * drop-in has no other device either.
 */
inline constexpr const char* kDropinMarker = "millrace_dropin";

}  // namespace millrace::verbs
