// Stacks in Hugging Face folders: one parameter for all experts, stored as tensors of each expert or as one tensor.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "checkpoint/sample_state.h"
#include "colossal/base/error.h"
#include "colossal/checkpoint/hugging_face/external_part.h"
#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/checkpoint/safetensors.h"
#include "colossal/checkpoint/weight_source.h"
#include "support/ranks_values.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::checkpoint::stacked_names_test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using Tensors = std::map<std::string, at::Tensor>;

constexpr int64_t kExperts = 5, kFfn = 3, kHidden = 8;

/// Declares whole experts that an axis deals out, padded on 2 and 4 ranks, experts whose matrices are split, and
/// biases.
nn::Parameters model(const tensor::MeshCoordinates& coordinates) {
  using tensor::ShardSpec;
  nn::Parameters parameters(coordinates, {at::kFloat});
  const std::vector<tensor::Segment> gate_up{{kFfn}, {kFfn}};
  ShardSpec dealt = ShardSpec::split({kExperts, 2 * kFfn, kHidden}, 0, {"tensor"});
  dealt.splits[1].segments = gate_up;
  parameters.add("experts.gate_up.weight", dealt, {}, true);
  parameters.add("experts.gate_up.bias", ShardSpec::split({kExperts, 2 * kFfn}, 1, {"tensor"}, gate_up), {}, false);
  parameters.add("experts.down.weight", ShardSpec::split({kExperts, kHidden, kFfn}, 2, {"tensor"}), {}, true);
  parameters.add("router.weight", ShardSpec::whole({kExperts, kHidden}), {}, false);
  return parameters;
}

ExternalNames names() {
  return {{{.ours = "experts.gate_up.weight",
            .parts = {"model.experts.{}.w1.weight", "model.experts.{}.w3.weight"},
            .stacked = true,
            .joint = "model.experts.gate_up"},
           {.ours = "experts.gate_up.bias",
            .parts = {"model.experts.{}.w1.bias", "model.experts.{}.w3.bias"},
            .stacked = true},
           {.ours = "experts.down.weight",
            .parts = {"model.experts.{}.w2.weight"},
            .stacked = true,
            .joint = "model.experts.down"},
           {"router.weight", {"model.gate.weight"}}},
          "model."};
}

at::Tensor whole_value(const std::string& name, const std::vector<int64_t>& shape) {
  return sample_values(shape, at::kFloat, static_cast<int64_t>(name.size()));
}

/// Returns the tensors of a folder, built here by hand. `joint`: the matrices are one tensor for all experts.
Tensors folder_tensors(bool joint) {
  const at::Tensor gate_up = whole_value("experts.gate_up.weight", {kExperts, 2 * kFfn, kHidden});
  const at::Tensor bias = whole_value("experts.gate_up.bias", {kExperts, 2 * kFfn});
  const at::Tensor down = whole_value("experts.down.weight", {kExperts, kHidden, kFfn});
  Tensors tensors{{"model.gate.weight", whole_value("router.weight", {kExperts, kHidden})}};
  if (joint) tensors["model.experts.gate_up"] = gate_up, tensors["model.experts.down"] = down;
  for (int64_t e = 0; e < kExperts; ++e) {
    const std::string expert = "model.experts." + std::to_string(e) + ".";
    tensors[expert + "w1.bias"] = bias[e].slice(0, 0, kFfn);
    tensors[expert + "w3.bias"] = bias[e].slice(0, kFfn);
    if (joint) continue;
    tensors[expert + "w1.weight"] = gate_up[e].slice(0, 0, kFfn);
    tensors[expert + "w3.weight"] = gate_up[e].slice(0, kFfn);
    tensors[expert + "w2.weight"] = down[e];
  }
  return tensors;
}

void fill(nn::Parameters& parameters) {
  for (nn::Parameter& p : parameters)
    p.value.detach().copy_(local_part(whole_value(p.name, p.spec.shape), p.spec, parameters.coordinates()));
}

void expect_sample_values(const nn::Parameters& parameters) {
  for (const nn::Parameter& p : parameters) {
    const at::Tensor wanted = local_part(whole_value(p.name, p.spec.shape), p.spec, parameters.coordinates());
    EXPECT_TRUE(same_bits(p.value.detach(), wanted)) << p.name;
  }
}

/// Tensors in memory. Counts the bytes that the reader holds, from tensor() or row() to leave().
class CountingSource final : public WeightSource {
 public:
  explicit CountingSource(const Tensors& tensors) {
    for (const auto& [name, value] : tensors) {
      values_[name] = value.contiguous();
      files_[name] = {name, value.scalar_type(), value.sizes().vec()};
    }
    for (const auto& [name, entry] : files_) entries_[name] = &entry;
  }
  at::Tensor tensor(const std::string& name) const override { return held(name, values_.at(name)); }
  at::Tensor row(const std::string& name, int64_t row) const override {
    rows[name].insert(row);
    return held(name, values_.at(name).select(0, row));
  }
  void leave(const std::string& name) const override {
    names_left.insert(name);
    held_.erase(name);
  }

  mutable int64_t max_bytes = 0;
  mutable std::map<std::string, std::set<int64_t>> rows;
  mutable std::set<std::string> names_read, names_left;

 private:
  at::Tensor held(const std::string& name, const at::Tensor& value) const {
    names_read.insert(name);
    held_[name] += static_cast<int64_t>(value.nbytes());
    int64_t bytes = 0;
    for (const auto& [each, its] : held_) bytes += its;
    max_bytes = std::max(max_bytes, bytes);
    return value;
  }

  Tensors values_;
  std::map<std::string, TensorEntry> files_;
  mutable std::map<std::string, int64_t> held_;
};

void import_from(const CountingSource& source, nn::Parameters& parameters) {
  std::vector<NamedTensor> values;
  for (nn::Parameter& p : parameters) values.push_back({p.name, p.value.detach().fill_(7), p.spec, {}});
  EXPECT_THAT(import_weights(source, "the source", parameters, values, names()), testing::IsEmpty());
}

TEST(StackedNames, ListTensorsOfEachEntry) {
  const nn::Parameters parameters = model({});
  const std::vector<ExternalPart> parts = external_parts(parameters, names().names);
  ASSERT_EQ(parts.size(), kExperts * 5 + 1u);
  const ExternalPart& up = parts[2 * 3 + 1];  // of expert 3
  EXPECT_EQ(up.name, "model.experts.3.w3.weight");
  EXPECT_EQ(up.box.start, (std::vector<int64_t>{3, kFfn, 0}));
  EXPECT_EQ(up.box.size, (std::vector<int64_t>{1, kFfn, kHidden}));
  EXPECT_EQ(up.external_shape(), (std::vector<int64_t>{kFfn, kHidden}));
  EXPECT_EQ(up.to_ours(at::zeros({kFfn, kHidden})).sizes(), up.shape());
  EXPECT_EQ(up.to_theirs(at::zeros(up.shape())).sizes(), up.external_shape());
}

TEST(StackedNames, ImportBothFormsUnderEveryLayout) {
  for (const bool joint : {false, true}) {
    test::TemporaryFolder folder;
    write_safetensors(folder / "model.safetensors", folder_tensors(joint));
    for (const Layout& layout : layouts())
      for (int rank = 0; rank < layout.ranks(); ++rank) {
        nn::Parameters parameters = model(layout.coordinates(rank));
        for (nn::Parameter& p : parameters) p.value.detach().fill_(7);
        import_weights(folder.path(), parameters, names());
        expect_sample_values(parameters);
      }
  }
}

// Folders of a model without a head omit the prefix.
TEST(StackedNames, ImportBothFormsWithoutPrefix) {
  for (const bool joint : {false, true}) {
    test::TemporaryFolder folder;
    Tensors without;
    for (const auto& [name, value] : folder_tensors(joint)) without[name.substr(6)] = value;
    write_safetensors(folder / "model.safetensors", without);
    nn::Parameters parameters = model({});
    import_weights(folder.path(), parameters, names());
    expect_sample_values(parameters);
  }
}

TEST(StackedNames, HoldOneExpertWhileImporting) {
  constexpr int64_t kEntry = 2 * kFfn * kHidden * 4;  // bytes of gate and up of one expert
  for (const bool joint : {false, true}) {
    const CountingSource source(folder_tensors(joint));
    nn::Parameters parameters = model({});
    import_from(source, parameters);
    expect_sample_values(parameters);
    EXPECT_LE(source.max_bytes, kEntry) << joint;
    EXPECT_EQ(source.names_read, source.names_left) << joint;
    EXPECT_EQ(source.rows.size(), joint ? 2u : 0u);
  }
}

TEST(StackedNames, ReadExpertsOfOneRank) {
  const Layout layout{1, 2};
  nn::Parameters parameters = model(layout.coordinates(1));  // holds gate and up of experts 3 and 4
  const CountingSource joint(folder_tensors(true));
  import_from(joint, parameters);
  expect_sample_values(parameters);
  EXPECT_THAT(joint.rows.at("model.experts.gate_up"), testing::ElementsAre(3, 4));
  const CountingSource separate(folder_tensors(false));
  import_from(separate, parameters);
  expect_sample_values(parameters);
  for (int64_t e = 0; e < kExperts; ++e)
    EXPECT_EQ(separate.names_read.count("model.experts." + std::to_string(e) + ".w1.weight"), e >= 3 ? 1u : 0u) << e;
}

TEST(StackedNames, ExportEachEntryFromEveryLayoutBitwise) {
  const Tensors wanted = folder_tensors(false);
  for (const Layout& layout : layouts()) {
    test::TemporaryFolder folder;
    on_layout(layout, [&](comm::Group& world, const tensor::MeshCoordinates& coordinates) {
      nn::Parameters parameters = model(coordinates);
      fill(parameters);
      export_weights(folder.path(), parameters, names(), {{"model_type", "test"}}, world);
    });
    const SafetensorsReader reader(folder / "model.safetensors");
    EXPECT_EQ(reader.entries().size(), wanted.size());
    for (const auto& [name, value] : wanted) EXPECT_TRUE(same_bits(reader.tensor(name), value.contiguous())) << name;
  }
}

TEST(StackedNames, ExportSeveralFilesWithAnIndex) {
  test::TemporaryFolder folder;
  on_layout({1, 2}, [&](comm::Group& world, const tensor::MeshCoordinates& coordinates) {
    nn::Parameters parameters = model(coordinates);
    fill(parameters);
    export_weights(folder.path(), parameters, names(), {{"model_type", "test"}}, world, 400);
  });
  const auto index = nlohmann::json::parse(test::read_all(folder / "model.safetensors.index.json"));
  EXPECT_EQ(index["weight_map"].size(), folder_tensors(false).size());
  EXPECT_NE(index["weight_map"]["model.experts.0.w1.weight"], index["weight_map"]["model.experts.4.w1.weight"]);
  nn::Parameters parameters = model({});
  import_weights(folder.path(), parameters, names());
  expect_sample_values(parameters);
}

TEST(StackedNames, NameMissingAndUnknownExperts) {
  const auto refusal = [](const Tensors& tensors) {
    test::TemporaryFolder folder;
    write_safetensors(folder / "model.safetensors", tensors);
    nn::Parameters parameters = model({});
    return test::thrown_message([&] { import_weights(folder.path(), parameters, names()); });
  };
  Tensors tensors = folder_tensors(false);
  tensors.erase("model.experts.3.w2.weight");
  tensors["model.experts.5.w2.weight"] = at::zeros({kHidden, kFfn});
  EXPECT_THAT(refusal(tensors), AllOf(ContainsRegex("model.experts.3.w2.weight +\\[8, 3\\] +-"),
                                      ContainsRegex("model.experts.5.w2.weight +- +Float \\[8, 3\\]"),
                                      testing::Not(HasSubstr("experts.2.w2"))));
  tensors = folder_tensors(true);
  tensors["model.experts.down"] = tensors["model.experts.down"].slice(0, 0, 4);
  EXPECT_THAT(refusal(tensors), ContainsRegex("model.experts.down +\\[5, 8, 3\\] +Float \\[4, 8, 3\\]"));
  tensors = folder_tensors(true);
  tensors["model.experts.0.w2.weight"] = at::zeros({kHidden, kFfn});  // in both forms
  EXPECT_THAT(refusal(tensors), ContainsRegex("model.experts.0.w2.weight +- +Float \\[8, 3\\]"));
}

TEST(StackedNames, RefuseNamesThatDoNotFit) {
  const auto refusal = [](const std::function<void(std::vector<nn::ExternalName>&)>& edit) {
    std::vector<nn::ExternalName> all = names().names;
    edit(all);
    const nn::Parameters parameters = model({});
    return test::thrown_message([&] { external_parts(parameters, all); });
  };
  EXPECT_THAT(refusal([](auto& n) { n[0].parts.pop_back(), n[0].parts.emplace_back("w3"); }),
              HasSubstr("experts.gate_up.weight is a stack, so its parts must be whole tensors named with {}"));
  EXPECT_THAT(refusal([](auto& n) { n[0].parts.emplace_back("{}.w4"); }),
              HasSubstr("experts.gate_up.weight has 2 segments in dimension 1 but 3 names"));
  EXPECT_THAT(refusal([](auto& n) { n[2].transposed = true; }),
              HasSubstr("experts.down.weight must have at least two dimensions to be a stack, not transposed"));
}

}  // namespace
}  // namespace colossal::checkpoint::stacked_names_test
