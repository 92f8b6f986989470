#include <fcntl.h>
#include <fuzzer/FuzzedDataProvider.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/files.h"
#include "soft/fabric.h"
#include "soft/layout.h"
#include "verbs/open.h"

// Everything in shared memory that another process writes (I9). There is a peer, a real process
// with QPs, an SRQ and regions, which does nothing from then on. The input says what this process
// does with verbs, and what is found in the structures of the peer, in the tables of the fabric and
// in those words of our own that peers write. Nothing may crash, hang, or be read or written out of
// bounds, and no receive completes twice.

namespace {

using namespace millrace;
using namespace millrace::soft;

constexpr uint32_t kWrs = 8;
constexpr uint32_t kOps = 40;
constexpr size_t kBytes = 16384;

[[noreturn]] void die(const char* what) {
  fprintf(stderr, "shared_fuzz: %s (errno %d)\n", what, errno);
  abort();
}
template <class T>
T must(T value, const char* what) {
  if (!value) die(what);
  return value;
}
void must_be_zero(int error, const char* what) {
  if (error != 0) die(what);
}

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
  explicit End(const std::string& folder) {
    context = open_soft();
    pd = must(ibv_alloc_pd(context), "allocate a PD");
    cq = must(ibv_create_cq(context, 256, nullptr, nullptr, 0), "create a CQ");
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
  static End* end = new End(folder);
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

base::Mapping map_file(const std::string& path) {
  const base::Fd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct stat info = {};
  if (!fd.valid() || fstat(fd.get(), &info) != 0) die(path.c_str());
  auto map = base::map_shared(fd.get(), static_cast<size_t>(info.st_size));
  if (!map.ok()) die(path.c_str());
  return map.take();
}

using Bytes = std::span<std::byte>;

class Fabric {
 public:
  Fabric() {
    const char* const given = getenv("MILLRACE_SHM_DIR");
    std::string name = given != nullptr && *given != '\0' ? given : "/dev/shm";
    name += "/millrace-fuzz.XXXXXX";
    base_ = must(mkdtemp(name.data()), "make a folder");
    setenv("MILLRACE_SHM_DIR", base_.c_str(), 1);
    setenv("MILLRACE_FABRIC", "fuzz", 1);
    folder_ = FabricPath::from_environment().value().folder;
    int said[2];
    must_be_zero(pipe2(said, O_CLOEXEC), "make a pipe");
    peer_pid_ = fork();
    if (peer_pid_ == 0) be_the_peer(base_, said[1]);
    close(said[1]);
    if (read(said[0], &peer, sizeof(peer)) != sizeof(peer)) die("the peer did not start");
    close(said[0]);
    keep_files();
    root_ = map_file(folder_ + "/root");
    chunk_ = map_file(folder_ + "/" + chunk_name(0, incarnation(), 0));
    snapshot_ = {root_.data(), root_.data() + root_.size()};
    chunk_snapshot_ = {chunk_.data(), chunk_.data() + chunk_.size()};
  }
  ~Fabric() {
    kill(peer_pid_, SIGKILL);
    std::filesystem::remove_all(base_);
  }

  /** As it was before the last input. */
  void restore() {
    memcpy(root_.data(), snapshot_.data(), snapshot_.size());
    memcpy(chunk_.data(), chunk_snapshot_.data(), chunk_snapshot_.size());
    // Who takes the peer for dead removes what is his, or everything.
    std::filesystem::create_directories(folder_);
    std::filesystem::permissions(folder_, std::filesystem::perms::owner_all);
    std::filesystem::permissions(std::filesystem::path(folder_).parent_path(),
                                 std::filesystem::perms::owner_all);
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      if (!std::filesystem::exists(kept() + "/" + entry.path().filename().string()))
        unlink(entry.path().c_str());
    for (const auto& entry : std::filesystem::directory_iterator(kept())) {
      const std::string name = folder_ + "/" + entry.path().filename().string();
      if (!std::filesystem::exists(name)) (void)link(entry.path().c_str(), name.c_str());
    }
  }

  const std::string& base() const { return base_; }
  const std::string& folder() const { return folder_; }
  template <class T>
  T& at(const Table<T>& table, uint32_t index) {
    return *reinterpret_cast<T*>(root_.data() + table.offset + sizeof(T) * index);
  }
  QpRecord& qp(uint32_t number) { return at(kQpTable, number % kQps); }
  SrqRecord& srq(uint32_t number) { return at(kSrqTable, number % kSrqs); }
  RootHeader& header() { return *reinterpret_cast<RootHeader*>(root_.data()); }
  ProcessShared& peer_shared() { return *reinterpret_cast<ProcessShared*>(chunk_.data()); }
  uint32_t incarnation() {
    return static_cast<uint32_t>(
        reinterpret_cast<ProcessRecord*>(map_root() + kProcessTable.offset)->state.load());
  }
  static Bytes part(base::Mapping& chunk, const Ref& ref) {
    const size_t offset = size_t{ref.unit} * kUnit;
    if (offset > chunk.size()) return {};
    return {chunk.data() + offset, std::min<size_t>(ref.bytes, chunk.size() - offset)};
  }
  Bytes peer_part(const Ref& ref) { return part(chunk_, ref); }

  PeerInfo peer = {};

 private:
  std::string kept() const { return base_ + "/kept"; }
  std::byte* map_root() {
    if (root_.size() == 0) root_ = map_file(folder_ + "/root");
    return root_.data();
  }
  void keep_files() {
    mkdir(kept().c_str(), 0700);
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      const std::string name = kept() + "/" + entry.path().filename().string();
      must_be_zero(link(entry.path().c_str(), name.c_str()), "keep the peer's files");
    }
  }

  std::string base_, folder_;
  pid_t peer_pid_ = -1;
  base::Mapping root_, chunk_;
  std::vector<std::byte> snapshot_, chunk_snapshot_;
};

/** One input's run. */
class Run {
 public:
  Run(Fabric& fabric, FuzzedDataProvider& input)
      : fabric_(fabric), input_(input), end_(fabric.base()) {
    xrc_ = end_.create(IBV_QPT_XRC_SEND);
    target_ = end_.create(IBV_QPT_XRC_RECV);
    fabric.qp(fabric.peer.rc).dest_qpn.store(end_.rc->qp_num);
    bring_up(end_.rc, fabric.peer.rc);
    bring_up(end_.ud, 0);
    bring_up(xrc_, fabric.peer.target);
    bring_up(target_, 0);
    ibv_ah_attr attr = {};
    attr.port_num = 1;
    attr.dlid = 1;
    ah_ = must(ibv_create_ah(end_.pd, &attr), "create an AH");
    own_ = map_file(fabric.folder() + "/" + own_chunk());
    const QpRecord& record = fabric.qp(end_.rc->qp_num);
    cq_ = reinterpret_cast<CqShared*>(Fabric::part(own_, record.cq).data());
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
    must_be_zero(ibv_dereg_mr(end_.mr), "free the region");
    must_be_zero(ibv_dealloc_pd(end_.pd), "free the PD");
    must_be_zero(ibv_close_device(end_.context), "close the device");
  }

 private:
  uint64_t owner() const { return fabric_.qp(end_.rc->qp_num).owner; }
  std::string own_chunk() const {
    return chunk_name(owner_slot(owner()), owner_incarnation(owner()), 0);
  }

  /** The peer's ring into our CQ, as it would make it. */
  void make_ring() {
    const uint32_t capacity = 64;
    const uint64_t entry = directory_word(0, fabric_.incarnation(), fabric_.peer.rc);
    const std::string path = fabric_.folder() + "/" + ring_name(owner(), cq_->serial.load(), entry);
    {
      const base::Fd fd(open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
      if (ftruncate(fd.get(), static_cast<off_t>(align_up(ring_bytes(capacity), 4096))) != 0)
        die("make a ring");
    }
    ring_map_ = map_file(path);
    ring_ = reinterpret_cast<Ring*>(ring_map_.data());
    ring_->initiator = owner_word(0, fabric_.incarnation());
    ring_->receiver = owner();
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
    const auto of = [&](const auto& what) {
      parts_.push_back(
          {reinterpret_cast<std::byte*>(const_cast<std::remove_cvref_t<decltype(what)>*>(&what)),
           sizeof(what)});
    };
    RootHeader& header = fabric_.header();
    add(header.next_incarnation, sizeof(RootHeader) - offsetof(RootHeader, next_incarnation));
    for (uint32_t i = 0; i < 3; ++i) of(fabric_.at(kProcessTable, i));
    for (uint32_t qpn : {fabric_.peer.rc, fabric_.peer.ud, fabric_.peer.target})
      for (int again = 0; again < 3; ++again) of(fabric_.qp(qpn));
    of(fabric_.qp(end_.rc->qp_num).health);
    of(fabric_.qp(target_->qp_num));
    of(fabric_.srq(fabric_.peer.srqn));
    for (uint32_t i = 0; i < 3; ++i) of(fabric_.at(kXrcdTable, i));
    of(fabric_.at(kHolderTable, fabric_.peer.target % kTargetQps));
    for (uint32_t i = 0; i < 2; ++i) of(fabric_.at(kGroupTable, i));
    ProcessShared& peer = fabric_.peer_shared();
    for (uint32_t i = 0; i < 3; ++i) of(peer.mrs[i]);
    of(peer.backings[0]);
    for (uint32_t qpn : {fabric_.peer.rc, fabric_.peer.ud}) {
      parts_.push_back(fabric_.peer_part(fabric_.qp(qpn).queue));
      Bytes cq = fabric_.peer_part(fabric_.qp(qpn).cq);
      parts_.push_back(cq.subspan(0, 448));
    }
    parts_.push_back(fabric_.peer_part(fabric_.srq(fabric_.peer.srqn).queue));
    for (int again = 0; again < 3; ++again) {
      parts_.push_back({ring_map_.data(), 256});
      parts_.push_back({ring_map_.data() + 256, 8 * sizeof(Entry)});
    }
    // Ours, that peers write.
    add(cq_->armed, 448 - offsetof(CqShared, armed));
    const Bytes queue = Fabric::part(own_, fabric_.qp(end_.rc->qp_num).queue);
    const QueueLayout layout = {kWrs, 2, kOwnParkEntries};
    parts_.push_back(
        queue.subspan(offsetof(QueueShared, hint), layout.wqes() - offsetof(QueueShared, hint)));
    const Bytes srq = Fabric::part(own_, fabric_.srq(srq_number()).queue);
    parts_.push_back(srq.subspan(offsetof(QueueShared, hint), 512));
    ProcessShared& own = *reinterpret_cast<ProcessShared*>(own_.data());
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

  void scribble() {
    const Bytes part = parts_[input_.ConsumeIntegralInRange<size_t>(0, parts_.size() - 1)];
    const size_t width = size_t{1} << input_.ConsumeIntegralInRange<int>(0, 3);
    if (part.size() < width) return;
    const size_t at = input_.ConsumeIntegralInRange<size_t>(0, part.size() / width - 1) * width;
    uint64_t value = 0;
    memcpy(&value, part.data() + at, width);
    switch (input_.ConsumeIntegralInRange<int>(0, 3)) {
      case 0:
        value = input_.ConsumeIntegral<uint64_t>();
        break;
      case 1:
        value += static_cast<uint64_t>(input_.ConsumeIntegral<int8_t>());
        break;
      case 2:
        value ^= uint64_t{1} << input_.ConsumeIntegralInRange<int>(0, 63);
        break;
      default:
        value = input_.ConsumeBool() ? 0 : ~uint64_t{0};
    }
    memcpy(part.data() + at, &value, width);
  }

  /** The peer commits an entry that is good, but for what was done to it before. */
  void commit_entry() {
    const uint64_t tail = ring_->tail.load();
    Entry& entry = ring_->entries[tail % 64];
    const QueueShared& queue = *reinterpret_cast<const QueueShared*>(
        Fabric::part(own_, fabric_.qp(end_.rc->qp_num).queue).data());
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

  void reset(ibv_qp* qp) {
    ibv_qp_attr attr = {};
    attr.qp_state = IBV_QPS_RESET;
    must_be_zero(ibv_modify_qp(qp, &attr, IBV_QP_STATE), "to RESET");
    bring_up(qp, qp == end_.rc ? fabric_.peer.rc : fabric_.peer.target);
  }

  void step() {
    switch (input_.ConsumeIntegralInRange<int>(0, 15)) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4:
      case 5:
        return scribble();
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
  base::Mapping own_, ring_map_;
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

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  fabric = new Fabric();
  atexit([] { delete fabric; });
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider input(data, size);
  fabric->restore();
  auto run = std::make_unique<Run>(*fabric, input);
  run->go();
  run->finish();
  return 0;
}
