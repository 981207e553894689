// Runs on data.path = "builtin-shapes": samples, classes and refusals.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "colossal/data/pictures/normalization.h"
#include "colossal/data/pictures/shapes.h"
#include "colossal/models/registry.h"
#include "colossal/run/data.h"
#include "support/thrown_message.h"

namespace colossal::run::shape_data_test {
namespace {

using testing::HasSubstr;

Config config(const std::string& path, const std::vector<std::string>& data = {},
              const std::vector<std::string>& model = {}) {
  Config c;
  c.model = {.name = "vit-tiny-cifar", .hidden = 16, .layers = 1, .heads = 2, .own = models::own_keys(model)};
  c.data.path = path;
  c.data.held_out = 0.25;
  c.data.own = data_keys(data);
  c.training.batch_size = 10;
  return c;
}

RunData open(const Config& c) { return open_data(c, models::built_in(), "", 0, at::kCPU); }

std::string refusal(const Config& c) {
  return test::thrown_message([&] { open(c); });
}

TEST(ShapeData, ReadsShapesAtTheSideOfTheModel) {
  const RunData run = open(config("builtin-shapes:80", {}, {"side=24", "patch=8"}));
  EXPECT_EQ(run.training->samples(), 80);
  EXPECT_EQ(run.held_out->samples(), 20);
  EXPECT_THAT(run.shape.task().class_names, testing::ElementsAreArray(data::shape_names()));
  const tensor::Batch batch = run.held_out->next();
  EXPECT_EQ(batch.at("images").sizes(), (std::vector<int64_t>{10, 3, 24, 24}));
  EXPECT_TRUE(at::equal(batch.at("labels").flatten(), at::arange(10)));
  at::Tensor star = at::empty({3, 24, 24});
  data::Normalization({0.485, 0.456, 0.406}, {0.229, 0.224, 0.225})
      .write(data::draw_shape(6, data::held_out_shape_seed(6), 24, 24), false, star.mutable_data_ptr<float>());
  EXPECT_TRUE(at::equal(batch.at("images")[6], star));
  EXPECT_EQ(open(config("builtin-shapes")).training->samples(), 10'000);
}

TEST(ShapeData, NumbersClassesAsTheModelDoes) {
  const std::string names =
      R"(class_names=["bars","hourglass","heart","star","cross","diamond","triangle","square","ring","circle"])";
  const RunData run = open(config("builtin-shapes:40", {}, {names}));
  EXPECT_TRUE(at::equal(run.held_out->next().at("labels").flatten(), at::arange(9, -1, -1)));
  const RunData more = open(config("builtin-shapes:40", {}, {"classes=11"}));
  EXPECT_EQ(more.shape.task().class_names.back(), "LABEL_10");
}

TEST(ShapeData, EvaluatesOnlyOnRequest) {
  Config c = config("builtin-shapes:40");
  c.data.held_out = 0;
  EXPECT_EQ(open(c).held_out, nullptr);
  c = config("builtin-shapes:40");
  c.training.evaluate_batches = 0;
  EXPECT_EQ(open(c).held_out, nullptr);
}

TEST(ShapeData, RefusesWhatHasNoEffectOrDoesNotFit) {
  EXPECT_THAT(refusal(config("builtin-shapes", {"min_crop_area=0.5"})),
              HasSubstr("min_crop_area needs a folder of pictures in data.path, not drawn shapes"));
  EXPECT_THAT(refusal(config("builtin-shapes", {}, {"classes=9"})),
              HasSubstr("classes must hold those of the pictures: got 9, builtin-shapes has 10; set model.classes"));
  EXPECT_THAT(refusal(config("builtin-shapes", {}, {"channels=1"})),
              HasSubstr("channels must be 3 for pictures of builtin-shapes: got 1"));
  EXPECT_THAT(refusal(config("builtin-shapes:none")), HasSubstr("got builtin-shapes:none, did you mean"));
  EXPECT_THAT(refusal(config("builtin-shape")), HasSubstr("did you mean `builtin-shapes`?"));
}

}  // namespace
}  // namespace colossal::run::shape_data_test
