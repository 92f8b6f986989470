// Memory regions: access rights, iova, re-registration (ibv_rereg_mr(3)), import
// (ibv_import_mr(3)).
#include "soft_support.h"

namespace millrace::test {
namespace {

int one_sided(Endpoint& end, ibv_wr_opcode opcode, uint32_t srqn, uint64_t remote, uint32_t rkey,
              uint32_t bytes) {
  ibv_sge sge = {reinterpret_cast<uintptr_t>(end.buffer), bytes, end.send_mr->lkey};
  ibv_send_wr wr = {};
  wr.opcode = opcode;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.wr.rdma.remote_addr = remote;
  wr.wr.rdma.rkey = rkey;
  wr.qp_type.xrc.remote_srqn = srqn;
  ibv_send_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_send(end.initiator.get(), &wr, &bad), 0);
  ibv_wc wc = {};
  EXPECT_TRUE(end.poll_sent(&wc));
  return wc.status;
}

/** After an error: the initiator is in ERR. */
void reconnect(Endpoint& end, uint32_t target) {
  ibv_qp_attr attr = {};
  attr.qp_state = IBV_QPS_RESET;
  EXPECT_EQ(ibv_modify_qp(end.initiator.get(), &attr, IBV_QP_STATE), 0);
  EXPECT_EQ(end.connect(target), 0);
}

uint64_t address_of(const void* p) { return reinterpret_cast<uintptr_t>(p); }

TEST(SoftMr, AccessFlagsAsTheKernelChecksThem) {
  Fabric fabric;
  Endpoint::Options options;
  options.receive = options.send = false;
  Endpoint end(options);
  std::vector<char> memory(4096);
  const auto try_it = [&](int access) {
    errno = 0;
    verbs::MrPtr mr(ibv_reg_mr(end.pd.get(), memory.data(), memory.size(), access));
    return mr ? 0 : errno;
  };
  EXPECT_EQ(try_it(0), 0);
  EXPECT_EQ(try_it(IBV_ACCESS_REMOTE_READ), 0);
  EXPECT_EQ(try_it(IBV_ACCESS_MW_BIND), 0);
  EXPECT_EQ(try_it(IBV_ACCESS_REMOTE_WRITE), EINVAL) << "needs LOCAL_WRITE";
  EXPECT_EQ(try_it(IBV_ACCESS_REMOTE_ATOMIC), EINVAL) << "needs LOCAL_WRITE";
  EXPECT_EQ(try_it(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC), 0);
  EXPECT_EQ(try_it(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING), 0);
  EXPECT_EQ(try_it(IBV_ACCESS_LOCAL_WRITE | (1 << 25)), 0) << "optional bits may be ignored";
  EXPECT_EQ(try_it(IBV_ACCESS_LOCAL_WRITE | (1 << 15)), EINVAL) << "others may not";
  EXPECT_EQ(try_it(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND), EOPNOTSUPP);
  EXPECT_EQ(ibv_reg_mr(end.pd.get(), memory.data(), 0, 0), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(ibv_reg_mr_iova(end.pd.get(), memory.data(), 4096, ~uint64_t{0} - 100, 0), nullptr);
  EXPECT_EQ(errno, EINVAL) << "wraps round";
}

TEST(SoftMr, WhatThisDeviceHasNot) {
  Fabric fabric;
  Endpoint end;
  EXPECT_EQ(ibv_alloc_null_mr(end.pd.get()), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  EXPECT_EQ(ibv_reg_dmabuf_mr(end.pd.get(), 0, 4096, 0, 0, 0), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  ibv_alloc_dm_attr dm = {};
  dm.length = 64;
  EXPECT_EQ(ibv_alloc_dm(end.context.get(), &dm), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  EXPECT_EQ(ibv_import_dm(end.context.get(), 0), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  ibv_sge sge = {address_of(end.buffer), 64, end.send_mr->lkey};
  EXPECT_EQ(ibv_advise_mr(end.pd.get(), IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1), EOPNOTSUPP)
      << "advice is about on-demand paging";
}

TEST(SoftMr, ReadOnlyAndUnmappedMemory) {
  Fabric fabric;
  Endpoint end;
  ASSERT_EQ(end.connect(end.target_qpn()), 0);
  base::Mapping map(
      mmap(nullptr, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
      3 * 4096);
  ASSERT_NE(map.data(), MAP_FAILED);
  strcpy(reinterpret_cast<char*>(map.data()), "can be read");
  ASSERT_EQ(mprotect(map.data(), 4096, PROT_READ), 0);
  for (int access :
       {int{IBV_ACCESS_LOCAL_WRITE}, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE}) {
    EXPECT_EQ(ibv_reg_mr(end.pd.get(), map.data(), 2 * 4096, access), nullptr);
    EXPECT_EQ(errno, EFAULT);
  }
  // Without write access it is fine, and a SEND leaves from it.
  end.send_mr = verbs::MrPtr(ibv_reg_mr(end.pd.get(), map.data(), 2 * 4096, 0));
  ASSERT_TRUE(end.send_mr) << soft::last_error().detail;
  ibv_sge sge = {address_of(map.data()), 12, end.send_mr->lkey};
  ibv_send_wr wr = {};
  wr.opcode = IBV_WR_SEND;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.qp_type.xrc.remote_srqn = end.srqn();
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(end.initiator.get(), &wr, &bad), 0);
  ibv_wc wc = {};
  ASSERT_TRUE(end.poll(&wc));
  EXPECT_STREQ(reinterpret_cast<char*>(end.slot(static_cast<uint32_t>(wc.wr_id))), "can be read");
  ASSERT_EQ(mprotect(map.data() + 4096, 4096, PROT_NONE), 0);
  EXPECT_EQ(ibv_reg_mr(end.pd.get(), map.data(), 2 * 4096, 0), nullptr);
  EXPECT_EQ(errno, EFAULT);
  ASSERT_EQ(munmap(map.data() + 4096, 4096), 0);
  EXPECT_EQ(ibv_reg_mr(end.pd.get(), map.data(), 3 * 4096, 0), nullptr) << "a hole";
  EXPECT_EQ(errno, EFAULT);
  end.send_mr = verbs::MrPtr();
}

TEST(SoftMr, WorkRequestsUseTheIova) {
  Fabric fabric;
  Endpoint end;
  ASSERT_EQ(end.connect(end.target_qpn()), 0);
  const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  constexpr uint64_t kIova = 0x123456789000;
  strcpy(reinterpret_cast<char*>(end.buffer), "iova");
  verbs::MrPtr moved(ibv_reg_mr_iova(end.pd.get(), end.slots, 256, kIova, access));
  ASSERT_TRUE(moved);
  EXPECT_EQ(moved->addr, end.slots);
  EXPECT_EQ(one_sided(end, IBV_WR_RDMA_WRITE, end.srqn(), kIova + 16, moved->rkey, 5),
            IBV_WC_SUCCESS);
  EXPECT_STREQ(reinterpret_cast<char*>(end.slots) + 16, "iova");
  verbs::MrPtr zero(ibv_reg_mr(end.pd.get(), end.slots, 256, access | IBV_ACCESS_ZERO_BASED));
  ASSERT_TRUE(zero);
  EXPECT_EQ(one_sided(end, IBV_WR_RDMA_WRITE, end.srqn(), 100, zero->rkey, 5), IBV_WC_SUCCESS);
  EXPECT_STREQ(reinterpret_cast<char*>(end.slots) + 100, "iova");
  EXPECT_EQ(one_sided(end, IBV_WR_RDMA_WRITE, end.srqn(), 252, zero->rkey, 5),
            IBV_WC_REM_ACCESS_ERR);
  reconnect(end, end.target_qpn());
  EXPECT_EQ(one_sided(end, IBV_WR_RDMA_WRITE, end.srqn(), address_of(end.slots), moved->rkey, 5),
            IBV_WC_REM_ACCESS_ERR)
      << "the address itself means nothing";
}

// A peer that has written through a key finds the change at once: its translation is cached.
TEST(SoftMr, ReregistrationIsNoticedByPeers) {
  Fabric fabric;
  Endpoint end;
  ASSERT_EQ(end.connect(end.target_qpn()), 0);
  const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  SharedMemory a(4096), b(8192);
  verbs::MrPtr mr(ibv_reg_mr(end.pd.get(), a.data(), 4096, access));
  ASSERT_TRUE(mr);
  const uint32_t rkey = mr->rkey, lkey = mr->lkey;
  const auto write = [&](const void* to) {
    return one_sided(end, IBV_WR_RDMA_WRITE, end.srqn(), address_of(to), rkey, 8);
  };
  memcpy(end.buffer, "first  ", 8);
  EXPECT_EQ(write(a.data()), IBV_WC_SUCCESS);

  ASSERT_EQ(ibv_rereg_mr(mr.get(), IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, b.data(), 8192, 0), 0);
  EXPECT_EQ(mr->addr, b.data());
  EXPECT_EQ(mr->length, 8192u);
  EXPECT_EQ(mr->rkey, rkey) << "keys stay";
  EXPECT_EQ(mr->lkey, lkey);
  memcpy(end.buffer, "second ", 8);
  EXPECT_EQ(write(b.data() + 8000), IBV_WC_SUCCESS);
  EXPECT_EQ(memcmp(b.data() + 8000, "second ", 8), 0);
  EXPECT_EQ(memcmp(a.data(), "first  ", 8), 0);
  EXPECT_EQ(write(a.data()), IBV_WC_REM_ACCESS_ERR) << "it is elsewhere";
  reconnect(end, end.target_qpn());

  ASSERT_EQ(ibv_rereg_mr(mr.get(), IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0,
                         IBV_ACCESS_LOCAL_WRITE),
            0);
  EXPECT_EQ(write(b.data()), IBV_WC_REM_ACCESS_ERR) << "not writable any more";
  reconnect(end, end.target_qpn());

  verbs::PdPtr other(ibv_alloc_pd(end.context.get()));
  ASSERT_EQ(ibv_rereg_mr(mr.get(), IBV_REREG_MR_CHANGE_ACCESS | IBV_REREG_MR_CHANGE_PD, other.get(),
                         nullptr, 0, access),
            0);
  EXPECT_EQ(mr->pd, other.get());
  EXPECT_EQ(other.close(), EBUSY) << "the region is in it now";
  EXPECT_EQ(write(b.data()), IBV_WC_REM_ACCESS_ERR) << "the SRQ's PD is another";
  reconnect(end, end.target_qpn());

  ASSERT_EQ(ibv_rereg_mr(mr.get(),
                         IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_ACCESS |
                             IBV_REREG_MR_CHANGE_PD,
                         end.pd.get(), a.data(), 4096, access),
            0);
  EXPECT_EQ(other.close(), 0);
  memcpy(end.buffer, "third  ", 8);
  EXPECT_EQ(write(a.data()), IBV_WC_SUCCESS);
  EXPECT_EQ(memcmp(a.data(), "third  ", 8), 0);
  ASSERT_EQ(mr.close(), 0);
  EXPECT_EQ(write(a.data()), IBV_WC_REM_ACCESS_ERR) << "deregistered";
}

TEST(SoftMr, AFailedReregistrationChangesNothing) {
  Fabric fabric;
  Endpoint end;
  Endpoint elsewhere;
  ASSERT_EQ(end.connect(end.target_qpn()), 0);
  const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  SharedMemory a(4096);
  verbs::MrPtr mr(ibv_reg_mr(end.pd.get(), a.data(), 4096, access));
  ASSERT_TRUE(mr);
  const auto refused = [&](int code, int flags, ibv_pd* pd, void* address, size_t bytes,
                           int rights) {
    errno = 0;
    EXPECT_EQ(ibv_rereg_mr(mr.get(), flags, pd, address, bytes, rights), IBV_REREG_MR_ERR_INPUT);
    EXPECT_EQ(errno, code) << soft::last_error().detail;
    EXPECT_EQ(mr->addr, a.data());
    EXPECT_EQ(one_sided(end, IBV_WR_RDMA_WRITE, end.srqn(), address_of(a.data()), mr->rkey, 8),
              IBV_WC_SUCCESS)
        << "the old region is valid";
  };
  const int place = IBV_REREG_MR_CHANGE_TRANSLATION, rights = IBV_REREG_MR_CHANGE_ACCESS;
  refused(EINVAL, 0, nullptr, nullptr, 0, 0);
  refused(EINVAL, 1 << 6, nullptr, nullptr, 0, 0);
  refused(EINVAL, place, nullptr, nullptr, 4096, 0);
  refused(EINVAL, place, nullptr, a.data(), 0, 0);
  refused(EINVAL, place, nullptr, a.data(), 4096, access);  // access without its flag
  refused(EINVAL, rights, nullptr, nullptr, 0, IBV_ACCESS_REMOTE_WRITE);
  refused(EOPNOTSUPP, rights, nullptr, nullptr, 0, access | IBV_ACCESS_ON_DEMAND);
  refused(EINVAL, IBV_REREG_MR_CHANGE_PD, nullptr, nullptr, 0, 0);
  refused(EINVAL, IBV_REREG_MR_CHANGE_PD, elsewhere.pd.get(), nullptr, 0, 0);
  refused(EFAULT, place, nullptr, reinterpret_cast<void*>(uintptr_t{4096}), 4096, 0);
}

/**
 * Imports the parent's PD and region, and receives on an SRQ in that PD into that region. Says its
 * numbers, then does what it is told.
 */
MILLRACE_CHILD(importer) {
  const std::string token = "/proc/" + parent.arguments[0] + "/fd/" + parent.arguments[1];
  const int fd = open(token.c_str(), O_RDONLY | O_CLOEXEC);
  verbs::ContextPtr context(ibv_import_device(fd));
  EXPECT_TRUE(context) << soft::last_error().detail;
  if (!context) return 1;
  EXPECT_EQ(ibv_import_pd(context.get(), 0xFFFFFF), nullptr);
  EXPECT_EQ(errno, EINVAL);
  ibv_pd* pd = ibv_import_pd(context.get(), static_cast<uint32_t>(std::stoul(parent.arguments[2])));
  EXPECT_NE(pd, nullptr) << soft::last_error().detail;
  if (pd == nullptr) return 1;
  EXPECT_EQ(ibv_import_mr(pd, 4000), nullptr);
  EXPECT_EQ(errno, EINVAL);
  ibv_mr* mr = ibv_import_mr(pd, static_cast<uint32_t>(std::stoul(parent.arguments[3])));
  EXPECT_NE(mr, nullptr) << soft::last_error().detail;
  if (mr == nullptr) return 1;
  EXPECT_EQ(mr->addr, nullptr);
  EXPECT_EQ(mr->length, 4096u);
  EXPECT_EQ(ibv_import_mr(pd, static_cast<uint32_t>(std::stoul(parent.arguments[4]))), nullptr)
      << "memory that no file backs";
  EXPECT_EQ(errno, EOPNOTSUPP);

  // A target of its own, and an SRQ and an initiator in the imported PD.
  Endpoint::Options options;
  options.post = false;
  Endpoint end(options);
  const int domain_fd = open_domain_file();
  ibv_xrcd_init_attr domain = {};
  domain.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
  domain.fd = domain_fd;
  domain.oflags = O_CREAT;
  verbs::XrcdPtr xrcd(ibv_open_xrcd(context.get(), &domain));
  close(domain_fd);
  verbs::CqPtr cq(ibv_create_cq(context.get(), 64, nullptr, nullptr, 0));
  ibv_srq_init_attr_ex attr = {};
  attr.attr.max_wr = 4;
  attr.attr.max_sge = 1;
  attr.comp_mask =
      IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
  attr.srq_type = IBV_SRQT_XRC;
  attr.pd = pd;
  attr.xrcd = xrcd.get();
  attr.cq = cq.get();
  verbs::SrqPtr srq(ibv_create_srq_ex(context.get(), &attr));
  EXPECT_TRUE(srq) << soft::last_error().detail;
  if (!srq) return 1;
  uint32_t srqn = 0;
  EXPECT_EQ(ibv_get_srq_num(srq.get(), &srqn), 0);
  const uint64_t address = std::stoull(parent.arguments[5]);
  ibv_sge sge = {address + 1024, 64, mr->lkey};
  ibv_recv_wr receive = {};
  receive.sg_list = &sge;
  receive.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_srq_recv(srq.get(), &receive, &bad), 0);
  parent.say(base::format("%u %u %u", end.target_qpn(), srqn, mr->rkey));
  // A send of its own from the imported region, on a QP in the imported PD, to the parent.
  unsigned target = 0, parent_srqn = 0;
  EXPECT_EQ(sscanf(parent.hear().c_str(), "%u %u", &target, &parent_srqn), 2);
  ibv_qp_init_attr_ex create = {};
  create.qp_type = IBV_QPT_XRC_SEND;
  create.comp_mask = IBV_QP_INIT_ATTR_PD;
  create.pd = pd;
  create.send_cq = cq.get();
  create.cap.max_send_wr = 4;
  create.cap.max_send_sge = 1;
  end.initiator = verbs::QpPtr(ibv_create_qp_ex(context.get(), &create));
  EXPECT_TRUE(end.initiator) << soft::last_error().detail;
  if (!end.initiator) return 1;
  EXPECT_EQ(end.connect(target), 0);
  sge = {address + 2048, 32, mr->lkey};
  ibv_send_wr send = {};
  send.opcode = IBV_WR_SEND;
  send.send_flags = IBV_SEND_SIGNALED;
  send.sg_list = &sge;
  send.num_sge = 1;
  send.qp_type.xrc.remote_srqn = parent_srqn;
  ibv_send_wr* bad_send = nullptr;
  EXPECT_EQ(ibv_post_send(end.initiator.get(), &send, &bad_send), 0);
  ibv_wc wc = {};
  do {  // the parent's message is in there, too
    EXPECT_TRUE(Endpoint::poll(cq.get(), &wc));
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  } while (wc.opcode == IBV_WC_RECV && !::testing::Test::HasFailure());
  parent.say("sent");
  parent.hear();
  end.initiator = verbs::QpPtr();
  srq = verbs::SrqPtr();
  ibv_unimport_mr(mr);
  ibv_unimport_pd(pd);
  return 0;
}

// "Same keys, addr NULL" (VERBS 4): what another process receives for us lands in our memory.
TEST(SoftMr, ARegionImportedByAnotherProcess) {
  Fabric fabric;
  Endpoint end;
  const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  SharedMemory memory(4096);
  verbs::MrPtr mr(ibv_reg_mr(end.pd.get(), memory.data(), 4096, access));
  ASSERT_TRUE(mr);
  Child child("importer",
              {std::to_string(getpid()), std::to_string(end.context->cmd_fd),
               std::to_string(end.pd->handle), std::to_string(mr->handle),
               std::to_string(end.send_mr->handle), std::to_string(address_of(memory.data()))});
  unsigned target = 0, srqn = 0, rkey = 0;
  ASSERT_EQ(sscanf(child.hear().c_str(), "%u %u %u", &target, &srqn, &rkey), 3);
  EXPECT_EQ(rkey, mr->rkey);
  ASSERT_EQ(end.connect(target), 0);
  strcpy(reinterpret_cast<char*>(end.buffer), "for the importer");
  ASSERT_EQ(end.send(srqn, end.buffer, 17), 0);
  ibv_wc wc = {};
  ASSERT_TRUE(end.poll_sent(&wc));
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_STREQ(reinterpret_cast<char*>(memory.data()) + 1024, "for the importer");
  strcpy(reinterpret_cast<char*>(end.buffer), "written");
  EXPECT_EQ(one_sided(end, IBV_WR_RDMA_WRITE, srqn, address_of(memory.data()) + 512, rkey, 8),
            IBV_WC_SUCCESS);
  EXPECT_STREQ(reinterpret_cast<char*>(memory.data()) + 512, "written");

  strcpy(reinterpret_cast<char*>(memory.data()) + 2048, "sent by the importer");
  child.say(base::format("%u %u", end.target_qpn(), end.srqn()));
  EXPECT_EQ(child.hear(), "sent");
  ASSERT_TRUE(end.poll(&wc));
  EXPECT_STREQ(reinterpret_cast<char*>(end.slot(static_cast<uint32_t>(wc.wr_id))),
               "sent by the importer");
  child.say("end");
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(mr.close(), 0) << "imports hold nothing";
}

TEST(SoftMr, ARegionImportedByItsOwnProcess) {
  Fabric fabric;
  Endpoint end;
  verbs::ContextPtr context(ibv_import_device(fcntl(end.context->cmd_fd, F_DUPFD_CLOEXEC, 0)));
  ASSERT_TRUE(context) << soft::last_error().detail;
  ibv_pd* pd = ibv_import_pd(context.get(), end.pd->handle);
  ASSERT_NE(pd, nullptr);
  EXPECT_EQ(pd->handle, end.pd->handle);
  ibv_mr* mr = ibv_import_mr(pd, end.send_mr->handle);
  ASSERT_NE(mr, nullptr);
  EXPECT_EQ(mr->addr, nullptr);
  EXPECT_EQ(mr->lkey, end.send_mr->lkey);
  EXPECT_EQ(mr->rkey, end.send_mr->rkey);
  EXPECT_EQ(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, 0),
            IBV_REREG_MR_ERR_INPUT)
      << "it is its maker's";
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  ibv_unimport_pd(pd);
  EXPECT_EQ(context.close(), 0);
  ASSERT_EQ(end.connect(end.target_qpn()), 0);
  ASSERT_EQ(end.send(end.srqn(), end.buffer, 8), 0) << "the original is as it was";
  ibv_wc wc = {};
  ASSERT_TRUE(end.poll_sent(&wc));
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
}

MILLRACE_CHILD(context_owner) {
  Endpoint::Options options;
  options.receive = options.send = false;
  Endpoint end(options);
  parent.say(base::format("%d %u", end.context->cmd_fd, end.pd->handle));
  parent.hear();
  return 0;
}

TEST(SoftMr, ImportsThatCanNotBe) {
  Fabric fabric;
  EXPECT_EQ(ibv_import_device(-1), nullptr);
  EXPECT_EQ(errno, EBADF);
  const int other = open("/dev/zero", O_RDONLY | O_CLOEXEC);
  EXPECT_EQ(ibv_import_device(other), nullptr) << "nobody's";
  EXPECT_NE(errno, 0);
  close(other);
  Child owner("context_owner");
  int number = -1;
  unsigned pd_handle = 0;
  ASSERT_EQ(sscanf(owner.hear().c_str(), "%d %u", &number, &pd_handle), 2);
  const std::string path = base::format("/proc/%d/fd/%d", static_cast<int>(owner.pid()), number);
  const int token = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(token, 0);
  {
    Fabric another;
    const int copy = fcntl(token, F_DUPFD_CLOEXEC, 0);
    EXPECT_EQ(ibv_import_device(copy), nullptr) << "of another fabric";
    EXPECT_EQ(errno, EINVAL);
    close(copy);
  }
  close(token);
  owner.say("end");
  EXPECT_EQ(owner.wait(), 0);
}

TEST(SoftMr, ImportingFromTheDead) {
  Fabric fabric;
  Child owner("context_owner");
  int number = -1;
  unsigned pd_handle = 0;
  ASSERT_EQ(sscanf(owner.hear().c_str(), "%d %u", &number, &pd_handle), 2);
  const std::string path = base::format("/proc/%d/fd/%d", static_cast<int>(owner.pid()), number);
  const int token = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const int second = fcntl(token, F_DUPFD_CLOEXEC, 0);
  verbs::ContextPtr context(ibv_import_device(token));
  ASSERT_TRUE(context) << soft::last_error().detail;
  owner.signal(SIGKILL);
  EXPECT_EQ(owner.wait(), 128 + SIGKILL);
  EXPECT_EQ(ibv_import_device(second), nullptr);
  EXPECT_EQ(errno, ENODEV);
  close(second);
  EXPECT_EQ(ibv_import_pd(context.get(), pd_handle), nullptr);
  EXPECT_EQ(errno, ENODEV);
}

}  // namespace
}  // namespace millrace::test
