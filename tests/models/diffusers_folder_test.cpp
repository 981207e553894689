// Folders of diffusers: which architecture reads them, and what the registry refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/json.h"
#include "colossal/base/model_path.h"
#include "colossal/models/built_in.h"
#include "colossal/models/config.h"
#include "colossal/models/families/dit.h"
#include "colossal/models/registry.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::models::diffusers_folder_test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

json dit_config() { return dit_to_diffusers(built_in().resolve({.name = "dit-tiny"})); }

TEST(DiffusersFolder, FindsTheArchitectureOfItsClass) {
  const Registry registry = built_in();
  const ModelShape shape = registry.shape_of(dit_config());
  EXPECT_EQ(shape.architecture, registry.at("dit"));
  EXPECT_EQ(shape.architecture->diffusers.to_json(shape), dit_config());
  EXPECT_EQ(shape.architecture->to_json()(shape), dit_config());
  EXPECT_EQ(shape.architecture->diffusers.part, "transformer");
}

TEST(DiffusersFolder, NamesTheNearestClass) {
  const Registry registry = built_in();
  const auto message = [&](const json& config) { return test::thrown_message([&] { registry.shape_of(config); }); };
  EXPECT_THAT(message({{"_class_name", "DiTTransformer2dModel"}}),
              AllOf(HasSubstr("_class_name must be one of "), HasSubstr("did you mean `DiTTransformer2DModel`?")));
  EXPECT_THAT(message({{"_class_name", 3}}), HasSubstr("must be the name of a class: got 3"));
  json wrong = dit_config();
  wrong["patch_size"] = "two";
  EXPECT_THAT(message(wrong), HasSubstr("patch_size"));
}

TEST(DiffusersFolder, GivesItsShapeToAConfigAndSoDoesItsPipeline) {
  const test::TemporaryFolder folder;
  folder.write("pipeline/transformer/config.json", dit_config().dump());
  folder.write("pipeline/model_index.json", "{}");
  const ModelShape preset = built_in().resolve({.name = "dit-tiny"});
  ModelConfig config{.from = folder / "pipeline/transformer"};
  EXPECT_EQ(built_in().resolve(config).hidden, preset.hidden);
  config.from = folder / "pipeline";
  EXPECT_EQ(built_in().resolve(config).layers, preset.layers);
  config.own = own_keys({"class_names=" + [&] {
    std::string names;
    for (int64_t i = 0; i < preset.own.as<DitSizes>().classes; ++i) names += (i ? ",c" : "c") + std::to_string(i);
    return names;
  }()});
  EXPECT_EQ(built_in().resolve(config).task().class_names.at(1), "c1");
  config.own = own_keys({"patch=1"});
  EXPECT_THAT(test::thrown_message([&] { built_in().resolve(config); }), HasSubstr("remove patch from [model]"));
}

TEST(DiffusersFolder, StandsForTheDenoiserOfAPipeline) {
  const test::TemporaryFolder folder;
  folder.write("sd/model_index.json", "{}");
  EXPECT_THAT(test::thrown_message([&] { model_folder(folder / "sd"); }), HasSubstr("unet or transformer"));
  folder.write("sd/unet/config.json", "{}");
  EXPECT_TRUE(is_pipeline(folder / "sd"));
  EXPECT_EQ(model_folder(folder / "sd"), folder / "sd/unet");
  EXPECT_EQ(model_folder(folder / "sd/unet"), folder / "sd/unet");
  EXPECT_EQ(model_folder(folder / "none"), folder / "none");
}

TEST(DiffusersFolder, NeedsAnArchitectureWithItsFunctionsAndAClassOfItsOwn) {
  Registry registry;
  registry.add(dit_architecture());
  Architecture other = dit_architecture();
  other.name = "other";
  other.presets.clear();
  EXPECT_THAT(test::thrown_message([&] { registry.add(other); }),
              HasSubstr("folders of diffusers' class DiTTransformer2DModel are read by dit already"));
  other.diffusers.class_name = "Other";
  other.diffusers.to_json = nullptr;
  EXPECT_THAT(test::thrown_message([&] { registry.add(other); }),
              HasSubstr("a diffusers.class_name must have its names, from_json and to_json: got other without; set "
                        "them, or leave out class_name"));
}

}  // namespace
}  // namespace colossal::models::diffusers_folder_test
