// Tensors that are filled from stored ones of other names, under layouts that differ from that of the save.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/sample_state.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::checkpoint::substitutes_test {
namespace {

using tensor::ShardSpec;

const std::vector<int64_t> kShape{11, 6};

at::Tensor whole(int64_t salt) { return sample_values(kShape, at::kFloat, salt); }

class Substituted : public testing::Test {
 protected:
  /// Saves "weight" and "bias", and averages of the weight, which are of rows [4, 9) alone if `has_rows`.
  void save_all(bool has_rows) const {
    on_layout({1, 2}, [&](comm::Group& world, const tensor::MeshCoordinates& coordinates) {
      TrainingState state;
      const auto split = ShardSpec::split(kShape, 0, {"tensor"});
      state.tensors.push_back({"model.weight", local_part(whole(1), split, coordinates), split});
      state.tensors.push_back({"model.bias", at::full({3}, 2.f), ShardSpec::whole({3})});
      const at::Tensor average = whole(50);
      if (has_rows)
        state.tensors.push_back({"ema.weight", average.narrow(0, 4, 5).flatten(), ShardSpec::whole(kShape),
                                 tensor::FlatPart{4 * 6, 5 * 6}, nn::RowRange{4, 9}});
      else
        state.tensors.push_back({"ema.weight", local_part(average, split, coordinates), split});
      save(folder.path(), 1, state, world, coordinates, 0);
    });
  }
  /// Loads one tensor under each layout and requires `want` in it.
  void expect_loads(const std::string& name, at::ScalarType dtype, const at::Tensor& want, const std::string& prefix,
                    const std::set<std::string>& unused, const Substitutes& substitutes) const {
    for (const Layout& layout : {Layout{1, 1}, Layout{1, 2}, Layout{2, 4}})
      on_layout(layout, [&](comm::Group& world, const tensor::MeshCoordinates& coordinates) {
        const auto split = ShardSpec::split(kShape, 0, {"tensor"});
        const at::Tensor value = at::full(split.local_shape(coordinates), 99, at::dtype(dtype));
        TrainingState state{.tensors = {{name, value, split}}, .progress = {}};
        load(step_path(folder.path(), 1), state, world, coordinates, prefix, unused, substitutes);
        EXPECT_TRUE(at::equal(value, local_part(want.to(dtype), split, coordinates))) << name << ": " << value;
      });
  }

  test::TemporaryFolder folder;
};

TEST_F(Substituted, PrefersWhatIsStored) {
  save_all(false);
  const Substitutes averages{.preferred = {{"model.weight", "ema.weight"}}};
  expect_loads("model.weight", at::kFloat, whole(50), "model.", {"model.bias"}, averages);
  expect_loads("model.weight", at::kDouble, whole(50), "model.", {"model.bias"}, averages);
  expect_loads("model.weight", at::kFloat, whole(1), "model.", {"model.bias"}, {});
  expect_loads("model.weight", at::kFloat, whole(1), "model.", {"model.bias"},
               {.preferred = {{"model.weight", "ema.other"}}});
}

TEST_F(Substituted, KeepsRowsThatThePreferredOneLacks) {
  save_all(true);
  const at::Tensor want = whole(1);
  want.narrow(0, 4, 5).copy_(whole(50).narrow(0, 4, 5));
  expect_loads("model.weight", at::kFloat, want, "model.", {"model.bias"},
               {.preferred = {{"model.weight", "ema.weight"}}});
}

TEST_F(Substituted, FallsBackToAnotherName) {
  save_all(false);
  const std::set<std::string> unused{"model.weight", "model.bias", "ema.weight"};
  expect_loads("ema.new", at::kDouble, whole(1), "", unused, {.fallback = {{"ema.new", "model.weight"}}});
  expect_loads("ema.weight", at::kFloat, whole(50), "", unused, {.fallback = {{"ema.weight", "model.weight"}}});
}

TEST_F(Substituted, NamesWhatNeitherNameHas) {
  save_all(false);
  on_layout({2, 1}, [&](comm::Group& world, const tensor::MeshCoordinates& coordinates) {
    const auto load_one = [&](const std::string& name, const std::set<std::string>& unused) {
      return test::thrown_message([&] {
        TrainingState state{.tensors = {{name, at::zeros(kShape), ShardSpec::whole(kShape)}}, .progress = {}};
        load(step_path(folder.path(), 1), state, world, coordinates, "model.", unused,
             {.fallback = {{name, "ema.nothing"}}});
      });
    };
    EXPECT_THAT(load_one("model.other", {"model.bias", "model.weight"}), testing::HasSubstr("model.other"));
    EXPECT_THAT(load_one("model.weight", {}), testing::HasSubstr("model.bias"));
    const bool names_it = world.rank() == 1;  // one rank is enough
    EXPECT_EQ(load_one("model.weight", names_it ? std::set<std::string>{"model.bias"} : std::set<std::string>{}), "");
  });
}

}  // namespace
}  // namespace colossal::checkpoint::substitutes_test
