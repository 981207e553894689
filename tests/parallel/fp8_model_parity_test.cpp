// Whole models with linear layers in fp8 and delayed scaling, under layouts of every kind, against one process in
// fp64. Scales agree because their histories do, and no number is on the border between two quantized values, so only
// the rounding of fp64 remains.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <ostream>

#include "colossal/base/error.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/fp8_product.h"
#include "colossal/parallel/tensor/vocabulary.h"
#include "parallel/summed_gradients.h"
#include "support/parity.h"
#include "support/tolerance.h"

namespace colossal::test::fp8_model_parity_test {
namespace {

using distributed::DistributedModel;
using distributed::ParallelConfig;
using Tensors = std::map<std::string, at::Tensor>;

constexpr int64_t kSequence = 6, kSteps = 4, kMicroBatches = 2;
constexpr double kLearningRate = 0.5;

struct Batch {
  at::Tensor inputs, labels;
};

/// Every sequence has the same weight, so each rank knows the share of a micro-batch in the loss.
Batch random_batch(int64_t rows, int64_t vocabulary, int64_t step) {
  auto generator = at::detail::createCPUGenerator(77 + step);
  const auto ids = at::TensorOptions(at::kLong);
  const auto draw = [&] { return at::randint(0, vocabulary, {rows, kSequence}, generator, ids); };
  const at::Tensor inputs = draw();
  return {inputs, draw()};
}

at::Tensor part_of(const at::Tensor& t, int64_t part, int64_t parts) {
  return t.narrow(0, part * (t.size(0) / parts), t.size(0) / parts);
}

/// A model that trains by plain gradient descent.
class Trained {
 public:
  Trained(comm::World& world, const ParallelConfig& config, const models::ModelShape& shape, bool is_fp8)
      : mesh_(world, config.axes()),
        fp8_({.scaling = nn::Fp8Recipe::Scaling::Delayed, .history = 2}),
        model_(mesh_, config, shape, options(is_fp8), {.micro_batches = kMicroBatches}) {}

  /// Returns this rank's share of the loss and computes the gradients.
  double gradients(const Batch& whole) {
    zero_gradients(parameters());
    const int64_t replica = mesh_.index("data"), replicas = mesh_.size("data");
    const auto own = [&](const at::Tensor& rows, int64_t i) {
      return part_of(part_of(rows, i, kMicroBatches), replica, replicas);
    };
    double total = 0;
    std::vector<nn::ForwardContext> micro_batches;
    for (int64_t i = 0; i < kMicroBatches; ++i) {
      const at::Tensor inputs = own(whole.inputs, i);
      const at::Tensor positions = at::arange(kSequence, inputs.options()).expand_as(inputs).contiguous();
      micro_batches.push_back(nn::step_of(nn::token_batch(inputs, positions), {.training = true}));
    }
    const auto loss = [&](int i, const models::States& end, const nn::ForwardContext& step) {
      const at::Tensor sum = model_.model().head->loss_sum(end[0], own(whole.labels, i), step);
      const at::Tensor share = sum / static_cast<double>(whole.labels.numel());
      total += share.item<double>();
      return share;
    };
    model_.train(micro_batches, loss, [](auto...) {});
    sum_gradients(parameters(), mesh_);
    at::Tensor sum = at::full({1}, total, at::kDouble);
    mesh_.group({"pipeline", "data"}).all_reduce(sum, comm::Reduce::Sum).wait();
    return sum.item<double>();
  }
  void descend() {
    const at::NoGradGuard no_grad;
    for (nn::Parameter& p : parameters()) p.value.sub_(p.value.grad(), kLearningRate);
  }
  void end_step(bool agrees = true) {
    parallel::GroupReduction ranks(mesh_.all_but("pipeline"));
    ops::RankReduction alone;
    fp8_.end_step(agrees ? ranks : alone);
  }
  void start_from(const Tensors& histories) {
    for (const auto& state : fp8_.states()) state->history.copy_(histories.at(state->name));
  }
  Tensors histories() const {
    Tensors result;
    for (const auto& state : fp8_.states()) result[state->name] = state->history.clone();
    return result;
  }
  nn::Parameters& parameters() { return model_.parameters(); }
  Tensors weights() {
    Tensors result;
    for (const nn::Parameter& p : parameters()) result[p.name] = p.value.detach().clone();
    return result;
  }

 private:
  nn::Parameters::Options options(bool is_fp8) {
    nn::Parameters::Options result{.dtype = at::kDouble, .seed = 3};
    if (is_fp8)
      result.products = {[this](auto product, const nn::Parameter& weight, nn::Parameters& parameters) {
        return fp8_.wrap(std::move(product), weight, parameters);
      }};
    return result;
  }

  comm::Mesh mesh_;
  nn::Fp8Products fp8_;
  DistributedModel model_;
};

enum class Fault { None, CollectivesOff, HistoriesApart, NoFp8 };

/// Checks kSteps of training that start from the history of one process's step.
void check(const models::ModelShape& shape, const ParallelConfig& config, Fault fault = Fault::None) {
  const int64_t rows = config.data * parallel::batch_parts(config.tensor) * kMicroBatches;
  const auto batch = [&](int64_t step) { return random_batch(rows, shape.vocabulary, step); };
  std::vector<double> losses;
  Tensors start, weights, histories;
  comm::run_ranks(1, [&](comm::World& world) {
    Trained trained(world, {}, shape, true);
    trained.gradients(batch(0));
    trained.end_step();
    start = trained.histories();
    for (int64_t step = 0; step < kSteps; ++step) {
      losses.push_back(trained.gradients(batch(step)));
      trained.descend();
      trained.end_step();
    }
    weights = trained.weights();
    histories = trained.histories();
  });
  // Sums over features and tokens, over all layers and steps, one after another.
  const int64_t terms = 64 * rows * kSequence * shape.layers * kSteps;
  const auto work = [&](comm::World& world) {
    Trained trained(world, config, shape, fault != Fault::NoFp8);
    trained.start_from(start);
    for (int64_t step = 0; step < kSteps; ++step) {
      const at::Tensor loss = at::scalar_tensor(trained.gradients(batch(step)), at::kDouble);
      expect_close(loss, at::scalar_tensor(losses[step], at::kDouble), terms, concat("loss of step ", step));
      trained.descend();
      trained.end_step(fault != Fault::HistoriesApart);
    }
    for (const nn::Parameter& p : trained.parameters()) {
      const at::Tensor& whole = weights.at(p.name);
      expect_within(p.value, local_part(whole, p.spec, trained.parameters().coordinates()), tolerance(whole, terms),
                    p.name);
    }
    for (const auto& [name, history] : trained.histories()) expect_close(history, histories.at(name), 1, name);
  };
  comm::run_ranks(static_cast<int>(config.ranks()), work, {.collectives_off = fault == Fault::CollectivesOff});
}

struct Case {
  int data;
  parallel::TensorConfig tensor;
  const char* schedule = "";  ///< schedule of a pipeline of two stages
};

void PrintTo(const Case& c, std::ostream* out) {
  std::string schedule = c.schedule;
  std::replace(schedule.begin(), schedule.end(), '-', '_');
  *out << "data" << c.data << "_" << name_of(c.tensor) << (schedule.empty() ? "" : "_") << schedule;
}

/// Returns every mode alone, and with two replicas if it has a form on four ranks. The sequence form and 3D, which
/// have none, run on two and on eight ranks. Pipelines that defer weight gradients and pipelines that do not are
/// included.
std::vector<Case> cases() {
  std::vector<Case> result{{2, {}},
                           {3, {}},
                           {1, {}, "1f1b"},
                           {2, {}, "zero-bubble-h1"},
                           {2, {.size = 2}, "1f1b"},
                           {2, {.size = 2, .sequence = true}},
                           {2, {.size = 8, .mode = "3d"}}};
  for (const parallel::TensorConfig& tensor : tensor_modes())
    for (const int data : {1, 2})
      if (data == 1 || tensor.size == 4) result.push_back({data, tensor});
  return result;
}

class Fp8Layouts : public testing::TestWithParam<Case> {
 protected:
  static ParallelConfig config() {
    const Case& c = GetParam();
    ParallelConfig config{.data = c.data, .tensor = c.tensor};
    if (*c.schedule) config.pipeline = {.size = 2, .schedule = c.schedule, .micro_batches = kMicroBatches};
    return config;
  }
};

TEST_P(Fp8Layouts, TrainsLikeOneProcess) {
  EXPECT_NO_THROW(check(tiny_gpt2(), config()));
  EXPECT_THROW(check(tiny_gpt2(), config(), Fault::NoFp8), ParityError);
  const bool has_stages = *GetParam().schedule, has_copies = GetParam().data * GetParam().tensor.size > 1;
  if (!has_stages) {  // pipelines run on messages alone
    EXPECT_THROW(check(tiny_gpt2(), config(), Fault::CollectivesOff), ParityError);
  }
  if (has_copies) {
    EXPECT_THROW(check(tiny_gpt2(), config(), Fault::HistoriesApart), ParityError);
  }
}

// Each kv head is on one rank, because ranks with copies would quantise their shares of a gradient, while one process
// sums them first.
TEST(Fp8ModelParity, EqualsOneProcessForGroupedHeadsWithoutCopies) {
  for (const parallel::TensorConfig& tensor :
       {parallel::TensorConfig{.size = 2}, {.size = 4, .mode = "2d"}, {.size = 8, .mode = "2.5d", .depth = 2}})
    EXPECT_NO_THROW(check(tiny_llama(), {.data = 2, .tensor = tensor})) << name_of(tensor);
}

INSTANTIATE_TEST_SUITE_P(Fp8ModelParity, Fp8Layouts, testing::ValuesIn(cases()), testing::PrintToStringParamName());

}  // namespace
}  // namespace colossal::test::fp8_model_parity_test
