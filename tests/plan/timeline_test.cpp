// Simulated steps equal closed forms: bubbles, hidden and exposed calls, links that are shared.
#include "colossal/plan/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/schedule/simulate.h"
#include "support/thrown_message.h"

namespace colossal::plan::timeline_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Kind = StepEvent::Kind;
using schedule::Action;
using schedule::PipelineOp;

constexpr uint8_t kForward = 1, kBackward = 2;  // comm::Phase
constexpr uint8_t kAllReduce = 0;               // comm::Collective

/// Costs in which a unit of every event takes a second: an operation, a byte.
class UnitCosts : public Costs {
 public:
  double product_seconds(const StepEvent& product) const override { return product.operations; }
  double attention_seconds(const StepEvent& attention) const override { return attention.operations; }
  double elementwise_seconds(double bytes) const override { return bytes; }
  /// Groups of ranks of one node of 4 have links of kind 0, others of kind 1.
  GroupPlace place_of(const std::vector<int>& ranks) const override {
    const auto [least, most] = std::minmax_element(ranks.begin(), ranks.end());
    const bool is_one_node = *least / 4 == *most / 4;
    return {.link = is_one_node ? 0 : 1, .ranks = static_cast<int64_t>(ranks.size()), .nodes = is_one_node ? 1 : 2};
  }
  double call_seconds(const StepEvent& call, const GroupPlace&) const override { return call.bytes; }
  double host_copy_seconds(double bytes) const override { return bytes; }
  double disk_seconds(double bytes) const override { return bytes; }
};

StepTimeline simulate(const std::vector<Role>& roles) { return simulate_step(roles, UnitCosts()); }

StepEvent product(double seconds, uint8_t phase = kForward) {
  return {.kind = Kind::Product, .phase = phase, .operations = seconds};
}
StepEvent call(int group, double seconds) {
  return {.kind = Kind::Call, .collective = kAllReduce, .phase = kBackward, .group = group, .bytes = seconds};
}
StepEvent wait(int call) { return {.kind = Kind::Wait, .phase = kBackward, .call = call}; }
StepEvent message(uint8_t collective, int peer, double seconds, int group = 0) {
  return {.kind = Kind::Call, .collective = collective, .group = group, .peer = peer, .bytes = seconds};
}

StepEvents events(std::vector<StepEvent> list, std::vector<StepEvents::Group> groups = {}) {
  StepEvents result;
  result.list = std::move(list);
  result.groups = std::move(groups);
  return result;
}

/// Returns the tolerance of a sum of `count` times, each at most `seconds`.
double rounding(size_t count, double seconds) {
  return 4 * std::numeric_limits<double>::epsilon() * static_cast<double>(count) * seconds;
}

/// Checks that the parts of every role add up to the step, and that the spans of a stream do not overlap.
void check_conservation(const std::vector<Role>& roles, const StepTimeline& step) {
  ASSERT_EQ(step.roles.size(), roles.size());
  for (size_t r = 0; r < roles.size(); ++r) {
    const RoleTimeline& role = step.roles[r];
    const double tolerance = rounding(roles[r].events.list.size() + 4, step.seconds);
    EXPECT_NEAR(role.parts.sum(), step.seconds, tolerance) << roles[r].name;
    std::vector<double> ends(role.streams.size(), 0.0);
    double computing = 0;
    for (const StreamSpan& span : role.spans) {
      EXPECT_LE(span.end, step.seconds + tolerance);
      if (span.stream != 0) continue;  // messages in both directions share the stream of their group
      EXPECT_GE(span.begin, ends[0] - tolerance) << roles[r].name << ", event " << span.event;
      ends[0] = span.end;
      if (span.kind != StreamSpan::Kind::Wait) computing += span.end - span.begin;
    }
    EXPECT_NEAR(computing, role.parts.compute + role.parts.optimizer, tolerance) << roles[r].name;
  }
}

/// Returns the events of a rank of a pipeline, with messages of `transfer` seconds.
StepEvents pipeline_rank(const schedule::Schedule& plan, int rank, const schedule::OpCost& cost, double transfer) {
  StepEvents result;
  std::vector<int> ranks;
  for (int r = 0; r < plan.placement.ranks(); ++r) ranks.push_back(r);
  result.groups = {{"pipeline", ranks}};
  int calls = 0;
  std::vector<std::pair<PipelineOp, int>> received;
  for (const PipelineOp& op : plan.ranks[static_cast<size_t>(rank)]) {
    if (schedule::is_send(op.action)) {
      result.list.push_back(message(StepEvent::kSend, op.peer, transfer));
      ++calls;
    } else if (schedule::is_receive(op.action)) {
      result.list.push_back(message(StepEvent::kReceive, op.peer, 0));
      received.emplace_back(op, calls++);
    } else if (schedule::is_compute(op.action)) {
      for (const auto& [from, number] : received) {
        const bool is_forward = from.action == Action::ReceiveForward;
        if (from.micro_batch == op.micro_batch && from.chunk == op.chunk && op.action != Action::BackwardWeight &&
            is_forward == (op.action == Action::Forward))
          result.list.push_back(wait(number));
      }
      StepEvent work = product(cost(rank, op), op.action == Action::Forward ? kForward : kBackward);
      work.micro_batch = op.micro_batch;
      result.list.push_back(work);
    }
  }
  return result;
}

std::vector<Role> pipeline(const schedule::Schedule& plan, const schedule::Costs& costs, double transfer = 0) {
  const schedule::OpCost cost = [&](int rank, const PipelineOp& op) {
    return schedule::cost_of(costs, plan.placement, rank, op);
  };
  std::vector<Role> roles;
  for (int r = 0; r < plan.placement.ranks(); ++r)
    roles.push_back({.name = concat("stage ", r), .ranks = {r}, .events = pipeline_rank(plan, r, cost, transfer)});
  return roles;
}

TEST(Timeline, HasTheBubbleOf1F1B) {
  for (int p = 1; p <= 6; ++p) {
    for (const int m : {p, 2 * p, 3 * p + 1}) {
      const auto plan = schedule::make_schedule({.name = "1f1b", .stages = p, .micro_batches = m});
      const std::vector<Role> roles = pipeline(plan, {});
      const StepTimeline step = simulate(roles);
      const double of_a_micro_batch = 3;  // forward 1, backward 2
      EXPECT_NEAR(step.seconds, (m + p - 1) * of_a_micro_batch, rounding(6 * static_cast<size_t>(m), step.seconds));
      EXPECT_NEAR(step.parts().bubble / step.seconds, (p - 1.0) / (m + p - 1), rounding(6 * static_cast<size_t>(m), 1));
      EXPECT_EQ(step.parts().communication, 0);
      check_conservation(roles, step);
    }
  }
}

// A message that takes no time delays no rank more than the simulation of schedules says.
TEST(Timeline, EqualsTheSimulationOfSchedules) {
  const schedule::Costs costs{.forward = 1, .backward_input = 1.25, .backward_weight = 0.75};
  for (const std::string name : {"gpipe", "1f1b", "interleaved", "zero-bubble-h1", "zero-bubble-v"}) {
    const auto plan = schedule::make_schedule({.name = name, .stages = 4, .micro_batches = 8, .costs = costs});
    const schedule::Timeline want = schedule::simulate(plan, costs);
    const std::vector<Role> roles = pipeline(plan, costs);
    const StepTimeline step = simulate(roles);
    double begin = want.events.empty() ? 0 : want.events.front().begin;
    for (const schedule::Event& event : want.events)
      if (schedule::is_compute(event.step.action)) begin = std::min(begin, event.begin);
    EXPECT_NEAR(step.seconds, begin + want.makespan, rounding(want.events.size(), want.makespan)) << name;
    check_conservation(roles, step);
  }
}

TEST(Timeline, CountsMessagesOfAPipeline) {
  // Two stages, one micro-batch: forward, message, forward and backward, message, backward.
  const auto plan = schedule::make_schedule({.name = "1f1b", .stages = 2, .micro_batches = 1});
  const StepTimeline step = simulate(pipeline(plan, {}, 0.5));
  EXPECT_DOUBLE_EQ(step.seconds, 1 + 0.5 + 3 + 0.5 + 2);
  EXPECT_DOUBLE_EQ(step.roles[0].parts.communication, 0.5);  // the gradient; the forward message is under way in 3 s
  EXPECT_DOUBLE_EQ(step.roles[0].parts.bubble, 0.5 + 3);
  EXPECT_DOUBLE_EQ(step.roles[1].parts.communication, 0.5 + 0.5);  // it ends when its message has arrived
  EXPECT_DOUBLE_EQ(step.roles[1].parts.bubble, 1 + 2);
}

// Backward of 4 layers, each 2 s, and after each an all_reduce of its gradients.
std::vector<Role> overlapped(double reduce_seconds) {
  std::vector<StepEvent> list{product(4)};
  for (int layer = 0; layer < 4; ++layer) {
    list.push_back(product(2, kBackward));
    list.push_back(call(0, reduce_seconds));
  }
  for (int layer = 0; layer < 4; ++layer) list.push_back(wait(layer));
  return {{.name = "all ranks", .ranks = {0, 1}, .events = events(list, {{"data", {0, 1}}})}};
}

TEST(Timeline, HidesAllReducesBehindBackward) {
  for (const double seconds : {0.5, 2.0}) {  // all but the last are hidden
    const StepTimeline step = simulate(overlapped(seconds));
    EXPECT_DOUBLE_EQ(step.seconds, 4 + 4 * 2 + seconds);
    EXPECT_DOUBLE_EQ(step.parts().compute, 12);
    EXPECT_DOUBLE_EQ(step.parts().communication, seconds);
  }
  const StepTimeline slow = simulate(overlapped(3));  // partly: the first begins after the first layer
  EXPECT_DOUBLE_EQ(slow.seconds, 4 + 2 + 4 * 3);
  EXPECT_DOUBLE_EQ(slow.parts().communication, 6);
  EXPECT_EQ(slow.parts().bubble, 0);
  check_conservation(overlapped(3), slow);
}

TEST(Timeline, AddsBlockingCallsInFull) {
  const std::vector<Role> roles{
      {.name = "all ranks",
       .ranks = {0, 1},
       .events =
           events({product(1), call(0, 0.25), wait(0), product(1), call(0, 0.25), wait(1)}, {{"tensor", {0, 1}}})}};
  const StepTimeline step = simulate(roles);
  EXPECT_DOUBLE_EQ(step.seconds, 2.5);
  EXPECT_DOUBLE_EQ(step.parts().communication, 0.5);
}

/// Two groups begin a call of 3 s at once.
StepTimeline two_calls(const std::vector<int>& first, const std::vector<int>& second) {
  std::vector<int> ranks(16);
  for (int r = 0; r < 16; ++r) ranks[static_cast<size_t>(r)] = r;
  return simulate({{.name = "all ranks",
                    .ranks = ranks,
                    .events = events({call(0, 3), call(1, 3), wait(0), wait(1)}, {{"a", first}, {"b", second}})}});
}

TEST(Timeline, CallsOnOneLinkTakeTwiceAsLong) {
  EXPECT_DOUBLE_EQ(two_calls({0, 1}, {0, 2}).seconds, 6);
  EXPECT_DOUBLE_EQ(two_calls({0, 4}, {0, 8}).seconds, 6);
  EXPECT_DOUBLE_EQ(two_calls({0, 1}, {0, 8}).seconds, 3) << "inside the node, and between nodes";
}

TEST(Timeline, ReturnsTheWholeLinkToALongerCall) {
  const StepTimeline step =
      simulate({{.name = "all ranks",
                 .ranks = {0, 1, 2, 3},
                 .events = events({call(0, 1), call(1, 3), wait(0), wait(1)}, {{"a", {0, 1}}, {"b", {0, 2}}})}});
  EXPECT_DOUBLE_EQ(step.seconds, 4);  // 2 s at half speed, then the other 2 s at full speed
  const auto end_of = [&](int event) {
    for (const StreamSpan& span : step.roles[0].spans)
      if (span.event == event && span.stream != 0) return span.end;
    return -1.0;
  };
  EXPECT_DOUBLE_EQ(end_of(0), 2);
  EXPECT_DOUBLE_EQ(end_of(1), 4);
}

TEST(Timeline, QueuesCallsOfOneGroup) {
  const StepTimeline step =
      simulate({{.name = "all ranks",
                 .ranks = {0, 1},
                 .events = events({call(0, 1), call(0, 3), wait(0), product(1), wait(1)}, {{"data", {0, 1}}})}});
  EXPECT_DOUBLE_EQ(step.seconds, 4);
  EXPECT_DOUBLE_EQ(step.parts().communication, 3);
}

TEST(Timeline, WaitsForTheLatestMemberOfACollective) {
  const StepEvents::Group all{"all", {0, 1}};
  const std::vector<Role> roles{
      {.name = "early", .ranks = {0}, .events = events({product(1), call(0, 2), wait(0)}, {all})},
      {.name = "late", .ranks = {1}, .events = events({product(4), call(0, 2), wait(0)}, {all})}};
  const StepTimeline step = simulate(roles);
  EXPECT_DOUBLE_EQ(step.seconds, 6);
  EXPECT_DOUBLE_EQ(step.roles[0].parts.bubble, 3);
  EXPECT_DOUBLE_EQ(step.roles[0].parts.communication, 2);
  EXPECT_DOUBLE_EQ(step.roles[1].parts.bubble, 0);
  EXPECT_EQ(step.busiest, 1u);
  check_conservation(roles, step);
}

TEST(Timeline, OverlapsCopiesAndTheDiskWithWork) {
  const StepEvent copy{.kind = Kind::HostCopy, .bytes = 2}, read{.kind = Kind::Disk, .bytes = 5};
  StepEvent update{.kind = Kind::Elementwise, .phase = StepEvent::kOptimizer, .read = 1, .written = 0.5};
  Role role{.name = "all ranks",
            .ranks = {0},
            .events = events({copy, copy, read, product(3), wait(0), wait(1), wait(2), update}),
            .input_seconds = 1};
  const StepTimeline step = simulate({role});
  EXPECT_DOUBLE_EQ(step.seconds, 1 + 5 + 1.5);  // the copies take 4 s, the disk takes 5
  EXPECT_DOUBLE_EQ(step.parts().compute, 3);
  EXPECT_DOUBLE_EQ(step.parts().communication, 2);
  EXPECT_DOUBLE_EQ(step.parts().optimizer, 1.5);
  EXPECT_DOUBLE_EQ(step.parts().input, 1);
  EXPECT_THAT(step.roles[0].streams, ElementsAre("compute", "host copies", "disk"));
  check_conservation({role}, step);
}

TEST(Timeline, PassesMessagesAroundARingOfOneRole) {
  const int next = 1, before = 3;
  const std::vector<Role> roles{
      {.name = "all ranks",
       .ranks = {0, 1, 2, 3},
       .events = events({message(StepEvent::kSend, next, 2), message(StepEvent::kReceive, before, 0), product(1),
                         wait(1), product(1)},
                        {{"sequence", {0, 1, 2, 3}}})}};
  const StepTimeline step = simulate(roles);
  EXPECT_DOUBLE_EQ(step.seconds, 3);
  EXPECT_DOUBLE_EQ(step.parts().communication, 1);
}

TEST(Timeline, GivesEqualTimesTwice) {
  const auto plan = schedule::make_schedule({.name = "zero-bubble-v", .stages = 4, .micro_batches = 8});
  const std::vector<Role> roles = pipeline(plan, {}, 0.3);
  const StepTimeline one = simulate(roles), other = simulate(roles);
  EXPECT_EQ(one.seconds, other.seconds);
  for (size_t r = 0; r < roles.size(); ++r) {
    ASSERT_EQ(one.roles[r].spans.size(), other.roles[r].spans.size());
    for (size_t i = 0; i < one.roles[r].spans.size(); ++i) {
      EXPECT_EQ(one.roles[r].spans[i].begin, other.roles[r].spans[i].begin);
      EXPECT_EQ(one.roles[r].spans[i].end, other.roles[r].spans[i].end);
    }
  }
}

TEST(Timeline, JoinsNeighbouringWorkOfOnePass) {
  StepEvent second = product(1);
  second.micro_batch = 1;
  const StepTimeline step =
      simulate({{.name = "rank", .ranks = {0}, .events = events({product(1), product(2), second})}});
  ASSERT_EQ(step.roles[0].spans.size(), 2u);
  EXPECT_EQ(step.roles[0].spans[0].end, 3);
  EXPECT_EQ(step.roles[0].spans[1].micro_batch, 1);
}

std::string error_of(const std::vector<Role>& roles) {
  return colossal::test::thrown_message([&] { simulate(roles); });
}

TEST(Timeline, RefusesRunsThatDoNotFitTogether) {
  const StepEvents::Group all{"data", {0, 1}};
  EXPECT_THAT(error_of({}), HasSubstr("[timeline] a run must have at least one role"));
  EXPECT_THAT(error_of({{.name = "a", .ranks = {0}}, {.name = "b", .ranks = {0}}}),
              HasSubstr("each rank must be in one role: got rank 0 in a and b"));
  EXPECT_THAT(error_of({{.name = "a", .ranks = {0}, .events = events({call(0, 1)}, {all})}}),
              HasSubstr("rank 1 of group data of a has none"));
  EXPECT_THAT(error_of({{.name = "a", .ranks = {0}, .events = events({wait(0)})}}),
              HasSubstr("a wait must name a call before it: got call 0 of 0 in role a, event 0"));
  EXPECT_THAT(error_of({{.name = "a", .ranks = {0}, .events = events({call(2, 1)})}}),
              HasSubstr("a call must name a group of its list: got group 2 of 0"));
  EXPECT_THAT(error_of({{.name = "a", .ranks = {0}, .events = events({product(-1)})}}),
              HasSubstr("costs must be finite and not negative: got -1 s for a"));
  EXPECT_THAT(error_of({{.name = "a", .ranks = {0}, .events = events({call(0, 1), wait(0)}, {all})},
                        {.name = "b", .ranks = {1}, .events = events({}, {all})}}),
              HasSubstr("role a waits forever for a call of group data, event 1"));
}

}  // namespace
}  // namespace colossal::plan::timeline_test
