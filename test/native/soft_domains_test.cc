// Protection, thread and parent domains (ibv_alloc_td(3), ibv_alloc_parent_domain(3)).
#include "soft_support.h"

namespace millrace::test {
namespace {

inline int dealloc_td(ibv_td* td) { return ibv_dealloc_td(td); }
using TdPtr = verbs::Owner<ibv_td, dealloc_td>;

TEST(SoftDomains, NothingGoesWhileItIsUsed) {
  Fabric fabric;
  Endpoint::Options options;
  options.receive = options.send = false;
  Endpoint end(options);
  ibv_td_init_attr td_attr = {};
  td_attr.comp_mask = 1;
  EXPECT_EQ(ibv_alloc_td(end.context.get(), &td_attr), nullptr);
  EXPECT_EQ(errno, EINVAL);
  td_attr.comp_mask = 0;
  TdPtr td(ibv_alloc_td(end.context.get(), &td_attr));
  ASSERT_TRUE(td);
  ibv_parent_domain_init_attr attr = {};
  attr.pd = end.pd.get();
  attr.td = td.get();
  verbs::PdPtr parent(ibv_alloc_parent_domain(end.context.get(), &attr));
  ASSERT_TRUE(parent) << soft::last_error().detail;
  EXPECT_NE(parent.get(), end.pd.get());
  EXPECT_EQ(td.close(), EBUSY);
  EXPECT_EQ(end.pd.close(), EBUSY);
  std::vector<char> memory(64);
  verbs::MrPtr mr(ibv_reg_mr(parent.get(), memory.data(), 64, IBV_ACCESS_LOCAL_WRITE));
  ASSERT_TRUE(mr);
  EXPECT_EQ(mr->pd, parent.get());
  EXPECT_EQ(parent.close(), EBUSY);
  EXPECT_EQ(ibv_close_device(end.context.get()), EBUSY);
  EXPECT_EQ(mr.close(), 0);
  EXPECT_EQ(parent.close(), 0);
  EXPECT_EQ(td.close(), 0);
  EXPECT_EQ(end.pd.close(), 0);
}

TEST(SoftDomains, ParentDomainsThatCanNotBe) {
  Fabric fabric;
  Endpoint::Options options;
  options.receive = options.send = false;
  Endpoint end(options);
  Endpoint other(options);
  const auto refused = [&](const std::function<void(ibv_parent_domain_init_attr&)>& change) {
    ibv_parent_domain_init_attr attr = {};
    attr.pd = end.pd.get();
    change(attr);
    errno = 0;
    EXPECT_EQ(ibv_alloc_parent_domain(end.context.get(), &attr), nullptr);
    EXPECT_EQ(errno, EINVAL);
  };
  refused([](auto& attr) { attr.pd = nullptr; });
  refused([&](auto& attr) { attr.pd = other.pd.get(); });
  refused([](auto& attr) { attr.comp_mask = 1u << 9; });
  refused([](auto& attr) { attr.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS; });
  ibv_parent_domain_init_attr attr = {};
  attr.pd = end.pd.get();
  verbs::PdPtr parent(ibv_alloc_parent_domain(end.context.get(), &attr));
  ASSERT_TRUE(parent);
  refused([&](auto& bad) { bad.pd = parent.get(); });
}

int allocations = 0;
void* allocate(ibv_pd*, void*, size_t, size_t, uint64_t) {
  ++allocations;
  return IBV_ALLOCATOR_USE_DEFAULT;
}
void release(ibv_pd*, void*, void*, uint64_t) { ++allocations; }

// "A parent domain is completely interchangeable with the PD used to create it": keys of one are
// good for queues of the other.
TEST(SoftDomains, AParentDomainIsItsPd) {
  Fabric fabric;
  Endpoint end;
  ibv_parent_domain_init_attr attr = {};
  attr.pd = end.pd.get();
  attr.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
  attr.alloc = allocate;
  attr.free = release;
  attr.pd_context = &end;
  verbs::PdPtr parent(ibv_alloc_parent_domain(end.context.get(), &attr));
  ASSERT_TRUE(parent);
  ASSERT_EQ(end.connect(end.target_qpn()), 0);
  // The QP is in the PD, the region in the parent domain.
  end.send_mr = verbs::MrPtr(
      ibv_reg_mr(parent.get(), end.buffer, end.send_memory.size(), IBV_ACCESS_LOCAL_WRITE));
  ASSERT_TRUE(end.send_mr);
  strcpy(reinterpret_cast<char*>(end.buffer), "through the parent");
  ASSERT_EQ(end.send(end.srqn(), end.buffer, 19), 0);
  ibv_wc wc = {};
  ASSERT_TRUE(end.poll_sent(&wc));
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  ASSERT_TRUE(end.poll(&wc));
  EXPECT_STREQ(reinterpret_cast<char*>(end.slot(static_cast<uint32_t>(wc.wr_id))),
               "through the parent");
  EXPECT_EQ(allocations, 0) << "queues lie in shared memory, where callers can't put them";
  end.send_mr = verbs::MrPtr();
}

TEST(SoftDomains, PdsRunOutWithAReasonAndComeBack) {
  Fabric fabric;
  Endpoint::Options options;
  options.receive = options.send = false;
  Endpoint end(options);
  ibv_device_attr device = {};
  ASSERT_EQ(ibv_query_device(end.context.get(), &device), 0);
  std::vector<verbs::PdPtr> pds;
  for (int i = 1; i < device.max_pd; ++i) {
    pds.emplace_back(ibv_alloc_pd(end.context.get()));
    ASSERT_TRUE(pds.back()) << i;
  }
  EXPECT_EQ(ibv_alloc_pd(end.context.get()), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  const uint32_t handle = pds[5]->handle;
  EXPECT_EQ(pds[5].close(), 0);
  verbs::PdPtr again(ibv_alloc_pd(end.context.get()));
  ASSERT_TRUE(again);
  EXPECT_NE(again->handle, handle) << "a PD's number does not come back";
}

}  // namespace
}  // namespace millrace::test
