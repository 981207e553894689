// The checker accepts every schedule of the families and refuses broken ones, each fault with its rule.
#include "colossal/schedule/check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "colossal/base/error.h"
#include "schedule/orders.h"
#include "support/thrown_message.h"

namespace colossal::schedule::check_test {
namespace {

using ::testing::HasSubstr;

std::string fault_of(const Schedule& schedule) {
  try {
    check(schedule);
  } catch (const Error& error) {
    EXPECT_EQ(error.component(), "pipeline");
    return error.message();
  }
  return "";
}

/// A schedule after one change to the list of one rank.
Schedule broken(Schedule schedule, int rank, const std::function<void(std::vector<PipelineOp>&)>& change) {
  EXPECT_EQ(fault_of(schedule), "");
  change(schedule.ranks[rank]);
  return schedule;
}

auto find(std::vector<PipelineOp>& steps, Action action, int micro_batch, int chunk = 0) {
  const auto found = std::find_if(steps.begin(), steps.end(), [&](const PipelineOp& step) {
    return step.action == action && step.micro_batch == micro_batch && step.chunk == chunk;
  });
  EXPECT_NE(found, steps.end());
  return found;
}

std::function<void(std::vector<PipelineOp>&)> without(Action action, int micro_batch, int chunk = 0) {
  return [=](std::vector<PipelineOp>& steps) { steps.erase(find(steps, action, micro_batch, chunk)); };
}

std::function<void(std::vector<PipelineOp>&)> swapped(Action a, int i, Action b, int j) {
  return [=](std::vector<PipelineOp>& steps) { std::iter_swap(find(steps, a, i), find(steps, b, j)); };
}

TEST(Check, RefusesMissingSteps) {
  const Schedule one = make("1f1b", 4, 4), split = make("zero-bubble-h1", 4, 4);
  EXPECT_EQ(fault_of(broken(one, 2, without(Action::ReceiveForward, 1))),
            "1f1b, rank 2, step 3 (F1): its hidden state is missing: no ReceiveForward before it");
  EXPECT_THAT(fault_of(broken(one, 2, without(Action::ReceiveBackward, 1))),
              HasSubstr("(B1): its gradient is missing: no ReceiveBackward before it"));
  EXPECT_EQ(fault_of(broken(one, 1, without(Action::SendForward, 3))),
            "1f1b, from rank 1 to rank 2: receive 3 waits for the hidden state of micro-batch 3 for stage 2, which is "
            "never sent");
  EXPECT_EQ(fault_of(broken(one, 1, [](auto& steps) { steps.erase(find(steps, Action::Backward, 3)); })),
            "1f1b, rank 1, step 22 (SendBackward 3 to 0): is before its backward");
  EXPECT_EQ(fault_of(broken(split, 3, without(Action::BackwardWeight, 2))), "zero-bubble-h1, rank 3: W2 is missing");
  EXPECT_EQ(fault_of(broken(one, 0, without(Action::Reduce, -1))), "1f1b, rank 0: Reduce is missing");
  EXPECT_EQ(fault_of(broken(one, 0, [](auto& steps) { steps.pop_back(); })), "1f1b, rank 0: Update is missing");
  Schedule short_one = one;
  short_one.ranks.pop_back();
  EXPECT_EQ(fault_of(short_one), "1f1b has 3 lists for 4 ranks");
}

TEST(Check, RefusesSwappedPairs) {
  const Schedule one = make("1f1b", 4, 4), split = make("zero-bubble-h1", 4, 4);
  EXPECT_THAT(fault_of(broken(one, 3, swapped(Action::Forward, 1, Action::Backward, 1))),
              HasSubstr("(B1): is before its Forward"));
  EXPECT_THAT(fault_of(broken(split, 3, swapped(Action::BackwardInput, 3, Action::BackwardWeight, 3))),
              HasSubstr("(W3): is before its BackwardInput"));
  EXPECT_THAT(fault_of(broken(one, 0, swapped(Action::Forward, 0, Action::SendForward, 0))),
              HasSubstr("step 0 (SendForward 0 to 1): is before its Forward"));
  // Both are received in time, but not in the order in which they are sent.
  const auto received_early = [](std::vector<PipelineOp>& steps) {
    const auto second = find(steps, Action::ReceiveForward, 1);
    std::rotate(steps.begin(), second, second + 1);
  };
  EXPECT_EQ(fault_of(broken(make("gpipe", 2, 2), 1, received_early)),
            "gpipe, from rank 0 to rank 1: the order of sends and receives differs at message 0: sent is the hidden "
            "state of micro-batch 0 for stage 1, "
            "received the hidden state of micro-batch 1 for stage 1");
}

TEST(Check, RefusesStraySteps) {
  const Schedule one = make("1f1b", 4, 4);
  const auto with = [&](int rank, const PipelineOp& step) {
    return broken(one, rank, [&](auto& steps) { steps.insert(steps.begin(), step); });
  };
  EXPECT_EQ(fault_of(with(0, {Action::Forward, 4, 0})), "1f1b, rank 0, step 0 (F4): there is no micro-batch 4");
  EXPECT_EQ(fault_of(with(0, {Action::Forward, 0, 1})), "1f1b, rank 0, step 0 (F0): there is no chunk 1");
  EXPECT_THAT(fault_of(with(0, {Action::Forward, 0, 0})), HasSubstr("(F0): occurs twice"));
  EXPECT_THAT(fault_of(with(0, {Action::ReceiveForward, 0, 0, 1})), HasSubstr("there is no stage on the other side"));
  EXPECT_THAT(fault_of(with(1, {Action::ReceiveForward, 0, 0, 2})),
              HasSubstr("its peer must be rank 0, which holds stage 0"));
  EXPECT_THAT(fault_of(with(0, {Action::Reduce, -1, 0})), HasSubstr("(F0): is after the Reduce of its chunk"));
  EXPECT_THAT(fault_of(with(0, {Action::Update})), HasSubstr("(F0): is after Update"));
  EXPECT_EQ(fault_of(broken(make("chimera", 2, 4), 0,
                            [](auto& steps) { steps.insert(steps.begin(), {Action::Forward, 3, 0}); })),
            "chimera, rank 0, step 0 (F3a): this micro-batch belongs to the other pipe");
  EXPECT_THAT(fault_of(broken(one, 3,
                              [](auto& steps) {
                                steps.insert(find(steps, Action::Backward, 0) + 1, {Action::BackwardInput, 0, 0});
                              })),
              HasSubstr("this micro-batch has gone backward already"));
}

TEST(Check, RefusesDeadlocksWithBlockingTransfers) {
  using enum Action;
  // Rank 0 sends micro-batch 1 before rank 1 receives it, because rank 1 first sends a gradient.
  std::vector<PipelineOp> first, second;
  for (int i = 0; i < 3; ++i) first.insert(first.end(), {{Forward, i, 0}, {SendForward, i, 0, 1}});
  for (int i = 0; i < 3; ++i) {
    first.insert(first.end(), {{ReceiveBackward, i, 0, 1}, {Backward, i, 0}});
    second.insert(second.end(), {{ReceiveForward, i, 0, 0},
                                 {Forward, i, 0},
                                 {BackwardInput, i, 0},
                                 {SendBackward, i, 0, 0},
                                 {BackwardWeight, i, 0}});
  }
  for (auto* steps : {&first, &second}) steps->insert(steps->end(), {{Reduce, -1, 0}, {Update}});
  EXPECT_EQ(fault_of({"by hand", Placement::looped(2, 1), 3, {first, second}}),
            "by hand, rank 0, step 3 (SendForward 1 to 1): waits forever when transfers block");
}

TEST(Check, RefusesNeighboursThatBothSendFirst) {
  const auto sends_first = [](std::vector<PipelineOp>& steps) {
    const auto receive = find(steps, Action::ReceiveForward, 0);
    EXPECT_EQ((receive + 1)->action, Action::SendForward);
    std::iter_swap(receive, receive + 1);
  };
  EXPECT_EQ(fault_of(broken(make("chimera", 2, 4), 1, sends_first)),
            "chimera, rank 0, step 1 (SendForward 0a to 1): waits forever when transfers block");
}

TEST(Check, RefusesMoreActivationsThanALimit) {
  const Schedule one = make("1f1b", 4, 4), split = make("zero-bubble-h1", 4, 8);
  EXPECT_NO_THROW(check(one, 4));
  EXPECT_NO_THROW(check(split, 4));
  const auto refusal = [](const Schedule& schedule, double limit, double share) -> std::string {
    return test::thrown_message([&] { check(schedule, limit, share); });
  };
  EXPECT_EQ(refusal(one, 3.5, 0.5),
            "[pipeline] 1f1b, rank 0, step 6 (F3): holds 4 live activations, more than the limit of 3.5");
  EXPECT_THAT(refusal(split, 4, 1), HasSubstr("more than the limit of 4"));
}

TEST(Check, DetectsTheOrderOfAccumulation) {
  Schedule schedule = make("gpipe", 1, 2);
  EXPECT_TRUE(accumulates_in_order(schedule));
  std::iter_swap(find(schedule.ranks[0], Action::Backward, 0), find(schedule.ranks[0], Action::Backward, 1));
  EXPECT_FALSE(accumulates_in_order(schedule));
  EXPECT_EQ(fault_of(schedule), "") << "legal, but not bitwise that of one process";
}

/// Returns random legal options: sizes that a family refuses are drawn again.
Options random_options(std::mt19937& random) {
  const auto whole = [&](int low, int high) { return std::uniform_int_distribution(low, high)(random); };
  const auto cost = [&] { return whole(0, 2) == 0 ? 1.0 : std::uniform_real_distribution(0.3, 2.0)(random); };
  while (true) {
    Options options{.name = families()[whole(0, static_cast<int>(families().size()) - 1)].name,
                    .stages = whole(1, 6),
                    .micro_batches = whole(1, 11)};
    if (find_family(options.name).takes_chunks) options.chunks = whole(0, 4);
    options.costs = {
        .forward = cost(), .backward_input = cost(), .backward_weight = cost(), .transfer = whole(0, 1) * 0.3 * cost()};
    if (whole(0, 3) == 0) options.memory_limit = whole(1, 8);
    try {
      const int stages = placement_of(options).stages();
      if (whole(0, 3) == 0) {
        for (int stage = 0; stage < stages; ++stage) options.costs.stage_weights.push_back(cost());
      }
      return options;
    } catch (const Error&) {
    }
  }
}

TEST(Check, AcceptsTheSchedulesOfAllFamilies) {
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i) {
    const Options options = random_options(random);
    const Schedule schedule = make_schedule(options);
    SCOPED_TRACE(testing::Message() << options.name << " stages " << options.stages << " micro_batches "
                                    << options.micro_batches << " chunks " << options.chunks << " memory_limit "
                                    << options.memory_limit);
    ASSERT_NO_THROW(check(schedule, options.memory_limit));
    EXPECT_TRUE(accumulates_in_order(schedule));
  }
}

}  // namespace
}  // namespace colossal::schedule::check_test
