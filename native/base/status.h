#pragma once

#include <cstdio>
#include <optional>
#include <string>
#include <utility>

namespace millrace::base {

/**
 * The outcome of an operation that can fail for a reason worth telling. No exceptions are used
 * below the addon, so this is what travels instead: it is returned by value, never thrown, and the
 * compiler warns when it is dropped. `what` must be a string literal (it is kept as a pointer);
 * everything that was measured at the moment of the failure (path, limit, free bytes) and the
 * remedy go to `detail`.
 */
struct [[nodiscard]] Status {
  int code = 0;           ///< 0 is success, else a positive errno captured at the call that failed
  const char* what = "";  ///< static text: which step failed
  std::string detail = {};  ///< cause as measured, and the remedy; may be empty

  bool ok() const { return code == 0; }

  static Status success() { return {}; }
  static Status error(int code, const char* what, std::string detail = {}) {
    return Status{code, what, std::move(detail)};
  }
};

/**
 * A value or the Status that says why there is none. `value()` may only be called when `ok()`.
 */
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT: implicit on purpose
  Result(Status status) : status_(std::move(status)) {}  // NOLINT: implicit on purpose

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() { return *value_; }
  const T& value() const { return *value_; }
  /** Moves the value out; the Result is empty afterwards. */
  T take() { return std::move(*value_); }

 private:
  std::optional<T> value_;
  Status status_;
};

/** printf into a std::string, for `Status::detail`. Never fails: a bad format gives an empty
 * string. */
template <class... Args>
std::string format(const char* text, Args... args) {
  const int n = std::snprintf(nullptr, 0, text, args...);
  if (n <= 0) return {};
  std::string out(static_cast<size_t>(n), '\0');
  std::snprintf(out.data(), out.size() + 1, text, args...);
  return out;
}
inline std::string format(const char* text) { return text; }

}  // namespace millrace::base
