#include <errno.h>

#include <algorithm>
#include <limits>

#include "addon/arguments.h"
#include "addon/calls.h"
#include "addon/errors.h"
#include "transport/member.h"

namespace millrace::addon {
namespace {

Napi::Value failed(Arguments& arguments, const base::Status& status) {
  throw_status(arguments.env(), status);
  return {};
}

transport::MemberOptions read_options(Arguments& arguments) {
  transport::MemberOptions options;
  const Napi::Object object = arguments.object(0, "options");
  if (!arguments.ok()) return options;
  options.device = arguments.text(object, "device");
  options.folder = arguments.text(object, "folder");
  options.incarnation =
      static_cast<uint64_t>(arguments.integer(object, "incarnation", 1, kMaxSafeInteger));
  options.slot_bytes = static_cast<uint32_t>(arguments.integer(object, "slotBytes", 1, kMaxUint32));
  options.slots = static_cast<uint32_t>(arguments.integer(object, "slots", 1, kMaxUint32));
  options.max_slots = static_cast<uint32_t>(arguments.integer(object, "maxSlots", 1, kMaxUint32));
  // Offsets in the arena are int32 in the rows.
  options.arena_bytes = static_cast<uint64_t>(
      arguments.integer(object, "arenaBytes", 1, std::numeric_limits<int32_t>::max()));
  const Napi::Object faults = arguments.optional_object(object, "faults");
  if (!arguments.ok() || faults.IsEmpty()) return options;
  verbs::FaultPlan plan;
  plan.seed = static_cast<uint64_t>(arguments.integer(faults, "seed", 0, kMaxSafeInteger));
  plan.error = arguments.number(faults, "error", 0, 1, 0);
  plan.ambiguous = arguments.number(faults, "ambiguous", 0, 1, 0);
  plan.delay = arguments.number(faults, "delay", 0, 1, 0);
  plan.rnr = arguments.number(faults, "rnr", 0, 1, 0);
  plan.dead_srq = arguments.number(faults, "deadSrq", 0, 1, 0);
  plan.drop = arguments.number(faults, "drop", 0, 1, 0);
  plan.max_delay_polls = static_cast<uint32_t>(
      arguments.number(faults, "maxDelayPolls", 1, 1 << 20, plan.max_delay_polls));
  plan.lock_limit = static_cast<uint64_t>(
      arguments.number(faults, "lockLimit", 0, static_cast<double>(kMaxSafeInteger), 0));
  options.faults = plan;
  return options;
}

Lending::Options read_lending(Arguments& arguments, const transport::MemberOptions& member) {
  Lending::Options options;
  if (!arguments.ok()) return options;
  const Napi::Object object = arguments.object(0, "options");
  options.folder = member.folder;
  options.incarnation = member.incarnation;
  const auto bytes = [&](const char* name) {
    return static_cast<uint64_t>(
        arguments.number(object, name, 1, static_cast<double>(kMaxSafeInteger), 1 << 30));
  };
  options.pool_bytes = bytes("poolBytes");
  options.held_bytes = bytes("heldBytes");
  options.poison = arguments.number(object, "poison", 0, 1, 0) != 0;
  return options;
}

}  // namespace

Napi::Value open(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "open");
  const transport::MemberOptions options = read_options(arguments);
  Lending::Options lent = read_lending(arguments, options);
  if (!arguments.ok()) return {};
  base::Result<std::unique_ptr<transport::Member>> member = transport::Member::create(options);
  if (!member.ok()) return failed(arguments, member.status());
  lent.pd = member.value()->pd();
  const int32_t handle =
      arguments.environment().add(std::make_unique<OpenMember>(member.take(), lent));
  if (handle == 0) {
    return failed(arguments,
                  base::Status::error(ENOBUFS, "open member",
                                      "4095 members are open in this thread; close some"));
  }
  return Napi::Number::New(info.Env(), handle);
}

Napi::Value close(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "close");
  const auto handle = static_cast<int32_t>(arguments.integer(0, "handle", INT32_MIN, INT32_MAX));
  if (!arguments.ok()) return {};
  const std::unique_ptr<OpenHandle> open = arguments.environment().remove(handle);
  if (open != nullptr) open->close(info.Env());
  return info.Env().Undefined();
}

Napi::Value buffers(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "buffers");
  OpenMember* open = arguments.member();
  if (open == nullptr) return {};
  return {info.Env(), open->buffers.get(info.Env())};
}

Napi::Value offer(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "offer");
  OpenMember* open = arguments.member();
  if (open == nullptr) return {};
  base::Result<transport::Offer> offer = open->member->offer();
  if (!offer.ok()) return failed(arguments, offer.status());
  const transport::Offer& made = offer.value();
  open->peers = std::max(open->peers, made.peer + 1);
  Napi::Object result = Napi::Object::New(info.Env());
  Napi::Uint8Array bytes = Napi::Uint8Array::New(info.Env(), made.bytes.size());
  if (bytes.IsEmpty()) return {};
  std::copy(made.bytes.begin(), made.bytes.end(), bytes.Data());
  result.Set("peer", made.peer);
  result.Set("offer", bytes);
  return result;
}

Napi::Value connect(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "connect");
  OpenMember* open = arguments.member();
  const auto peer = static_cast<uint32_t>(arguments.integer(1, "peer", 0, kMaxUint32));
  const int64_t incarnation = arguments.integer(2, "incarnation", 1, kMaxSafeInteger);
  const std::span<uint8_t> blob = arguments.bytes(3, "offer");
  if (!arguments.ok()) return {};
  const base::Status status = open->member->connect(peer, static_cast<uint64_t>(incarnation), blob);
  if (!status.ok()) return failed(arguments, status);
  return info.Env().Undefined();
}

Napi::Value disconnect(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "disconnect");
  OpenMember* open = arguments.member();
  const auto peer = static_cast<uint32_t>(arguments.integer(1, "peer", 0, kMaxUint32));
  if (!arguments.ok()) return {};
  open->member->disconnect(peer);
  return info.Env().Undefined();
}

Napi::Value open_lane(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "openLane");
  OpenMember* open = arguments.member();
  if (open == nullptr) return {};
  const base::Result<uint32_t> lane = open->member->open_lane();
  if (!lane.ok()) return failed(arguments, lane.status());
  return Napi::Number::New(info.Env(), lane.value());
}

Napi::Value close_lane(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "closeLane");
  OpenMember* open = arguments.member();
  const auto lane = static_cast<uint32_t>(arguments.integer(1, "lane", 0, kMaxUint32));
  if (!arguments.ok()) return {};
  const base::Status status = open->member->close_lane(lane);
  if (!status.ok()) return failed(arguments, status);
  return info.Env().Undefined();
}

Napi::Value open_group(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "openGroup");
  OpenMember* open = arguments.member();
  const std::span<uint8_t> bytes = arguments.bytes(1, "key");
  const auto slots = static_cast<uint32_t>(arguments.integer(2, "slots", 0, 16384));
  if (!arguments.ok()) return {};
  transport::GroupKey key;
  if (bytes.size() != key.size()) {
    return failed(arguments, base::Status::error(EINVAL, "openGroup", "key: 16 bytes"));
  }
  std::copy(bytes.begin(), bytes.end(), key.begin());
  const base::Result<transport::OpenGroup> group = open->member->open_group(key, slots);
  if (!group.ok()) return failed(arguments, group.status());
  Napi::Object result = Napi::Object::New(info.Env());
  result.Set("group", group.value().number);
  result.Set("room", group.value().room);
  return result;
}

Napi::Value close_group(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "closeGroup");
  OpenMember* open = arguments.member();
  const auto group = static_cast<uint32_t>(arguments.integer(1, "group", 0, kMaxUint32));
  if (!arguments.ok()) return {};
  open->member->close_group(group);
  return info.Env().Undefined();
}

Napi::Value watch(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "watch");
  OpenHandle* open = arguments.open<OpenHandle>();
  const Napi::Function callback = arguments.function(1, "onReadable");
  if (!arguments.ok()) return {};
  if (open->watcher != nullptr) {
    return failed(arguments,
                  base::Status::error(EBUSY, "watch", "this handle has a watcher already"));
  }
  base::Result<std::unique_ptr<Watcher>> watcher =
      make_watcher(arguments.environment(), open->fd(), callback);
  if (!watcher.ok()) return failed(arguments, watcher.status());
  open->watcher = watcher.take();
  return info.Env().Undefined();
}

namespace {

/** sleep and ref, which both need the watcher. */
template <class Apply>
Napi::Value with_watcher(const Napi::CallbackInfo& info, const char* call, Apply apply) {
  Arguments arguments(info, call);
  OpenHandle* open = arguments.open<OpenHandle>();
  const bool on = arguments.boolean(1, "on");
  if (!arguments.ok()) return {};
  if (open->watcher == nullptr) {
    return failed(arguments, base::Status::error(EINVAL, call, "call watch first"));
  }
  const base::Status status = apply(*open->watcher, on);
  if (!status.ok()) return failed(arguments, status);
  return info.Env().Undefined();
}

}  // namespace

Napi::Value sleep(const Napi::CallbackInfo& info) {
  return with_watcher(info, "sleep", [](Watcher& watcher, bool on) { return watcher.watch(on); });
}

Napi::Value ref(const Napi::CallbackInfo& info) {
  return with_watcher(info, "ref", [](Watcher& watcher, bool on) {
    watcher.ref(on);
    return base::Status::success();
  });
}

Napi::Value tunnel(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "tunnel");
  OpenMember* open = arguments.member();
  const auto peer = static_cast<uint32_t>(arguments.integer(1, "peer", 0, kMaxUint32));
  const std::span<uint8_t> message = arguments.bytes(2, "message");
  if (!arguments.ok()) return {};
  open->member->tunnel(peer, message);
  return info.Env().Undefined();
}

Napi::Value resources(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "resources");
  OpenMember* open = arguments.member();
  if (open == nullptr) return {};
  const transport::Resources held = open->member->resources();
  Napi::Object result = Napi::Object::New(info.Env());
  result.Set("device", held.device);
  result.Set("deviceNote", held.note);
  result.Set("laneKind", held.kind == transport::LaneKind::kXrc ? "xrc" : "rc");
  result.Set("gidIndex", held.gid_index);
  result.Set("pds", held.pds);
  result.Set("xrcds", held.xrcds);
  result.Set("srqs", held.srqs);
  result.Set("cqs", held.cqs);
  result.Set("qps", held.qps);
  result.Set("mrs", held.mrs);
  result.Set("lanes", held.lanes);
  result.Set("slots", held.slots);
  result.Set("slotBytes", held.slot_bytes);
  result.Set("inboxBytes", static_cast<double>(held.inbox_bytes));
  result.Set("arenaBytes", static_cast<double>(held.arena_bytes));
  result.Set("backlogBytes", static_cast<double>(held.backlog_bytes));
  result.Set("peers", held.peers);
  transport::Pool* const pool = open->lending.open_pool();
  if (pool != nullptr) (void)pool->collect();
  const transport::Leases* const leases = open->lending.open_leases();
  const auto lent = pool == nullptr ? transport::Pool::Counts{} : pool->counts();
  const auto leased = leases == nullptr ? transport::Leases::Counts{} : leases->counts();
  result.Set("pools", pool == nullptr ? 0 : 1);
  result.Set("poolBytes", static_cast<double>(lent.bytes));
  result.Set("blocks", lent.blocks);
  result.Set("blocksInUse", lent.blocks_in_use);
  result.Set("blockBytesInUse", static_cast<double>(lent.lent_bytes));
  result.Set("holds", lent.holds);
  result.Set("leases", leased.holds);
  result.Set("leasedBytes", static_cast<double>(leased.bytes));
  result.Set("mappedPoolFiles", leased.views);
  const auto& copies = open->lending.copies();
  result.Set("copies", static_cast<double>(copies.count + leased.copies));
  result.Set("copiedBytes", static_cast<double>(copies.bytes + leased.copied_bytes));
  result.Set("groups", held.groups);
  result.Set("groupSlots", held.group_slots);
  result.Set("groupBytes", static_cast<double>(held.group_bytes));
  return result;
}

}  // namespace millrace::addon
