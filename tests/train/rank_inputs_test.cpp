// Ranks with different configs, flags, data, modules or weights end with one error before the first step.
#include "colossal/train/rank_inputs.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn.h>

#include <filesystem>
#include <fstream>

#include "colossal/base/descriptor.h"
#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/train/module_training.h"
#include "support/thrown_message.h"
#include "train/whole_runs.h"

namespace colossal::train::rank_inputs_test {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::Not;

using Messages = std::vector<std::string>;

/// Returns the error message of each rank.
Messages messages_of(int ranks, const std::function<void(comm::World&)>& work) {
  Messages messages(static_cast<size_t>(ranks));
  comm::run_ranks(ranks, [&](comm::World& world) {
    messages[static_cast<size_t>(world.rank())] = test::thrown_message([&] { work(world); });
  });
  return messages;
}

class RankInputs : public Run {
 protected:
  /// Returns the error of two ranks at start if `change` alters config and flags of rank 1.
  Messages started(const std::function<void(run::Config&, TrainerOptions&)>& change, int64_t zero = 0) const {
    return messages_of(2, [&](comm::World& world) {
      run::Config c = make("run", 2, 1);
      c.parallel.zero = zero;
      TrainerOptions options;
      if (world.rank() == 1) change(c, options);
      Trainer(world, c, options);
    });
  }
};

TEST_F(RankInputs, AgreeOnEqualConfigs) {
  for (const int64_t zero : {0, 1, 3})
    EXPECT_EQ(started([](run::Config&, TrainerOptions&) {}, zero), (Messages{"", ""})) << zero;
}

TEST_F(RankInputs, NameTheDifferentKey) {
  const std::string want =
      "[run] learning_rate of [optimizer] is 0.001 on rank 0 and 0.0001 on rank 1; "
      "start all ranks with the same config";
  const auto change = [](run::Config& c, TrainerOptions&) { c.optimizer.learning_rate = 1e-4; };
  run::Config c = make("run", 2, 1);
  c.optimizer.learning_rate = 1e-3;
  const Messages messages = messages_of(2, [&](comm::World& world) {
    run::Config own = c;
    TrainerOptions options;
    if (world.rank() == 1) change(own, options);
    Trainer(world, own, options);
  });
  EXPECT_EQ(messages, (Messages{want, want}));
  EXPECT_FALSE(std::filesystem::exists(base + "/run"));  // no run was started
}

// With other sizes ranks would make other groups, so the comparison must precede them.
TEST_F(RankInputs, RefuseOtherLayouts) {
  EXPECT_THAT(started([](run::Config& c, TrainerOptions&) { c.parallel.data = 1, c.parallel.tensor.size = 2; }),
              Each(AllOf(HasSubstr("data of [parallel] is 2 on rank 0 and 1 on rank 1"),
                         HasSubstr("size of [parallel.tensor] is 1 on rank 0 and 2 on rank 1"))));
  EXPECT_THAT(started([](run::Config& c, TrainerOptions&) { c.parallel.zero = 3; }),
              Each(HasSubstr("zero of [parallel] is 0 on rank 0 and 3 on rank 1")));
  EXPECT_THAT(started([](run::Config& c, TrainerOptions&) { c.training.batch_size = 7; }),  // rank 1 refuses this
              Each(HasSubstr("batch_size of [training] is 8 on rank 0 and 7 on rank 1")));
}

TEST_F(RankInputs, CompareFolderAndProductsOfTheRun) {
  EXPECT_THAT(started([](run::Config& c, TrainerOptions&) { c.run.folder += "2"; }),
              Each(HasSubstr("folder of [run] is ")));
  EXPECT_THAT(started([](run::Config& c, TrainerOptions&) { c.run.matmul = "onednn"; }),
              Each(HasSubstr("matmul of [run] is ")));
  EXPECT_EQ(started([](run::Config& c, TrainerOptions&) { c.run.timeout = 7, c.run.stall_notice = 3; }),
            (Messages{"", ""}));
}

TEST_F(RankInputs, CountUnnamedKeys) {
  EXPECT_THAT(started([](run::Config& c, TrainerOptions&) {
                c.training.steps = 1, c.training.seed = 2, c.training.clip = 3, c.training.save_every = 4,
                c.training.keep_last = 5, c.training.sample_tokens = 6, c.optimizer.weight_decay = 0.5;
              }),
              Each(HasSubstr(", and 2 more differ; start all ranks with the same config")));
}

TEST_F(RankInputs, RefuseOtherFlags) {
  EXPECT_THAT(started([](run::Config&, TrainerOptions& o) { o.start = Start::Resume; }),
              Each(HasSubstr("the start is new on rank 0 and --resume on rank 1; start all ranks "
                             "with the same flags")));
  EXPECT_THAT(started([](run::Config&, TrainerOptions& o) { o.resume_step = 5; }),
              Each(HasSubstr("--resume-from is nothing on rank 0 and 5 on rank 1")));
  EXPECT_THAT(
      started([](run::Config&, TrainerOptions& o) { o.program.reward_function = std::make_shared<Descriptor>(); }),
      Each(HasSubstr("a function that scores answers is nothing on rank 0 and given on rank 1")));
}

// Simulates two hosts whose files have the same path.
TEST_F(RankInputs, RefuseOtherData) {
  std::filesystem::create_directories(base + "/sources0");
  std::filesystem::create_directories(base + "/sources1");
  for (int host : {0, 1}) {
    std::ofstream text(base + concat("/sources", host, "/text.txt"));
    for (int i = 0; i < 400; ++i) text << "line " << i * (37 + host) % 101 << " of a text\n";
  }
  const Messages messages = messages_of(2, [&](comm::World& world) {
    run::Config c = make("run", 2, 1);
    c.data.path = "builtin";
    Trainer(world, c, {.builtin_data = base + concat("/sources", world.rank())});
  });
  EXPECT_THAT(messages, Each(AllOf(HasSubstr("[data] "), HasSubstr("of the data is "), HasSubstr(" on rank 1"),
                                   HasSubstr("; give all ranks the same data"))));
}

/// Returns the error that both of two ranks throw for these traits of their data.
std::string refusal_of(const nlohmann::json& first, const nlohmann::json& other) {
  const Messages messages = messages_of(2, [&](comm::World& world) {
    const auto everyone = group_of_all(world);
    require_same(*everyone, data_inputs(world.rank() == 0 ? first : other));
  });
  EXPECT_EQ(messages[0], messages[1]);
  return messages[0];
}

TEST(RankData, NamesTheDifferentLeaf) {
  nlohmann::json files = nlohmann::json::array();
  for (int i = 0; i < 40; ++i) files.push_back({{"name", "a file"}, {"size", i}});
  const nlohmann::json first = {{"files", files}, {"split", {{"seed", 1}}}, {"none", nlohmann::json::array()}};
  nlohmann::json other = first;
  EXPECT_EQ(refusal_of(first, other), "");
  other["files"][31]["size"] = 7;
  EXPECT_EQ(refusal_of(first, other),
            "[data] `files[31].size` of the data is 31 on rank 0 and 7 on rank 1; give all ranks the same data");
  other = first;
  other["split"]["seed"] = 2;
  other["none"].push_back(5);
  EXPECT_EQ(refusal_of(first, other),
            "[data] `none` of the data is [] on rank 0 and nothing on rank 1, `split.seed` of the data is 1 on rank 0 "
            "and 2 on rank 1, `none[0]` of the data is nothing on rank 0 and 5 on rank 1; give all ranks the same "
            "data");
}

TEST(RankData, ShowsLongTextsAroundTheDifference) {
  const std::string same(300, 'a'), rest(300, 'z');
  const auto of = [](const std::string& text) {
    nlohmann::json traits;
    traits["text"] = text;
    return traits;
  };
  const std::string message = refusal_of(of(same + "one" + rest), of(same + "two" + rest));
  EXPECT_THAT(message, AllOf(HasSubstr("is ..."), HasSubstr("aonez"), HasSubstr("atwoz"), HasSubstr("z... on rank 1")));
  EXPECT_LT(message.size(), 500u);
  EXPECT_THAT(refusal_of(of(same), of(same + "b")), HasSubstr("aab\" on rank 1"));
}

/// A mesh of two axes: ranks 0 and 1 hold the first half of "split", 2 and 3 the second; all hold "whole".
struct Weights {
  explicit Weights(comm::World& world)
      : mesh(world, {{"tensor", 2}, comm::Mesh::batch("data", 2)}),
        split(at::full({2, 3}, static_cast<double>(world.rank() / 2), at::kFloat)),
        whole(at::arange(5, at::kFloat)) {}
  std::string refusal(WeightOrigin origin = WeightOrigin::Read) {
    return test::thrown_message([&] {
      require_same_weights(mesh,
                           {{"split", split, tensor::ShardSpec::split({4, 3}, 0, {"tensor"}), {}},
                            {"whole", whole, tensor::ShardSpec::whole({5}), {}}},
                           1, origin);
    });
  }
  comm::Mesh mesh;
  at::Tensor split, whole;
};

TEST(RankWeights, EqualOnRanksWithTheSamePart) {
  comm::run_ranks(4, [](comm::World& world) { EXPECT_EQ(Weights(world).refusal(), ""); });
}

TEST(RankWeights, NameTheParameterAndTheRanks) {
  comm::run_ranks(4, [](comm::World& world) {
    Weights weights(world);
    if (world.rank() == 3) weights.split[1][2] = 7;
    EXPECT_THAT(weights.refusal(), HasSubstr("the weights of split differ between rank 2 and rank 3"));
    if (world.rank() == 3) weights.split[1][2] = 1;
    if (world.rank() == 2) weights.whole[4] = -4;
    EXPECT_THAT(weights.refusal(), HasSubstr("the weights of whole differ between rank 0 and rank 2"));
  });
}

TEST(RankWeights, NameTheRemedyByTheirOrigin) {
  comm::run_ranks(4, [](comm::World& world) {
    Weights weights(world);
    if (world.rank() == 1) weights.whole[0] = 3;
    EXPECT_THAT(weights.refusal(WeightOrigin::Read),
                HasSubstr("; give all ranks the same checkpoint or folder of [model] from"));
    EXPECT_THAT(weights.refusal(WeightOrigin::Drawn),
                AllOf(HasSubstr("; the processors of these ranks generate different random numbers: start from weights "
                                "that were exported once (model.from), or use hosts of one kind"),
                      Not(HasSubstr("checkpoint"))));
  });
}

// Under ZeRO each rank holds a part of its own. Ranks cannot compare parts, so they must not read them.
TEST(RankWeights, StayUnreadIfHeldByOneRank) {
  comm::run_ranks(4, [](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 4)});
    for (const int sharers : {0, 2, 4}) {
      const int all = sharers == 0 ? 4 : sharers;
      int reads = 0;
      const at::Tensor value = at::full({2}, static_cast<double>(world.rank() % all), at::kFloat);
      const tensor::Stored stored(value.options(), {2}, [&](bool) { return ++reads, tensor::Held{value}; });
      const tensor::FlatPart part{world.rank() % all * 2, 2};
      require_same_weights(mesh, {{"p", stored, tensor::ShardSpec::whole({8}), part}}, sharers, WeightOrigin::Read);
      EXPECT_EQ(reads, sharers == 2 ? 1 : 0) << sharers;
    }
  });
}

struct Module : torch::nn::Module {
  explicit Module(int64_t width) { register_module("in", torch::nn::Linear(2, width)); }
};

run::Config module_config() {
  run::Config c;
  c.run.device = "cpu";
  c.parallel.data = 2;
  c.training.batch_size = 4;
  return c;
}

TEST(RankModules, RefuseOtherConfigs) {
  const Messages messages = messages_of(2, [](comm::World& world) {
    Module module(3);
    run::Config c = module_config();
    c.parallel.data = world.rank() == 0 ? 2 : 1;  // rank 1 alone would refuse this value
    initialize(world, module, c);
  });
  EXPECT_THAT(messages, Each(HasSubstr("data of [parallel] is 2 on rank 0 and 1 on rank 1")));
}

TEST(RankModules, RefuseOtherModules) {
  const Messages messages = messages_of(2, [](comm::World& world) {
    Module module(3 + world.rank());
    initialize(world, module, module_config());
  });
  EXPECT_THAT(messages, Each(AllOf(HasSubstr("[model] "),
                                   HasSubstr("the parameter in.weight is [3, 2] of Float, trained on rank 0 and [4, 2] "
                                             "of Float, trained on rank 1"),
                                   HasSubstr("; build the same module on all ranks"))));
}

struct SwappedModule : torch::nn::Module {
  explicit SwappedModule(bool swapped) {
    for (const char* name : {swapped ? "b" : "a", swapped ? "a" : "b"})
      register_module(name, torch::nn::Linear(torch::nn::LinearOptions(2, 3).bias(false)));
  }
};

TEST(RankModules, RefuseAnotherOrderOfParameters) {
  const Messages messages = messages_of(2, [](comm::World& world) {
    SwappedModule module(world.rank() == 1);
    initialize(world, module, module_config());
  });
  EXPECT_THAT(messages,
              Each(HasSubstr("[model] the order of the values differs between rank 0 and rank 1: number 1 is the "
                             "parameter a.weight on rank 0 and the parameter b.weight on rank 1; build the same module "
                             "on all ranks")));
}

// Simulates two hosts that do not share the folder.
TEST(RankModules, RefuseOtherCheckpoints) {
  const std::string base = testing::TempDir() + "/rank-modules";
  std::filesystem::remove_all(base);
  run::Config alone = module_config();
  alone.parallel.data = 1;
  for (const int host : {0, 1})
    comm::run_ranks(1, [&](comm::World& world) {
      Module module(3);
      const at::NoGradGuard no_grad;
      for (at::Tensor& p : module.parameters()) p.fill_(host);
      initialize(world, module, alone)->save(base + concat("/", host));
    });
  const Messages messages = messages_of(2, [&](comm::World& world) {
    Module module(3);
    initialize(world, module, module_config())->load(base + concat("/", world.rank()));
  });
  EXPECT_THAT(messages, Each(HasSubstr("differ between rank 0 and rank 1")));
}

}  // namespace
}  // namespace colossal::train::rank_inputs_test
