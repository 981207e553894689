// Resuming a run with a config of which some keys have changed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "colossal/models/config.h"
#include "support/thrown_message.h"
#include "train/whole_runs.h"

namespace colossal::train::changed_model_test {
namespace {

using testing::HasSubstr;
using testing::Not;

class ChangedModel : public Run {
 protected:
  run::Config llama(const std::vector<std::string>& own = {}) const {
    run::Config c = make("run", 1, 1);
    c.model = {
        .name = "llama-tiny", .hidden = 16, .layers = 1, .heads = 2, .positions = 32, .own = models::own_keys(own)};
    c.training.steps = 2;
    c.optimizer.warmup_steps = 0;
    return c;
  }
  /// Resumes from step 2 to step 3, and returns the log.
  std::string resumed(run::Config c, bool accepts_changes) const {
    c.training.steps = 3;
    comm::run_ranks(1, [&](comm::World& world) {
      Trainer trainer(world, c, {.start = Start::Resume, .accept_changed_model = accepts_changes});
      EXPECT_TRUE(trainer.run());
    });
    return log_of(c);
  }
};

TEST_F(ChangedModel, RefusesKeysUnlessAccepted) {
  train(llama(), Start::New);
  const run::Config changed = llama({"rope_theta=500000", "window=8"});
  const std::string message = test::thrown_message([&] { resumed(changed, false); });
  EXPECT_THAT(message, HasSubstr("[model] "));
  EXPECT_THAT(message, HasSubstr("keys that change what the weights compute must be as they were saved: got "
                                 "model.rope_theta = 10000.0 -> 5e+05, model.window = 0 -> 8; restore them, or add "
                                 "--accept-changed-model"));
  EXPECT_THAT(message, HasSubstr("training.steps = 2 -> 3"));
  const std::string log = resumed(changed, true);
  EXPECT_THAT(log, HasSubstr("the weights compute something else than when they were saved: model.rope_theta"));
  EXPECT_THAT(log, HasSubstr("the training continues differently than it began: training.steps = 2 -> 3"));
}

TEST_F(ChangedModel, WarnsOfChangesOfTheTrainingAlone) {
  train(llama(), Start::New);
  run::Config changed = llama();
  changed.optimizer.learning_rate *= 2;
  changed.training.save_every = 9;
  const std::string log = resumed(changed, false);
  EXPECT_THAT(log, HasSubstr("the training continues differently than it began: optimizer.learning_rate = "));
  EXPECT_THAT(log, HasSubstr("; changed since: training.save_every = 5 -> 9"));
  EXPECT_THAT(log, Not(HasSubstr("the weights compute")));
}

}  // namespace
}  // namespace colossal::train::changed_model_test
