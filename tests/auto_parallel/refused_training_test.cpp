// What training under plans refuses: layouts, plans and annotations that do not fit, and other inputs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "auto_parallel/plan_courses.h"
#include "support/thrown_message.h"

namespace colossal::auto_parallel::refused_training_test {
namespace {

using ::testing::HasSubstr;

struct BadInput {
  std::string name;
  std::function<void(run::Config&, AutoOptions&)> change;
  std::string message;
};

class BadInputs : public testing::TestWithParam<BadInput> {};

TEST_P(BadInputs, ThrowWithTheWayOut) {
  comm::run_ranks(2, [&](comm::World& world) {
    const Subject subject = subjects().at("mlp")(0);
    run::Config config = config_of(2, 1, "bad");
    AutoOptions options;
    GetParam().change(config, options);
    EXPECT_THAT(colossal::test::thrown_message([&] {
                  auto_parallel::initialize(world, *subject.module, subject.loss, subject.inputs(0), config, options);
                }),
                HasSubstr(GetParam().message));
  });
}

INSTANTIATE_TEST_SUITE_P(
    All, BadInputs,
    testing::Values(BadInput{"pipeline", [](run::Config& c, AutoOptions&) { c.parallel.pipeline.size = 2; },
                             "got pipeline 2, sequence 1, expert 1; set them to 1"},
                    BadInput{"sequence", [](run::Config& c, AutoOptions&) { c.parallel.sequence.size = 2; },
                             "got pipeline 1, sequence 2, expert 1"},
                    BadInput{"expert", [](run::Config& c, AutoOptions&) { c.parallel.expert.size = 2; },
                             "got pipeline 1, sequence 1, expert 2"},
                    BadInput{"mode", [](run::Config& c, AutoOptions&) { c.parallel.tensor.mode = "2d"; },
                             "got tensor.mode 2d; leave the mode out"},
                    BadInput{"ranks", [](run::Config& c, AutoOptions&) { c.parallel.data = 4; },
                             "got 2 ranks, data 4, tensor 1"},
                    BadInput{"annotate", [](run::Config&, AutoOptions& o) { o.annotate = {{"fc1.wieght", "[R, R]"}}; },
                             "did you mean `fc1.weight`?"},
                    BadInput{"spec", [](run::Config&, AutoOptions& o) { o.annotate = {{"fc1.bias", "[R, R]"}}; },
                             "the legal ones are"},
                    BadInput{"plan", [](run::Config& c, AutoOptions&) { c.parallel.plan = "/nowhere/plan.json"; },
                             "/nowhere/plan.json"}),
    [](const testing::TestParamInfo<BadInput>& info) { return info.param.name; });

TEST(AutoTraining, RefusesInputsOfOtherShapesWithBoth) {
  comm::run_ranks(2, [](comm::World& world) {
    const Subject subject = subjects().at("mlp")(0);
    const auto training =
        auto_parallel::initialize(world, *subject.module, subject.loss, subject.inputs(0), config_of(2, 1, "shapes"));
    training->zero_grad();
    const std::string message =
        colossal::test::thrown_message([&] { training->backward(subject.inputs(0)); });  // all rows on every rank
    EXPECT_THAT(message, HasSubstr("got [8, 8]"));
    EXPECT_THAT(message, HasSubstr("of which a rank has [4, 8]"));
  });
}

TEST(AutoTraining, RefusesInputsOfOtherDtypes) {
  comm::run_ranks(1, [](comm::World& world) {
    const Subject subject = subjects().at("shared")(0);
    const auto training =
        auto_parallel::initialize(world, *subject.module, subject.loss, subject.inputs(0), config_of(1, 1, "dtypes"));
    training->zero_grad();
    std::vector<at::Tensor> narrow;
    for (const at::Tensor& input : subject.inputs(0)) narrow.push_back(input.to(at::kInt));
    EXPECT_THAT(colossal::test::thrown_message([&] { training->backward(narrow); }),
                HasSubstr("got int32 for input 0 (input_0), traced int64"));
  });
}

TEST(Config, RefusesAPlanForModelsOfTheLibrary) {
  run::Config config = config_of(1, 1, "own-model");
  config.parallel.plan = "plan.json";
  EXPECT_THAT(colossal::test::thrown_message([&] { config.validate(); }),
              HasSubstr("plan is for modules that colossal::auto_parallel trains"));
}

}  // namespace
}  // namespace colossal::auto_parallel::refused_training_test
