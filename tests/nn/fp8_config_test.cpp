#include "colossal/nn/fp8_config.h"

#include <gmock/gmock.h>

#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/nn/fp8_product.h"
#include "support/thrown_message.h"

namespace colossal::nn::fp8_config_test {
namespace {

/// A section that contains the fp8 keys in addition to its own, as [precision] does.
struct Section {
  std::string mode = "fp32";
  Fp8Config fp8;
  void fields(Fields& f) {
    f.text("mode", mode, "a key beside");
    fp8.fields(f);
  }
};

struct Root {
  Section precision;
  void fields(Fields& f) { f.section("precision", precision, "number formats"); }
};

Fp8Recipe recipe_of(const std::string& toml) {
  Root root;
  ConfigDocument::parse("[precision]\n" + toml, "x.toml").read(root);
  return fp8_recipe(root.precision.fp8);
}

TEST(Fp8Config, HasDefaultsOfRecipe) {
  const Fp8Recipe found = recipe_of("mode = \"fp8\""), wanted;
  EXPECT_EQ(found.scaling, wanted.scaling);
  EXPECT_EQ(found.history, wanted.history);
  EXPECT_EQ(found.margin, wanted.margin);
  EXPECT_EQ(found.power_of_two, wanted.power_of_two);
}

TEST(Fp8Config, ConvertsKeysToRecipe) {
  const Fp8Recipe found = recipe_of("fp8_scaling = \"delayed\"\nfp8_history = 64\nfp8_margin = 1.5");
  EXPECT_EQ(found.scaling, Fp8Recipe::Scaling::Delayed);
  EXPECT_EQ(found.history, 64);
  EXPECT_EQ(found.margin, 1.5);
}

TEST(Fp8Config, RefusesInvalidValues) {
  const auto refusal = [](const std::string& toml) { return test::thrown_message([&] { recipe_of(toml); }); };
  EXPECT_THAT(refusal("fp8_scaling = \"curent\""), testing::HasSubstr("precision.fp8_scaling"));
  EXPECT_THAT(refusal("fp8_history = 0"), testing::HasSubstr("`precision.fp8_history` must be between 1 and 1024"));
  EXPECT_THAT(refusal("fp8_margin = -1"), testing::HasSubstr("precision.fp8_margin"));
  EXPECT_THAT(refusal("fp8_histroy = 4"), testing::HasSubstr("did you mean `precision.fp8_history`"));
  EXPECT_EQ(test::thrown_message([] { fp8_recipe({.scaling = "late"}); }),
            "[precision] fp8_scaling must be current or delayed: got late");
}

}  // namespace
}  // namespace colossal::nn::fp8_config_test
