// Faults that must be noticed. The comparison of a mode with attention to the whole fails if collectives are off, if
// any one message is lost, and if one rotation of a ring is skipped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/comm/simulated_world.h"
#include "parallel/sequence_ranks.h"

namespace colossal::test::sequence_faults_test {
namespace {

/// A mode, and the number of messages that rank 0 sends in a pass forward and backward.
struct Faulty {
  std::string mode;
  int messages;
};

class SequenceFaults : public testing::TestWithParam<Faulty> {
 protected:
  static SequenceCase one(int64_t ranks) { return {.config = config_of(GetParam().mode, ranks), .tokens = 13}; }
};

TEST_P(SequenceFaults, NeedsItsCollectives) {
  EXPECT_THROW(check_attention(one(few_ranks(GetParam().mode)),
                               [](comm::World& world) {
                                 return DecoratedWorld(world, [](const std::shared_ptr<comm::Group>& group) {
                                   return std::make_shared<comm::IdleGroup>(group->name(), group->rank(),
                                                                            group->size());
                                 });
                               }),
               ParityError);
}

TEST_P(SequenceFaults, NeedsEveryMessage) {
  const SequenceCase c = one(GetParam().mode == "usp" ? 4 : 3);
  const auto losing = [](int lost) { return [=](comm::World& world) { return losing_a_message(world, lost); }; };
  for (int lost = 0; lost < GetParam().messages; ++lost)
    EXPECT_THROW(check_attention(c, losing(lost)), ParityError) << "message " << lost;
  EXPECT_NO_THROW(check_attention(c, losing(GetParam().messages))) << "there are no more";
}

INSTANTIATE_TEST_SUITE_P(Modes, SequenceFaults,
                         // Keys and values are gathered, their gradients reduced and scattered.
                         testing::Values(Faulty{"gather", 1 + 1},
                                         // Tokens are exchanged for heads and back, twice.
                                         Faulty{"ulysses", 2 + 2},
                                         // Parts go to two others; in backward again, and their gradients to three.
                                         Faulty{"ring", 2 + 2 + 3},
                                         // Both kinds of messages, in a ring of two.
                                         Faulty{"usp", 2 + 2 + 1 + 1 + 2},
                                         // Keys and values go to two others, and again; then the gradients.
                                         Faulty{"ring-self-attention", 4 + 4 + 1}),
                         [](const auto& info) {
                           std::string name = info.param.mode;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

class SequenceRotations : public testing::TestWithParam<Faulty> {};

// All ranks skip one rotation. They then use keys of the wrong rank again, or keep gradients that should move on.
TEST_P(SequenceRotations, NeedsEveryRotation) {
  const SequenceCase c{.config = config_of(GetParam().mode, odd_ranks(GetParam().mode)), .tokens = 13};
  const auto short_of = [](int rotation) {
    return [=](comm::World& world) { return short_of_a_rotation(world, rotation); };
  };
  for (int rotation = 0; rotation < GetParam().messages; ++rotation)
    EXPECT_THROW(check_attention(c, short_of(rotation)), ParityError) << "rotation " << rotation;
  EXPECT_NO_THROW(check_attention(c, short_of(GetParam().messages))) << "there are no more";
}

INSTANTIATE_TEST_SUITE_P(Modes, SequenceRotations,
                         testing::Values(Faulty{"ring", 2 + 2 + 3}, Faulty{"usp", 2 + 2 + 3},
                                         Faulty{"ring-self-attention", 4 + 4}),
                         [](const auto& info) {
                           std::string name = info.param.mode;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace colossal::test::sequence_faults_test
