#include "soft/mcast.h"

#include <errno.h>
#include <string.h>

#include <algorithm>
#include <mutex>

#include "soft/claims.h"
#include "soft/error.h"
#include "soft/port.h"
#include "soft/qp.h"
#include "soft/step.h"

namespace millrace::soft {
namespace {

bool same_gid(const ibv_gid& a, const ibv_gid& b) { return memcmp(&a, &b, sizeof(a)) == 0; }

std::vector<Attachment>::iterator find(std::vector<Attachment>& list, const ibv_gid& gid,
                                       uint16_t lid) {
  return std::find_if(list.begin(), list.end(),
                      [&](const Attachment& a) { return a.lid == lid && same_gid(a.gid, gid); });
}

/** The table has changed: who caches a group reads it again. After the change itself (R32). */
void tell(Root& root) {
  root.header().groups_changed.fetch_add(1);
  step("groups changed");
}

}  // namespace

const std::vector<GroupMember>& GroupCache::members(Root& root, const ibv_gid& gid, uint16_t lid) {
  // First the count, then the table: a change after this look shows at the next (R32).
  const uint64_t now = root.header().groups_changed.load();
  if (now != seen_) {
    groups_.clear();
    seen_ = now;
  }
  const auto key = std::make_pair(
      std::make_pair(uint64_t{gid.global.subnet_prefix}, uint64_t{gid.global.interface_id}), lid);
  const auto [at, fresh] = groups_.try_emplace(key);
  if (!fresh) return at->second;
  for (uint32_t i = 0; i < root.groups(); ++i) {
    const GroupRecord& record = root.group(i);
    GroupMember member;
    ibv_gid theirs;
    uint16_t their_lid = 0;
    uint64_t word = 0;
    const bool live = read_claim(record, &word, [&] {
      memcpy(&theirs, record.gid, sizeof(theirs));
      their_lid = record.lid;
      member.qpn = record.qpn;
      member.device = record.device;
    });
    if (!live || !same_gid(theirs, gid)) continue;
    if (lid != 0 && their_lid != 0 && lid != their_lid) continue;
    const auto known = [&member](const GroupMember& m) { return m.qpn == member.qpn; };
    if (std::none_of(at->second.begin(), at->second.end(), known)) at->second.push_back(member);
  }
  return at->second;
}

int attach_mcast(ibv_qp* handle, const ibv_gid* gid, uint16_t lid) {
  constexpr const char* kWhat = "attach to a multicast group";
  if (forked()) return fail(EPERM, kWhat, "this process was forked");
  if (handle->qp_type != IBV_QPT_UD) return fail(EINVAL, kWhat, "only a UD QP can be in a group");
  if (!is_multicast(*gid)) return fail(EINVAL, kWhat, "the GID is not a group's");
  Qp& qp = Qp::of(handle);
  const Context& context = *qp.context;
  if (context.link == Link::kEthernet) {
    lid = 0;  // there are none
  } else if (lid != 0 && (lid < kFirstMulticastLid || lid == kPermissiveLid)) {
    return fail(EINVAL, kWhat,
                base::format("LID %#x is outside 0xc000 to 0xfffe, the multicast range", lid));
  }
  Process& process = *qp.process;
  Root& root = process.root();
  std::lock_guard objects(process.objects());
  if (find(qp.attachments, *gid, lid) != qp.attachments.end()) return 0;
  for (uint32_t i = 0; i < root.groups(); ++i) {
    GroupRecord& record = root.group(i);
    if (!claim_record(record.owner, process.owner())) continue;
    step("group claimed");
    memcpy(record.gid, gid, sizeof(record.gid));
    record.lid = lid;
    record.qpn = qp.number;
    record.device = static_cast<uint16_t>(context.device);
    Attachment attachment;
    attachment.gid = *gid;
    attachment.lid = lid;
    attachment.record = i;
    attachment.word = claim_live(process.owner(), process.next_number());
    record.owner.store(attachment.word);
    step("group announced");
    tell(root);
    qp.attachments.push_back(attachment);
    qp.steered.fetch_add(1);
    return 0;
  }
  return fail(ENOMEM, kWhat,
              base::format("all %u records of the fabric are in use", root.groups()));
}

int detach_mcast(ibv_qp* handle, const ibv_gid* gid, uint16_t lid) {
  constexpr const char* kWhat = "detach from a multicast group";
  if (forked()) return fail(EPERM, kWhat, "this process was forked");
  Qp& qp = Qp::of(handle);
  if (qp.context->link == Link::kEthernet) lid = 0;
  Process& process = *qp.process;
  std::lock_guard objects(process.objects());
  const auto at = find(qp.attachments, *gid, lid);
  if (at == qp.attachments.end()) return fail(EINVAL, kWhat, "the QP is not in that group");
  uint64_t word = at->word;
  process.root().group(at->record).owner.compare_exchange_strong(word, 0);
  step("group left");
  tell(process.root());
  qp.attachments.erase(at);
  qp.steered.fetch_sub(1);
  return 0;
}

}  // namespace millrace::soft
