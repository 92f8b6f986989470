#include <fcntl.h>
#include <fuzzer/FuzzedDataProvider.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/files.h"
#include "shared_support.h"
#include "soft/fabric.h"
#include "soft/layout.h"
#include "soft/wake.h"
#include "verbs/open.h"

// Everything in shared memory that another process writes (I9). There is a peer, a real process
// with QPs, an SRQ and regions, which does nothing from then on. The input says what this process
// does with verbs, and what is found in the structures of the peer, in the tables of the fabric and
// in those words of our own that peers write. Nothing may crash, hang, or be read or written out of
// bounds, and no receive completes twice.

namespace {

using namespace millrace;
using namespace millrace::soft;
using namespace millrace::fuzz;

constexpr uint32_t kWrs = 8;
constexpr uint32_t kOps = 40;
constexpr size_t kBytes = 16384;

/** After so many the device is closed and everything restored: numbers and memory are used up. */
constexpr uint32_t kRunsPerSession = 1024;
constexpr uint64_t kMillisecond = 1'000'000;

/** What clock_gettime() says. Starts late enough for no deadline to lie before it. */
uint64_t virtual_ns = 1'000'000'000'000;

/** What the peer says of itself. */
struct PeerInfo {
  uint32_t rc, ud, target, srqn;
  uint32_t file_key, private_key;
  uint64_t file_address, private_address;
};

ibv_context* open_soft() {
  auto opened = verbs::open_device("soft");
  if (!opened.ok()) die(opened.status().detail.c_str());
  return opened.value();
}

ibv_xrcd* open_domain(ibv_context* context, const std::string& folder) {
  const base::Fd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ibv_xrcd_init_attr attr = {};
  attr.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
  attr.fd = fd.get();
  attr.oflags = O_CREAT;
  return must(ibv_open_xrcd(context, &attr), "open an XRC domain");
}

/** RESET to RTS (a target: to RTR). */
void bring_up(ibv_qp* qp, uint32_t dest) {
  const ibv_qp_type type = qp->qp_type;
  ibv_qp_attr attr = {};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 1;
  attr.qkey = 0x11;
  attr.qp_access_flags =
      IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
  must_be_zero(ibv_modify_qp(qp, &attr,
                             IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                                 (type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)),
               "to INIT");
  attr = {};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_4096;
  attr.dest_qp_num = dest;
  attr.ah_attr.port_num = 1;
  attr.ah_attr.dlid = 1;
  attr.max_dest_rd_atomic = 1;
  int mask = IBV_QP_STATE;
  if (type != IBV_QPT_UD) mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  if (type == IBV_QPT_RC || type == IBV_QPT_XRC_RECV)
    mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  must_be_zero(ibv_modify_qp(qp, &attr, mask), "to RTR");
  if (type == IBV_QPT_XRC_RECV) return;
  attr = {};
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = 1;
  attr.retry_cnt = 1;
  attr.rnr_retry = 1;
  attr.max_rd_atomic = 1;
  mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
  if (type != IBV_QPT_UD)
    mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  must_be_zero(ibv_modify_qp(qp, &attr, mask), "to RTS");
}

/** The objects of one end. */
struct End {
  End(ibv_context* device, const std::string& folder) : context(device) {
    pd = must(ibv_alloc_pd(context), "allocate a PD");
    channel = must(ibv_create_comp_channel(context), "create a channel");
    must_be_zero(fcntl(channel->fd, F_SETFL, O_NONBLOCK), "not wait for events");
    cq = must(ibv_create_cq(context, 256, nullptr, channel, 0), "create a CQ");
    xrcd = open_domain(context, folder);
    rc = create(IBV_QPT_RC);
    ud = create(IBV_QPT_UD);
    ibv_srq_init_attr_ex attr = {};
    attr.attr.max_wr = kWrs;
    attr.attr.max_sge = 2;
    attr.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD |
                     IBV_SRQ_INIT_ATTR_CQ;
    attr.srq_type = IBV_SRQT_XRC;
    attr.pd = pd;
    attr.xrcd = xrcd;
    attr.cq = cq;
    srq = must(ibv_create_srq_ex(context, &attr), "create an SRQ");
    mr = must(ibv_reg_mr(pd, memory, kBytes,
                         IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                             IBV_ACCESS_REMOTE_ATOMIC),
              "register memory");
  }
  ibv_qp* create(ibv_qp_type type) {
    ibv_qp_init_attr_ex attr = {};
    attr.qp_type = type;
    attr.comp_mask = IBV_QP_INIT_ATTR_PD;
    attr.pd = pd;
    attr.send_cq = attr.recv_cq = cq;
    attr.cap.max_send_wr = attr.cap.max_recv_wr = kWrs;
    attr.cap.max_send_sge = attr.cap.max_recv_sge = 2;
    if (type == IBV_QPT_XRC_RECV) {
      attr.comp_mask = IBV_QP_INIT_ATTR_XRCD;
      attr.xrcd = xrcd;
    }
    return must(ibv_create_qp_ex(context, &attr), "create a QP");
  }
  ibv_sge element(uint32_t bytes) const {
    return {reinterpret_cast<uintptr_t>(memory), bytes, mr->lkey};
  }
  /** To the RC QP, the UD QP or the SRQ. False: it is full, or in a state that takes none. */
  bool receive(uint32_t where, uint64_t wr_id) {
    ibv_sge sge = element(512);
    ibv_recv_wr wr = {};
    wr.wr_id = wr_id;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    return (where == 2 ? ibv_post_srq_recv(srq, &wr, &bad)
                       : ibv_post_recv(where == 0 ? rc : ud, &wr, &bad)) == 0;
  }

  ibv_context* context;
  ibv_pd* pd;
  ibv_comp_channel* channel;
  ibv_cq* cq;
  ibv_xrcd* xrcd;
  ibv_qp *rc, *ud;
  ibv_srq* srq;
  ibv_mr* mr;
  alignas(8) uint8_t memory[kBytes] = {};
};

/** Never comes back. */
[[noreturn]] void be_the_peer(const std::string& folder, int said) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  static End* end = new End(open_soft(), folder);
  const std::string path = folder + "/peer-memory";
  const base::Fd fd(open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
  if (ftruncate(fd.get(), kBytes) != 0) die("make the peer's memory");
  void* const file = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  ibv_mr* const mapped = must(ibv_reg_mr(end->pd, file, kBytes,
                                         IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                             IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC),
                              "register memory");
  ibv_qp* const target = end->create(IBV_QPT_XRC_RECV);
  bring_up(end->rc, 0x1234);  // whoever comes writes his number there
  bring_up(end->ud, 0);
  bring_up(target, 0);
  for (uint32_t where = 0; where < 3; ++where)
    for (uint32_t i = 0; i < kWrs; ++i) (void)end->receive(where, i);
  PeerInfo info = {};
  info.rc = end->rc->qp_num;
  info.ud = end->ud->qp_num;
  info.target = target->qp_num;
  must_be_zero(ibv_get_srq_num(end->srq, &info.srqn), "the SRQ's number");
  info.file_key = mapped->rkey;
  info.file_address = reinterpret_cast<uintptr_t>(file);
  info.private_key = end->mr->rkey;
  info.private_address = reinterpret_cast<uintptr_t>(end->memory);
  if (write(said, &info, sizeof(info)) != sizeof(info)) _exit(1);
  for (;;) pause();
}

class Fabric {
 public:
  Fabric() {
    int said[2];
    must_be_zero(pipe2(said, O_CLOEXEC), "make a pipe");
    peer_pid_ = fork();
    if (peer_pid_ == 0) be_the_peer(base(), said[1]);
    close(said[1]);
    if (read(said[0], &peer, sizeof(peer)) != sizeof(peer)) die("the peer did not start");
    close(said[0]);
    keep_files();
    root.open(folder());
    const auto& process = root.at(kProcessTable, 0);
    incarnation_ = static_cast<uint32_t>(process.state.load());
    chunk_ = map_file(folder() + "/" + chunk_name(0, incarnation_, 0));
    all_.add(root.tables());
    all_.add({chunk_.data(), chunk_.size()});
  }
  ~Fabric() { kill(peer_pid_, SIGKILL); }

  const std::string& base() const { return own_.base(); }
  const std::string& folder() const { return own_.folder(); }
  uint32_t incarnation() const { return incarnation_; }
  ProcessShared& peer_shared() { return *reinterpret_cast<ProcessShared*>(chunk_.data()); }
  static Bytes part(base::Mapping& chunk, const Ref& ref) {
    const size_t offset = size_t{ref.unit} * kUnit;
    if (offset > chunk.size()) return {};
    return {chunk.data() + offset, std::min<size_t>(ref.bytes, chunk.size() - offset)};
  }
  Bytes peer_part(const Ref& ref) { return part(chunk_, ref); }

  /** Part of our own chunks. */
  Bytes own_part(const Ref& ref) {
    auto found = own_chunks_.find(ref.chunk);
    if (found == own_chunks_.end())
      found = own_chunks_.emplace(ref.chunk, map_file(own_chunk(ref.chunk))).first;
    return part(found->second, ref);
  }
  ProcessShared& own_shared() {
    return *reinterpret_cast<ProcessShared*>(own_part({0, 0, sizeof(ProcessShared), 0}).data());
  }
  uint64_t own() const { return own_name_; }

  /** The device, open, and everything as it was before the last input. */
  ibv_context* begin() {
    if (context_ == nullptr || runs_ == kRunsPerSession) {
      close_session();
      open_session();
    } else {
      some_.restore();
    }
    ++runs_;
    restore_files();
    return context_;
  }
  /** A run makes QPs, an SRQ and targets with these numbers: their records are restored, too. */
  void touches_qp(uint32_t number) {
    if (!touched_.insert(number).second) return;
    // As they are at the end of a run: free.
    some_.add(bytes_of(root.qp(number)));
    if (number % kQps < kTargetQps) some_.add(bytes_of(root.at(kHolderTable, number % kTargetQps)));
  }
  /** Not before another one; for what can't go on. */
  void close_session() {
    if (context_ != nullptr) must_be_zero(ibv_close_device(context_), "close the device");
    context_ = nullptr;
    own_chunks_.clear();
    all_.restore();
    restore_files();
  }

  PeerInfo peer = {};
  RootView root;

 private:
  std::string kept() const { return base() + "/kept"; }
  std::string own_chunk(uint32_t k) const {
    return folder() + "/" + chunk_name(owner_slot(own_name_), owner_incarnation(own_name_), k);
  }
  void keep_files() {
    std::filesystem::remove_all(kept());
    mkdir(kept().c_str(), 0700);
    for (const auto& entry : std::filesystem::directory_iterator(folder())) {
      const std::string name = kept() + "/" + entry.path().filename().string();
      must_be_zero(link(entry.path().c_str(), name.c_str()), "keep the peer's files");
      kept_.insert(entry.path().filename().string());
    }
  }
  /** Who takes the peer for dead removes what is his, or everything. */
  void restore_files() {
    const std::filesystem::path path = folder();
    std::filesystem::create_directories(path);
    chmod(path.c_str(), 0700);
    chmod(path.parent_path().c_str(), 0700);
    std::set<std::string> missing = kept_;
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      const std::string name = entry.path().filename().string();
      // Rings; our own chunks and FIFOs stay.
      if (missing.erase(name) == 0 && (context_ == nullptr || name[0] == 'r'))
        unlink(entry.path().c_str());
    }
    for (const std::string& name : missing)
      (void)link((kept() + "/" + name).c_str(), (folder() + "/" + name).c_str());
  }
  void open_session() {
    context_ = open_soft();
    runs_ = 0;
    own_name_ = 0;
    for (uint32_t i = 1; own_name_ == 0 && i < kProcesses; ++i) {
      const ProcessRecord& record = root.at(kProcessTable, i);
      const uint64_t state = record.state.load();
      if (static_cast<ProcessState>(state >> 32) == ProcessState::kLive)
        own_name_ = owner_word(i, static_cast<uint32_t>(state));
    }
    some_.clear();
    touched_.clear();
    some_.add(bytes_of(root.header()));
    some_.add(root.first(kProcessTable, kProcessTable.count));
    some_.add(root.first(kXrcdTable, 64));
    some_.add(root.first(kGroupTable, 64));
    some_.add(root.first(kLockTable, kLockTable.count));
    for (uint32_t qpn : {peer.rc, peer.ud, peer.target}) touches_qp(qpn);
    // Those of a run are taken from the numbers that follow.
    for (uint32_t i = 1; i <= 4; ++i) {
      some_.add(bytes_of(root.srq(peer.srqn + i)));
      touches_qp(static_cast<uint32_t>(root.header().next_qpn.load()) + i);
      touches_qp(static_cast<uint32_t>(root.header().next_target.load()) + i);
    }
    some_.add(bytes_of(root.srq(peer.srqn)));
    ProcessShared& shared = peer_shared();
    some_.add({reinterpret_cast<std::byte*>(&shared), offsetof(ProcessShared, mrs) + 4096});
    some_.add(bytes_of(shared.backings[0]));
    some_.add({reinterpret_cast<std::byte*>(&shared.attention), 64 + sizeof(shared.faults)});
    for (uint32_t qpn : {peer.rc, peer.ud}) {
      some_.add(peer_part(root.qp(qpn).queue));
      some_.add(peer_part(root.qp(qpn).cq));
    }
    some_.add(peer_part(root.srq(peer.srqn).queue));
  }

  OwnFabric own_;
  pid_t peer_pid_ = -1;
  uint32_t incarnation_ = 0;
  base::Mapping chunk_;
  Snapshot all_, some_;
  std::set<uint32_t> touched_;
  std::set<std::string> kept_;
  ibv_context* context_ = nullptr;
  uint64_t own_name_ = 0;
  std::map<uint32_t, base::Mapping> own_chunks_;
  uint32_t runs_ = 0;
};

/** One input's run. */
class Run {
 public:
  Run(Fabric& fabric, FuzzedDataProvider& input)
      : fabric_(fabric), input_(input), end_(fabric.begin(), fabric.base()) {
    xrc_ = end_.create(IBV_QPT_XRC_SEND);
    target_ = end_.create(IBV_QPT_XRC_RECV);
    fabric.root.qp(fabric.peer.rc).dest_qpn.store(end_.rc->qp_num);
    bring_up(end_.rc, fabric.peer.rc);
    bring_up(end_.ud, 0);
    bring_up(xrc_, fabric.peer.target);
    bring_up(target_, 0);
    ibv_ah_attr attr = {};
    attr.port_num = 1;
    attr.dlid = 1;
    ah_ = must(ibv_create_ah(end_.pd, &attr), "create an AH");
    for (const ibv_qp* qp : {end_.rc, end_.ud, xrc_, target_}) fabric.touches_qp(qp->qp_num);
    cq_ = reinterpret_cast<CqShared*>(fabric.own_part(fabric.root.qp(end_.rc->qp_num).cq).data());
    make_ring();
    collect();
  }

  void go() {
    for (uint32_t i = 0; i < kOps && input_.remaining_bytes() > 0; ++i) step();
  }

  /** Whatever was done to it, everything can be destroyed. */
  void finish() {
    must_be_zero(ibv_destroy_ah(ah_), "destroy the AH");
    for (ibv_qp* qp : {end_.rc, end_.ud, xrc_, target_})
      must_be_zero(ibv_destroy_qp(qp), "destroy a QP");
    must_be_zero(ibv_destroy_srq(end_.srq), "destroy the SRQ");
    must_be_zero(ibv_close_xrcd(end_.xrcd), "close the XRC domain");
    must_be_zero(ibv_destroy_cq(end_.cq), "destroy the CQ");
    must_be_zero(ibv_destroy_comp_channel(end_.channel), "destroy the channel");
    must_be_zero(ibv_dereg_mr(end_.mr), "free the region");
    must_be_zero(ibv_dealloc_pd(end_.pd), "free the PD");
  }

 private:
  /** The peer's ring into our CQ, as it would make it. */
  void make_ring() {
    const uint32_t capacity = 64;
    const uint64_t entry = directory_word(0, fabric_.incarnation(), fabric_.peer.rc);
    const std::string path =
        fabric_.folder() + "/" + ring_name(fabric_.own(), cq_->serial.load(), entry);
    {
      const base::Fd fd(open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
      if (ftruncate(fd.get(), static_cast<off_t>(align_up(ring_bytes(capacity), 4096))) != 0)
        die("make a ring");
    }
    ring_map_ = map_file(path);
    ring_ = reinterpret_cast<Ring*>(ring_map_.data());
    ring_->initiator = owner_word(0, fabric_.incarnation());
    ring_->receiver = fabric_.own();
    ring_->qpn = fabric_.peer.rc;
    ring_->capacity = capacity;
    ring_->claimed.store(1);
    ring_->magic = kRingMagic;
    cq_->directory[0].store(entry);
    cq_->high.store(1);
  }

  /** All that somebody else writes, or may have written. */
  void collect() {
    const auto add = [&](auto& what, size_t bytes) {
      parts_.push_back({reinterpret_cast<std::byte*>(&what), bytes});
    };
    const auto of = [&](const auto& what) { parts_.push_back(bytes_of(what)); };
    RootHeader& header = fabric_.root.header();
    add(header.next_incarnation, sizeof(RootHeader) - offsetof(RootHeader, next_incarnation));
    for (uint32_t i = 0; i < 3; ++i) of(fabric_.root.at(kProcessTable, i));
    for (uint32_t qpn : {fabric_.peer.rc, fabric_.peer.ud, fabric_.peer.target})
      for (int again = 0; again < 3; ++again) of(fabric_.root.qp(qpn));
    of(fabric_.root.qp(end_.rc->qp_num).health);
    of(fabric_.root.qp(target_->qp_num));
    of(fabric_.root.srq(fabric_.peer.srqn));
    for (uint32_t i = 0; i < 3; ++i) of(fabric_.root.at(kXrcdTable, i));
    of(fabric_.root.at(kHolderTable, fabric_.peer.target % kTargetQps));
    for (uint32_t i = 0; i < 2; ++i) of(fabric_.root.at(kGroupTable, i));
    ProcessShared& peer = fabric_.peer_shared();
    for (uint32_t i = 0; i < 3; ++i) of(peer.mrs[i]);
    of(peer.backings[0]);
    for (uint32_t qpn : {fabric_.peer.rc, fabric_.peer.ud}) {
      parts_.push_back(fabric_.peer_part(fabric_.root.qp(qpn).queue));
      Bytes cq = fabric_.peer_part(fabric_.root.qp(qpn).cq);
      parts_.push_back(cq.subspan(0, 448));
    }
    parts_.push_back(fabric_.peer_part(fabric_.root.srq(fabric_.peer.srqn).queue));
    for (int again = 0; again < 3; ++again) {
      parts_.push_back({ring_map_.data(), 256});
      parts_.push_back({ring_map_.data() + 256, 8 * sizeof(Entry)});
    }
    // Ours, that peers write.
    add(cq_->armed, 448 - offsetof(CqShared, armed));
    const Bytes queue = fabric_.own_part(fabric_.root.qp(end_.rc->qp_num).queue);
    const QueueLayout layout = {kWrs, 2, kOwnParkEntries};
    parts_.push_back(
        queue.subspan(offsetof(QueueShared, hint), layout.wqes() - offsetof(QueueShared, hint)));
    const Bytes srq = fabric_.own_part(fabric_.root.srq(srq_number()).queue);
    parts_.push_back(srq.subspan(offsetof(QueueShared, hint), 512));
    ProcessShared& own = fabric_.own_shared();
    add(own.attention, 64 + sizeof(own.faults));
  }
  uint32_t srq_number() const {
    uint32_t number = 0;
    must_be_zero(ibv_get_srq_num(end_.srq, &number), "the SRQ's number");
    return number;
  }

  /** Our rings into the peer's CQ are there from the first send on. */
  void find_own_rings() {
    if (own_rings_.size() >= 3) return;
    for (const auto& entry : std::filesystem::directory_iterator(fabric_.folder())) {
      const std::string name = entry.path().filename();
      if (name.rfind("r0.", 0) != 0 || !seen_rings_.insert(name).second) continue;
      struct stat info = {};
      if (stat(entry.path().c_str(), &info) != 0 || info.st_size < 4096) continue;
      own_rings_.push_back(map_file(entry.path()));
      parts_.push_back({own_rings_.back().data(), 256});
    }
  }

  /** The peer commits an entry that is good, but for what was done to it before. */
  void commit_entry() {
    const uint64_t tail = ring_->tail.load();
    Entry& entry = ring_->entries[tail % 64];
    const QueueShared& queue = *reinterpret_cast<const QueueShared*>(
        fabric_.own_part(fabric_.root.qp(end_.rc->qp_num).queue).data());
    const QueueLayout layout = {kWrs, 2, kOwnParkEntries};
    Word* const words = reinterpret_cast<Word*>(
        const_cast<std::byte*>(reinterpret_cast<const std::byte*>(&queue)) + layout.words());
    const uint32_t index = input_.ConsumeIntegralInRange<uint32_t>(0, kWrs);
    entry = {};
    entry.wqe = static_cast<uint16_t>(index);
    entry.byte_len = input_.ConsumeIntegralInRange<uint32_t>(0, 2000);
    entry.flags = input_.ConsumeBool() ? kEntryCarried : 0;
    entry.queue = own_queue(end_.rc->qp_num);
    entry.qp_num = end_.rc->qp_num;
    entry.src_qp = fabric_.peer.rc;
    entry.position = static_cast<uint16_t>(tail);
    if (index < kWrs && input_.ConsumeBool())
      words[index].store(wqe_taken(owner_word(0, fabric_.incarnation())));
    ring_->tail.store(tail + 1);
    cq_->ready[0].fetch_or(1);
  }

  void send() {
    static constexpr ibv_wr_opcode kOpcodes[] = {IBV_WR_SEND,
                                                 IBV_WR_SEND_WITH_IMM,
                                                 IBV_WR_SEND_WITH_INV,
                                                 IBV_WR_RDMA_WRITE,
                                                 IBV_WR_RDMA_WRITE_WITH_IMM,
                                                 IBV_WR_RDMA_READ,
                                                 IBV_WR_ATOMIC_CMP_AND_SWP,
                                                 IBV_WR_ATOMIC_FETCH_AND_ADD};
    ibv_qp* const qps[] = {end_.rc, xrc_, end_.ud};
    ibv_qp* const qp = qps[input_.ConsumeIntegralInRange<int>(0, 2)];
    ibv_send_wr wr = {};
    wr.opcode = kOpcodes[input_.ConsumeIntegralInRange<size_t>(0, std::size(kOpcodes) - 1)];
    const bool atomic =
        wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    ibv_sge sge = end_.element(atomic ? 8 : input_.ConsumeIntegralInRange<uint32_t>(0, 600));
    wr.wr_id = ++sent_;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.send_flags = IBV_SEND_SIGNALED;
    const bool file = input_.ConsumeBool();
    const uint64_t address = file ? fabric_.peer.file_address : fabric_.peer.private_address;
    const uint32_t key = file ? fabric_.peer.file_key : fabric_.peer.private_key;
    if (qp == end_.ud) {
      wr.wr.ud.ah = ah_;
      wr.wr.ud.remote_qpn = fabric_.peer.ud;
      wr.wr.ud.remote_qkey = 0x11;
    } else if (atomic) {
      wr.wr.atomic = {address, 1, 2, key};
    } else {
      wr.wr.rdma = {address, key};
    }
    if (wr.opcode == IBV_WR_SEND_WITH_INV) wr.invalidate_rkey = key;
    if (qp == xrc_) wr.qp_type.xrc.remote_srqn = fabric_.peer.srqn;
    ibv_send_wr* bad = nullptr;
    (void)ibv_post_send(qp, &wr, &bad);
    find_own_rings();
  }

  void poll() {
    ibv_wc wc[8];
    const int got = ibv_poll_cq(end_.cq, 8, wc);
    for (int i = 0; i < got; ++i) {
      const uint64_t id = wc[i].wr_id;
      if ((id >> 63) != 0) {
        if (received_.erase(id) != 1) die("a receive completed that was not posted, or twice");
      } else if (id == 0 || id > sent_ || !completed_.insert(id).second) {
        die("a send completed that was not posted, or twice");
      }
    }
  }

  /** Somebody wakes us, for a CQ of ours or none, and we look for events. */
  void wake() {
    WakeUp wake;
    wake.cq = input_.ConsumeBool() ? cq_->serial.load() : input_.ConsumeIntegral<uint64_t>();
    wake.arming = input_.ConsumeBool() ? cq_->armed.load() : input_.ConsumeIntegral<uint64_t>();
    const std::string name = wake_name(owner_slot(fabric_.own()), owner_incarnation(fabric_.own()),
                                       static_cast<uint32_t>(cq_->channel));
    const base::Fd fd(
        open((fabric_.folder() + "/" + name).c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
    const size_t bytes = input_.ConsumeIntegralInRange<size_t>(1, sizeof(wake));
    if (fd.valid() && write(fd.get(), &wake, bytes) < 0) return;
    ibv_cq* which = nullptr;
    void* context = nullptr;
    while (ibv_get_cq_event(end_.channel, &which, &context) == 0) {
      if (which != end_.cq) die("an event of a CQ that is not ours");
      ibv_ack_cq_events(which, 1);
      must_be_zero(ibv_req_notify_cq(which, input_.ConsumeBool()), "arm");
    }
  }
  /** A descriptor that says it stands for a device, as another process would hand it over. */
  void import() {
    alignas(8) uint8_t token[40] = {};
    if (pread(end_.context->cmd_fd, token, sizeof(token), 0) != sizeof(token)) die("read a token");
    if (input_.ConsumeBool()) scribble(input_, {bytes_of(token)});
    const int fd = memfd_create("token", MFD_CLOEXEC);
    const size_t bytes = input_.ConsumeBool() ? sizeof(token) : input_.ConsumeIntegral<uint8_t>();
    if (write(fd, token, std::min(bytes, sizeof(token))) < 0) die("write a token");
    ibv_context* const imported = ibv_import_device(fd);
    if (imported == nullptr) {
      close(fd);
      return;
    }
    if (ibv_pd* pd = ibv_import_pd(imported, input_.ConsumeIntegralInRange<uint32_t>(0, 3))) {
      if (ibv_mr* mr = ibv_import_mr(pd, input_.ConsumeIntegral<uint32_t>())) ibv_unimport_mr(mr);
      ibv_unimport_pd(pd);
    }
    must_be_zero(ibv_close_device(imported), "close an imported device");
  }

  void reset(ibv_qp* qp) {
    ibv_qp_attr attr = {};
    attr.qp_state = IBV_QPS_RESET;
    must_be_zero(ibv_modify_qp(qp, &attr, IBV_QP_STATE), "to RESET");
    bring_up(qp, qp == end_.rc ? fabric_.peer.rc : fabric_.peer.target);
  }

  void step() {
    switch (input_.ConsumeIntegralInRange<int>(0, 18)) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4:
      case 5:
        return scribble(input_, parts_);
      case 6:
      case 7:
      case 8:
        return send();
      case 9:
      case 10:
        return commit_entry();
      case 11:
      case 12:
        return poll();
      case 13: {
        const uint64_t id = uint64_t{1} << 63 | ++posted_;
        if (end_.receive(input_.ConsumeIntegralInRange<uint32_t>(0, 2), id)) received_.insert(id);
        return;
      }
      case 14: {
        ibv_qp* const qp =
            open_target(input_.ConsumeBool() ? fabric_.peer.target : fabric_.peer.rc);
        if (qp != nullptr) must_be_zero(ibv_destroy_qp(qp), "close a target");
        return;
      }
      case 15:
        virtual_ns += input_.ConsumeIntegralInRange<uint64_t>(0, 50) * kMillisecond;
        return poll();
      case 16:
        return wake();
      case 17:
        return import();
      default:
        return reset(input_.ConsumeBool() ? end_.rc : xrc_);
    }
  }
  ibv_qp* open_target(uint32_t number) {
    ibv_qp_open_attr attr = {};
    attr.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    attr.qp_num = number;
    attr.xrcd = end_.xrcd;
    attr.qp_type = IBV_QPT_XRC_RECV;
    return ibv_open_qp(end_.context, &attr);
  }

  Fabric& fabric_;
  FuzzedDataProvider& input_;
  End end_;
  ibv_qp *xrc_, *target_;
  ibv_ah* ah_;
  base::Mapping ring_map_;
  CqShared* cq_;
  Ring* ring_;
  std::vector<base::Mapping> own_rings_;
  std::set<std::string> seen_rings_;
  std::vector<Bytes> parts_;
  uint64_t sent_ = 0, posted_ = 0;
  std::set<uint64_t> received_, completed_;
};

Fabric* fabric = nullptr;

}  // namespace

// A pid in shared memory may be anybody's by now: no process is touched but in the imagination.
extern "C" ssize_t __wrap_process_vm_readv(pid_t, const iovec* local, unsigned long count,
                                           const iovec*, unsigned long, unsigned long) {
  ssize_t sum = 0;
  for (unsigned long i = 0; i < count; ++i) {
    memset(local[i].iov_base, 7, local[i].iov_len);
    sum += static_cast<ssize_t>(local[i].iov_len);
  }
  return sum;
}
extern "C" ssize_t __wrap_process_vm_writev(pid_t, const iovec* local, unsigned long count,
                                            const iovec*, unsigned long, unsigned long) {
  ssize_t sum = 0;
  for (unsigned long i = 0; i < count; ++i) sum += static_cast<ssize_t>(local[i].iov_len);
  return sum;
}

extern "C" int __real_clock_gettime(clockid_t clock, timespec* now);
extern "C" int __wrap_clock_gettime(clockid_t clock, timespec* now) {
  if (clock != CLOCK_MONOTONIC && clock != CLOCK_MONOTONIC_COARSE)
    return __real_clock_gettime(clock, now);
  virtual_ns += 50;
  const uint64_t grain = clock == CLOCK_MONOTONIC ? 1 : 4 * kMillisecond;
  const uint64_t ns = virtual_ns / grain * grain;
  now->tv_sec = static_cast<time_t>(ns / 1'000'000'000);
  now->tv_nsec = static_cast<long>(ns % 1'000'000'000);
  return 0;
}
extern "C" int __wrap_nanosleep(const timespec* time, timespec*) {
  virtual_ns +=
      static_cast<uint64_t>(time->tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time->tv_nsec);
  return 0;
}

/** What was freed is kept for some runs and not for hundreds: fresh pages were a quarter of the
 * time. */
extern "C" const char* __asan_default_options() { return "quarantine_size_mb=8"; }

extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments) {
  // A look for leaks takes longer than a hundred runs, and what the open device keeps would cause
  // one after each. The one at the end stays.
  static std::vector<char*> more(*arguments, *arguments + *count);
  static char option[] = "-detect_leaks=0";
  more.push_back(option);
  more.push_back(nullptr);
  *arguments = more.data();
  ++*count;
  fabric = new Fabric();
  atexit([] {
    fabric->close_session();
    delete fabric;
  });
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider input(data, size);
  auto run = std::make_unique<Run>(*fabric, input);
  run->go();
  run->finish();
  return 0;
}
