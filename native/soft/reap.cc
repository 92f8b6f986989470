#include "soft/reap.h"

#include <dirent.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <mutex>
#include <vector>

#include "soft/claims.h"
#include "soft/step.h"

namespace millrace::soft {
namespace {

/** All names in the folder. Read before anything is removed: readdir and unlink don't mix well. */
std::vector<std::string> names_in(int folder) {
  std::vector<std::string> names;
  base::Fd fd(openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return names;
  DIR* stream = fdopendir(fd.get());
  if (stream == nullptr) return names;
  fd.release();  // closedir closes it
  while (const dirent* entry = readdir(stream)) {
    if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
      names.emplace_back(entry->d_name);
  }
  closedir(stream);
  return names;
}

/** The (slot, incarnation) that a file belongs to; of a ring that is its receiver. False for other
 * names. */
bool parse_name(const std::string& name, uint32_t* slot, uint32_t* incarnation) {
  unsigned s = 0, i = 0, k = 0, d = 0, f = 0, q = 0;
  int end = 0;
  if (sscanf(name.c_str(), "p%u.%u.%u%n", &s, &i, &k, &end) == 3 ||
      sscanf(name.c_str(), "w%u.%u.%u%n", &s, &i, &k, &end) == 3 ||
      sscanf(name.c_str(), "alive.%u.%u%n", &s, &i, &end) == 2 ||
      sscanf(name.c_str(), "r%u.%u.%u.%u.%u.%u%n", &s, &i, &k, &d, &f, &q, &end) == 6) {
    *slot = s;
    *incarnation = i;
    return static_cast<size_t>(end) == name.size();
  }
  return false;
}

/** The initiator of a ring's file name; false for other names. */
bool parse_ring(const std::string& name, uint32_t* slot, uint32_t* incarnation) {
  unsigned s = 0, i = 0, q = 0;
  if (sscanf(name.c_str(), "r%*u.%*u.%*u.%u.%u.%u", &s, &i, &q) != 3) return false;
  *slot = s;
  *incarnation = i;
  return true;
}

/** Whether a ring was claimed in its receiver's directory. Read, not mapped: the file may be
 * shorter than a ring. */
bool ring_is_claimed(int folder, const std::string& name) {
  base::Fd fd(openat(folder, name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  uint32_t claimed = 0;
  if (!fd.valid()) return true;
  const ssize_t n = pread(fd.get(), &claimed, sizeof(claimed), offsetof(Ring, claimed));
  return n != sizeof(claimed) || claimed != 0;
}

void remove_file(int folder, const std::string& name, uint64_t* bytes) {
  struct stat info;
  const bool known =
      bytes != nullptr && fstatat(folder, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0;
  if (unlinkat(folder, name.c_str(), 0) == 0 && known)
    *bytes += static_cast<uint64_t>(info.st_blocks) * 512;  // a ring has holes
}

void reap_srqs(Root& root, uint32_t incarnation) {
  for (uint32_t i = 0; i < root.srqs(); ++i) {
    SrqRecord& record = root.srq(i);
    uint64_t word = record.word.load();
    if (record_life(word) == Life::kFree || record_incarnation(word) != incarnation) continue;
    record.word.compare_exchange_strong(word, record_word(record_number(word), Life::kFree, 0, 0));
    step("srq reaped");
  }
}

void reap_qps(Root& root, uint32_t incarnation) {
  for (uint32_t i = 0; i < root.qps(); ++i) {
    QpRecord& record = root.qp(i);
    uint64_t word = record.word.load();
    const bool used = record_life(word) != Life::kFree;
    if (used && record_life(word) != Life::kClosing && record_incarnation(word) == incarnation) {
      // CREATING, or an object that dies with its process. Targets that live have 0 here.
      record.word.compare_exchange_strong(word,
                                          record_word(record_number(word), Life::kFree, 0, 0));
      step("qp reaped");
    }
    if (i >= root.targets()) continue;
    // A hold may be in any target's record: the dead one may have been opening a number that had
    // just gone.
    bool mine = record_life(word) == Life::kClosing && record_incarnation(word) == incarnation;
    for (Half& holder : root.holders(i).holder) {
      uint32_t expected = incarnation;
      if (holder.load(std::memory_order_relaxed) == incarnation)
        mine |= holder.compare_exchange_strong(expected, 0);
    }
    // Also when a killed reaper had taken the hold away before us: then the record is LIVE without
    // holders.
    if (mine || (record_life(word) == Life::kLive && record_incarnation(word) == 0)) {
      step("hold reaped");
      closing_step(root, i, incarnation);
    }
  }
}

bool is_held(QpHolders& holders) {
  for (Half& holder : holders.holder) {
    if (holder.load() != 0) return true;
  }
  return false;
}

}  // namespace

void closing_step(Root& root, uint32_t index, uint32_t dead) {
  if (index >= root.targets()) return;  // not a target: it goes with its process
  QpRecord& record = root.qp(index);
  QpHolders& holders = root.holders(index);
  std::lock_guard closing_lock(root.closing());
  const uint32_t me = root.incarnation();
  for (;;) {
    uint64_t word = record.word.load();
    const uint32_t number = record_number(word);
    const uint32_t state = record_state(word);
    if (record_life(word) == Life::kLive) {
      if (record_incarnation(word) != 0) return;  // not a target: it goes with its process
      if (is_held(holders)) return;
      record.word.compare_exchange_strong(word, record_word(number, Life::kClosing, state, me));
      step("closing");
    } else if (record_life(word) != Life::kClosing) {
      return;
    } else if (record_incarnation(word) != me) {
      if (dead == 0 || record_incarnation(word) != dead) return;  // somebody else's, who lives
      record.word.compare_exchange_strong(word, record_word(number, Life::kClosing, state, me));
    } else if (is_held(holders)) {
      // Put back, and look again: the hold that we saw may have been a mistaken opener's, who is
      // gone by now.
      record.word.compare_exchange_strong(word, record_word(number, Life::kLive, state, 0));
    } else if (record.word.compare_exchange_strong(word, record_word(number, Life::kFree, 0, 0))) {
      // An opener writes its hold, then reads the word; we wrote CLOSING, then read the holds (all
      // seq_cst): one of us has seen the other.
      return;
    }
    // Whatever changed meanwhile (an opener's help, a holder's new state), look again.
  }
}

void reap_process(Root& root, uint32_t slot, uint32_t incarnation, uint64_t* bytes, bool leaving) {
  ProcessRecord& record = root.process(slot);
  uint64_t word = process_word(ProcessState::kLive, incarnation);
  const uint64_t reaping = process_word(ProcessState::kReaping, incarnation);
  if (!record.state.compare_exchange_strong(word, reaping) && word != reaping)
    return;  // somebody finished it
  step("reaping");

  reap_srqs(root, incarnation);
  reap_qps(root, incarnation);
  const uint64_t owner = owner_word(slot, incarnation);
  for (uint32_t i = 0; i < root.xrcds(); ++i) {
    for (uint64_t mine : {owner, owner | kAnnounced}) {
      root.xrcd(i).owner.compare_exchange_strong(mine, 0);
    }
  }
  for (uint32_t i = 0; i < root.groups(); ++i) reap_claim(root.group(i).owner, owner);
  for (uint32_t i = 0; i < root.flows(); ++i) reap_claim(root.flow(i).owner, owner);
  for (uint32_t i = 0; i < root.spreads(); ++i) reap_claim(root.spread(i).owner, owner);
  // After the change, and before anybody takes the process for gone (R32).
  root.header().groups_changed.fetch_add(1);
  root.header().flows_changed.fetch_add(1);
  step("records reaped");
  for (const std::string& name : names_in(root.folder())) {
    uint32_t s = 0, i = 0;
    const bool own = parse_name(name, &s, &i) && s == slot && i == incarnation;
    // Rings that it never claimed: their receivers don't know of them.
    const bool stray = !own && !leaving && parse_ring(name, &s, &i) && s == slot &&
                       i == incarnation && !ring_is_claimed(root.folder(), name);
    if (own || stray) {
      remove_file(root.folder(), name, bytes);
      step("file removed");
    }
  }
  if (leaving) return;
  word = reaping;
  record.state.compare_exchange_strong(word, process_word(ProcessState::kFree, incarnation));
}

uint32_t reap_all(Root& root, uint64_t* bytes) {
  uint32_t reaped = 0;
  std::vector<uint64_t> known;
  for (uint32_t slot = 0; slot < root.processes(); ++slot) {
    const uint64_t word = root.process(slot).state.load();
    const uint32_t incarnation = static_cast<uint32_t>(word);
    const ProcessState state = static_cast<ProcessState>(word >> 32);
    if (state == ProcessState::kFree) continue;
    if (!root.slot_locked(slot)) {
      reap_process(root, slot, incarnation, bytes);
      ++reaped;
      continue;
    }
    known.push_back(owner_word(slot, incarnation));
  }
  // Files of somebody who was killed while joining, before its slot said LIVE. Joining needs the
  // lock that we hold.
  for (const std::string& name : names_in(root.folder())) {
    uint32_t slot = 0, incarnation = 0;
    if (!parse_name(name, &slot, &incarnation)) continue;
    const auto is_known = [&known](uint32_t s, uint32_t i) {
      for (uint64_t owner : known) {
        if (owner == owner_word(s, i)) return true;
      }
      return false;
    };
    bool keep = is_known(slot, incarnation);
    if (keep && parse_ring(name, &slot, &incarnation) && !is_known(slot, incarnation)) {
      keep = ring_is_claimed(root.folder(), name);
    }
    if (!keep) remove_file(root.folder(), name, bytes);
  }
  // Records that name an incarnation which never had a slot: somebody who only cleaned, and was
  // killed at it.
  const auto gone = [&known](uint32_t incarnation) {
    for (uint64_t owner : known) {
      if (owner_incarnation(owner) == incarnation) return false;
    }
    return true;
  };
  for (uint32_t i = 0; i < root.targets(); ++i) {
    const uint64_t word = root.qp(i).word.load();
    if (record_life(word) == Life::kClosing && gone(record_incarnation(word))) {
      closing_step(root, i, record_incarnation(word));
    }
  }
  return reaped;
}

bool anybody_present(Root& root, int except) {
  for (uint32_t slot = 0; slot < root.processes(); ++slot) {
    // Joiners turn LIVE under the folder's lock, which we hold: a locked slot that is not LIVE is
    // somebody who is on the way out (its lock goes last) or who failed to join.
    const ProcessState state = static_cast<ProcessState>(root.process(slot).state.load() >> 32);
    if (static_cast<int>(slot) != except && state == ProcessState::kLive && root.slot_locked(slot))
      return true;
  }
  return false;
}

void remove_files(int folder, const std::string& last, uint64_t* bytes) {
  for (const std::string& name : names_in(folder)) {
    if (name == last) continue;
    remove_file(folder, name, bytes);
    step("fabric file removed");
  }
  remove_file(folder, last, bytes);
  step("fabric file removed");
}

void remove_fabric(const FabricPath& path, int folder, uint64_t* bytes) {
  remove_files(folder, kRootName, bytes);
  rmdir(path.folder.c_str());
  // Other fabrics of this user may be in there: ENOTEMPTY is fine.
  rmdir(path.parent.c_str());
}

}  // namespace millrace::soft
