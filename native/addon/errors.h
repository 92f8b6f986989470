#pragma once

#include <node_api.h>

#include <string>

#include "base/status.h"

namespace millrace::addon {

/**
 * The errors that calls throw. Each leaves an exception pending in the environment and returns
 * null, so that a call can end with `return throw_...`.
 */

/** An Error with code (the errno's name), errno (negative, as Node.js has it), what and detail. */
napi_value throw_status(napi_env env, const base::Status& status);

/** An Error with code ECLOSED: the handle was closed, or never was one of this environment. */
napi_value throw_closed(napi_env env, const char* call);

/** A TypeError with code ERR_INVALID_ARG_TYPE: "<call>: <argument> must be <wanted>". */
napi_value throw_type(napi_env env, const char* call, const char* argument, const char* wanted);

/** A RangeError with code ERR_OUT_OF_RANGE: "<call>: <argument> must be <wanted>". */
napi_value throw_range(napi_env env, const char* call, const char* argument,
                       const std::string& wanted);

/** The name of an errno, such as ENOSPC; "EUNKNOWN" for one that has none here. */
const char* errno_name(int code);

}  // namespace millrace::addon
