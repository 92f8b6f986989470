#include <errno.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <string.h>

#include <string>

#include "base/clock.h"
#include "soft/provider.h"
#include "verbs/gid.h"
#include "verbs/open.h"
#include "verbs/owners.h"
#include "verbs/probe.h"
#include "verbs/system.h"

/** The system's library, the choice of a device, and of a GID. */
namespace millrace::verbs {
namespace {

/** A fabric of its own, so that opening the software device meets nobody. */
class SystemTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string fabric =
        base::format("verbs-%d-%llx", getpid(), static_cast<unsigned long long>(base::now_ns()));
    setenv("MILLRACE_FABRIC", fabric.c_str(), 1);
    unsetenv("MILLRACE_GID_INDEX");
  }
  void TearDown() override { (void)soft::clean_fabric(); }
};

TEST_F(SystemTest, AFileThatIsNotThereIsNamedWithTheRemedy) {
  Provider table;
  const SystemLibrary found = load_library("libibverbs-of-nobody.so.9", &table);
  EXPECT_EQ(found.provider, nullptr);
  EXPECT_NE(found.problem.find("libibverbs-of-nobody.so.9"), std::string::npos) << found.problem;
  EXPECT_NE(found.problem.find("apt-get install"), std::string::npos) << found.problem;
  EXPECT_FALSE(found.dropin);
}

TEST_F(SystemTest, ALibraryThatIsNoLibibverbsIsRefusedByTheFirstCallItLacks) {
  Provider table;
  const SystemLibrary found = load_library("libm.so.6", &table);
  EXPECT_EQ(found.provider, nullptr);
  EXPECT_NE(found.problem.find("ibv_get_device_list"), std::string::npos) << found.problem;
}

TEST_F(SystemTest, TheSystemsLibraryFillsTheWholeTable) {
  const SystemLibrary& library = system_library();
  if (library.provider == nullptr) GTEST_SKIP() << library.problem;
  EXPECT_FALSE(library.path.empty());
  EXPECT_NE(library.provider->create_qp, nullptr);
  EXPECT_NE(library.provider->create_qp, soft::provider()->create_qp);
  EXPECT_NE(library.provider->query_gid_table, nullptr);
  EXPECT_STREQ(library.provider->name, "system");
  EXPECT_EQ(&system_library(), &library);
}

TEST_F(SystemTest, TheListHasTheSoftwareDevicesFirstAndEachGoesBackToItsMaker) {
  for (int round = 0; round < 3; ++round) {
    int count = 0;
    ibv_device** const list = ibv_get_device_list(&count);
    ASSERT_NE(list, nullptr);
    ASSERT_GE(count, 1);
    EXPECT_STREQ(list[0]->name, "soft0");
    EXPECT_EQ(list[count], nullptr);
    EXPECT_EQ(provider_of(list[0]), soft::provider());
    for (int i = 0; i < count; ++i) {
      const bool soft = strncmp(list[i]->name, "soft", 4) == 0;
      EXPECT_EQ(provider_of(list[i]), soft ? soft::provider() : system_library().provider);
    }
    ibv_free_device_list(list);
  }
  ibv_free_device_list(nullptr);
}

TEST_F(SystemTest, SoftAndAutoAndNamesOpenWhatTheySay) {
  for (const char* name : {"", "soft", "soft0"}) {
    std::string note = "old";
    auto context = open_device(name, &note);
    ASSERT_TRUE(context.ok()) << context.status().detail;
    const ContextPtr owner(context.value());
    EXPECT_STREQ(owner->device->name, "soft0");
    EXPECT_EQ(note, "");
  }
  std::string note;
  auto best = open_device("auto", &note);
  ASSERT_TRUE(best.ok()) << best.status().detail;
  const ContextPtr owner(best.value());
  const bool soft = provider_of(owner->device) == soft::provider();
  // What was missing is said when, and only when, the software device stands in.
  EXPECT_EQ(note.empty(), !soft) << note;
  if (soft) {
    EXPECT_NE(note.find("The software device is used: "), std::string::npos);
  }
}

TEST_F(SystemTest, ADeviceThatIsNotThereIsAnErrorThatNamesThoseThatAre) {
  for (const char* name : {"soft7", "mlx5_77", "softly"}) {
    const auto opened = open_device(name);
    ASSERT_FALSE(opened.ok()) << name;
    EXPECT_EQ(opened.status().code, ENODEV);
    EXPECT_NE(opened.status().detail.find(name), std::string::npos) << opened.status().detail;
    EXPECT_NE(opened.status().detail.find("soft"), std::string::npos) << opened.status().detail;
  }
}

TEST_F(SystemTest, EveryDeviceIsProbedAndTheSoftwareDeviceCanMakeLanes) {
  const auto probes = probe_devices();
  ASSERT_TRUE(probes.ok());
  ASSERT_FALSE(probes.value().empty());
  const DeviceProbe& soft = probes.value().front();
  EXPECT_EQ(soft.name, "soft0");
  EXPECT_EQ(soft.provider, "soft");
  const char* const without = getenv("MILLRACE_SOFT_XRC");
  EXPECT_EQ(soft.can.xrc, without == nullptr || strcmp(without, "0") != 0);
  EXPECT_EQ(soft.missing(), "");
  ASSERT_EQ(soft.ports.size(), 1u);
  EXPECT_EQ(soft.ports[0].state, IBV_PORT_ACTIVE);
  EXPECT_GE(soft.ports[0].chosen_gid, 0);
  EXPECT_GT(soft.can.max_srq_wr, 0u);
  EXPECT_GT(memlock_limit(), 0u);
}

TEST_F(SystemTest, WhatKeepsLanesFromADeviceIsSaidInWords) {
  DeviceProbe probe;
  EXPECT_NE(probe.missing(), "");
  probe.can.rc = true;
  EXPECT_NE(probe.missing().find("shared receive queues"), std::string::npos);
  probe.can.basic_srq = true;
  EXPECT_NE(probe.missing().find("no port"), std::string::npos);
  probe.ports.emplace_back();
  probe.ports[0].state = IBV_PORT_DOWN;
  EXPECT_NE(probe.missing().find("down"), std::string::npos);
  probe.ports[0].state = IBV_PORT_ACTIVE;
  EXPECT_EQ(probe.missing(), "");
  probe.ports[0].ethernet = true;  // RoCE is addressed by GIDs alone
  EXPECT_NE(probe.missing().find("GID"), std::string::npos);
  probe.ports[0].chosen_gid = 1;
  EXPECT_EQ(probe.missing(), "");
}

Gid gid(uint32_t index, GidKind kind) { return {index, {}, kind}; }

TEST_F(SystemTest, OfSeveralGidsTheBestKindIsChosenAndThenTheLowestIndex) {
  const std::vector<Gid> all = {gid(0, GidKind::kRoceV1), gid(1, GidKind::kRoceV2LinkLocal),
                                gid(2, GidKind::kRoceV2Ipv4), gid(3, GidKind::kRoceV2Global),
                                gid(4, GidKind::kRoceV2Ipv4)};
  EXPECT_EQ(choose_gid(all, nullptr).value().index, 2u);
  EXPECT_EQ(choose_gid({all[0], all[1], all[3]}, nullptr).value().index, 3u);
  EXPECT_EQ(choose_gid({all[0], all[1]}, "").value().index, 1u);
  EXPECT_EQ(choose_gid({all[0]}, nullptr).value().index, 0u);
  EXPECT_EQ(choose_gid({}, nullptr).status().code, ENOENT);
}

TEST_F(SystemTest, TheVariableOverridesTheChoiceIfThereIsSuchAGid) {
  const std::vector<Gid> all = {gid(0, GidKind::kRoceV1), gid(2, GidKind::kRoceV2Ipv4)};
  EXPECT_EQ(choose_gid(all, "0").value().index, 0u);
  for (const char* wrong : {"1", "x", "2x", "-1", " 2"}) {
    const auto refused = choose_gid(all, wrong);
    ASSERT_FALSE(refused.ok()) << wrong;
    EXPECT_EQ(refused.status().code, EINVAL);
    EXPECT_NE(refused.status().detail.find("0, 2"), std::string::npos);
  }
}

TEST_F(SystemTest, TheGidsOfAnEthernetPortHaveKinds) {
  setenv("MILLRACE_SOFT_LINK", "ethernet", 1);
  auto opened = open_device("soft");
  unsetenv("MILLRACE_SOFT_LINK");
  ASSERT_TRUE(opened.ok()) << opened.status().detail;
  const ContextPtr context(opened.value());
  const std::vector<Gid> gids = list_gids(context.get(), 1);
  ASSERT_GE(gids.size(), 2u);
  const auto chosen = choose_gid(context.get(), 1);
  ASSERT_TRUE(chosen.ok());
  EXPECT_EQ(chosen.value().kind, GidKind::kRoceV2Ipv4) << gid_text(chosen.value().gid);
  EXPECT_EQ(gid_text(chosen.value().gid).rfind("::ffff:", 0), 0u);
}

}  // namespace
}  // namespace millrace::verbs
