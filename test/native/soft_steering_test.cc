// Rules that TypeScript compiled (src/steering/compile.ts), read with the structures of verbs.h,
// and random frames: the flow table gives each to whom the plain matcher does, and finds the same
// headers. The vectors are made by test/unit/steering-vectors.test.ts.
#include <algorithm>
#include <fstream>
#include <sstream>

#include "soft/flow_index.h"
#include "soft/flow_spec.h"
#include "soft_support.h"

namespace millrace::test {
namespace {

using Bytes = std::vector<uint8_t>;

Bytes unhex(const std::string& text) {
  Bytes out(text.size() / 2);
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<uint8_t>(std::stoul(text.substr(2 * i, 2), nullptr, 16));
  return out;
}

/** Whoever makes the flow puts its counters in place of the null pointer. */
void put_counters(Bytes* attr, ibv_counters* counters) {
  size_t at = sizeof(ibv_flow_attr);
  while (at < attr->size()) {
    ibv_flow_spec spec = {};
    memcpy(&spec.hdr, attr->data() + at, sizeof(spec.hdr));
    if (spec.hdr.type == IBV_FLOW_SPEC_ACTION_COUNT) {
      memcpy(attr->data() + at + offsetof(ibv_flow_spec_counter_action, counters), &counters,
             sizeof(counters));
    }
    ASSERT_GT(spec.hdr.size, 0);
    at += spec.hdr.size;
  }
  ASSERT_EQ(at, attr->size());
}

class Vectors {
 public:
  void rule(const std::string& number, const std::string& hex) {
    Bytes bytes = unhex(hex);
    put_counters(&bytes, &counters_);
    ibv_flow_attr header;
    memcpy(&header, bytes.data(), sizeof(header));
    EXPECT_EQ(header.comp_mask, 0u);
    EXPECT_EQ(header.size, bytes.size());
    EXPECT_EQ(header.port, 1);
    const auto* attr = reinterpret_cast<const ibv_flow_attr*>(bytes.data());
    base::Result<soft::FlowRequest> read = soft::read_flow(attr, bytes.size());
    ASSERT_TRUE(read.ok()) << read.status().detail << " " << hex;
    soft::FlowRule& rule = read.value().rule;
    rule.order = rules_.size();
    rule.qpn = static_cast<uint32_t>(std::stoul(number));
    rules_.push_back(rule);
    ++rules;
  }
  void frame(const std::string& hex, const std::string& headers, const std::string& fate,
             const std::vector<uint32_t>& wanted) {
    const Bytes bytes = unhex(hex), known = unhex(headers);
    soft::PacketFields fields;
    soft::PacketLayout layout;
    ASSERT_TRUE(soft::parse_frame(bytes.data(), bytes.size(), &fields, &layout));
    EXPECT_EQ(memcmp(&fields.outer, known.data(), known.size()), 0) << hex;
    soft::FlowIndex::Result result;
    const soft::FlowIndex index(rules_);  // what wins is a part of it
    index.match(fields, soft::is_multicast_frame(bytes.data()), &result);
    std::vector<uint32_t> who;
    for (const soft::FlowEntry* rule : result.winners) who.push_back(rule->qpn);
    EXPECT_EQ(who, wanted) << hex;
    EXPECT_EQ(result.dropped_by != nullptr ? "dropped" : "passed", fate) << hex;
    ++frames;
  }
  void clear() { rules_.clear(); }

  int rules = 0;
  int frames = 0;

 private:
  std::vector<soft::FlowRule> rules_;
  ibv_counters counters_ = {};
};

TEST(SoftSteering, TheFlowTableDoesWhatTheRulesSay) {
  std::ifstream file(std::string(MILLRACE_TEST_SOURCE) + "/steering_vectors.txt");
  ASSERT_TRUE(file.good());
  Vectors vectors;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string kind, first, second, fate;
    words >> kind >> first >> second >> fate;
    if (kind == "set") vectors.clear();
    if (kind == "rule") vectors.rule(first, second);
    if (kind != "frame") continue;
    std::vector<uint32_t> wanted;
    for (uint32_t number; words >> number;) wanted.push_back(number);
    vectors.frame(first, second, fate, wanted);
  }
  EXPECT_GT(vectors.rules, 100);
  EXPECT_GT(vectors.frames, 400);
}

}  // namespace
}  // namespace millrace::test
