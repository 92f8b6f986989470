#pragma once

#include <napi.h>

namespace millrace::addon {

/**
 * The functions of src/native/binding.ts and what it extends, which document them. Those of the hot
 * path are written against the C API (an empty call costs 10 ns there, 19 to 72 through the C++
 * wrapper); their data pointer is the Environment, as is `info.Data()` of the others.
 */
napi_value flush(napi_env env, napi_callback_info info);
napi_value poll(napi_env env, napi_callback_info info);
napi_value linger(napi_env env, napi_callback_info info);
napi_value arm(napi_env env, napi_callback_info info);
napi_value poll_port(napi_env env, napi_callback_info info);
napi_value lend(napi_env env, napi_callback_info info);
napi_value lend_free(napi_env env, napi_callback_info info);
napi_value loan_buffer(napi_env env, napi_callback_info info);
napi_value end_loan(napi_env env, napi_callback_info info);
napi_value retire_block(napi_env env, napi_callback_info info);
napi_value hold_room(napi_env env, napi_callback_info info);
napi_value offer_hold(napi_env env, napi_callback_info info);
napi_value take_hold(napi_env env, napi_callback_info info);
napi_value revoke_hold(napi_env env, napi_callback_info info);
napi_value hold_buffer(napi_env env, napi_callback_info info);
napi_value end_hold(napi_env env, napi_callback_info info);

Napi::Value open(const Napi::CallbackInfo& info);
Napi::Value close(const Napi::CallbackInfo& info);
Napi::Value buffers(const Napi::CallbackInfo& info);
Napi::Value offer(const Napi::CallbackInfo& info);
Napi::Value connect(const Napi::CallbackInfo& info);
Napi::Value disconnect(const Napi::CallbackInfo& info);
Napi::Value open_lane(const Napi::CallbackInfo& info);
Napi::Value close_lane(const Napi::CallbackInfo& info);
Napi::Value open_group(const Napi::CallbackInfo& info);
Napi::Value close_group(const Napi::CallbackInfo& info);
Napi::Value watch(const Napi::CallbackInfo& info);
Napi::Value sleep(const Napi::CallbackInfo& info);
Napi::Value ref(const Napi::CallbackInfo& info);
Napi::Value tunnel(const Napi::CallbackInfo& info);
Napi::Value resources(const Napi::CallbackInfo& info);

Napi::Value create_region(const Napi::CallbackInfo& info);
Napi::Value open_region(const Napi::CallbackInfo& info);
Napi::Value region_buffer(const Napi::CallbackInfo& info);
Napi::Value region_state(const Napi::CallbackInfo& info);
Napi::Value close_region(const Napi::CallbackInfo& info);
Napi::Value is_elsewhere(const Napi::CallbackInfo& info);
Napi::Value fetch(const Napi::CallbackInfo& info);
Napi::Value cancel_fetch(const Napi::CallbackInfo& info);
Napi::Value inspect_region(const Napi::CallbackInfo& info);
Napi::Value sweep_regions(const Napi::CallbackInfo& info);
Napi::Value landed_hold(const Napi::CallbackInfo& info);
Napi::Value land(const Napi::CallbackInfo& info);
Napi::Value collect_holds(const Napi::CallbackInfo& info);
Napi::Value receiver_gone(const Napi::CallbackInfo& info);
Napi::Value publisher_gone(const Napi::CallbackInfo& info);
Napi::Value vacate(const Napi::CallbackInfo& info);
Napi::Value close_leases(const Napi::CallbackInfo& info);
Napi::Value on_collected(const Napi::CallbackInfo& info);
Napi::Value on_loan_collected(const Napi::CallbackInfo& info);
Napi::Value detach_buffer(const Napi::CallbackInfo& info);
Napi::Value sweep_pool(const Napi::CallbackInfo& info);

Napi::Value open_port(const Napi::CallbackInfo& info);
Napi::Value open_queue(const Napi::CallbackInfo& info);
Napi::Value close_queue(const Napi::CallbackInfo& info);
Napi::Value create_flow(const Napi::CallbackInfo& info);
Napi::Value destroy_flow(const Napi::CallbackInfo& info);
Napi::Value read_flow(const Napi::CallbackInfo& info);
Napi::Value port_counters(const Napi::CallbackInfo& info);
Napi::Value arm_port(const Napi::CallbackInfo& info);

Napi::Value lock_presence(const Napi::CallbackInfo& info);
Napi::Value is_present(const Napi::CallbackInfo& info);
Napi::Value unlock_presence(const Napi::CallbackInfo& info);
Napi::Value memlock_limit(const Napi::CallbackInfo& info);
Napi::Value clean_fabric(const Napi::CallbackInfo& info);
Napi::Value probe(const Napi::CallbackInfo& info);

}  // namespace millrace::addon
