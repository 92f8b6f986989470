#pragma once

#include <errno.h>

#include <string>
#include <utility>

#include "base/status.h"

namespace millrace::soft {

/** Keeps the whole reason for soft::last_error() and sets errno. */
void remember(base::Status status);

/** What was remembered last in this thread. */
const base::Status& last_remembered();

/** For verbs calls that return an errno value: remembers and returns it. */
inline int fail(int code, const char* what, std::string detail = {}) {
  remember(base::Status::error(code, what, std::move(detail)));
  return code;
}
inline int fail(base::Status status) {
  const int code = status.code;
  remember(std::move(status));
  return code;
}

/** For verbs calls that return a pointer: remembers, sets errno and gives null. */
inline std::nullptr_t fail_null(int code, const char* what, std::string detail = {}) {
  remember(base::Status::error(code, what, std::move(detail)));
  return nullptr;
}
inline std::nullptr_t fail_null(base::Status status) {
  remember(std::move(status));
  return nullptr;
}

}  // namespace millrace::soft
