// The number of times that a step waits for values of a device, for any depth of the model and number of micro-batches.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <string_view>

#include "colossal/comm/run_ranks.h"
#include "colossal/models/registry.h"
#include "colossal/optim/config.h"
#include "colossal/train/engine.h"
#include "support/parity.h"

namespace colossal::train::waits_test {
namespace {

thread_local int64_t waits = 0;

/// Counts operators that wait for a device, on this thread, during its lifetime.
class Waits {
 public:
  Waits() {
    waits = 0;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& f) -> std::unique_ptr<at::ObserverContext> {
          const std::string_view name = f.name();
          waits += name == "aten::_local_scalar_dense" || name == "colossal::host_values";
          return nullptr;
        }));
  }
  ~Waits() { at::removeCallback(handle_); }
  int64_t count() const { return waits; }

 private:
  at::CallbackHandle handle_;
};

struct Choice {
  std::string clip_by = "norm", optimizer = "adamw";
};

/// Counts the second step, because in the first one GaLore computes its projections matrix by matrix.
int64_t waits_of(models::ModelShape shape, int64_t layers, int64_t micro_batches, const Choice& choice = {}) {
  int64_t count = 0;
  comm::run_ranks(1, [&](comm::World& world) {
    run::Config config;
    config.training.batch_size = 4;
    config.parallel.chunk_mib = 0.01;  // more layers make more chunks
    config.training.accumulate = micro_batches;
    config.training.clip = 1;
    config.training.clip_by = choice.clip_by;
    config.optimizer.name = choice.optimizer;
    if (choice.optimizer == "galore") config.optimizer.rank = 5;
    shape.layers = layers;
    auto engine = initialize(world, config, shape);
    const auto step = [&] {
      engine->zero_grad();
      engine->train_step(test::batch_of_ones(shape, 4, 8));
      engine->step();
    };
    step();
    const Waits counted;
    step();
    count = counted.count();
  });
  return count;
}

TEST(Waits, StayConstantForLayersAndMicroBatches) {
  for (const auto& shape : {test::tiny_gpt2(), test::tiny_llama(), test::tiny_vit(), test::tiny_bert()}) {
    const int64_t one = waits_of(shape, 1, 1);
    EXPECT_GE(one, 2) << "the loss and the norm are read";
    EXPECT_EQ(waits_of(shape, 3, 1), one) << shape.architecture->name;
    EXPECT_EQ(waits_of(shape, 1, 4), one) << shape.architecture->name;
    EXPECT_EQ(waits_of(shape, 3, 2, {.clip_by = "largest"}), one) << shape.architecture->name;
  }
}

TEST(Waits, StayConstantForLayersUnderEveryRule) {
  for (const std::string& rule : optim::rule_names())
    EXPECT_EQ(waits_of(test::tiny_gpt2(), 3, 1, {.optimizer = rule}),
              waits_of(test::tiny_gpt2(), 1, 1, {.optimizer = rule}))
        << rule;
}

}  // namespace
}  // namespace colossal::train::waits_test
