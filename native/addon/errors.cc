#include "addon/errors.h"

#include <errno.h>
#include <string.h>

namespace millrace::addon {
namespace {

napi_value text(napi_env env, const std::string& value) {
  napi_value result = nullptr;
  napi_create_string_utf8(env, value.data(), value.size(), &result);
  return result;
}

napi_value make_error(napi_env env, const std::string& code, const std::string& message) {
  napi_value error = nullptr;
  napi_create_error(env, text(env, code), text(env, message), &error);
  return error;
}

void set(napi_env env, napi_value error, const char* name, const std::string& value) {
  napi_set_named_property(env, error, name, text(env, value));
}

}  // namespace

napi_value throw_status(napi_env env, const base::Status& status) {
  const std::string name = errno_name(status.code);
  const std::string& cause = status.detail.empty() ? strerror(status.code) : status.detail;
  napi_value error =
      make_error(env, name, base::format("%s: %s (%s)", status.what, cause.c_str(), name.c_str()));
  napi_value number;
  napi_create_int32(env, -status.code, &number);
  napi_set_named_property(env, error, "errno", number);
  set(env, error, "what", status.what);
  set(env, error, "detail", status.detail);
  napi_throw(env, error);
  return nullptr;
}

napi_value throw_closed(napi_env env, const char* call) {
  napi_value error = make_error(
      env, "ECLOSED", std::string(call) + ": this handle is closed, or is not one of this thread");
  set(env, error, "what", call);
  set(env, error, "detail", "");
  napi_throw(env, error);
  return nullptr;
}

napi_value throw_type(napi_env env, const char* call, const char* argument, const char* wanted) {
  napi_throw_type_error(env, "ERR_INVALID_ARG_TYPE",
                        base::format("%s: %s must be %s", call, argument, wanted).c_str());
  return nullptr;
}

napi_value throw_range(napi_env env, const char* call, const char* argument,
                       const std::string& wanted) {
  napi_throw_range_error(env, "ERR_OUT_OF_RANGE",
                         base::format("%s: %s must be %s", call, argument, wanted.c_str()).c_str());
  return nullptr;
}

// Not strerrorname_np: it is newer than the C libraries that this addon shall run on.
const char* errno_name(int code) {
#define MILLRACE_NAME(name) \
  case name:                \
    return #name
  switch (code) {
    MILLRACE_NAME(E2BIG);
    MILLRACE_NAME(EACCES);
    MILLRACE_NAME(EADDRINUSE);
    MILLRACE_NAME(EADDRNOTAVAIL);
    MILLRACE_NAME(EAGAIN);
    MILLRACE_NAME(EBADF);
    MILLRACE_NAME(EBADMSG);
    MILLRACE_NAME(EBUSY);
    MILLRACE_NAME(ECANCELED);
    MILLRACE_NAME(ECHILD);
    MILLRACE_NAME(ECONNREFUSED);
    MILLRACE_NAME(ECONNRESET);
    MILLRACE_NAME(EDEADLK);
    MILLRACE_NAME(EDOM);
    MILLRACE_NAME(EDQUOT);
    MILLRACE_NAME(EEXIST);
    MILLRACE_NAME(EFAULT);
    MILLRACE_NAME(EFBIG);
    MILLRACE_NAME(EHOSTUNREACH);
    MILLRACE_NAME(EILSEQ);
    MILLRACE_NAME(EINTR);
    MILLRACE_NAME(EINVAL);
    MILLRACE_NAME(EIO);
    MILLRACE_NAME(EISDIR);
    MILLRACE_NAME(ELOOP);
    MILLRACE_NAME(EMFILE);
    MILLRACE_NAME(EMSGSIZE);
    MILLRACE_NAME(ENAMETOOLONG);
    MILLRACE_NAME(ENFILE);
    MILLRACE_NAME(ENETDOWN);
    MILLRACE_NAME(ENETUNREACH);
    MILLRACE_NAME(ENOBUFS);
    MILLRACE_NAME(ENODATA);
    MILLRACE_NAME(ENODEV);
    MILLRACE_NAME(ENOENT);
    MILLRACE_NAME(ENOLCK);
    MILLRACE_NAME(ENOMEM);
    MILLRACE_NAME(ENOSPC);
    MILLRACE_NAME(ENOSYS);
    MILLRACE_NAME(ENOTCONN);
    MILLRACE_NAME(ENOTDIR);
    MILLRACE_NAME(ENOTEMPTY);
    MILLRACE_NAME(EOPNOTSUPP);  // which is ENOTSUP on Linux; verbs say it so
    MILLRACE_NAME(ENXIO);
    MILLRACE_NAME(EOVERFLOW);
    MILLRACE_NAME(EOWNERDEAD);
    MILLRACE_NAME(EPERM);
    MILLRACE_NAME(EPIPE);
    MILLRACE_NAME(EPROTO);
    MILLRACE_NAME(EPROTONOSUPPORT);
    MILLRACE_NAME(ERANGE);
    MILLRACE_NAME(EROFS);
    MILLRACE_NAME(ESHUTDOWN);
    MILLRACE_NAME(ESRCH);
    MILLRACE_NAME(ESTALE);
    MILLRACE_NAME(ETIME);
    MILLRACE_NAME(ETIMEDOUT);
    MILLRACE_NAME(EXDEV);
    default:
      return "EUNKNOWN";
  }
#undef MILLRACE_NAME
}

}  // namespace millrace::addon
