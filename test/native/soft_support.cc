#include "soft_support.h"

#include <dirent.h>

#include <algorithm>

namespace millrace::test {
namespace {

bool write_line(int fd, const std::string& line) {
  const std::string text = line + "\n";
  return send(fd, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
}

std::string read_line(int fd, std::string* buffer, int ms) {
  const uint64_t deadline = base::now_ns() + static_cast<uint64_t>(ms) * 1'000'000u;
  for (;;) {
    const size_t end = buffer->find('\n');
    if (end != std::string::npos) {
      const std::string line = buffer->substr(0, end);
      buffer->erase(0, end + 1);
      return line;
    }
    const uint64_t now = base::now_ns();
    if (now >= deadline) return "";
    pollfd p = {fd, POLLIN, 0};
    if (::poll(&p, 1, static_cast<int>((deadline - now) / 1'000'000u) + 1) <= 0) continue;
    char bytes[4096];
    const ssize_t n = recv(fd, bytes, sizeof(bytes), 0);
    if (n <= 0) return "";
    buffer->append(bytes, static_cast<size_t>(n));
  }
}

constexpr int kChildFd = 3;
std::string parent_buffer;

}  // namespace

std::map<std::string, ChildFunction>& child_functions() {
  static std::map<std::string, ChildFunction> functions;
  return functions;
}

std::vector<std::string> names_in(const std::string& folder, const std::string& prefix) {
  std::vector<std::string> names;
  DIR* stream = opendir(folder.c_str());
  if (stream == nullptr) return names;
  while (const dirent* entry = readdir(stream)) {
    const std::string name = entry->d_name;
    if (name != "." && name != ".." && name.compare(0, prefix.size(), prefix) == 0)
      names.push_back(name);
  }
  closedir(stream);
  return names;
}

void Fabric::remove_domain_files() const {
  for (const std::string& name : names_in(shm_base(), name_ + ".domain"))
    unlink((shm_base() + "/" + name).c_str());
}

Child::Child(const std::string& name, const std::vector<std::string>& arguments) {
  int pair[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  std::vector<std::string> texts = {"/proc/self/exe", "--millrace-child", name};
  texts.insert(texts.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& text : texts) argv.push_back(text.data());
  argv.push_back(nullptr);
  fflush(stdout);
  pid_ = fork();
  if (pid_ == 0) {
    if (pair[1] == kChildFd) {
      fcntl(kChildFd, F_SETFD, 0);
    } else {
      dup2(pair[1], kChildFd);
    }
    execv("/proc/self/exe", argv.data());
    _exit(127);
  }
  close(pair[1]);
  fd_ = pair[0];
}

Child::~Child() {
  if (status_ < 0 && pid_ > 0) {
    kill(pid_, SIGKILL);
    int status;
    waitpid(pid_, &status, 0);
  }
  if (fd_ >= 0) close(fd_);
}

void Child::say(const std::string& line) { write_line(fd_, line); }
std::string Child::hear(int ms) { return read_line(fd_, &buffer_, ms); }

int Child::wait(int ms) {
  if (status_ >= 0) return status_;
  int status = 0;
  if (!eventually([&] { return waitpid(pid_, &status, WNOHANG) == pid_; }, ms)) return -1;
  status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return status_;
}

bool Child::wait_stopped(int ms) {
  bool ended = false;
  int status = 0;
  const bool seen = eventually(
      [&] {
        if (waitpid(pid_, &status, WNOHANG | WUNTRACED) != pid_) return false;
        if (WIFSTOPPED(status)) return true;
        ended = true;
        status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        return true;
      },
      ms);
  return seen && !ended;
}

void expect_walked(bool through, uint64_t steps) {
  EXPECT_TRUE(through);
  EXPECT_GT(steps, 4u);
  printf("%llu steps\n", static_cast<unsigned long long>(steps));
}

void Parent::say(const std::string& line) { write_line(kChildFd, line); }
std::string Parent::hear() { return read_line(kChildFd, &parent_buffer, kDeadlineMs); }

SharedMemory::SharedMemory(size_t bytes) {
  // Named after the test's domain file: a child that is killed does not remove its own, the Fabric
  // does.
  const char* domain = getenv("MILLRACE_TEST_DOMAIN");
  path_ = base::format("%s.%d.%llx", domain != nullptr ? domain : (shm_base() + "/test").c_str(),
                       static_cast<int>(getpid()), static_cast<unsigned long long>(base::now_ns()));
  base::Result<base::Fd> fd = base::create_reserved(AT_FDCWD, path_, bytes);
  EXPECT_TRUE(fd.ok()) << fd.status().detail;
  if (!fd.ok()) return;
  base::Result<base::Mapping> map = base::map_shared(fd.value().get(), bytes);
  EXPECT_TRUE(map.ok());
  if (map.ok()) map_ = map.take();
}

SharedMemory::~SharedMemory() { unlink(path_.c_str()); }

int open_domain_file() { return open(getenv("MILLRACE_TEST_DOMAIN"), O_RDONLY | O_CLOEXEC); }

Endpoint::Endpoint(const Options& chosen) : options(chosen) {
  base::Result<ibv_context*> opened = verbs::open_device("soft");
  EXPECT_TRUE(opened.ok()) << opened.status().what << ": " << opened.status().detail;
  if (!opened.ok()) return;
  context = verbs::ContextPtr(opened.value());
  pd = verbs::PdPtr(ibv_alloc_pd(context.get()));
  const int fd = open_domain_file();
  ibv_xrcd_init_attr domain = {};
  domain.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
  domain.fd = fd;
  domain.oflags = O_CREAT;
  xrcd = verbs::XrcdPtr(ibv_open_xrcd(context.get(), &domain));
  close(fd);
  EXPECT_TRUE(xrcd) << soft::last_error().detail;
  if (options.channel) {
    channel = verbs::ChannelPtr(ibv_create_comp_channel(context.get()));
    send_channel = verbs::ChannelPtr(ibv_create_comp_channel(context.get()));
  }
  const auto make_cq = [this](ibv_comp_channel* events) {
    if (options.wc_flags == 0) return ibv_create_cq(context.get(), options.cqe, nullptr, events, 0);
    ibv_cq_init_attr_ex attr = {};
    attr.cqe = static_cast<uint32_t>(options.cqe);
    attr.channel = events;
    attr.wc_flags = options.wc_flags;
    return ibv_cq_ex_to_cq(ibv_create_cq_ex(context.get(), &attr));
  };
  cq = verbs::CqPtr(make_cq(channel.get()));
  send_cq = verbs::CqPtr(make_cq(send_channel.get()));
  EXPECT_TRUE(cq && send_cq) << soft::last_error().detail;
  if (options.receive) {
    const size_t bytes = size_t{options.slots} * options.slot_bytes;
    if (options.foreign) {
      private_memory.resize(bytes);
      slots = private_memory.data();
    } else {
      memory = std::make_unique<SharedMemory>(std::max<size_t>(bytes, 4096));
      slots = memory->data();
    }
    slots_mr = verbs::MrPtr(
        ibv_reg_mr(pd.get(), slots, bytes,
                   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ));
    EXPECT_TRUE(slots_mr);
    ibv_srq_init_attr_ex attr = {};
    attr.attr.max_wr = options.slots;
    attr.attr.max_sge = 2;
    attr.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD |
                     IBV_SRQ_INIT_ATTR_CQ;
    attr.srq_type = IBV_SRQT_XRC;
    attr.pd = pd.get();
    attr.xrcd = xrcd.get();
    attr.cq = cq.get();
    srq = verbs::SrqPtr(ibv_create_srq_ex(context.get(), &attr));
    EXPECT_TRUE(srq) << soft::last_error().detail;
    ibv_qp_init_attr_ex qp = {};
    qp.qp_type = IBV_QPT_XRC_RECV;
    qp.comp_mask = IBV_QP_INIT_ATTR_XRCD;
    qp.xrcd = xrcd.get();
    target = verbs::QpPtr(ibv_create_qp_ex(context.get(), &qp));
    EXPECT_TRUE(target) << soft::last_error().detail;
    EXPECT_EQ(ready(), 0) << soft::last_error().detail;
    if (options.post) {
      for (uint32_t i = 0; i < options.slots; ++i) EXPECT_EQ(post(i), 0);
    }
  }
  if (options.send) {
    send_memory.resize(65536);
    buffer = send_memory.data();
    send_mr =
        verbs::MrPtr(ibv_reg_mr(pd.get(), buffer, send_memory.size(), IBV_ACCESS_LOCAL_WRITE));
    ibv_qp_init_attr_ex qp = {};
    qp.qp_type = IBV_QPT_XRC_SEND;
    qp.comp_mask = IBV_QP_INIT_ATTR_PD;
    qp.pd = pd.get();
    qp.send_cq = send_cq.get();
    qp.cap.max_send_wr = options.max_send_wr;
    qp.cap.max_send_sge = 4;
    qp.cap.max_inline_data = 64;
    initiator = verbs::QpPtr(ibv_create_qp_ex(context.get(), &qp));
    EXPECT_TRUE(initiator) << soft::last_error().detail;
  }
}

Endpoint::~Endpoint() {
  EXPECT_EQ(initiator.close(), 0) << soft::last_error().detail;
  EXPECT_EQ(target.close(), 0) << soft::last_error().detail;
  EXPECT_EQ(srq.close(), 0) << soft::last_error().detail;
}

int Endpoint::connect(uint32_t target_qpn, uint8_t rnr_retry, uint8_t timeout, uint8_t retry_cnt) {
  ibv_qp_attr attr = {};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 1;
  int error = ibv_modify_qp(initiator.get(), &attr,
                            IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  if (error != 0) return error;
  attr = {};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_4096;
  attr.dest_qp_num = target_qpn;
  attr.ah_attr.port_num = 1;
  error =
      ibv_modify_qp(initiator.get(), &attr,
                    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN);
  if (error != 0) return error;
  attr = {};
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = timeout;
  attr.retry_cnt = retry_cnt;
  attr.rnr_retry = rnr_retry;
  attr.max_rd_atomic = 1;
  return ibv_modify_qp(initiator.get(), &attr,
                       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                           IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

int Endpoint::ready(int access, uint8_t min_rnr_timer) {
  ibv_qp_attr attr = {};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 1;
  attr.qp_access_flags = static_cast<unsigned>(access);
  int error = ibv_modify_qp(target.get(), &attr,
                            IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  if (error != 0) return error;
  attr = {};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_4096;
  attr.ah_attr.port_num = 1;
  attr.max_dest_rd_atomic = 1;
  attr.min_rnr_timer = min_rnr_timer;
  error = ibv_modify_qp(target.get(), &attr,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                            IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (error != 0) return error;
  attr = {};
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = 14;
  return ibv_modify_qp(target.get(), &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_SQ_PSN);
}

int Endpoint::post(uint32_t index) {
  ibv_sge sge = {reinterpret_cast<uintptr_t>(slot(index)), options.slot_bytes, slots_mr->lkey};
  ibv_recv_wr wr = {};
  wr.wr_id = index;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  return ibv_post_srq_recv(srq.get(), &wr, &bad);
}

int Endpoint::send(uint32_t srqn, const void* data, uint32_t bytes, uint64_t wr_id, int flags) {
  // Small messages have places of their own: a WR may have to wait, and reads its bytes when it
  // runs.
  std::byte* place = bytes <= 64 ? buffer + 64 * (next_place++ % 1024) : buffer;
  memcpy(place, data, bytes);
  ibv_sge sge = {reinterpret_cast<uintptr_t>(place), bytes, send_mr->lkey};
  ibv_send_wr wr = {};
  wr.wr_id = wr_id;
  wr.opcode = IBV_WR_SEND;
  wr.send_flags = static_cast<unsigned>(flags);
  wr.sg_list = &sge;
  wr.num_sge = bytes == 0 ? 0 : 1;
  wr.qp_type.xrc.remote_srqn = srqn;
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(initiator.get(), &wr, &bad);
}

bool Endpoint::poll(ibv_cq* queue, ibv_wc* wc, int ms) {
  const uint64_t deadline = base::now_ns() + static_cast<uint64_t>(ms) * 1'000'000u;
  for (int spins = 0;; ++spins) {
    const int n = ibv_poll_cq(queue, 1, wc);
    if (n != 0) return n == 1;
    if (spins > 100) sched_yield();
    if (base::now_ns() > deadline) return false;
  }
}

uint32_t Endpoint::srqn() const {
  uint32_t number = 0;
  EXPECT_EQ(ibv_get_srq_num(srq.get(), &number), 0);
  return number;
}

Connected::Connected(const Options& o) : options(o) {
  if (options.context == nullptr) {
    base::Result<ibv_context*> opened = verbs::open_device("soft");
    EXPECT_TRUE(opened.ok()) << opened.status().what << ": " << opened.status().detail;
    if (!opened.ok()) return;
    own_context = verbs::ContextPtr(opened.value());
    context = own_context.get();
  } else {
    context = options.context;
  }
  pd = verbs::PdPtr(ibv_alloc_pd(context));
  if (options.channel) {
    recv_channel = verbs::ChannelPtr(ibv_create_comp_channel(context));
    send_channel = verbs::ChannelPtr(ibv_create_comp_channel(context));
  }
  recv_cq = verbs::CqPtr(ibv_create_cq(context, options.cqe, nullptr, recv_channel.get(), 0));
  send_cq = verbs::CqPtr(ibv_create_cq(context, options.cqe, nullptr, send_channel.get(), 0));
  const size_t bytes = size_t{options.slots} * options.slot_bytes + 65536;
  if (options.foreign) {
    private_memory.resize(bytes);
    slots = private_memory.data();
  } else {
    memory = std::make_unique<SharedMemory>(bytes);
    slots = memory->data();
  }
  buffer = slots + size_t{options.slots} * options.slot_bytes;
  mr = verbs::MrPtr(ibv_reg_mr(pd.get(), slots, bytes,
                               IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                   IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC));
  EXPECT_TRUE(mr) << soft::last_error().detail;
  ibv_qp_init_attr attr = {};
  attr.qp_type = options.type;
  attr.send_cq = send_cq.get();
  attr.recv_cq = recv_cq.get();
  attr.cap.max_send_wr = options.max_send_wr;
  attr.cap.max_send_sge = 4;
  attr.cap.max_inline_data = options.max_inline;
  if (options.srq) {
    ibv_srq_init_attr init = {};
    init.attr.max_wr = options.slots;
    init.attr.max_sge = 2;
    srq = verbs::SrqPtr(ibv_create_srq(pd.get(), &init));
    EXPECT_TRUE(srq) << soft::last_error().detail;
    attr.srq = srq.get();
  } else {
    attr.cap.max_recv_wr = options.max_recv_wr;
    attr.cap.max_recv_sge = 4;
  }
  qp = verbs::QpPtr(ibv_create_qp(pd.get(), &attr));
  EXPECT_TRUE(qp) << soft::last_error().detail;
}

int Connected::init() {
  ibv_qp_attr attr = {};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 1;
  attr.qp_access_flags = static_cast<unsigned>(options.access);
  return ibv_modify_qp(qp.get(), &attr,
                       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

int Connected::rtr(uint32_t peer_qpn) {
  ibv_qp_attr attr = {};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_4096;
  attr.dest_qp_num = peer_qpn;
  attr.ah_attr.port_num = 1;
  attr.ah_attr.dlid = 1;
  attr.max_dest_rd_atomic = options.depth;
  attr.min_rnr_timer = options.min_rnr_timer;
  int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  if (options.type == IBV_QPT_RC) mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  return ibv_modify_qp(qp.get(), &attr, mask);
}

int Connected::rts() {
  ibv_qp_attr attr = {};
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = options.timeout;
  attr.retry_cnt = options.retry_cnt;
  attr.rnr_retry = options.rnr_retry;
  attr.max_rd_atomic = options.depth;
  int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
  if (options.type == IBV_QPT_RC)
    mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  return ibv_modify_qp(qp.get(), &attr, mask);
}

int Connected::connect(uint32_t peer_qpn) {
  int error = init();
  if (error != 0) return error;
  if (options.post) {
    for (uint32_t i = 0; i < options.slots; ++i) EXPECT_EQ(post(i), 0) << i;
  }
  error = rtr(peer_qpn);
  return error != 0 ? error : rts();
}

int Connected::modify(ibv_qp_state state) {
  ibv_qp_attr attr = {};
  attr.qp_state = state;
  return ibv_modify_qp(qp.get(), &attr, IBV_QP_STATE);
}

ibv_qp_state Connected::state() const {
  ibv_qp_attr attr = {};
  ibv_qp_init_attr unused = {};
  EXPECT_EQ(ibv_query_qp(qp.get(), &attr, IBV_QP_STATE, &unused), 0);
  return attr.qp_state;
}

int Connected::post(uint32_t i) {
  ibv_sge place = {reinterpret_cast<uintptr_t>(slot(i)), options.slot_bytes, mr->lkey};
  ibv_recv_wr receive = {};
  receive.wr_id = i;
  receive.sg_list = &place;
  receive.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  return srq ? ibv_post_srq_recv(srq.get(), &receive, &bad)
             : ibv_post_recv(qp.get(), &receive, &bad);
}

ibv_send_wr Connected::wr(ibv_wr_opcode opcode, uint32_t bytes, uint64_t wr_id) {
  sge = {reinterpret_cast<uintptr_t>(buffer), bytes, mr->lkey};
  ibv_send_wr out = {};
  out.wr_id = wr_id;
  out.opcode = opcode;
  out.send_flags = IBV_SEND_SIGNALED;
  out.sg_list = &sge;
  out.num_sge = bytes == 0 ? 0 : 1;
  return out;
}

int Connected::send(ibv_send_wr& wr) {
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(qp.get(), &wr, &bad);
}

ibv_wc_status Connected::run(ibv_send_wr& wr) {
  EXPECT_EQ(send(wr), 0);
  ibv_wc wc = {};
  EXPECT_TRUE(poll_sent(&wc));
  EXPECT_EQ(wc.wr_id, wr.wr_id);
  return wc.status;
}

}  // namespace millrace::test

int main(int argc, char** argv) {
  if (argc >= 3 && strcmp(argv[1], "--millrace-child") == 0) {
    auto found = millrace::test::child_functions().find(argv[2]);
    if (found == millrace::test::child_functions().end()) return 126;
    millrace::test::Parent parent;
    for (int i = 3; i < argc; ++i) parent.arguments.emplace_back(argv[i]);
    const int code = found->second(parent);
    return code != 0 ? code : (::testing::Test::HasFailure() ? 1 : 0);
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
