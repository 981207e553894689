// How often a step asks a device for numbers: the same whatever the model's depth and the number of micro-batches.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <string_view>

#include "colossal/comm/run_ranks.h"
#include "colossal/train/engine.h"
#include "support/parity.h"

namespace colossal::train::waits_test {
namespace {

thread_local int64_t waits = 0;

/// Counts operators that wait for a device, on this thread while it lives.
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

data::Batch batch_of(const models::ModelShape& shape, int64_t rows) {
  const auto ids = at::TensorOptions().dtype(at::kLong);
  if (const models::ImageShape& i = shape.image; i.classes > 0)
    return {at::ones({rows, i.channels, i.side, i.side}), at::ones({rows, 1}, ids), {}, {}};
  return {at::ones({rows, 8}, ids), at::ones({rows, 8}, ids), at::arange(8, ids).expand({rows, 8}).contiguous(), {}};
}

int64_t waits_of(models::ModelShape shape, int64_t layers, int64_t micro_batches, const std::string& clip_by = "norm") {
  int64_t count = 0;
  comm::run_ranks(1, [&](comm::World& world) {
    run::Config config;
    config.training.batch_size = 4;
    config.training.accumulate = micro_batches;
    config.training.clip = 1;
    config.training.clip_by = clip_by;
    shape.layers = layers;
    auto engine = initialize(world, config, shape);
    engine->zero_grad();
    const Waits counted;
    engine->train_step(batch_of(shape, 4));
    engine->step();
    count = counted.count();
  });
  return count;
}

TEST(Waits, DoNotGrowWithLayersNorWithMicroBatches) {
  for (const auto& shape : {test::tiny_gpt2(), test::tiny_llama(), test::tiny_vit()}) {
    const int64_t one = waits_of(shape, 1, 1);
    EXPECT_GE(one, 2) << "the loss and the norm are read";
    EXPECT_EQ(waits_of(shape, 3, 1), one) << shape.architecture;
    EXPECT_EQ(waits_of(shape, 1, 4), one) << shape.architecture;
    EXPECT_EQ(waits_of(shape, 3, 2, "largest"), one) << shape.architecture;
  }
}

}  // namespace
}  // namespace colossal::train::waits_test
