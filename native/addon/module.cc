#include <napi.h>

#include "addon/calls.h"
#include "addon/environment.h"
#include "soft/provider.h"
#include "transport/member.h"

namespace millrace::addon {
namespace {

/** Written once more in src/native/binding.ts (NATIVE_ABI), and compared at load time. */
constexpr int kAbi = 1;

static_assert(transport::kSendRows == 4096 && transport::kSendStride == 4 &&
                  transport::kEventRows == 1024 && transport::kEventStride == 8 &&
                  transport::kMaxPeers == 1024 && transport::kPeerStride == 8 &&
                  transport::kCounters == 32,
              "tables.ts states these; a change needs a new kAbi");

void add_hot(napi_env env, napi_value exports, const char* name, napi_callback callback,
             Environment* environment) {
  napi_value function = nullptr;
  if (napi_create_function(env, name, NAPI_AUTO_LENGTH, callback, environment, &function) ==
      napi_ok)
    napi_set_named_property(env, exports, name, function);
}

Napi::Object initialise(Napi::Env env, Napi::Object exports) {
  Environment* environment = Environment::create(env);
  if (environment == nullptr) {
    Napi::Error::New(env, "the environment's state could not be made").ThrowAsJavaScriptException();
    return exports;
  }
  exports.Set("abi", kAbi);
  exports.Set("fabricLayout", soft::layout_text());
  const struct {
    const char* name;
    napi_callback call;
  } hot_calls[] = {
      {"flush", flush},
      {"poll", poll},
      {"linger", linger},
      {"arm", arm},
      {"pollPort", poll_port},
      {"lend", lend},
      {"lendFree", lend_free},
      {"loanBuffer", loan_buffer},
      {"endLoan", end_loan},
      {"retireBlock", retire_block},
      {"holdRoom", hold_room},
      {"offerHold", offer_hold},
      {"takeHold", take_hold},
      {"revokeHold", revoke_hold},
      {"holdBuffer", hold_buffer},
      {"endHold", end_hold},
  };
  for (const auto& entry : hot_calls) add_hot(env, exports, entry.name, entry.call, environment);

  using Call = Napi::Value (*)(const Napi::CallbackInfo&);
  const struct {
    const char* name;
    Call call;
  } calls[] = {
      {"open", open},
      {"close", close},
      {"buffers", buffers},
      {"offer", offer},
      {"connect", connect},
      {"disconnect", disconnect},
      {"openLane", open_lane},
      {"closeLane", close_lane},
      {"openGroup", open_group},
      {"closeGroup", close_group},
      {"watch", watch},
      {"sleep", sleep},
      {"ref", ref},
      {"tunnel", tunnel},
      {"resources", resources},
      {"createRegion", create_region},
      {"openRegion", open_region},
      {"regionBuffer", region_buffer},
      {"regionState", region_state},
      {"closeRegion", close_region},
      {"isElsewhere", is_elsewhere},
      {"fetch", fetch},
      {"cancelFetch", cancel_fetch},
      {"inspectRegion", inspect_region},
      {"sweepRegions", sweep_regions},
      {"landedHold", landed_hold},
      {"land", land},
      {"collectHolds", collect_holds},
      {"receiverGone", receiver_gone},
      {"publisherGone", publisher_gone},
      {"vacate", vacate},
      {"closeLeases", close_leases},
      {"onCollected", on_collected},
      {"onLoanCollected", on_loan_collected},
      {"detachBuffer", detach_buffer},
      {"sweepPool", sweep_pool},
      {"openPort", open_port},
      {"openQueue", open_queue},
      {"closeQueue", close_queue},
      {"createFlow", create_flow},
      {"destroyFlow", destroy_flow},
      {"readFlow", read_flow},
      {"portCounters", port_counters},
      {"armPort", arm_port},
      {"lockPresence", lock_presence},
      {"isPresent", is_present},
      {"unlockPresence", unlock_presence},
      {"memlockLimit", memlock_limit},
      {"cleanFabric", clean_fabric},
      {"probe", probe},
  };
  for (const auto& entry : calls) {
    exports.Set(entry.name, Napi::Function::New(env, entry.call, entry.name, environment));
  }
  return exports;
}

}  // namespace
}  // namespace millrace::addon

// The macro defines functions in the global namespace and wants the name of one.
static Napi::Object millrace_initialise(Napi::Env env, Napi::Object exports) {
  return millrace::addon::initialise(env, exports);
}
NODE_API_MODULE(millrace, millrace_initialise)
