#pragma once

// What the tests of the software device share: a fabric of their own, real child processes (this
// program, started again with an argument), and the verbs objects of a receiver and of an
// initiator.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/files.h"
#include "soft/provider.h"
#include "soft/step.h"
#include "verbs/open.h"
#include "verbs/owners.h"

namespace millrace::test {

inline constexpr int kDeadlineMs = 60'000;

/** Waits until `done` holds; false when the deadline passed. For states that have no descriptor to
 * wait on. */
inline bool eventually(const std::function<bool()>& done, int ms = kDeadlineMs) {
  const uint64_t deadline = base::now_ns() + static_cast<uint64_t>(ms) * 1'000'000u;
  while (!done()) {
    if (base::now_ns() > deadline) return false;
    const timespec pause = {0, 200'000};
    nanosleep(&pause, nullptr);
  }
  return true;
}

inline std::string shm_base() {
  const char* base = getenv("MILLRACE_SHM_DIR");
  return base != nullptr && *base != '\0' ? base : "/dev/shm";
}

/** Names in a folder that start with `prefix`. */
std::vector<std::string> names_in(const std::string& folder, const std::string& prefix = "");

/** A fabric with a random name for one test; at its end nothing of it may be left. */
class Fabric {
 public:
  Fabric() {
    name_ = base::format("test-%d-%llx", static_cast<int>(getpid()),
                         static_cast<unsigned long long>(base::now_ns()));
    setenv("MILLRACE_FABRIC", name_.c_str(), 1);
    domain_ = shm_base() + "/" + name_ + ".domain";
    const int fd = open(domain_.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    EXPECT_GE(fd, 0);
    if (fd >= 0) close(fd);
    setenv("MILLRACE_TEST_DOMAIN", domain_.c_str(), 1);
  }
  ~Fabric() {
    remove_domain_files();
    unsetenv("MILLRACE_FABRIC");
  }
  std::string folder() const {
    return base::format("%s/millrace-soft.1.%u/%s", shm_base().c_str(),
                        static_cast<unsigned>(geteuid()), name_.c_str());
  }
  bool exists() const { return access(folder().c_str(), F_OK) == 0; }
  /** Names in the folder that start with `prefix`. */
  std::vector<std::string> files(const std::string& prefix = "") const {
    return names_in(folder(), prefix);
  }

 private:
  /** The domain file, and the memory files that members made (also of those that were killed). */
  void remove_domain_files() const;

  std::string name_, domain_;
};

/** A child: this program again, running the function registered under `name`. Talks in lines over a
 * socket. */
class Child {
 public:
  Child(const std::string& name, const std::vector<std::string>& arguments = {});
  ~Child();
  Child(const Child&) = delete;

  pid_t pid() const { return pid_; }
  void say(const std::string& line);
  /** The next line, or "" at its end or after the deadline. */
  std::string hear(int ms = kDeadlineMs);
  void signal(int number) { kill(pid_, number); }
  /** Waits for its end: exit code, or 128 + signal; -1 after the deadline. */
  int wait(int ms = kDeadlineMs);
  /** Waits until it is stopped (SIGSTOP). False: it ended, or the deadline passed. */
  bool wait_stopped(int ms = kDeadlineMs);

 private:
  pid_t pid_ = -1;
  int fd_ = -1;
  int status_ = -1;
  std::string buffer_;
};

/**
 * The end of a walk whose victims came one step further each time: the last one got through, and it
 * was not the first already, whose signal never came.
 */
void expect_walked(bool through, uint64_t steps);

/** Inside a child. */
struct Parent {
  std::vector<std::string> arguments;
  void say(const std::string& line);
  std::string hear();
};

using ChildFunction = int (*)(Parent&);
std::map<std::string, ChildFunction>& child_functions();

struct RegisterChild {
  RegisterChild(const char* name, ChildFunction function) { child_functions()[name] = function; }
};
#define MILLRACE_CHILD(name)                                                   \
  static int child_##name(::millrace::test::Parent& parent);                   \
  static ::millrace::test::RegisterChild register_##name(#name, child_##name); \
  static int child_##name([[maybe_unused]] ::millrace::test::Parent& parent)

/** Memory in a file, as the library's own is: peers map it. */
class SharedMemory {
 public:
  explicit SharedMemory(size_t bytes);
  ~SharedMemory();
  std::byte* data() const { return map_.data(); }
  size_t size() const { return map_.size(); }

 private:
  std::string path_;
  base::Mapping map_;
};

/** Sends and receives: context, PD, XRC domain, CQs, optionally an SRQ with slots, a target and an
 * initiator. */
struct Endpoint {
  struct Options {
    uint32_t slots = 16;
    uint32_t slot_bytes = 256;
    bool receive = true;
    bool send = true;
    bool channel = true;
    bool foreign = false;  ///< slots in private memory, reached by process_vm_*
    bool post = true;
    uint32_t max_send_wr = 128;
    int cqe = 4096;
    uint64_t wc_flags = 0;  ///< not 0: both CQs are extended ones
  };

  explicit Endpoint(const Options& options);
  Endpoint() : Endpoint(Options{}) {}
  ~Endpoint();

  /** Brings the initiator to RTS against a target number. */
  int connect(uint32_t target_qpn, uint8_t rnr_retry = 7, uint8_t timeout = 14,
              uint8_t retry_cnt = 7);
  /** Brings the target to RTS. */
  int ready(int access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
            uint8_t min_rnr_timer = 1);
  int post(uint32_t slot);
  /** Sends `bytes` from the send buffer to an SRQ. */
  int send(uint32_t srqn, const void* data, uint32_t bytes, uint64_t wr_id = 0,
           int flags = IBV_SEND_SIGNALED);
  /** Polls until a completion is there. False after the deadline. */
  bool poll(ibv_wc* wc, int ms = kDeadlineMs) { return poll(cq.get(), wc, ms); }
  bool poll_sent(ibv_wc* wc, int ms = kDeadlineMs) { return poll(send_cq.get(), wc, ms); }
  static bool poll(ibv_cq* queue, ibv_wc* wc, int ms = kDeadlineMs);
  std::byte* slot(uint32_t i) const { return slots + size_t{i} * options.slot_bytes; }
  uint32_t srqn() const;
  uint32_t target_qpn() const { return target->qp_num; }

  Options options;
  verbs::ContextPtr context;
  verbs::PdPtr pd;
  verbs::XrcdPtr xrcd;
  verbs::ChannelPtr channel;
  verbs::ChannelPtr send_channel;
  verbs::CqPtr cq;
  verbs::CqPtr send_cq;
  std::unique_ptr<SharedMemory> memory;
  std::vector<std::byte> private_memory;
  std::byte* slots = nullptr;
  std::byte* buffer = nullptr;  ///< 64 KiB to send from
  uint32_t next_place = 0;
  std::vector<std::byte> send_memory;
  verbs::MrPtr slots_mr;
  verbs::MrPtr send_mr;
  verbs::SrqPtr srq;
  verbs::QpPtr target;
  verbs::QpPtr initiator;
};

/**
 * One end of an RC or UC connection: context, PD, CQs, memory to receive into and to send from, and
 * a QP with a receive queue of its own or a basic SRQ. Two of them in one process, or one in each
 * of two, make a connection.
 */
struct Connected {
  struct Options {
    ibv_qp_type type = IBV_QPT_RC;
    uint32_t slots = 16;
    uint32_t slot_bytes = 256;
    bool srq = false;
    bool channel = false;
    bool foreign = false;  ///< memory that is no mapped file
    bool post = true;
    uint32_t max_send_wr = 64;
    uint32_t max_recv_wr = 16;
    uint32_t max_inline = 64;
    int cqe = 1024;
    int access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    uint8_t rnr_retry = 7;
    uint8_t timeout = 14;
    uint8_t retry_cnt = 7;
    uint8_t min_rnr_timer = 1;
    uint8_t depth = 8;               ///< max_rd_atomic and max_dest_rd_atomic
    ibv_context* context = nullptr;  ///< of another end, which lives longer
  };

  explicit Connected(const Options& options);
  Connected() : Connected(Options{}) {}

  uint32_t qpn() const { return qp->qp_num; }
  /** RESET to INIT. */
  int init();
  /** INIT to RTR. */
  int rtr(uint32_t peer_qpn);
  int rts();
  /** All three, and posts the slots after INIT if the options say so. */
  int connect(uint32_t peer_qpn);
  int modify(ibv_qp_state state);
  ibv_qp_state state() const;
  /** Posts slot i; its number is the WR id. */
  int post(uint32_t i);
  /** A WR over the first `bytes` of the send memory. */
  ibv_send_wr wr(ibv_wr_opcode opcode, uint32_t bytes, uint64_t wr_id = 0);
  int send(ibv_send_wr& wr);
  /** Sends and waits for the completion's status. */
  ibv_wc_status run(ibv_send_wr& wr);
  bool poll_sent(ibv_wc* wc) { return Endpoint::poll(send_cq.get(), wc); }
  bool poll_received(ibv_wc* wc) { return Endpoint::poll(recv_cq.get(), wc); }
  std::byte* slot(uint32_t i) const { return slots + size_t{i} * options.slot_bytes; }

  Options options;
  verbs::ContextPtr own_context;
  ibv_context* context = nullptr;
  verbs::PdPtr pd;
  verbs::ChannelPtr recv_channel;
  verbs::ChannelPtr send_channel;
  verbs::CqPtr recv_cq;
  verbs::CqPtr send_cq;
  std::unique_ptr<SharedMemory> memory;
  std::vector<std::byte> private_memory;
  std::byte* slots = nullptr;
  std::byte* buffer = nullptr;  ///< 64 KiB to send from and to fetch into; behind the slots
  verbs::MrPtr mr;              ///< over both, with every access
  ibv_sge sge = {};             ///< of wr()
  verbs::SrqPtr srq;
  verbs::QpPtr qp;
};

/** Two connected ends in this process. */
struct Pair {
  explicit Pair(const Connected::Options& options = {}) : Pair(options, options) {}
  Pair(const Connected::Options& left, const Connected::Options& right) : a(left), b(right) {
    EXPECT_EQ(a.connect(b.qpn()), 0) << soft::last_error().detail;
    EXPECT_EQ(b.connect(a.qpn()), 0) << soft::last_error().detail;
  }
  Connected a, b;
};

/** The domain's file, as a descriptor. */
int open_domain_file();

}  // namespace millrace::test
