// Modules whose parameters are on meta when they are handed to initialize(): filled chunk by chunk, never whole.
#include "colossal/train/first_values.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "colossal/base/error.h"
#include "colossal/checkpoint/safetensors.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/memory/account.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/train/module_training.h"
#include "support/temporary_folder.h"

namespace colossal::train::first_values_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr int64_t kWidth = 32;
constexpr int kLayers = 4;

using Named = ModuleTensors::Named;

std::string name_of(int layer, const char* what) { return "layer" + std::to_string(layer) + "." + what; }

/// Returns the values of a parameter of the module below. `seed` makes them differ between ranks.
at::Tensor value_of(const std::string& name, at::IntArrayRef shape, double seed = 0) {
  const double phase = static_cast<double>(name[5]) + (name.back() == 't' ? 0.5 : 0.25) + seed;
  return at::arange(c10::multiply_integers(shape)).add(phase).mul(0.37).sin().mul(0.2).view(shape);
}

/// Four linear layers; the first one's weight is the head, too. It stands for a module of another language: it replaces
/// its handles.
struct Foreign {
  explicit Foreign(bool on_meta, int64_t width = kWidth) {
    const auto add = [&](const std::string& name, at::IntArrayRef shape) {
      at::Tensor p = on_meta ? at::empty(shape, at::device(at::kMeta).dtype(at::kFloat)) : value_of(name, shape);
      tensors.parameters.emplace_back(name, p.requires_grad_(name != name_of(2, "bias")));
    };
    for (int i = 0; i < kLayers; ++i) add(name_of(i, "weight"), {width, width}), add(name_of(i, "bias"), {width});
    tensors.buffers.emplace_back("scale", at::full({width}, 0.5));
  }
  at::Tensor loss() const {
    const at::TensorOptions options = tensors.parameters[0].second.options().requires_grad(false);
    at::Tensor x = at::full({4, tensors.buffers[0].second.numel()}, 0.1, options);
    for (int i = 0; i < kLayers; ++i)
      x = at::tanh(at::linear(x, tensors.parameters[2 * i].second, tensors.parameters[2 * i + 1].second));
    return (at::linear(x, tensors.parameters[0].second) * tensors.buffers[0].second).to(at::kFloat).square().mean();
  }
  FirstValues replacing() {
    FirstValues first;
    first.replace = [this](size_t i, const at::Tensor& empty) {
      return tensors.parameters[i].second = empty.detach().requires_grad_(empty.requires_grad());
    };
    return first;
  }
  ModuleTensors tensors;
};

run::Config config_of(int64_t ranks, int64_t zero, const std::string& mode = "fp32") {
  run::Config config;
  config.run.device = "cpu";
  config.parallel.data = ranks;
  config.parallel.zero = zero;
  config.parallel.chunk_mib = 5.0 / 1024;  // a layer per chunk
  config.precision.mode = mode;
  config.optimizer.warmup_steps = 0;
  config.training.steps = 4;
  config.training.batch_size = 4 * ranks;
  return config;
}

std::map<std::string, at::Tensor> values_by_name(const std::string& prefix = "") {
  std::map<std::string, at::Tensor> values;
  for (const auto& [name, value] : Foreign(false).tensors.parameters) values[prefix + name] = value.detach();
  return values;
}

/// One submodule per layer, and the head, which has the first one's weight.
std::vector<Submodule> submodules() {
  std::vector<Submodule> parts;
  for (int i = 0; i < kLayers; ++i)
    parts.push_back({"layer" + std::to_string(i), {name_of(i, "weight"), name_of(i, "bias")}});
  parts.push_back({"head", {name_of(0, "weight")}});
  return parts;
}

/// Trains both modules alike and expects the same values.
void expect_alike(const Foreign& got, ModuleTraining& training, const Foreign& want, ModuleTraining& plain) {
  for (int step = 0; step < 3; ++step) {
    {
      const Gathered whole = training.gathered(), other = plain.gathered();
      for (size_t i = 0; i < got.tensors.parameters.size(); ++i)
        EXPECT_TRUE(at::equal(got.tensors.parameters[i].second, want.tensors.parameters[i].second))
            << got.tensors.parameters[i].first << " in step " << step;
    }
    for (const auto& [module, of] : {std::pair{&got, &training}, std::pair{&want, &plain}}) {
      of->zero_grad();
      of->backward(module->loss());
      of->step();
    }
  }
}

/// Runs body(world, config) for several residences of parameters.
template <class Body>
void for_each_residence(const Body& body) {
  const test::TemporaryFolder folder;
  for (const int ranks : {1, 2})
    for (const int64_t zero : {0, 2, 3, 4})
      for (const char* mode : {"fp32", "bf16"})
        comm::run_ranks(ranks, [&](comm::World& world) {
          run::Config config = config_of(ranks, std::min<int64_t>(zero, 3), mode);
          if (zero == 4) config.memory.host = 1 << 20, config.memory.disk = folder.path();
          body(world, config);
        });
}

TEST(FirstValues, FillsParametersFromWeights) {
  for_each_residence([&](comm::World& world, const run::Config& config) {
    Foreign module(true), alone(false);
    FirstValues first = module.replacing();
    first.weights = weights_in(values_by_name("base."));
    first.prefix = "base.";
    const auto training = initialize(world, ModuleTensors(module.tensors), config, {}, {}, first);
    const auto plain = initialize(world, alone.tensors, config);
    expect_alike(module, *training, alone, *plain);
  });
}

TEST(FirstValues, RunsInitOfOneSubmoduleAfterAnother) {
  for_each_residence([&](comm::World& world, const run::Config& config) {
    Foreign module(true), alone(false);
    FirstValues first = module.replacing();
    first.submodules = submodules();
    std::vector<size_t> calls;
    first.init = [&](size_t i, const std::vector<at::Tensor>& values) {
      calls.push_back(i);
      ASSERT_EQ(values.size(), first.submodules[i].parameters.size());
      for (size_t k = 0; k < values.size(); ++k) {
        EXPECT_EQ(values[k].scalar_type(), at::kFloat) << "the dtype of the module, not that of training";
        const double seed = i == 0 ? 7 : world.rank();  // the head decides; rank 0's values count
        at::Tensor(values[k]).copy_(value_of(first.submodules[i].parameters[k], values[k].sizes(), seed));
      }
      if (i == 0) at::Tensor(values[1]).copy_(value_of(name_of(0, "bias"), values[1].sizes()));
    };
    const auto training = initialize(world, ModuleTensors(module.tensors), config, {}, {}, first);
    EXPECT_THAT(calls, testing::UnorderedElementsAre(0, 1, 2, 3, 4));
    EXPECT_EQ(std::find(calls.begin(), calls.end(), 0) + 1, std::find(calls.begin(), calls.end(), 4))
        << "submodules that share a parameter follow each other";
    const auto plain = initialize(world, alone.tensors, config);
    expect_alike(module, *training, alone, *plain);
  });
}

TEST(FirstValues, ReadsFilesByTheNamesOfTiedParametersAndBuffers) {
  const test::TemporaryFolder folder;
  std::map<std::string, at::Tensor> values = values_by_name();
  values["head.weight"] = values.extract(name_of(0, "weight")).mapped();
  values["scale"] = at::full({kWidth}, 0.75);
  values["unused"] = at::zeros({1});
  checkpoint::write_safetensors(folder / "all.safetensors", values);
  comm::run_ranks(2, [&](comm::World& world) {
    Foreign module(true), alone(false);
    alone.tensors.buffers[0].second.fill_(0.75);
    FirstValues first = module.replacing();
    first.weights = weights_at(folder / "all.safetensors");
    first.aliases = {{"head.weight", name_of(0, "weight")}};
    first.ignored = {"unused"};
    const auto training = initialize(world, ModuleTensors(module.tensors), config_of(2, 3), {}, {}, first);
    const auto plain = initialize(world, alone.tensors, config_of(2, 3));
    expect_alike(module, *training, alone, *plain);
  });
}

/// Returns the peak bytes of a rank of `ranks` while the module is made and filled, as a part of the whole module.
double peak_of(bool by_init) {
  constexpr int64_t kWide = 256;
  const int64_t whole = kLayers * (kWide * kWide + kWide) * 4;
  double peak = 0;
  std::mutex mutex;
  const at::Tensor values = at::zeros({kWide, kWide}), vector = at::zeros({kWide});  // not of a rank's account
  comm::run_ranks(4, [&](comm::World& world) {
    Foreign module(true, kWide);
    FirstValues first = module.replacing();
    std::map<std::string, at::Tensor> weights;
    for (const auto& [name, value] : module.tensors.parameters) weights[name] = value.dim() == 2 ? values : vector;
    if (by_init) {
      first.submodules = submodules();
      first.init = [](size_t, const std::vector<at::Tensor>& own) {
        for (at::Tensor value : own) value.zero_();
      };
    } else {
      first.weights = weights_in(weights);
    }
    run::Config config = config_of(4, 3);
    config.parallel.chunk_mib = 0.26;  // a layer
    config.optimizer.name = "sgd";
    const memory::Account account;
    const auto training = initialize(world, ModuleTensors(module.tensors), config, {}, {}, first);
    const std::lock_guard lock(mutex);
    peak = std::max(peak, static_cast<double>(account.usage().peak_total) / static_cast<double>(whole));
  });
  return peak;
}

// A rank keeps a quarter of the values. A layer, which is another quarter, is there at most twice at a time: as `init`
// sets it, and on its way from rank 0.
TEST(FirstValues, NeverHoldsTheModuleWhole) {
  EXPECT_LT(peak_of(false), 0.85);
  EXPECT_LT(peak_of(true), 0.85);
}

/// Expects an error of initialize() on all ranks, and a module that is unchanged.
void expect_refused(const std::function<void(int rank, Foreign&, FirstValues&)>& spoil,
                    const testing::Matcher<std::string>& message, bool stays = true) {
  comm::run_ranks(2, [&](comm::World& world) {
    Foreign module(true);
    FirstValues first = module.replacing();
    spoil(world.rank(), module, first);
    EXPECT_THAT([&] { initialize(world, ModuleTensors(module.tensors), config_of(2, 3), {}, {}, first); },
                ThrowsMessage<Error>(message));
    EXPECT_EQ(module.tensors.parameters[0].second.is_meta(), stays);
  });
}

TEST(FirstValues, NamesWeightsThatAreNotThoseOfTheModule) {
  std::map<std::string, at::Tensor> values = values_by_name();
  values.erase(name_of(1, "bias"));
  values[name_of(2, "weight")] = at::zeros({3, 4});
  values["other"] = at::zeros({2});
  expect_refused([&](int, Foreign&, FirstValues& first) { first.weights = weights_in(values); },
                 AllOf(HasSubstr("layer1.bias"), HasSubstr("layer2.weight"), HasSubstr("[3, 4]"), HasSubstr("other"),
                       testing::Not(HasSubstr("layer0"))));
}

TEST(FirstValues, KeepsOnlyValuesThatMayBeMissing) {
  std::map<std::string, at::Tensor> values = values_by_name();
  for (const char* what : {"weight", "bias"})
    for (const int layer : {1, 3}) values.erase(name_of(layer, what));
  comm::run_ranks(2, [&](comm::World& world) {
    Foreign module(false);
    FirstValues first;
    first.weights = weights_in(values);
    first.missing = {name_of(1, "weight"), "head"};
    first.aliases = {{"head", name_of(3, "weight")}};
    EXPECT_THAT([&] { initialize(world, ModuleTensors(module.tensors), config_of(2, 3), {}, {}, first); },
                ThrowsMessage<Error>(AllOf(HasSubstr("layer1.bias"), HasSubstr("layer3.bias"), HasSubstr("`missing`"),
                                           testing::Not(HasSubstr("layer1.weight")))));
    first.missing = {"head", "layer1.weight", "layer1.bias", "layer3.bias", "layer9.bias"};
    EXPECT_THAT([&] { initialize(world, ModuleTensors(module.tensors), config_of(2, 3), {}, {}, first); },
                ThrowsMessage<Error>(HasSubstr("missing must name parameters of the module: got layer9.bias")));
    first.missing.pop_back();
    const auto training = initialize(world, ModuleTensors(module.tensors), config_of(2, 3), {}, {}, first);
    EXPECT_TRUE(at::equal(training->named_tensors().read("layer3.bias"), value_of("layer3.bias", {kWidth})));
  });
}

TEST(FirstValues, RefusesIncompleteRequests) {
  const auto init = [](size_t, const std::vector<at::Tensor>& own) {
    for (at::Tensor value : own) value.zero_();
  };
  expect_refused([&](int, Foreign&, FirstValues&) {}, HasSubstr("need either weights or init: got neither for layer0"));
  expect_refused(
      [&](int, Foreign&, FirstValues& first) { first.weights = weights_in(values_by_name()), first.replace = nullptr; },
      HasSubstr("got no replace for layer0.weight"));
  expect_refused(
      [&](int, Foreign&, FirstValues& first) {
        first.init = init, first.submodules = submodules();
        first.submodules[2].parameters.pop_back();
      },
      HasSubstr("no submodule lists layer2.bias"));
  expect_refused(
      [&](int, Foreign& module, FirstValues& first) {
        first.init = init, first.submodules = submodules();
        module.tensors.parameters[3].second = at::zeros({kWidth}).requires_grad_();
      },
      HasSubstr("submodule layer1 must be on meta, all or none: got 1 of 2"));
  expect_refused(
      [&](int, Foreign& module, FirstValues& first) {
        first.weights = weights_in(values_by_name());
        module.tensors.buffers[0].second = at::empty({kWidth}, at::kMeta);
      },
      HasSubstr("buffers must have memory: got scale on meta"));
}

TEST(FirstValues, RefusesRanksWithDifferentWeights) {
  comm::run_ranks(2, [&](comm::World& world) {
    Foreign module(true);
    FirstValues first = module.replacing();
    std::map<std::string, at::Tensor> values = values_by_name();
    if (world.rank() == 1) values[name_of(3, "weight")] = at::zeros({kWidth, kWidth});
    first.weights = weights_in(values);
    EXPECT_THAT([&] { initialize(world, ModuleTensors(module.tensors), config_of(2, 0), {}, {}, first); },
                ThrowsMessage<Error>(HasSubstr("layer3.weight")));
  });
}

TEST(FirstValues, ThrowsErrorsOfInitOnAllRanks) {
  expect_refused(
      [](int rank, Foreign&, FirstValues& first) {
        first.submodules = submodules();
        first.init = [rank](size_t i, const std::vector<at::Tensor>& own) {
          require(rank == 0 || i < 2, "test", "init fails");
          for (at::Tensor value : own) value.zero_();
        };
      },
      HasSubstr("init fails"), /*stays=*/false);
  expect_refused(
      [](int, Foreign&, FirstValues& first) {
        first.submodules = submodules();
        first.init = [](size_t i, const std::vector<at::Tensor>& own) {
          for (at::Tensor value : own) value.zero_();
          if (i == 2) at::Tensor(own[1]).fill_(std::numeric_limits<double>::quiet_NaN());
        };
      },
      HasSubstr("got NaN in layer2.bias of submodule layer2"), /*stays=*/false);
}

}  // namespace
}  // namespace colossal::train::first_values_test
