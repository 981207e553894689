// More bandwidth and the time of a step, on random lists of events.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "colossal/base/collective.h"
#include "colossal/plan/timeline.h"

namespace colossal::plan::bandwidth_test {
namespace {

/// Costs in which a unit of work takes a second, and a byte 1 / bandwidth. With shared links all calls of a rank use
/// one link; otherwise each group has links of its own.
class ScaledCosts : public Costs {
 public:
  ScaledCosts(double bandwidth, bool shares) : bandwidth_(bandwidth), shares_(shares) {}
  double product_seconds(const StepEvent& product) const override { return product.operations; }
  double attention_seconds(const StepEvent& attention) const override { return attention.operations; }
  double elementwise_seconds(double bytes) const override { return bytes; }
  GroupPlace place_of(const std::vector<int>& ranks) const override {
    int link = 0;
    if (!shares_)
      for (const int rank : ranks) link |= 1 << rank;
    return {.link = link, .ranks = static_cast<int64_t>(ranks.size())};
  }
  double call_seconds(const StepEvent& call, const GroupPlace&) const override { return call.bytes / bandwidth_; }
  double host_copy_seconds(double bytes) const override { return bytes; }
  double disk_seconds(double bytes) const override { return bytes; }

 private:
  double bandwidth_;
  bool shares_;
};

/// Returns roles of one rank each that compute, call groups and wait, in one order for all of them, so that they end.
std::vector<Role> random_roles(std::mt19937& random) {
  const auto draw = [&](int least, int most) { return std::uniform_int_distribution<int>(least, most)(random); };
  const int count = draw(1, 4);
  std::vector<Role> roles;
  for (int r = 0; r < count; ++r) roles.push_back({.name = "rank " + std::to_string(r), .ranks = {r}});
  std::vector<std::vector<int>> groups;
  for (int g = draw(1, 4); g > 0; --g) {
    std::vector<int> ranks;
    for (int r = 0; r < count; ++r)
      if (draw(0, 2) > 0) ranks.push_back(r);
    if (ranks.empty()) ranks = {0};
    if (std::find(groups.begin(), groups.end(), ranks) == groups.end()) groups.push_back(ranks);
  }
  std::vector<int> calls(count, 0), waited(count, 0);
  for (int i = draw(4, 30); i > 0; --i) {
    const int kind = draw(0, 2);
    if (kind == 0) {
      const std::vector<int>& ranks = groups[static_cast<size_t>(draw(0, static_cast<int>(groups.size()) - 1))];
      const double bytes = draw(0, 20);
      for (const int r : ranks) {
        StepEvents& events = roles[static_cast<size_t>(r)].events;
        const int32_t group = events.index_of({"group", ranks});
        events.list.push_back(
            {.collective = static_cast<uint8_t>(Collective::AllReduce), .group = group, .bytes = bytes});
        ++calls[r];
      }
      continue;
    }
    const int r = draw(0, count - 1);
    auto& list = roles[static_cast<size_t>(r)].events.list;
    if (kind == 1) list.push_back({.kind = StepEvent::Kind::Product, .operations = static_cast<double>(draw(0, 20))});
    if (kind == 2 && waited[r] < calls[r]) {
      waited[r] = draw(waited[r], calls[r] - 1);
      list.push_back({.kind = StepEvent::Kind::Wait, .call = waited[r]++});
    }
  }
  return roles;
}

double step_seconds(const std::vector<Role>& roles, double bandwidth, bool shares) {
  return simulate_step(roles, ScaledCosts(bandwidth, shares)).seconds;
}

/// Without shared links a step is a longest path, and no path grows as its parts shrink.
TEST(Bandwidth, NeverMakesAStepSlowerWithoutSharedLinks) {
  std::mt19937 random(1);
  int faster = 0;
  for (int i = 0; i < 2000; ++i) {
    const std::vector<Role> roles = random_roles(random);
    const double before = step_seconds(roles, 1, false), after = step_seconds(roles, 2, false);
    EXPECT_LE(after, before) << i;
    faster += after < before ? 1 : 0;
  }
  EXPECT_GT(faster, 1000) << "the bandwidth must matter, or nothing is tested";
}

/// Links that are shared have an anomaly, as list scheduling has: a call that is on no critical path begins earlier,
/// and then takes its part of the link from one that is.
TEST(Bandwidth, CanMakeAStepSlowerOnSharedLinks) {
  const auto call = [](int32_t group, double bytes) {
    return StepEvent{.collective = static_cast<uint8_t>(Collective::AllReduce), .group = group, .bytes = bytes};
  };
  const auto wait = [](int32_t number) { return StepEvent{.kind = StepEvent::Kind::Wait, .call = number}; };
  const auto compute = [](double seconds) {
    return StepEvent{.kind = StepEvent::Kind::Product, .operations = seconds};
  };
  const StepEvents::Group own{"own", {0}}, first{"first", {0, 1}}, second{"second", {0, 1}}, critical{"critical", {1}};
  std::vector<Role> roles{{.name = "rank 0", .ranks = {0}}, {.name = "rank 1", .ranks = {1}}};
  roles[0].events = {{call(0, 24), wait(0), call(1, 10), call(2, 10)}, {own, first, second}};
  roles[1].events = {{call(0, 10), call(1, 10), compute(12), call(2, 2), wait(2), compute(100)},
                     {first, second, critical}};
  EXPECT_EQ(step_seconds(roles, 1, true), 12 + 2 + 100) << "the shared calls begin after 24 s";
  EXPECT_EQ(step_seconds(roles, 2, true), 12 + 3 * 1 + 100) << "they begin after 12 s, and three calls share the link";
}

TEST(Bandwidth, SeldomMakesAStepSlowerOnSharedLinks) {
  constexpr int kSteps = 20000;
  std::mt19937 random(2);
  int slower = 0;
  for (int i = 0; i < kSteps; ++i) {
    const std::vector<Role> roles = random_roles(random);
    slower += step_seconds(roles, 2, true) > step_seconds(roles, 1, true) * (1 + 1e-12) ? 1 : 0;
  }
  EXPECT_LT(slower, kSteps / 1000);
}

}  // namespace
}  // namespace colossal::plan::bandwidth_test
